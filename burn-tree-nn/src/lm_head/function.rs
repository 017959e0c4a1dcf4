//! Public function.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{FloatDType, Tensor, TensorData};
use tree_pack::{BatchId, OccurrenceBatch};

use super::{LmHeadError, LmHeadPlan};
use crate::TreeNnOps;
use burn_tree_kit::dtype::at_least_f32;

/// Whether [`token_log_probs`] computes the entropy of the predictions, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntropyOutput {
    /// No.
    #[default]
    None,
    /// A value without gradient, for metrics.
    Value,
    /// With a gradient, for an entropy bonus: one backward pass computes it together with that of
    /// the log-probabilities.
    Differentiable,
}

/// Options of [`token_log_probs`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LmHeadOptions {
    /// Distinct rows whose logits are alive at a time. If `None`: as many as give 2^24 logits, but
    /// at least 256; on CubeCL runtimes as many as give 2^27 logits.
    pub chunk_rows: Option<usize>,
    /// Whether to compute the entropy of the predictions, too.
    pub entropy: EntropyOutput,
    /// The dtype in which states, head and the gradients of logits are rounded before they are
    /// multiplied; the wider one of states and head if `None`. On CubeCL runtimes the products
    /// sum and return f32 all the same, so that bf16 gives what automatic mixed precision does,
    /// with logits in f32; elsewhere they return this dtype.
    pub product_dtype: Option<FloatDType>,
}

/// What [`token_log_probs`] returns, per occurrence.
#[derive(Clone, Debug)]
pub struct TokenLogProbs {
    /// `[n]` log p(target | row), in at least f32.
    pub log_probs: Tensor<1>,
    /// `[n]` entropy in nats of the row's distribution over the vocabulary, if asked for.
    pub entropy: Option<Tensor<1>>,
    /// The batch that they were computed for, so that a loss can refuse the occurrences of another.
    batch: Option<BatchId>,
}

impl TokenLogProbs {
    /// Log-probabilities `[n]`, and entropies `[n]` if any, that were computed elsewhere. Losses
    /// cannot tell then whether they are those of their occurrences, except by their number.
    pub fn new(log_probs: Tensor<1>, entropy: Option<Tensor<1>>) -> Self {
        Self {
            log_probs,
            entropy,
            batch: None,
        }
    }

    /// The batch that they were computed for; `None` if they were computed elsewhere.
    pub fn batch(&self) -> Option<BatchId> {
        self.batch
    }
}

/// Log-probabilities of the targets of `occurrences` given `hidden [B, N, H]` (after the final
/// norm) and the head weight `[V, H]`.
///
/// Each distinct row that has a target is projected once, however many occurrences read it; rows
/// without a target are not projected. Logits exist for one chunk of rows at a time: the backward
/// pass recomputes them. The products run in the wider dtype of the two arguments unless
/// [`LmHeadOptions::product_dtype`] says otherwise, the softmax and the sums over chunks in at
/// least f32.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_tree_nn::{LmHeadOptions, sft_loss, token_log_probs};
/// use tree_pack::{PackOptions, Trajectory, TreeBatch, build_forests, pack_step};
///
/// // Two trajectories that part after two tokens; everything after the first token is trained.
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
/// // Four predictions: the shared one is computed once and counts twice in its weight.
/// assert_eq!(output.log_probs.dims(), [3]);
/// let loss = sft_loss(output, &batch.occurrences);
/// assert_eq!(loss.dims(), [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
///
/// With the text of [`LmHeadError`] where [`try_token_log_probs`] returns one.
pub fn token_log_probs(
    hidden: Tensor<3>,
    head_weight: Tensor<2>,
    occurrences: &OccurrenceBatch,
    options: LmHeadOptions,
) -> TokenLogProbs {
    try_token_log_probs(hidden, head_weight, occurrences, options)
        .unwrap_or_else(|error| panic!("token_log_probs: {error}"))
}

/// [`token_log_probs`] that returns an error if the arguments do not fit together.
///
/// # Errors
/// [`LmHeadError`]: shapes that differ, hidden states with other rows `[B, N]` than the batch of the
/// occurrences, or a target that is not below `V`.
pub fn try_token_log_probs(
    hidden: Tensor<3>,
    head_weight: Tensor<2>,
    occurrences: &OccurrenceBatch,
    options: LmHeadOptions,
) -> Result<TokenLogProbs, LmHeadError> {
    let [batch, rows, hidden_size] = hidden.dims();
    let [vocab, head_size] = head_weight.dims();
    if hidden_size != head_size {
        return Err(LmHeadError::HiddenSize {
            hidden: hidden_size,
            head: head_size,
        });
    }
    let expected = occurrences.batch.map(|batch| batch.dims());
    if let Some(expected) = expected.filter(|&expected| expected != [batch, rows]) {
        return Err(LmHeadError::Rows {
            found: [batch, rows],
            expected,
        });
    }
    check_targets(occurrences, vocab)?;
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
        // Nothing is predicted, but a backward pass must find its way: an empty selection is part
        // of the graph, while Burn makes a new tensor of an empty slice.
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
    let (log_probs, _log_sum_exp, entropy) = <Dispatch as TreeNnOps>::lm_head_log_probs(
        hidden.reshape([hidden_rows, hidden_size]).into_dispatch(),
        head_weight.into_dispatch(),
        occurrences.targets.clone().into_dispatch(),
        plan,
        options.entropy,
    );
    Ok(TokenLogProbs {
        log_probs: Tensor::from_dispatch(log_probs),
        entropy: (options.entropy != EntropyOutput::None).then(|| Tensor::from_dispatch(entropy)),
        batch: occurrences.batch,
    })
}

/// Checked on the host: a device cannot raise an error for a target that the head does not have.
fn check_targets(occurrences: &OccurrenceBatch, vocab: usize) -> Result<(), LmHeadError> {
    let [targets] = occurrences.targets.dims();
    for targets in [targets, occurrences.host_targets.len()] {
        if targets != occurrences.host_rows.len() {
            return Err(LmHeadError::Columns {
                rows: occurrences.host_rows.len(),
                targets,
            });
        }
    }
    let mut host = occurrences.host_targets.iter();
    match host.position(|&target| target as usize >= vocab) {
        Some(occurrence) => Err(LmHeadError::Target {
            occurrence,
            target: occurrences.host_targets[occurrence],
            vocab,
        }),
        None => Ok(()),
    }
}
