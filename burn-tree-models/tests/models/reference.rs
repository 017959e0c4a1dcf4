//! Packed trees against the flat reference computation of the fixtures.
//!
//! Tolerances are those of the fixtures' README: f32 rounding of the reference models themselves
//! is 2e-6 in log-probabilities and 2.4e-6 in gradients, of hybrid models 1.1e-5 and 3.8e-5.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, FloatDType};
use burn_tree_models::CausalLm;
use burn_tree_models::weights::{HfTensor, hf_gradients};
use burn_tree_nn::{LmHeadOptions, TokenLogProbs};
use burn_tree_train::{BlockContext, TreeModel, sft_loss};
use safetensors::SafeTensors;
use serde_json::Value;
use tree_pack::{
    LossForm, PackOptions, PackedStep, Trajectory, TreeBatch, build_forests, pack_step,
};

use crate::{MODELS, fixtures, floats, is_hybrid, load};

const CASES: [&str; 4] = ["fork", "agentic", "deep", "rl"];
/// Two rows of several trees, if a case has them.
const TOKEN_BUDGET: usize = 1024;

/// The cases of the model.
fn cases<'a>(model: &str, names: &[&'a str]) -> Vec<&'a str> {
    let folder = fixtures().join(model);
    let names = names.iter().copied();
    names.filter(|name| folder.join(name).is_dir()).collect()
}

struct Case {
    trajectories: Vec<Trajectory>,
    log_probs: Vec<Vec<f64>>,
    token_mean: f64,
    folder: PathBuf,
}

fn array<T>(value: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(read).collect()
}

fn case(model: &str, name: &str) -> Case {
    let folder = fixtures().join(model).join(name);
    let text = std::fs::read_to_string(folder.join("case.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    let trajectories = array(&json["trajectories"], |trajectory| {
        Trajectory::new(
            "task",
            "rollout",
            array(&trajectory["tokens"], |token| {
                token.as_u64().unwrap() as u32
            }),
            array(&trajectory["loss_mask"], |mask| mask.as_u64() == Some(1)),
        )
    });
    let expected = &json["expected"];
    Case {
        trajectories,
        log_probs: array(&expected["logp"], |row| {
            array(row, |value| value.as_f64().unwrap())
        }),
        token_mean: expected["losses"]["token_mean"]
            .as_f64()
            .unwrap_or_default(),
        folder,
    }
}

fn pack(case: &Case, loss: LossForm) -> PackedStep {
    let forests = build_forests(&case.trajectories).unwrap();
    let options = PackOptions {
        loss,
        pad_to_multiple: 64,
        ..PackOptions::new(TOKEN_BUDGET)
    };
    pack_step(&case.trajectories, &forests, &options).unwrap()
}

pub fn log_probs(model: &CausalLm, batch: &TreeBatch) -> TokenLogProbs {
    let context = BlockContext::new(batch);
    let hidden = model.hidden_states(batch.tokens.clone(), &context);
    let (hidden, head) = (hidden.unwrap(), model.head_weight());
    let options = LmHeadOptions {
        chunk_rows: Some(50),
        ..LmHeadOptions::default()
    };
    context.token_log_probs(hidden, head, &batch.occurrences, options)
}

fn worst_log_prob_error(model: &str, name: &str, dtype: FloatDType) -> f64 {
    let device = Device::flex();
    let case = case(model, name);
    let qwen = load(model, dtype, &device);
    let step = pack(&case, LossForm::PerTrajectory);
    let mut worst: f64 = 0.0;
    let mut compared = 0;
    for pack in &step.packs {
        let batch = TreeBatch::with_dtype(std::slice::from_ref(pack), &device, dtype);
        let log_probs = log_probs(&qwen, &batch).log_probs;
        assert_eq!(log_probs.dtype(), DType::from(dtype));
        let columns = &pack.occurrences;
        for (index, value) in floats(log_probs.into_data()).into_iter().enumerate() {
            let trajectory = step.trajectories[columns.trajectories[index] as usize].data_index;
            let row = columns.token_indices[index] as usize - 1;
            let expected = case.log_probs[trajectory as usize][row];
            worst = worst.max((value - expected).abs());
            compared += 1;
        }
    }
    let trained: usize = case.trajectories.iter().map(|t| t.trained_tokens()).sum();
    assert_eq!(compared, trained);
    worst
}

#[test]
fn log_probs_of_every_trajectory_f32() {
    for model in MODELS {
        for name in cases(model, &CASES) {
            let worst = worst_log_prob_error(model, name, FloatDType::F32);
            let tolerance = if is_hybrid(model) { 1e-4 } else { 2e-5 };
            assert!(worst < tolerance, "{model}/{name}: {worst:e}");
        }
    }
}

/// The fixtures have 9 decimals, so an error above 1e-8 means that f64 was lost.
#[test]
fn log_probs_of_every_trajectory_f64() {
    for model in MODELS {
        for name in cases(model, &CASES) {
            let worst = worst_log_prob_error(model, name, FloatDType::F64);
            assert!(worst < 1e-8, "{model}/{name}: {worst:e}");
        }
    }
}

/// Relative L2 error of the worst tensor. Zero tensors must be exactly zero.
fn worst_gradient_error(model: &str, name: &str, dtype: FloatDType) -> f64 {
    let device = Device::flex().autodiff();
    let case = case(model, name);
    let qwen = load(model, dtype, &device);
    let step = pack(&case, LossForm::LogLikelihood);
    let batch = TreeBatch::with_dtype(&step.packs, &device, dtype);
    let loss = sft_loss(log_probs(&qwen, &batch), &batch.occurrences);
    let value = floats(loss.clone().into_data())[0];
    let error = (value - case.token_mean).abs() / (1.0 + case.token_mean.abs());
    assert!(error < 2e-6, "{model}/{name}: loss off by {error:e}");
    let gradients = GradientsParams::from_grads(loss.backward(), &qwen);
    let gradients: BTreeMap<String, HfTensor> = hf_gradients(&qwen, &gradients)
        .unwrap()
        .into_iter()
        .map(|tensor| (tensor.key().to_owned(), tensor))
        .collect();

    let bytes = std::fs::read(case.folder.join("case_grads.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(expected.len(), gradients.len());
    let mut worst: f64 = 0.0;
    for (key, expected) in expected.iter() {
        let tensor = &gradients[key];
        assert_eq!(tensor.shape(), expected.shape(), "{key}");
        let found = floats(tensor.to_data(FloatDType::F64));
        let expected = expected
            .data()
            .chunks_exact(4)
            .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())));
        let (mut error, mut norm) = (0.0, 0.0);
        for (found, expected) in found.into_iter().zip(expected) {
            error += (found - expected).powi(2);
            norm += expected.powi(2);
        }
        match norm == 0.0 {
            true => assert_eq!(error, 0.0, "{model}/{name}: {key} must be zero"),
            false => worst = worst.max((error / norm).sqrt()),
        }
    }
    worst
}

#[test]
fn gradients_f32() {
    for model in MODELS {
        for name in cases(model, &["fork", "agentic", "deep"]) {
            let worst = worst_gradient_error(model, name, FloatDType::F32);
            let tolerance = match (is_hybrid(model), name) {
                (false, _) => 5e-5,
                (true, "fork") => 2e-3,
                (true, _) => 3e-4,
            };
            assert!(worst < tolerance, "{model}/{name}: {worst:e}");
        }
    }
}

/// The expected gradients are rounded to f32.
#[test]
fn gradients_f64() {
    for model in MODELS {
        for name in cases(model, &["fork", "agentic", "deep"]) {
            let worst = worst_gradient_error(model, name, FloatDType::F64);
            assert!(worst < 2e-7, "{model}/{name}: {worst:e}");
        }
    }
}
