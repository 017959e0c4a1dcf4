//! Visibility and positions.

use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_tree_attn::{TreeAttentionOptions, TreeMask, tree_attention};
use burn_tree_models::CausalLm;
use burn_tree_train::BlockContext;
use proptest::prelude::*;
use tree_pack::{Aggregation, Objective, Pack, Segment, Trajectory, TreeBatch, TreeLayout};
use tree_training_tests::attention::{AttentionSetup, attention_setups, check_attention};
use tree_training_tests::device::{autodiff_device, device};
use tree_training_tests::forest::{ForestShape, cases, forests};
use tree_training_tests::models::{dense_config, hybrid_config, random_model};
use tree_training_tests::oracle::attention::Settings;
use tree_training_tests::packing::Packing;
use tree_training_tests::step::{hidden_states, sequence_layout};

fn trajectory(tokens: Vec<u32>) -> Trajectory {
    let mask = vec![true; tokens.len()];
    Trajectory::new("task", "rollout", tokens, mask)
}

fn pack(packing: Packing, trajectories: &[Trajectory]) -> Vec<Pack> {
    packing
        .pack(trajectories, Objective::PerOccurrence, Aggregation::Sum)
        .packs
}

/// The row itself and its ancestors, found by following parents.
fn ancestors(layout: &TreeLayout) -> Vec<Vec<usize>> {
    (0..layout.len())
        .map(|row| {
            let parent = |&row: &usize| usize::try_from(layout.parents[row]).ok();
            let mut rows: Vec<_> = std::iter::successors(Some(row), parent).collect();
            rows.reverse();
            rows
        })
        .collect()
}

/// With equal scores every visible key has the same weight, and with the identity as values the
/// output of a row is the set of its visible keys: `1 / size` for its members, exactly 0 elsewhere.
/// The gradient of the values is the sum over the rows that see each key.
fn assert_sees_its_ancestors(layout: &TreeLayout, padded_len: usize) {
    let device = autodiff_device();
    let equal = Tensor::<4>::zeros([1, 1, padded_len, 2], (&device, DType::F32));
    let identity = Tensor::<2>::eye(padded_len, &device).cast(DType::F32);
    let value = identity
        .reshape([1, 1, padded_len, padded_len])
        .require_grad();
    let mask = TreeMask::from_layouts(std::slice::from_ref(layout), padded_len, &device);
    let options = TreeAttentionOptions::default();
    let output = tree_attention(equal.clone(), equal, value.clone(), &mask, options);
    let gradients = output.clone().sum().backward();
    let gradient = value.grad(&gradients).expect("a gradient");
    let numbers = |tensor: Tensor<4>| -> Vec<f64> {
        tensor
            .into_data()
            .convert::<f64>()
            .try_into_vec()
            .expect("f64")
    };
    let (output, gradient) = (numbers(output), numbers(gradient));

    let mut received = vec![0.0; padded_len];
    let seen = ancestors(layout)
        .into_iter()
        .chain(std::iter::repeat(Vec::new()));
    for (row, seen) in seen.take(padded_len).enumerate() {
        let mut expected = vec![0.0; padded_len];
        for &key in &seen {
            expected[key] = 1.0 / seen.len() as f64;
            received[key] += expected[key];
        }
        let found = &output[row * padded_len..][..padded_len];
        for (key, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
            let equal = if expected == 0.0 {
                found == 0.0
            } else {
                (found - expected).abs() < 1e-6
            };
            assert!(equal, "row {row} key {key}: {found}, expected {expected}");
        }
    }
    for (key, expected) in received.into_iter().enumerate() {
        // The same number in every column.
        for &found in &gradient[key * padded_len..][..padded_len] {
            let tolerance = 1e-5 * expected;
            assert!(
                (found - expected).abs() <= tolerance,
                "key {key}: {found}, not {expected}"
            );
        }
    }
}

/// Nested forks.
#[test]
fn masks_are_right_at_every_depth() {
    // Five levels of two or three branches; nodes of one to three tokens.
    let mut paths = vec![vec![0_u32]];
    for level in 0..5_u32 {
        paths = paths
            .into_iter()
            .flat_map(|path| {
                (0..2 + level % 2).map(move |branch| {
                    let run = (0..1 + (level + branch) % 3).map(|i| 1 + branch + 3 * i);
                    path.iter().copied().chain(run).collect()
                })
            })
            .collect();
    }
    let trajectories: Vec<_> = paths.into_iter().map(trajectory).collect();
    let packs = pack(Packing::ONE_PACK, &trajectories);
    let layout = &packs[0].layout;
    let depth = |segment: &Segment| {
        let parent = |segment: &Segment| Some(layout.segments[segment.parent? as usize]);
        std::iter::successors(Some(*segment), parent).count()
    };
    assert!(layout.segments.iter().map(depth).max() >= Some(5));
    assert_sees_its_ancestors(layout, layout.len() + 3);
}

/// Short nodes that end at the border of a tile, above more rows than a tile has: a sum of mask
/// bits as machine words would overflow to zero. Keys and values must not be skipped in the forward
/// or the backward pass.
#[test]
fn no_block_is_skipped_at_tile_borders() {
    for border in [32_u32, 64, 128, 256] {
        for end in [border - 1, border, border + 1] {
            // A trunk up to two tokens before the end, a short node, then 128 and more branches.
            let branch = |index: u32| {
                let trunk = (0..end).map(|token| 7 * token % 31);
                trajectory(trunk.chain([40 + index, 3]).collect())
            };
            let mut trajectories: Vec<_> = (0..70).map(branch).collect();
            let trunk: Vec<u32> = trajectories[0].tokens[..end as usize].to_vec();
            trajectories.push(trajectory(trunk[..trunk.len() - 2].to_vec()));
            let packs = pack(Packing::ONE_PACK, &trajectories);
            let layout = &packs[0].layout;
            let short = layout.segments[1];
            assert_eq!((short.end, short.end - short.start), (end, 2));
            assert!(layout.subtree_ends[short.start as usize] - short.end >= 128);
            assert_sees_its_ancestors(layout, layout.len());
        }
    }
    // Keys, too: compared with sequences in plain loops.
    let trunk: Vec<u32> = (0..64).map(|token| token % 31).collect();
    let trajectories: Vec<_> = (0..130)
        .map(|index| trajectory(trunk.iter().copied().chain([40 + index]).collect()))
        .chain([trajectory(trunk[..62].to_vec())])
        .collect();
    let packs = pack(Packing::ONE_PACK, &trajectories);
    let setup = AttentionSetup {
        query_heads: 2,
        key_heads: 1,
        dim: 4,
        value_dim: 3,
        options: Settings::default(),
        seed: 1,
    };
    check_attention(&packs, &trajectories, &setup, DType::F32);
}

/// An empty tree and padding: exact zeros, no NaN, forward and backward.
#[test]
fn rows_that_see_nothing_are_zero_and_get_no_gradient() {
    let device = autodiff_device();
    let layouts = [TreeLayout::default(), sequence_layout(&[1, 2, 3])];
    let rows = 5;
    let mask = TreeMask::from_layouts(&layouts, rows, &device);
    let tensor = |offset: f32| {
        let values: Vec<f32> = (0..2 * 2 * rows * 4)
            .map(|i| (i as f32 + offset).sin())
            .collect();
        let data = TensorData::new(values, [2, 2, rows, 4]);
        Tensor::<4>::from_data(data, (&device, DType::F32)).require_grad()
    };
    let inputs = [tensor(0.0), tensor(1.0), tensor(2.0)];
    let [query, key, value] = inputs.clone();
    let output = tree_attention(query, key, value, &mask, TreeAttentionOptions::default());
    let gradients = output.clone().powi_scalar(2).sum().backward();
    let mut tensors = vec![("output", output)];
    for (name, input) in ["query", "key", "value"].into_iter().zip(&inputs) {
        let gradient = input.grad(&gradients).expect("a gradient");
        tensors.push((name, gradient));
    }
    for (name, tensor) in tensors {
        let values: Vec<f32> = tensor
            .into_data()
            .convert::<f32>()
            .try_into_vec()
            .expect("f32");
        for (index, value) in values.iter().enumerate() {
            let (batch, row) = (index / (2 * rows * 4), index / 4 % rows);
            let sees_nothing = batch == 0 || row >= 3;
            assert!(value.is_finite(), "{name} [{batch}, {row}] {value}");
            assert!(
                !sees_nothing || *value == 0.0,
                "{name} [{batch}, {row}] {value}"
            );
        }
        assert!(
            values.iter().any(|&value| value != 0.0),
            "{name}: the sequence is not empty"
        );
    }
}

/// Depth is not limited by a call stack, and time is linear.
#[test]
fn depth_of_100_000_is_no_problem() {
    // A chain in which every token ends a shared prefix: 100,000 nodes of one token.
    const DEPTH: u32 = 100_000;
    let segments = (0..DEPTH)
        .map(|row| Segment {
            start: row,
            end: row + 1,
            parent: row.checked_sub(1),
        })
        .collect();
    let layout = TreeLayout {
        segments,
        ..sequence_layout(&vec![1; DEPTH as usize])
    };
    assert_quickly_masked(&layout);
    // Through packing: two long trajectories that diverge at the end.
    let long = |last: u32| {
        trajectory(
            (0..DEPTH)
                .map(|token| token % 1000)
                .chain([2000 + last])
                .collect(),
        )
    };
    let packs = pack(Packing::ONE_PACK, &[long(0), long(1)]);
    assert_eq!(packs[0].layout.len(), DEPTH as usize + 2);
    assert_quickly_masked(&packs[0].layout);
}

/// A dense mask of a million rows would have 10^12 entries.
#[test]
fn mask_of_a_million_rows_is_linear() {
    const BRANCHES: u32 = 1_000_000;
    let rows = BRANCHES + 1;
    let star = TreeLayout {
        tokens: vec![1; rows as usize],
        position_ids: (0..rows).map(|row| row.min(1)).collect(),
        parents: (0..rows).map(|row| if row == 0 { -1 } else { 0 }).collect(),
        subtree_ends: (0..rows)
            .map(|row| if row == 0 { rows } else { row + 1 })
            .collect(),
        segments: (0..rows)
            .map(|row| Segment {
                start: row,
                end: row + 1,
                parent: (row > 0).then_some(0),
            })
            .collect(),
    };
    assert_eq!(star.visible_pairs(), 1 + 2 * u64::from(BRANCHES));
    assert_quickly_masked(&star);
}

/// Builds the mask and its tile plan. Linear work takes well under a second for a million rows; the
/// limit allows for slow and busy machines and is far below quadratic work.
fn assert_quickly_masked(layout: &TreeLayout) {
    let start = Instant::now();
    let mask = TreeMask::from_layouts(std::slice::from_ref(layout), layout.len(), &device());
    assert_eq!(mask.visible_pairs(), layout.visible_pairs());
    let plan = mask.visibility().plan(128, None);
    let tiles = layout.len().div_ceil(128);
    assert_eq!(plan.tiles().len(), tiles);
    let spans: usize = plan.tiles().iter().map(|tile| plan.spans(tile).len()).sum();
    // A tile of 128 rows sees runs of ancestors, and at most 128 nodes of its own.
    assert!(spans <= 130 * tiles, "{spans} runs in {tiles} tiles");
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "took {:?}",
        start.elapsed()
    );
}

/// Row lengths around the sizes of tiles, with and without padding, in one batch and alone.
#[test]
fn row_lengths_need_not_be_multiples_of_a_tile() {
    for length in [1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200] {
        let trunk: Vec<u32> = (0..length).collect();
        let mut trajectories = vec![trajectory(trunk.clone())];
        if length > 2 {
            let half = &trunk[..trunk.len() / 2];
            trajectories.push(trajectory(half.iter().copied().chain([500, 501]).collect()));
        }
        let layout = &pack(Packing::ONE_PACK, &trajectories)[0].layout;
        for padding in [0, 1, 7, 64] {
            assert_sees_its_ancestors(layout, layout.len() + padding);
        }
    }
}

/// A mask that does not match the rows is refused.
#[test]
fn mask_and_rows_of_different_length_are_refused() {
    let device = device();
    let layout = sequence_layout(&[1, 2, 3, 4]);
    let error = TreeMask::try_from_layouts(std::slice::from_ref(&layout), 3, &device);
    let error = error
        .expect_err("a row of 3 cannot hold 4 tokens")
        .to_string();
    assert!(error.contains('4') && error.contains('3'), "{error}");

    let mask = TreeMask::from_layouts(&[layout], 6, &device);
    let x = Tensor::<4>::zeros([1, 1, 5, 2], &device);
    let options = TreeAttentionOptions::default();
    let result = burn_tree_attn::try_tree_attention(x.clone(), x.clone(), x, &mask, options);
    let error = result.expect_err("5 rows with a mask of 6").to_string();
    assert!(error.contains('5') && error.contains('6'), "{error}");
}

/// Final hidden states of a pack, per row, as bits of f32.
fn hidden_bits(model: &CausalLm, pack: &Pack, device: &Device) -> Vec<Vec<u32>> {
    let batch = TreeBatch::new(std::slice::from_ref(pack), device);
    let context = BlockContext::new(&batch);
    let hidden = hidden_states(model, batch.tokens, &context);
    let [_, _, size] = hidden.dims();
    let values: Vec<f32> = hidden.into_data().try_into_vec().expect("f32");
    values
        .chunks(size)
        .map(|row| row.iter().map(|value| value.to_bits()).collect())
        .collect()
}

proptest! {
    #![proptest_config(cases(48))]

    /// Changing a token of one row changes the rows of its subtree and no others, bit for bit: all
    /// paths through the model respect the mask.
    #[test]
    fn changing_a_branch_changes_no_other_row(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        row in any::<prop::sample::Index>(),
    ) {
        let device = device();
        let original = pack(packing, &forest.trajectories()).remove(0);
        let row = row.index(original.layout.len());
        let mut changed = original.clone();
        // Not a token of the random forests.
        changed.layout.tokens[row] = 19;
        let subtree = row..original.layout.subtree_ends[row] as usize;
        for config in [dense_config(20), hybrid_config(20)] {
            let model = random_model(&config, 3, DType::F32, &device);
            let before = hidden_bits(&model, &original, &device);
            let after = hidden_bits(&model, &changed, &device);
            for index in 0..before.len() {
                let differs = before[index] != after[index];
                prop_assert_eq!(differs, subtree.contains(&index), "row {} after {}", index, row);
            }
        }
    }

    /// The operation with all kinds of row lengths and paddings; a skipped tile would change a
    /// gradient.
    #[test]
    fn no_block_is_skipped_in_random_trees(
        forest in forests(ForestShape {
            tasks: 1..=1,
            nodes: 3..=12,
            long_node: 30..=140,
            long_share: 4,
            vocabulary: 5,
        }),
        packing in Packing::strategy(),
        setup in attention_setups(),
    ) {
        let trajectories = forest.trajectories();
        check_attention(&pack(packing, &trajectories), &trajectories, &setup, DType::F32);
    }
}

/// Positions are depths on the path and are used by RoPE: a later sibling has the results of its
/// separate sequence, and others with row numbers as positions.
#[test]
fn positions_are_depths_and_reach_the_model() {
    let device = device();
    let model = random_model(&dense_config(20), 3, DType::F32, &device);
    let trajectories = [vec![1, 2, 3, 4, 5], vec![1, 2, 6, 7, 8]].map(trajectory);
    let pack = pack(Packing::ONE_PACK, &trajectories).remove(0);
    assert_eq!(pack.layout.position_ids, [0, 1, 2, 3, 4, 2, 3, 4]);
    let batch = TreeBatch::new(std::slice::from_ref(&pack), &device);
    let context = BlockContext::new(&batch);
    let numbers =
        |tensor: Tensor<3>| -> Vec<f32> { tensor.into_data().try_into_vec().expect("f32") };
    let packed = numbers(hidden_states(&model, batch.tokens.clone(), &context));

    let alone = Pack {
        layout: sequence_layout(&trajectories[1].tokens),
        padded_len: 5,
        ..Pack::default()
    };
    let alone = TreeBatch::new(&[alone], &device);
    let alone_context = BlockContext::new(&alone);
    let alone = numbers(hidden_states(&model, alone.tokens, &alone_context));

    let mut wrong = batch;
    let rows = TensorData::new((0..8).collect::<Vec<i32>>(), [1, 8]);
    wrong.position_ids = Tensor::from_data(rows, &device);
    let context = BlockContext::new(&wrong);
    let wrong = numbers(hidden_states(&model, wrong.tokens, &context));

    let size = packed.len() / 8;
    let distance = |rows: &[f32]| {
        // Rows 5, 6, 7 of the pack are tokens 2, 3, 4 of the sequence.
        let pairs = rows[5 * size..].iter().zip(&alone[2 * size..]);
        pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    assert!(
        distance(&packed) < 1e-5,
        "differs from the sequence alone by {}",
        distance(&packed)
    );
    assert!(
        distance(&wrong) > 1e-3,
        "positions have no effect: {}",
        distance(&wrong)
    );
}
