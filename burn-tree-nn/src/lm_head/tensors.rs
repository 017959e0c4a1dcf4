//! The tensors of the head's operation, by name.

use burn::backend::{
    Backend, ExtensionType,
    tensor::{FloatTensor, IntTensor},
};

/// The inputs of the log-probabilities.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct LmHeadInputs<B: Backend> {
    /// Hidden states `[R, H]`, after the final norm.
    pub hidden: FloatTensor<B>,
    /// The weight of the head `[V, H]`.
    pub head_weight: FloatTensor<B>,
    /// Token that each occurrence predicts, `[n]`.
    pub targets: IntTensor<B>,
}

/// The inputs of the backward pass besides those of the forward pass: results of the forward pass,
/// and the gradients of its outputs.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct LmHeadOutputGradients<B: Backend> {
    /// Log-sum-exp of the logits of each projected row, `[projected rows]`.
    pub log_sum_exp: FloatTensor<B>,
    /// Entropy of the row of each occurrence, `[n]`. Read only if
    /// [`HeadGradients::entropy`](super::HeadGradients::entropy).
    pub entropy: FloatTensor<B>,
    /// Gradients of the log-probabilities, `[n]`.
    pub grad: FloatTensor<B>,
    /// Gradients of the entropies, `[n]`. Read only if
    /// [`HeadGradients::entropy`](super::HeadGradients::entropy).
    pub grad_entropy: FloatTensor<B>,
}
