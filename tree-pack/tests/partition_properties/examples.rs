//! Partitions of small trees, in full.

use tree_pack::{
    Gateway, Objective, PackOptions, Partitioning, PastRun, PrefixForest, Trajectory,
    build_forests, flat_forests, pack_step,
};

use super::MODES;
use super::reference::{past_keys, predictions};

/// With a budget for every tree, partitioning changes nothing; a smaller budget is an error by
/// default.
#[test]
fn partitioning_touches_only_trees_over_the_budget() {
    let trajectory = |task: &str, tokens: &[u32]| {
        Trajectory::new(task, "run", tokens.to_vec(), vec![true; tokens.len()])
    };
    let trajectories = [
        trajectory("a", &[1, 2]),
        trajectory("b", &[1, 2, 3, 4, 5, 6, 7]),
        trajectory("c", &[1, 2, 3]),
    ];
    let forests = build_forests(&trajectories).unwrap();
    for partitioning in MODES {
        let options = |token_budget, partitioning| PackOptions {
            partitioning,
            ..PackOptions::new(token_budget)
        };
        let whole = pack_step(&trajectories, &forests, &options(7, Partitioning::Refuse)).unwrap();
        let step = pack_step(&trajectories, &forests, &options(7, partitioning)).unwrap();
        assert_eq!(step, whole);

        // The small trees share a pack; the parts of the large one are together.
        let step = pack_step(&trajectories, &forests, &options(5, partitioning)).unwrap();
        let tasks: Vec<_> = step
            .packs
            .iter()
            .map(|pack| pack.task_ids.join("+"))
            .collect();
        assert_eq!(tasks, ["a+c", "b", "b"]);
        assert!(step.packs[1].gateway.is_none());
        let gateway = step.packs[2].gateway.as_ref().unwrap();
        assert_eq!((gateway.parent, gateway.past_keys()), (1, 2));
        assert_eq!(gateway.root_parents, [1]);
        assert_eq!(step.packs[2].layout.position_ids, [2, 3, 4, 5, 6]);
        // The parent makes the prediction across the cut.
        assert_eq!(step.packs[1].occurrences.rows, [0, 1]);
        assert_eq!(step.packs[1].occurrences.targets, [2, 3]);
        let count: usize = step.packs.iter().map(|pack| pack.occurrences.len()).sum();
        assert_eq!(
            count,
            predictions(&trajectories, Objective::PerOccurrence).len()
        );
    }
}

/// Rows of siblings before the cut are not past keys, and positions continue by depth.
#[test]
fn past_keys_skip_siblings_before_the_cut() {
    let trajectory =
        |tokens: &[u32]| Trajectory::new("t", "run", tokens.to_vec(), vec![true; tokens.len()]);
    let trajectories = [
        trajectory(&[1, 2, 3]),
        trajectory(&[1, 2, 4, 5, 6, 7, 8, 9, 10]),
        trajectory(&[1, 2, 11]),
    ];
    let forests = build_forests(&trajectories).unwrap();
    for partitioning in MODES {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(6)
        };
        let step = pack_step(&trajectories, &forests, &options).unwrap();
        let tokens = step.packs.iter().map(|pack| pack.layout.tokens.clone());
        let tokens: Vec<_> = tokens.collect();
        assert_eq!(tokens, [vec![1, 2, 3, 4, 11], vec![5, 6, 7, 8, 9, 10]]);
        let child = &step.packs[1];
        let run = |rows, position| PastRun {
            pack: 0,
            rows,
            position,
            visible_to: 0..6,
        };
        let gateway = Gateway {
            parent: 0,
            runs: vec![run(0..2, 0), run(3..4, 2)],
            root_parents: vec![2],
        };
        assert_eq!(child.gateway, Some(gateway));
        assert_eq!(child.layout.position_ids, [3, 4, 5, 6, 7, 8]);
        assert_eq!(child.layout.parents, [-1, 0, 1, 2, 3, 4]);
    }
}

/// The example of the documentation: two parts share a pack; three levels of nodes, two of packs.
#[test]
fn parts_that_continue_one_part_share_a_pack() {
    let trajectories = ["ABCDE", "ABFGHIJ", "ABFK", "ABLM"].map(|tokens| {
        let tokens: Vec<u32> = tokens.bytes().map(u32::from).collect();
        let mask = vec![true; tokens.len()];
        Trajectory::new("t", "run", tokens, mask)
    });
    let forests = build_forests(&trajectories).unwrap();
    let packs = |partitioning| {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(5)
        };
        let step = pack_step(&trajectories, &forests, &options).unwrap();
        let letters = |tokens: &[u32]| -> String {
            let letters = tokens.iter().map(|&token| char::from(token as u8));
            letters.collect()
        };
        let packs = step.packs.iter().map(|pack| {
            let past = past_keys(pack).into_iter();
            let past = past.map(|((owner, row), _)| step.packs[owner].layout.tokens[row as usize]);
            let past = letters(&past.collect::<Vec<_>>());
            format!("{past}>{}", letters(&pack.layout.tokens))
        });
        (packs.collect::<Vec<_>>(), step)
    };
    let (connected, _) = packs(Partitioning::Connected);
    assert_eq!(connected, [">ABFK", "AB>CDE", "ABF>GHIJ", "AB>LM"]);
    let (shared, step) = packs(Partitioning::Shared);
    assert_eq!(shared, [">ABFK", "AB>CDELM", "ABF>GHIJ"]);
    assert_eq!(step.packs[1].layout.position_ids, [2, 3, 4, 2, 3]);
    assert_eq!(step.packs[1].gateway.as_ref().unwrap().root_parents, [1, 1]);
    // B predicts C, F and L.
    assert_eq!(step.packs[0].occurrences.rows, [0, 1, 1, 1, 2, 2]);
    assert_eq!(step.retained_tokens(), 9);
}

/// The token counts of the example in "Tree Training" (figure 5): a tree of 83k tokens whose
/// trajectories have 164k, trained within 60k tokens. Trees that repeat their common prefix have
/// 102k tokens, parts with gateways 83k.
#[test]
fn gateways_compute_every_token_once() {
    let mut fresh = 0..;
    let mut tokens = |thousands: usize| fresh.by_ref().take(1000 * thousands).collect::<Vec<u32>>();
    let prompt = tokens(19);
    let mut trajectories = Vec::new();
    for (turn, answers) in [(2, [13, 12, 12].as_slice()), (1, &[12, 12])] {
        let turn = tokens(turn);
        for &answer in answers {
            let tokens = [prompt.clone(), turn.clone(), tokens(answer)].concat();
            let mask = vec![true; tokens.len()];
            trajectories.push(Trajectory::new("example", "run", tokens, mask));
        }
    }
    let rows = |forests: &[PrefixForest], partitioning| {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(60_000)
        };
        let step = pack_step(&trajectories, forests, &options).unwrap();
        let rows = step.packs.iter().map(|pack| pack.layout.len());
        (rows.sum::<usize>(), step.packs.len())
    };
    let flat = flat_forests(&trajectories).unwrap();
    let trees = build_forests(&trajectories).unwrap();
    assert_eq!(rows(&flat, Partitioning::Refuse).0, 164_000);
    assert_eq!(rows(&trees, Partitioning::RepeatedPrefixes), (102_000, 2));
    assert_eq!(rows(&trees, Partitioning::Connected), (83_000, 2));
    assert_eq!(rows(&trees, Partitioning::Shared), (83_000, 2));
}

/// A path of a million tokens, and paths that end at every 500th token of one another.
#[test]
fn long_paths_are_cut() {
    let path = |length: usize| Trajectory::new("path", "run", vec![1; length], vec![true; length]);
    let nested: Vec<_> = (1..=100).map(|part| path(500 * part)).collect();
    for (trajectories, parts) in [(vec![path(1_000_000)], 1000), (nested, 50)] {
        let forests = build_forests(&trajectories).unwrap();
        let tokens = forests[0].tokens().len();
        for partitioning in MODES {
            let options = PackOptions {
                partitioning,
                ..PackOptions::new(1000)
            };
            let step = pack_step(&trajectories, &forests, &options).unwrap();
            assert_eq!(step.packs.len(), parts);
            assert_eq!(step.validate(), Ok(()));
            assert_eq!(step.retained_tokens(), tokens);
            let last = step.packs[parts - 1].gateway.as_ref().unwrap();
            assert_eq!(last.past_keys(), tokens - 1000);
            assert_eq!(last.runs.len(), parts - 1);
        }
    }
}
