//! The predictions of a step, derived from the gradients of the logits.
//!
//! With the identity as the head, hidden states are logits, and the gradient of row `i` is `sum of
//! weight * (p - e_target)` over its predictions, which reveals their targets and weights.

use burn::tensor::{DType, Tensor, TensorData};
use burn_tree_nn::{LmHeadOptions, token_log_probs};
use burn_tree_train::sft_loss;
use tree_pack::{PackedStep, Trajectory, TreeBatch};

use crate::device::autodiff_device;
use crate::numbers::Numbers;
use crate::oracle::trie::RowsByPath;
use crate::step::read;

/// A predicted token with its context and its weight in the loss.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightedPrediction {
    /// The context, then the target.
    pub tokens: Vec<u32>,
    /// Coefficient of its negative log-likelihood.
    pub weight: f64,
}

impl WeightedPrediction {
    /// The prediction of the last of `tokens` from the others.
    pub fn new(tokens: &[u32], weight: f64) -> Self {
        Self {
            tokens: tokens.to_vec(),
            weight,
        }
    }

    /// The predictions of separate sequences with the weights of
    /// [`prediction_weights`](crate::oracle::loss::prediction_weights).
    pub fn of_sequences(trajectories: &[Trajectory], weights: &[Vec<f64>]) -> Vec<Self> {
        let rows = trajectories.iter().zip(weights);
        rows.flat_map(|(trajectory, weights)| {
            let predictions = weights.iter().enumerate();
            predictions.map(|(t, &weight)| Self::new(&trajectory.tokens[..=t + 1], weight))
        })
        .filter(|prediction| prediction.weight != 0.0)
        .collect()
    }
}

/// Compares the gradient of every logit of the packs with that of `expected` in plain loops. Rows
/// without predictions must have exactly zero.
///
/// Token ids must be below `vocabulary`, and the tasks must not share a first token.
///
/// # Panics
/// If they differ by more than `tolerance` times the largest weight of a row.
pub fn check_logit_gradients(
    step: &PackedStep,
    vocabulary: usize,
    expected: &[WeightedPrediction],
    dtype: DType,
) {
    // p and the sums over a few dozen predictions are rounded to the dtype.
    let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
    let device = autodiff_device();
    let rows_by_path = RowsByPath::new(&step.packs);
    let head = Tensor::<2>::eye(vocabulary, &device).cast(dtype);
    for (index, pack) in step.packs.iter().enumerate() {
        let rows = pack.padded_len;
        let logits = Numbers::new(index as u64, dtype).take(rows * vocabulary);
        let data = TensorData::new(logits.clone(), [1, rows, vocabulary]);
        let hidden = Tensor::<3>::from_data(data, (&device, dtype)).require_grad();
        let batch = TreeBatch::with_dtype(std::slice::from_ref(pack), &device, dtype.into());
        let options = LmHeadOptions::default();
        let head = token_log_probs(hidden.clone(), head.clone(), &batch.occurrences, options);
        let gradients = sft_loss(head, &batch.occurrences).backward();
        let found = hidden.grad(&gradients).expect("a gradient");
        let found = read(&found.reshape([rows * vocabulary]));

        let mut gradient = vec![0.0; rows * vocabulary];
        let mut weights = vec![0.0; rows];
        for prediction in expected {
            let (target, before) = prediction.tokens.split_last().expect("a target");
            let (pack, row) = rows_by_path.row(before);
            if pack != index {
                continue;
            }
            weights[row] += prediction.weight;
            let columns = row * vocabulary..(row + 1) * vocabulary;
            let sum: f64 = logits[columns.clone()]
                .iter()
                .map(|logit| logit.exp())
                .sum();
            for column in columns.clone() {
                gradient[column] += prediction.weight * logits[column].exp() / sum;
            }
            gradient[columns.start + *target as usize] -= prediction.weight;
        }
        for (column, (found, expected)) in found.iter().zip(&gradient).enumerate() {
            let (row, token) = (column / vocabulary, column % vocabulary);
            // Exactly zero without predictions.
            let allowed = tolerance * weights[row];
            assert!(
                (found - expected).abs() <= allowed,
                "pack {index} row {row}: gradient of the logit of token {token} is {found}, \
                 expected {expected}"
            );
        }
    }
}
