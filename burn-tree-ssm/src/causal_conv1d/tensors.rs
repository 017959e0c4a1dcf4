//! The tensors of a call, as [`TreeSsmOps`](crate::TreeSsmOps) passes them to a backend.
//!
//! Sizes: `R` rows of the flattened batch, `C` channels, `K` taps, `G` initial states and `X`
//! requested rows of the recurrence.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// The inputs of the convolution.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct ConvolutionInputs<B: Backend> {
    /// `[R, C]`
    pub x: FloatTensor<B>,
    /// `[C, K]`
    pub weight: FloatTensor<B>,
    /// `[max(G (K-1), 1), C]` in the dtype of `x`; undefined if `G (K-1)` is 0.
    pub initial_tails: FloatTensor<B>,
}

/// The outputs of the convolution, or their gradients, in the dtype of `x`.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct ConvolutionOutputs<B: Backend> {
    /// `[R, part]`, the first part of the channels; undefined if it has none (then `[1, 1]` as an
    /// output and of any shape as a gradient).
    pub first: FloatTensor<B>,
    /// The same of the second part.
    pub second: FloatTensor<B>,
    /// The same of the third part.
    pub third: FloatTensor<B>,
    /// `[max(X (K-1), 1), C]`, the tails after the requested rows; undefined if there are none.
    pub tails: FloatTensor<B>,
}

/// The gradients of [`ConvolutionInputs`], each in the shape and dtype of its input.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct ConvolutionGradients<B: Backend> {
    /// `[R, C]`
    pub x: FloatTensor<B>,
    /// `[C, K]`
    pub weight: FloatTensor<B>,
    /// `[max(G (K-1), 1), C]`; undefined if `G (K-1)` is 0.
    pub initial_tails: FloatTensor<B>,
}
