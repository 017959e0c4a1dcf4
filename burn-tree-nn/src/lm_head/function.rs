//! The public function.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{Tensor, TensorData};
use burn_tree_kit::dtype::at_least_f32;
use tree_pack::OccurrenceBatch;

use super::check::check;
use super::error::LmHeadError;
use super::options::{EntropyOutput, LmHeadOptions};
use super::output::TokenLogProbs;
use super::plan::LmHeadPlan;
use super::tensors::LmHeadInputs;
use crate::ops::TreeNnOps;

/// Log-probabilities of the targets of `occurrences` given `hidden [B, N, H]` (after the final
/// norm) and the head weight `[V, H]`.
///
/// Each distinct row with a target is projected once, for any number of occurrences; rows without a
/// target are not projected. Logits exist for one chunk at a time, and the backward pass recomputes
/// them. The products run in the wider dtype of the two arguments, or in
/// [`LmHeadOptions::product_dtype`]; the softmax and the sums over chunks in at least f32.
///
/// # Panics
/// If [`try_token_log_probs`] returns an error, with its message.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_tree_nn::{LmHeadOptions, token_log_probs};
/// use tree_pack::{PackOptions, Trajectory, TreeBatch, build_forests, pack_step};
///
/// // Two trajectories that part after two tokens; all tokens after the first are trained.
/// let trajectories = [vec![1, 2, 3], vec![1, 2, 4]]
///     .map(|tokens| Trajectory::new("task", "run", tokens, vec![true; 3]));
/// let forests = build_forests(&trajectories)?;
/// let step = pack_step(&trajectories, &forests, &PackOptions::new(1024))?;
/// let device = Device::flex();
/// let batch = TreeBatch::new(&step.packs, &device);
///
/// let [rows, length] = batch.dims();
/// let hidden = Tensor::<3>::random([rows, length, 8], Distribution::Default, &device);
/// let head = Tensor::<2>::random([5, 8], Distribution::Default, &device);
/// let output = token_log_probs(hidden, head, &batch.occurrences, LmHeadOptions::default());
/// // Of four predictions two are one: it is computed once, and its weight counts it twice.
/// assert_eq!(output.log_probs.dims(), [3]);
/// let loss = (output.log_probs * batch.occurrences.weights).sum().neg();
/// assert_eq!(loss.dims(), [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn token_log_probs(
    hidden: Tensor<3>,
    head_weight: Tensor<2>,
    occurrences: &OccurrenceBatch,
    options: LmHeadOptions,
) -> TokenLogProbs {
    try_token_log_probs(hidden, head_weight, occurrences, options)
        .unwrap_or_else(|error| panic!("token_log_probs: {error}"))
}

/// As [`token_log_probs`], but returns an error for invalid arguments.
///
/// # Errors
/// [`LmHeadError`] if shapes, dtypes or devices do not match, if the hidden states have other rows
/// `[B, N]` than the batch of the occurrences, if rows of occurrences do not ascend or do not
/// exist, or if a target is not below `V`.
pub fn try_token_log_probs(
    hidden: Tensor<3>,
    head_weight: Tensor<2>,
    occurrences: &OccurrenceBatch,
    options: LmHeadOptions,
) -> Result<TokenLogProbs, LmHeadError> {
    check(&hidden, &head_weight, occurrences, options)?;
    let [batch, rows, hidden_size] = hidden.dims();
    let [vocab, _] = head_weight.dims();
    let hidden_rows = batch * rows;
    let chunk_rows = options
        .chunk_rows
        .map(|rows| rows.clamp(1, hidden_rows.max(1)));
    let too_many = |rows: usize| {
        rows.checked_mul(vocab)
            .is_none_or(|n| n > i32::MAX as usize)
    };
    if let Some(chunk_rows) = chunk_rows.filter(|&rows| too_many(rows)) {
        return Err(LmHeadError::ChunkTooLarge { chunk_rows, vocab });
    }
    let plan = Arc::new(LmHeadPlan::new(
        &occurrences.host_rows,
        hidden_rows,
        chunk_rows,
        options.product_dtype,
    )?);
    if plan.occurrences() == 0 {
        // There are no predictions, but a backward pass must reach the hidden states. An empty
        // selection is part of the graph, whereas Burn creates a new tensor for an empty slice.
        let nothing = Tensor::from_data(TensorData::new(Vec::<i32>::new(), [0]), &hidden.device());
        let dtype = at_least_f32(
            plan.product_dtype(hidden.dtype(), head_weight.dtype())
                .into(),
        );
        let none = hidden
            .reshape([hidden_rows * hidden_size])
            .cast(dtype)
            .select(0, nothing);
        return Ok(TokenLogProbs {
            entropy: match options.entropy {
                EntropyOutput::None => None,
                EntropyOutput::Value => Some(none.clone().detach()),
                EntropyOutput::Differentiable => Some(none.clone()),
            },
            log_probs: none,
            batch: occurrences.batch,
        });
    }
    let inputs = LmHeadInputs::<Dispatch> {
        hidden: hidden.reshape([hidden_rows, hidden_size]).into_dispatch(),
        head_weight: head_weight.into_dispatch(),
        targets: occurrences.targets.clone().into_dispatch(),
    };
    let (log_probs, _log_sum_exp, entropy) =
        <Dispatch as TreeNnOps>::lm_head_log_probs(inputs, plan, options.entropy);
    Ok(TokenLogProbs {
        log_probs: Tensor::from_dispatch(log_probs),
        entropy: (options.entropy != EntropyOutput::None).then(|| Tensor::from_dispatch(entropy)),
        batch: occurrences.batch,
    })
}
