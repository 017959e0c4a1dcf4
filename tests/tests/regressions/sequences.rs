//! Sequences of all kinds through models: log-probabilities, losses and gradients equal those of
//! the separate sequences.

use burn::tensor::{DType, Tensor, TensorData};
use burn_tree_models::ModelConfig;
use burn_tree_train::{BlockContext, sft_loss};
use tree_pack::{Aggregation, LossForm, Objective, Pack, Trajectory, TreeBatch};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::equality::{LOSSES, StepSetup, compare_step};
use tree_training_tests::models::{
    dense_config, hybrid_config, hybrid_moe_config, moe_config, random_model,
};
use tree_training_tests::oracle::loss::prediction_weights;
use tree_training_tests::packing::Packing;
use tree_training_tests::step::{Batching, hidden_states, packed_step, separate_step};
use tree_training_tests::tensors::NamedTensors;

const VOCABULARY: usize = 17;
const END_OF_TEXT: u32 = 16;

fn trajectory(tokens: &[u32]) -> Trajectory {
    Trajectory::new("task", "rollout", tokens.to_vec(), vec![true; tokens.len()])
}

/// For every loss, packed into one row and into several padded ones.
fn assert_packed_equals_separate(trajectories: &[Trajectory]) {
    let device = autodiff_device();
    let packings = [
        (Packing::ONE_PACK, Batching::OneByOne),
        (
            Packing {
                multiple: 32,
                ..Packing::SMALL_PACKS
            },
            Batching::Together,
        ),
    ];
    for dtype in test_dtypes() {
        // Routers may tie in f32.
        let configs = match dtype {
            DType::F64 => vec![
                dense_config(VOCABULARY),
                moe_config(VOCABULARY),
                hybrid_config(VOCABULARY),
                hybrid_moe_config(VOCABULARY),
            ],
            _ => vec![dense_config(VOCABULARY), hybrid_config(VOCABULARY)],
        };
        for config in configs {
            let model = random_model(&config, 11, dtype, &device);
            for (packing, batching) in packings {
                for (index, loss) in LOSSES.into_iter().enumerate() {
                    let merged = index % 2 == 0;
                    let setup = StepSetup {
                        packing,
                        run: batching.into(),
                        loss,
                        merged,
                        seed: 11,
                    };
                    compare_step(&model, trajectories, &setup, dtype, &device)
                        .unwrap_or_else(|error| panic!("{dtype:?} {setup:?}: {error}"));
                }
            }
        }
    }
}

/// The end-of-text token is a target like others, and an inner row with it predicts the next tokens
/// of the other trajectories.
#[test]
fn end_of_text() {
    assert_packed_equals_separate(&[
        trajectory(&[1, 2, 3, END_OF_TEXT]),
        trajectory(&[1, 2, END_OF_TEXT]),
        trajectory(&[1, 2, 3, 4, END_OF_TEXT]),
        // A text that continues after an end-of-text token, as in a conversation.
        trajectory(&[1, 2, END_OF_TEXT, 5, END_OF_TEXT]),
    ]);
}

/// The same target from one row in several trajectories, from different rows, and along a path.
#[test]
fn repeated_targets() {
    assert_packed_equals_separate(&[
        trajectory(&[1, 2, 2, 2, 3]),
        trajectory(&[1, 2, 2, 3, 3]),
        trajectory(&[1, 3, 2, 2, 3]),
        trajectory(&[1, 2, 2, 2, 3]),
    ]);
}

/// From one token to many.
#[test]
fn unequal_lengths() {
    let long: Vec<u32> = (0..90).map(|t| t * t % 13).collect();
    assert_packed_equals_separate(&[
        trajectory(&long),
        trajectory(&long[..1]),
        trajectory(&long[..2]),
        trajectory(&long[..45]),
        trajectory(&[&long[..60], &[14, 14]].concat()),
    ]);
}

/// Trees of several tasks, and several trees of one task, do not see each other, even with the same
/// tokens.
#[test]
fn several_trees() {
    let mut trajectories: Vec<_> = [
        &[1, 2, 3, 4][..],
        &[1, 2, 5],
        &[6, 2, 3, 4],
        &[6, 2, 3],
        &[1, 2, 3, 4],
        &[7],
    ]
    .into_iter()
    .map(trajectory)
    .collect();
    trajectories[4].task_id = "another".to_owned();
    assert_packed_equals_separate(&trajectories);
}

/// Loss masks without prompts and without single tokens.
#[test]
fn masked_prompts() {
    let mut trajectories = [
        trajectory(&[1, 2, 3, 4, 5, 6]),
        trajectory(&[1, 2, 3, 4, 7]),
        trajectory(&[1, 2, 3, 8]),
    ];
    trajectories[0].loss_mask[..4].fill(false);
    trajectories[1].loss_mask[..3].fill(false);
    // Trained by this trajectory only.
    trajectories[2].loss_mask[..2].fill(false);
    assert_packed_equals_separate(&trajectories);
}

/// Prompt tokens are not trained, but later tokens depend on them.
#[test]
fn rows_of_masked_prompts_get_gradients() {
    let device = autodiff_device();
    let mut trajectories = [trajectory(&[1, 2, 3, 4, 5]), trajectory(&[1, 2, 3, 6, 7])];
    for trajectory in &mut trajectories {
        trajectory.loss_mask[..3].fill(false);
    }
    // A separate head, so that the embedding gets gradients from inputs only.
    let config = dense_config(VOCABULARY);
    assert!(!config.tie_word_embeddings);
    let (objective, aggregation) = (Objective::PerPath, Aggregation::TokenMean);
    for dtype in test_dtypes() {
        let model = random_model(&config, 2, dtype, &device);
        let form = LossForm::LogLikelihood;
        let packed = Packing::ONE_PACK.pack_for(&trajectories, objective, aggregation, form);
        let step = packed_step(
            &model,
            &packed,
            Batching::OneByOne,
            dtype,
            &device,
            sft_loss,
        );
        let weights = prediction_weights(&trajectories, objective, aggregation);
        let separate = separate_step(&model, &trajectories, &weights, dtype, &device);
        let embedding = |gradients| {
            let gradients = NamedTensors::gradients(&model, gradients);
            gradients.0["embed_tokens.weight"].clone()
        };
        let (found, expected) = (embedding(&step.gradients), embedding(&separate.gradients));
        let size = config.hidden_size;
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        for token in 0..VOCABULARY {
            let rows = [&found, &expected].map(|table| &table.values[token * size..][..size]);
            let difference: Vec<f64> = rows[0].iter().zip(rows[1]).map(|(a, b)| a - b).collect();
            let expected = norm(rows[1]);
            // The last tokens of the trajectories, 5 and 7, predict nothing.
            let is_input = [1, 2, 3, 4, 6].contains(&token);
            assert_eq!(expected > 1e-3, is_input, "token {token}: {expected}");
            assert!(norm(&difference) <= 1e-4 * expected, "token {token}");
        }
    }
}

/// Padding in the middle of a batch has no effect, neither its hidden states nor its tokens.
#[test]
fn padding_is_inert() {
    for config in [dense_config(VOCABULARY), hybrid_config(VOCABULARY)] {
        assert_padding_is_inert(&config);
    }
}

fn assert_padding_is_inert(config: &ModelConfig) {
    let device = autodiff_device();
    let model = random_model(config, 2, DType::F32, &device);
    let packing = Packing {
        multiple: 16,
        ..Packing::ONE_PACK
    };
    let trajectories = [trajectory(&[1, 2, 3]), trajectory(&[1, 2, 4])];
    let pack = |packing: Packing| -> Pack {
        packing
            .pack(&trajectories, Objective::PerOccurrence, Aggregation::Sum)
            .packs
            .remove(0)
    };
    let hidden = |pack: &Pack, fill: i32| -> Vec<f32> {
        let mut batch = TreeBatch::new(std::slice::from_ref(pack), &device);
        let context = BlockContext::new(&batch);
        let padded = pack.padded_len - pack.layout.len();
        if padded > 0 {
            let tokens = TensorData::new(vec![fill; padded], [1, padded]);
            let tokens = Tensor::from_data(tokens, &device);
            let range = [0..1, pack.layout.len()..pack.padded_len];
            batch.tokens = batch.tokens.slice_assign(range, tokens);
        }
        let hidden = hidden_states(&model, batch.tokens, &context);
        hidden
            .slice([0..1, 0..pack.layout.len()])
            .into_data()
            .try_into_vec()
            .expect("f32")
    };
    let padded = pack(packing);
    assert_eq!((padded.layout.len(), padded.padded_len), (4, 16));
    let zeros = hidden(&padded, 0);
    assert_eq!(
        zeros,
        hidden(&padded, 9),
        "the tokens of padding reach other rows"
    );
    let bare = hidden(&pack(Packing::ONE_PACK), 0);
    for (padded, bare) in zeros.iter().zip(&bare) {
        assert!((padded - bare).abs() < 1e-5, "{padded} {bare}");
    }
}
