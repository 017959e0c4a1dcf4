//! Options of the log-probabilities.

use burn::tensor::FloatDType;

/// Whether [`token_log_probs`](super::token_log_probs) also computes the entropy of the
/// predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EntropyOutput {
    /// No entropy.
    #[default]
    None,
    /// The entropy without a gradient, for metrics.
    Value,
    /// The entropy with a gradient, for an entropy bonus. One backward pass computes the gradients
    /// of log-probabilities and entropies together.
    Differentiable,
}

/// Options of [`token_log_probs`](super::token_log_probs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LmHeadOptions {
    /// Number of distinct rows whose logits exist at a time. `None` means 2^24 logits, but at least
    /// 256 rows; on CubeCL runtimes 2^27 logits.
    pub chunk_rows: Option<usize>,
    /// Whether to compute the entropy of the predictions too.
    pub entropy: EntropyOutput,
    /// The dtype to which states, head and the gradients of logits are rounded before they are
    /// multiplied. `None` means the wider dtype of states and head. On CubeCL runtimes the products
    /// sum in f32 and return f32 for all factors: bf16 is automatic mixed precision with logits in
    /// f32. On other backends products return this dtype.
    pub product_dtype: Option<FloatDType>,
}
