//! States and convolutions of recurrent layers, in whole models.

use burn::tensor::{DType, Device};
use burn_tree_models::CausalLm;
use burn_tree_models::layers::Mixer;
use burn_tree_train::{BlockContext, TreeModel, sft_loss};
use tree_pack::{Aggregation, LossForm, Objective, Pack, Trajectory, TreeBatch};
use tree_training_tests::device::{autodiff_device, device, test_dtypes};
use tree_training_tests::equality::{StepSetup, compare_step};
use tree_training_tests::models::{hybrid_config, random_model, with_decay_rates};
use tree_training_tests::packing::Packing;
use tree_training_tests::step::{Batching, packed_step, sequence_layout};
use tree_training_tests::tensors::NamedTensors;

const VOCABULARY: usize = 17;

fn trajectory(tokens: Vec<u32>) -> Trajectory {
    let mask = vec![true; tokens.len()];
    Trajectory::new("task", "rollout", tokens, mask)
}

/// Tokens without repetitions, different for every `seed`.
fn tokens(seed: usize, length: usize) -> impl Iterator<Item = u32> {
    (0..length).map(move |index| ((7 * index + 11 * seed + index * index / 3) % VOCABULARY) as u32)
}

fn assert_packed_equals_separate(trajectories: &[Trajectory]) {
    let device = autodiff_device();
    for dtype in test_dtypes() {
        let model = random_model(&hybrid_config(VOCABULARY), 5, dtype, &device);
        for (packing, batching) in [
            (Packing::ONE_PACK, Batching::OneByOne),
            (
                Packing {
                    multiple: 48,
                    ..Packing::SMALL_PACKS
                },
                Batching::Together,
            ),
        ] {
            let setup = StepSetup {
                packing,
                run: batching.into(),
                loss: (Objective::PerPath, Aggregation::TokenMean),
                merged: false,
                seed: 5,
            };
            compare_step(&model, trajectories, &setup, dtype, &device)
                .unwrap_or_else(|error| panic!("{dtype:?} {packing:?}: {error}"));
        }
    }
}

/// Final hidden states of the rows of a batch, `[row][feature]`, with one context for attention
/// blocks and one for recurrent blocks.
fn hidden(
    model: &CausalLm,
    batch: &TreeBatch,
    attention: &BlockContext,
    recurrent: &BlockContext,
) -> Vec<Vec<f32>> {
    let mut x = model.embed(batch.tokens.clone(), attention);
    for (index, block) in model.layers.iter().enumerate() {
        let context = match block.mixer {
            Mixer::GatedDeltaNet(_) => recurrent,
            _ => attention,
        };
        x = model.block(index, x, context, None).unwrap().0;
    }
    let hidden = model.final_norm(x);
    let size = hidden.dims()[2];
    let values: Vec<f32> = hidden.into_data().try_into_vec().expect("f32");
    values.chunks(size).map(<[f32]>::to_vec).collect()
}

fn distance(rows: &[Vec<f32>], others: &[Vec<f32>]) -> f32 {
    assert_eq!(rows.len(), others.len());
    let pairs = rows.iter().flatten().zip(others.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The batch of one sequence.
fn sequence_batch(tokens: &[u32], device: &Device) -> TreeBatch {
    let pack = Pack {
        layout: sequence_layout(tokens),
        padded_len: tokens.len(),
        ..Pack::default()
    };
    TreeBatch::new(&[pack], device)
}

fn alone(model: &CausalLm, tokens: &[u32], device: &Device) -> Vec<Vec<f32>> {
    let batch = sequence_batch(tokens, device);
    let context = BlockContext::new(&batch);
    hidden(model, &batch, &context, &context)
}

/// A sibling starts from the state and convolution inputs of its parent, and a second tree from
/// zero, not from the previous row. With the recurrence of one sequence they would start from the
/// previous row, which the test detects.
#[test]
fn states_do_not_leak_between_siblings_or_trees() {
    let device = device();
    let model = random_model(&hybrid_config(VOCABULARY), 3, DType::F32, &device);
    let prompt: Vec<u32> = tokens(0, 5).collect();
    let paths: Vec<Vec<u32>> = vec![
        prompt.iter().copied().chain(tokens(1, 70)).collect(),
        prompt.iter().copied().chain(tokens(2, 3)).collect(),
        prompt.iter().copied().chain(tokens(3, 1)).collect(),
        // Another tree.
        tokens(4, 6).collect(),
    ];
    let trajectories: Vec<_> = paths.iter().cloned().map(trajectory).collect();
    let pack = Packing::ONE_PACK
        .pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum)
        .packs
        .remove(0);
    let layout = &pack.layout;
    let batch = TreeBatch::new(std::slice::from_ref(&pack), &device);
    let context = BlockContext::new(&batch);
    let packed = hidden(&model, &batch, &context, &context);
    let chain = BlockContext::new(&sequence_batch(&layout.tokens, &device));
    let leaking = hidden(&model, &batch, &context, &chain);

    for path in &paths {
        // The rows of the path in the pack, upwards from its last token.
        let last = (0..layout.len())
            .find(|&row| {
                row_path(layout, row)
                    .iter()
                    .map(|&row| layout.tokens[row])
                    .eq(path.clone())
            })
            .expect("the path is in the pack");
        let rows = row_path(layout, last);
        let pick = |hidden: &[Vec<f32>]| -> Vec<Vec<f32>> {
            rows.iter().map(|&row| hidden[row].clone()).collect()
        };
        let expected = alone(&model, path, &device);
        let difference = distance(&pick(&packed), &expected);
        assert!(difference < 1e-5, "{difference} from the sequence alone");
        // The first path is also the beginning of the chain.
        if rows.last() != Some(&(rows.len() - 1)) {
            let difference = distance(&pick(&leaking), &expected);
            assert!(difference > 1e-3, "a leak changes only {difference}");
        }
    }
}

/// Rows from the root to `row`.
fn row_path(layout: &tree_pack::TreeLayout, row: usize) -> Vec<usize> {
    let parent = |&row: &usize| usize::try_from(layout.parents[row]).ok();
    let mut rows: Vec<_> = std::iter::successors(Some(row), parent).collect();
    rows.reverse();
    rows
}

/// Nodes and whole paths shorter than the convolution kernel.
#[test]
fn segments_shorter_than_the_convolution() {
    let mut trajectories = Vec::new();
    for first in 1..=3 {
        let root: Vec<u32> = tokens(first, first).collect();
        for (branch, second) in [(0, 1), (1, 2), (2, 3)] {
            let node = |seed, length| tokens(10 * first + seed, length);
            let mut path: Vec<u32> = root.iter().copied().chain(node(branch, second)).collect();
            trajectories.push(trajectory(path.clone()));
            path.extend(node(branch + 5, 4 - second));
            path.extend(node(branch + 7, 1));
            trajectories.push(trajectory(path));
        }
    }
    assert_packed_equals_separate(&trajectories);
}

/// Lengths around the size of a window, as sequences and as nodes.
#[test]
fn lengths_that_are_no_multiple_of_a_window() {
    let lengths = [1, 2, 3, 63, 64, 65, 130];
    let sequences: Vec<_> = lengths
        .iter()
        .map(|&length| trajectory(tokens(length, length).collect()))
        .collect();
    assert_packed_equals_separate(&sequences);

    // A path through nodes of all lengths, with a branch of each length off every node.
    let mut path: Vec<u32> = Vec::new();
    let mut trajectories = Vec::new();
    for (index, &length) in lengths.iter().enumerate() {
        path.extend(tokens(index + 20, length));
        let branch = tokens(index + 40, lengths[lengths.len() - 1 - index]);
        trajectories.push(trajectory(path.iter().copied().chain(branch).collect()));
    }
    trajectories.push(trajectory(path));
    assert_packed_equals_separate(&trajectories);
}

/// A fork after every token of a path of 40.
#[test]
fn states_reach_the_bottom_of_deep_trees() {
    let path: Vec<u32> = tokens(0, 40).collect();
    let trajectories: Vec<_> = (1..=path.len())
        .map(|depth| {
            let own = tokens(depth, 2 + depth % 3);
            trajectory(path[..depth].iter().copied().chain(own).collect())
        })
        .collect();
    assert_packed_equals_separate(&trajectories);
}

/// Gradients of the step on `trajectories` in one pack.
fn gradients(
    model: &CausalLm,
    trajectories: &[Trajectory],
    dtype: DType,
    device: &Device,
) -> NamedTensors {
    let (objective, aggregation) = (Objective::PerPath, Aggregation::TokenMean);
    let form = LossForm::LogLikelihood;
    let packed = Packing::ONE_PACK.pack_for(trajectories, objective, aggregation, form);
    let run = Batching::OneByOne;
    let step = packed_step(model, &packed, run, dtype, device, sft_loss);
    NamedTensors::gradients(model, &step.gradients)
}

/// The parameters of the decay of a recurrent layer.
fn is_of_the_decay(name: &str) -> bool {
    ["a_log", "dt_bias", "in_proj_a.weight"]
        .iter()
        .any(|parameter| name.ends_with(parameter))
}

/// Before the first token there is no state to decay: the gradient of its gate is exactly zero, in
/// each of several trees.
#[test]
fn decay_of_first_tokens_has_no_gradient() {
    let device = autodiff_device();
    // Only the predictions of the first tokens are trained.
    let trajectories = [1, 2, 3].map(|token| trajectory(vec![token, token + 1]));
    for dtype in test_dtypes() {
        let model = random_model(&hybrid_config(VOCABULARY), 7, dtype, &device);
        let gradients = gradients(&model, &trajectories, dtype, &device);
        let mut seen = 0;
        for (name, tensor) in &gradients.0 {
            if is_of_the_decay(name) {
                assert!(
                    tensor.values.iter().all(|&value| value == 0.0),
                    "{name} in {dtype:?}"
                );
                seen += 1;
            }
            if name.ends_with("in_proj_b.weight") {
                assert!(tensor.norm() > 0.0, "{name}: the other gate has one");
            }
        }
        // Three parameters of three layers.
        assert_eq!(seen, 9);
    }
}

/// Gradients of the decay are sums over long paths with cancellation: in f32 they keep six digits,
/// with products rounded to TF32 or bfloat16 only three.
#[test]
fn decay_gradients_keep_their_digits() {
    if !test_dtypes().contains(&DType::F64) {
        return;
    }
    let device = autodiff_device();
    let trunk: Vec<u32> = tokens(1, 100).collect();
    let trajectories: Vec<_> = (0..4)
        .map(|branch| trajectory(trunk.iter().copied().chain(tokens(branch, 60)).collect()))
        .collect();
    let exact_model = random_model(&hybrid_config(VOCABULARY), 7, DType::F64, &device);
    let model = random_model(&hybrid_config(VOCABULARY), 7, DType::F32, &device);
    let exact = gradients(&exact_model, &trajectories, DType::F64, &device);
    let found = gradients(&model, &trajectories, DType::F32, &device);
    for (name, tensor) in found.0.iter().filter(|(name, _)| is_of_the_decay(name)) {
        let expected = &exact.0[name];
        let error = tensor.distance(expected) / expected.norm();
        assert!(error < 2e-5, "{name} differs by {error:e}");
    }
}

/// A state that does not decay over 300 tokens, and one that decays completely after each.
#[test]
fn decay_of_any_rate() {
    let device = autodiff_device();
    let trunk: Vec<u32> = tokens(1, 200).collect();
    let trajectories: Vec<_> = (0..3)
        .map(|branch| trajectory(trunk.iter().copied().chain(tokens(branch, 100)).collect()))
        .collect();
    for rate in [1e-6_f64, 1e3] {
        for dtype in test_dtypes() {
            let model = random_model(&hybrid_config(VOCABULARY), 9, dtype, &device);
            let model = with_decay_rates(model, &[rate], &device);
            let setup = StepSetup {
                packing: Packing::ONE_PACK,
                run: Batching::OneByOne.into(),
                loss: (Objective::PerPath, Aggregation::TokenMean),
                merged: true,
                seed: 0,
            };
            compare_step(&model, &trajectories, &setup, dtype, &device)
                .unwrap_or_else(|error| panic!("rate {rate} in {dtype:?}: {error}"));
        }
    }
}
