//! Partitions of known structure: the past context of each part, and equality with the whole tree.

use std::ops::Range;

use burn::tensor::DType;
use burn_tree_train::{BlockContext, StepOptions, TreeModel, step_index_memory};
use tree_pack::{Aggregation, Objective, Pack, PackedStep, Partitioning, Trajectory, TreeBatch};
use tree_training_tests::device::{autodiff_device, supports_f64};
use tree_training_tests::equality::bars;
use tree_training_tests::models::{
    dense_config, hybrid_config, hybrid_moe_config, moe_config, random_model,
};
use tree_training_tests::partition::{Cut, all_step_options, compare, parts_step, whole_step};

const VOCABULARY: usize = 30;

fn trajectory(tokens: &[u32]) -> Trajectory {
    Trajectory::new("task", "rollout", tokens.to_vec(), vec![true; tokens.len()])
}

/// The packs, after checking that models of all kinds, with all options, give the step of the whole
/// tree.
fn parts(trajectories: &[Trajectory], budget: usize, partitioning: Partitioning) -> PackedStep {
    let device = autodiff_device();
    let dtype = if supports_f64() {
        DType::F64
    } else {
        DType::F32
    };
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::SepAvg);
    let packed = Cut::new(budget, partitioning).pack(trajectories, objective, aggregation);
    for config in [
        dense_config(VOCABULARY),
        moe_config(VOCABULARY),
        hybrid_config(VOCABULARY),
        hybrid_moe_config(VOCABULARY),
    ] {
        let model = random_model(&config, 5, dtype, &device);
        let expected = whole_step(&model, trajectories, objective, aggregation, dtype, &device);
        for options in all_step_options() {
            let found = parts_step(&model, &packed, &options, &device);
            compare(&model, &found, &expected, dtype, bars(dtype).1)
                .unwrap_or_else(|error| panic!("{:?}, {options:?}: {error}", config.family));
        }
    }
    packed
}

/// A parent pack, and the ancestor packs with their visible rows.
type Seen = (u32, Vec<(u32, Range<u32>)>);

/// The past context of each pack but the first.
fn seen(packed: &PackedStep) -> Vec<Seen> {
    let gateways = packed.packs.iter().filter_map(|pack| pack.gateway.as_ref());
    gateways
        .map(|gateway| {
            let runs = gateway.runs.iter();
            (
                gateway.parent,
                runs.map(|run| (run.pack, run.rows.clone())).collect(),
            )
        })
        .collect()
}

#[test]
fn several_children_of_one_row() {
    let trunk = [1, 2, 3, 4, 5, 6];
    let branches = [
        [7, 8, 9, 10, 11, 12],
        [13, 8, 9, 10, 14, 15],
        [16, 17, 18, 19, 20, 21],
    ];
    let trajectories = branches.map(|branch| trajectory(&[trunk, branch].concat()));
    let packed = parts(&trajectories, 6, Partitioning::Connected);
    assert_eq!(seen(&packed), vec![(0, vec![(0, 0..6)]); 3]);
}

/// Sibling subtrees in one part start from one state.
#[test]
fn several_roots_in_one_part() {
    let trunk = [1, 2, 3, 4, 5, 6];
    let trajectories =
        [7, 8, 9, 10].map(|leaf| trajectory(&[&trunk[..], &[leaf, 11, 12]].concat()));
    let packed = parts(&trajectories, 6, Partitioning::Shared);
    let roots = |pack: &Pack| pack.layout.roots().count();
    assert_eq!(
        packed.packs.iter().map(roots).collect::<Vec<_>>(),
        [1, 2, 2]
    );
}

/// Subtrees in one part start from different states.
#[test]
fn roots_that_continue_different_rows() {
    let mut trajectories = Vec::new();
    for depth in 2..8 {
        let tokens: Vec<u32> = (1..=depth).chain([10 + depth, 20, 21]).collect();
        trajectories.push(trajectory(&tokens));
    }
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::SepAvg);
    let differ = |packed: &PackedStep| {
        let mut gateways = packed.packs.iter().filter_map(|pack| pack.gateway.as_ref());
        gateways.any(|gateway| {
            gateway
                .root_parents
                .windows(2)
                .any(|pair| pair[0] != pair[1])
        })
    };
    let budget = (3..20).find(|&budget| {
        let cut = Cut::new(budget, Partitioning::Shared);
        differ(&cut.pack(&trajectories, objective, aggregation))
    });
    parts(
        &trajectories,
        budget.expect("such parts"),
        Partitioning::Shared,
    );
}

/// The last part sees rows of its grandparent that its parent sees, too: their gradients go to the
/// grandparent once.
#[test]
fn three_levels() {
    let sequence: Vec<u32> = (1..=12).collect();
    let packed = parts(&[trajectory(&sequence)], 4, Partitioning::Connected);
    assert_eq!(
        seen(&packed),
        [(0, vec![(0, 0..4)]), (1, vec![(0, 0..4), (1, 0..4)])]
    );
}

/// Each level forks, and branches of different levels share a part.
#[test]
fn levels_with_forks() {
    let mut trajectories = Vec::new();
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let tokens = [1, 2, 3, 10 + first, 4, 5, 20 + second, 6, 7, 8];
        trajectories.push(trajectory(&tokens));
        trajectories.push(trajectory(&tokens[..5]));
    }
    for budget in [1, 2, 4, 5, 7] {
        for partitioning in [Partitioning::Connected, Partitioning::Shared] {
            parts(&trajectories, budget, partitioning);
        }
    }
}

/// Rows of a sibling lie between the past rows of a part and the part. It does not see them: its
/// positions are depths, not row numbers.
#[test]
fn siblings_before_the_cut() {
    let short = trajectory(&[1, 2, 3, 4, 5]);
    let long = trajectory(&[1, 2, 6, 7, 8, 9, 10, 11]);
    let packed = parts(&[short, long], 6, Partitioning::Connected);
    let child = &packed.packs[1];
    let gateway = child.gateway.as_ref().expect("the second part");
    let before = packed.packs[0].layout.len() as u32;
    let past_keys: u32 = gateway.runs.iter().map(|run| run.rows.len() as u32).sum();
    assert_eq!(child.layout.position_ids[0], past_keys);
    assert!(
        past_keys < before,
        "a sibling is among {before} rows before the cut"
    );
}

/// The first token of a part is predicted once, by the row before it, in its parent part.
#[test]
fn predictions_across_a_cut_count_once() {
    let trajectories = [trajectory(&[1, 2, 3, 4]), trajectory(&[1, 2, 5, 6])];
    let packed = parts(&trajectories, 2, Partitioning::Connected);
    let targets: Vec<&[u32]> = packed
        .packs
        .iter()
        .map(|pack| pack.occurrences.targets.as_slice())
        .collect();
    assert_eq!(targets, [&[2, 2, 3, 5][..], &[4], &[6]]);
}

/// Parts without trained tokens, and a part with padding.
#[test]
fn parts_without_predictions() {
    let mut masked = trajectory(&[1, 2, 3, 4, 5, 6, 7, 8]);
    masked.loss_mask = [false, false, false, false, false, true, false, false].to_vec();
    for budget in 1..=8 {
        parts(
            std::slice::from_ref(&masked),
            budget,
            Partitioning::Connected,
        );
    }
}

/// The index memory of a part includes its past context; that of a whole tree is that of its batch.
#[test]
fn indices_of_parts_are_counted() {
    let device = autodiff_device();
    let tokens: Vec<u32> = (1..=24).collect();
    let trajectories = [trajectory(&tokens)];
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::SepAvg);
    for config in [dense_config(VOCABULARY), hybrid_config(VOCABULARY)] {
        let model = random_model(&config, 5, DType::F32, &device);
        let memory = |budget| {
            let cut = Cut::new(budget, Partitioning::Connected);
            let packed = cut.pack(&trajectories, objective, aggregation);
            let options = StepOptions::default();
            let memory = step_index_memory(&model, &packed, &options, &device).unwrap();
            (packed.packs, memory)
        };
        let (packs, whole) = memory(24);
        let batch = TreeBatch::new(&packs, &device);
        let context = BlockContext::new(&batch);
        drop(model.hidden_states(batch.tokens.clone(), &context));
        assert_eq!(whole, [batch.index_memory() + context.index_memory()]);
        let (_, parts) = memory(8);
        assert_eq!(parts.len(), 3);
        // The keys of the first part, then of the first two; the last one has no outputs for
        // others. Masks upload only what the kernels of a device read: nothing on the CPU.
        assert!(parts[1].host_bytes > parts[0].host_bytes);
        assert!(parts[1].device_bytes >= parts[0].device_bytes);
        assert!(parts[2].device_bytes < whole[0].device_bytes);
    }
}
