//! The tensors of the operations, by what they are.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// What one weight adds to the gradient of the input: `grad weightᵀ`.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct InputGradientTerm<B: Backend> {
    /// The gradient of the product `[R, N]`.
    pub grad: FloatTensor<B>,
    /// `[K, N]`
    pub weight: FloatTensor<B>,
}
