//! Errors that would otherwise be silent: packs of different steps, inconsistent columns, token ids
//! outside the vocabulary, steps that train nothing.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;

use tree_pack::{
    Advantage, BatchId, LossForm, Pack, PackOptions, PackedStep, Partitioning, StepTrajectory,
    TokenPlace, Trajectory, TreeLayout, assign_to_ranks, build_forests, pack_step, validate_packs,
};

/// A trajectory of which all tokens except the first are trained.
fn trajectory(task: &str, rollout: &str, tokens: &[u32]) -> Trajectory {
    Trajectory {
        advantage: Some(Advantage::Trajectory(0.5)),
        old_log_probs: Some(vec![-1.0; tokens.len() - 1]),
        ref_log_probs: Some(vec![-2.0; tokens.len() - 1]),
        sampling_log_probs: Some(vec![-3.0; tokens.len() - 1]),
        ..Trajectory::new(task, rollout, tokens.to_vec(), vec![true; tokens.len()])
    }
}

fn options() -> PackOptions {
    PackOptions {
        loss: LossForm::PerToken,
        partitioning: Partitioning::Connected,
        ..PackOptions::new(4)
    }
}

fn pack(trajectories: &[Trajectory], options: &PackOptions) -> PackedStep {
    pack_step(trajectories, &build_forests(trajectories).unwrap(), options).unwrap()
}

/// A fork of three branches, and a path: two packs.
fn data() -> Vec<Trajectory> {
    vec![
        trajectory("a", "0", &[1, 2, 3]),
        trajectory("a", "1", &[1, 2]),
        trajectory("a", "2", &[1, 4]),
        trajectory("b", "0", &[5, 6]),
    ]
}

fn step() -> PackedStep {
    let step = pack(&data(), &options());
    assert_eq!(step.packs.len(), 2);
    step
}

/// The id of a step changes with everything that changes the step, and with nothing else.
#[test]
fn steps_have_ids_of_their_own() {
    let same = pack(&data(), &options());
    assert_eq!(same, step());
    assert!(same.packs[0].step.is_some());
    assert_eq!(same.packs[0].step, same.packs[1].step);

    type Change = fn(&mut Vec<Trajectory>);
    let changes: [Change; 10] = [
        |_| {},
        |data| data[0].tokens[2] = 9,
        |data| data[0].tokens[0] = 9,
        // The same numbers of tokens, trained or not, in another order.
        |data| data.swap(0, 2),
        |data| data[3].loss_mask[1] = false,
        |data| data[0].advantage = Some(Advantage::Trajectory(0.25)),
        |data| data[0].old_log_probs = Some(vec![-1.0, -1.5]),
        |data| data[0].ref_log_probs = Some(vec![-1.0, -1.5]),
        |data| data[0].sampling_log_probs = Some(vec![-1.0, -1.5]),
        |data| {
            data.pop();
        },
    ];
    let ids = changes.map(|change| {
        let mut data = data();
        change(&mut data);
        pack(&data, &options()).packs[0].step
    });
    assert_eq!(BTreeSet::from(ids.map(|id| format!("{id:?}"))).len(), 10);

    // Another denominator, another cut of the same trees.
    let sum = PackOptions {
        aggregation: tree_pack::Aggregation::Sum,
        ..options()
    };
    assert_ne!(pack(&data(), &sum).packs[0].step, ids[0]);
    let small = PackOptions {
        token_budget: 2,
        ..options()
    };
    assert_ne!(pack(&data(), &small).packs[0].step, ids[0]);
    // Packs that were built without a step have no id.
    assert_eq!(Pack::default().step, None);
}

/// Two steps of the same shape, in which all numbers of a column change at once, by powers of two.
#[test]
fn ids_tell_weights_apart() {
    let mut ids = BTreeSet::new();
    for length in 2..40 {
        for weight in 1..40 {
            let mut one = trajectory("a", "0", &vec![1; length]);
            one.weight = f64::from(weight);
            let mut other = trajectory("a", "1", &[1, 2]);
            other.weight = 1.0 / f64::from(weight);
            let options = PackOptions {
                aggregation: tree_pack::Aggregation::WeightedTokenMean,
                ..PackOptions::new(100)
            };
            ids.insert(format!("{:?}", pack(&[one, other], &options).packs[0].step));
        }
    }
    assert_eq!(ids.len(), 38 * 39);
}

#[test]
fn packs_of_different_steps_are_no_step() {
    let step = step();
    let other = pack(&data()[..3], &options());
    let packs = [step.packs[1].clone(), other.packs[0].clone()];
    assert_eq!(
        validate_packs(&packs).unwrap_err().to_string(),
        "pack 1 is of another optimizer step than pack 0: its weights have another denominator"
    );
    // A pack without a step matches every step; packs with steps are still compared.
    let mut unknown = packs[0].clone();
    unknown.step = None;
    let [first, second] = packs;
    assert_eq!(validate_packs(&[unknown.clone(), second.clone()]), Ok(()));
    assert_eq!(
        validate_packs(&[unknown, first, second])
            .unwrap_err()
            .to_string(),
        "pack 2 is of another optimizer step than pack 1: its weights have another denominator"
    );
}

#[test]
fn ranks_keep_the_step() {
    let step = step();
    let assignment = assign_to_ranks(&step, NonZeroUsize::new(2).unwrap(), |_| 1.0).unwrap();
    for rank in 0..2 {
        let own = assignment.step_of(&step, rank);
        assert_eq!(own.packs[0].step, step.packs[0].step);
        assert_eq!(own.trajectories, step.trajectories);
    }
}

#[test]
fn columns_that_do_not_fit_are_named() {
    type Damage = (&'static str, fn(&mut Pack));
    let damages: [Damage; 13] = [
        (
            "targets: got 0 entries, expected 1, as many as rows",
            |pack| pack.occurrences.targets.clear(),
        ),
        (
            "weights: got 2 entries, expected 1, as many as rows",
            |pack| pack.occurrences.weights.push(1.0),
        ),
        (
            "multiplicities: got 0 entries, expected 1, as many as rows",
            |pack| pack.occurrences.multiplicities.clear(),
        ),
        (
            "trajectories: got 0 entries, expected 1, as many as rows",
            |pack| pack.occurrences.trajectories.clear(),
        ),
        (
            "token_indices: got 2 entries, expected 1, as many as rows",
            |pack| pack.occurrences.token_indices.push(3),
        ),
        (
            "advantages: got 0 entries, expected 1, as many as rows",
            |pack| pack.occurrences.advantages = Some(Vec::new()),
        ),
        (
            "old_log_probs: got 2 entries, expected 1, as many as rows",
            |pack| pack.occurrences.old_log_probs = Some(vec![0.0; 2]),
        ),
        (
            "ref_log_probs: got 0 entries, expected 1, as many as rows",
            |pack| pack.occurrences.ref_log_probs = Some(Vec::new()),
        ),
        (
            "sampling_log_probs: got 0 entries, expected 1, as many as rows",
            |pack| pack.occurrences.sampling_log_probs = Some(Vec::new()),
        ),
        (
            "targets: got 1 entries, expected 0, as many as rows",
            |pack| pack.occurrences.rows.clear(),
        ),
        ("rows: got 2 at entry 0, expected a row below 2", |pack| {
            pack.occurrences.rows[0] = 2
        }),
        (
            "targets: got 2147483648 at entry 0, expected a token id of at most 2147483647",
            |pack| pack.occurrences.targets[0] = 1 << 31,
        ),
        ("", |pack| pack.padded_len = 1),
    ];
    for (expected, damage) in damages {
        let mut step = step();
        damage(&mut step.packs[1]);
        let expected = match expected {
            "" => "pack 1: padded_len: got 1, expected at least 2, its tokens".to_owned(),
            _ => format!("pack 1: occurrences: {expected}"),
        };
        assert_eq!(step.validate().unwrap_err().to_string(), expected);
    }
    let mut step = step();
    step.packs[0].occurrences.rows.swap(0, 2);
    assert_eq!(
        step.validate().unwrap_err().to_string(),
        "pack 0: occurrences: rows: got 0 at entry 1, expected at least 1, the row before: rows \
         ascend"
    );
}

#[test]
fn trajectories_of_a_step_have_names() {
    let mut data = data();
    data[1].segments = 3;
    data[1].segment = 2;
    let step = pack(&data, &options());
    assert_eq!(
        step.trajectories[1],
        StepTrajectory {
            task_id: "a".into(),
            rollout_id: "1".into(),
            segment: 2,
            data_index: 1,
            trained_tokens: 1,
        }
    );
    let names = step.trajectories.iter();
    let names: Vec<_> = names.map(|one| (&*one.task_id, &*one.rollout_id)).collect();
    assert_eq!(names, [("a", "0"), ("a", "1"), ("a", "2"), ("b", "0")]);
}

/// Token 53 in every place, and the trajectory that its message names.
#[test]
fn tokens_outside_of_the_vocabulary_are_named() {
    let message = |data: &[Trajectory]| {
        let step = pack(data, &options());
        assert_eq!(step.check_vocabulary(54), Ok(()));
        step.check_vocabulary(50).unwrap_err().to_string()
    };
    let text = |who: &str, position: usize| {
        format!(
            "{who}: token 53 at position {position}, expected an id below 50, the size of the \
             vocabulary"
        )
    };
    assert_eq!(step().check_vocabulary(7), Ok(()));

    // A shared first token, the end of one branch, and the second tree.
    let mut first = data();
    first[..3].iter_mut().for_each(|one| one.tokens[0] = 53);
    assert_eq!(message(&first), text("task \"a\", rollout \"0\"", 0));
    let mut end = data();
    end[2].tokens[1] = 53;
    assert_eq!(message(&end), text("task \"a\", rollout \"2\"", 1));
    end[2].segments = 2;
    end[2].segment = 1;
    assert_eq!(
        message(&end),
        text("task \"a\", rollout \"2\", segment 1", 1)
    );
    let mut second = data();
    second[3].tokens[1] = 53;
    assert_eq!(message(&second), text("task \"b\", rollout \"0\"", 1));
    // Nothing is trained there, but the task is known.
    let mut untrained = second;
    untrained[3].loss_mask = vec![false; 2];
    assert_eq!(message(&untrained), text("task \"b\"", 1));

    // After the rows of another pack, at the position in the trajectory.
    let mut long = trajectory("long", "7", &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    long.tokens[6] = 53;
    assert_eq!(message(&[long]), text("task \"long\", rollout \"7\"", 6));

    // A target that is not a token of its pack: the first row of the next pack.
    let long = trajectory("long", "7", &[1, 2, 3, 4, 53, 6, 7, 8]);
    let error = pack(&[long], &options()).check_vocabulary(50).unwrap_err();
    assert_eq!(error.to_string(), text("task \"long\", rollout \"7\"", 4));
    assert_eq!((error.token, error.size, error.position), (53, 50, 4));
    let place = TokenPlace::Trajectory {
        task_id: "long".into(),
        rollout_id: Some("7".into()),
        segment: 0,
    };
    assert_eq!(error.place, place);
}

#[test]
fn a_step_tells_how_many_predictions_it_trains() {
    assert_eq!(step().trained_predictions(), 5);
    assert_eq!(step().totals.trained_tokens, 5);
    // A merged entry counts all its predictions.
    let merged = pack(&data(), &PackOptions::new(100));
    assert_eq!(merged.packs[0].occurrences.len(), 4);
    assert_eq!(merged.trained_predictions(), 5);

    let mut nothing = data();
    nothing.iter_mut().for_each(|one| one.loss_mask.fill(false));
    let sum = PackOptions {
        aggregation: tree_pack::Aggregation::Sum,
        ..options()
    };
    let nothing = pack(&nothing, &sum);
    assert_eq!(nothing.packs.len(), 2);
    assert_eq!(nothing.trained_predictions(), 0);
    assert_eq!(nothing.totals.trained_tokens, 0);

    // The packs of one rank may train nothing although the step does.
    let mut half = data();
    half[3].loss_mask.fill(false);
    let half = pack(&half, &options());
    let ranks = assign_to_ranks(&half, NonZeroUsize::new(2).unwrap(), |pack| {
        pack.layout.len() as f64
    });
    let rank = ranks.unwrap().step_of(&half, 1);
    assert_eq!(
        (rank.trained_predictions(), rank.totals.trained_tokens),
        (0, 4)
    );
}

#[test]
fn batches_have_ids_of_their_own() {
    let layouts: Vec<TreeLayout> = step().packs.into_iter().map(|pack| pack.layout).collect();
    let id = BatchId::new(&layouts, 4);
    assert_eq!(id.dims(), [2, 4]);
    assert_eq!(id, BatchId::new(&layouts.clone(), 4));
    assert_ne!(id, BatchId::new(&layouts, 5));
    assert_ne!(id, BatchId::new(&layouts[..1], 4));
    type Change = fn(&mut [TreeLayout]);
    let changes: [Change; 5] = [
        |layouts| layouts[1].tokens[1] = 9,
        |layouts| layouts[0].parents[3] = 1,
        |layouts| layouts[0].position_ids[3] = 2,
        |layouts| layouts[0].subtree_ends[1] = 4,
        |layouts| layouts.swap(0, 1),
    ];
    let mut ids = vec![id];
    for change in changes {
        let mut changed = layouts.clone();
        change(&mut changed);
        ids.push(BatchId::new(&changed, 4));
    }
    for (index, id) in ids.iter().enumerate() {
        assert!(!ids[..index].contains(id), "{index}");
    }
}
