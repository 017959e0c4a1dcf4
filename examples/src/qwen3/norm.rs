//! Root-mean-square norm.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn_tree_train::rms_norm;

/// `y = w * cast(x * rsqrt(mean(x^2) + eps))` over the last dimension: the norm is computed in at
/// least f32 and rounded to the dtype of `x` before it is scaled.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[size]`
    pub weight: Param<Tensor<1>>,
    epsilon: f64,
}

impl RmsNorm {
    pub(super) fn new(weight: Tensor<1>, epsilon: f64) -> Self {
        Self {
            weight: Param::from_tensor(weight),
            epsilon,
        }
    }

    /// Norm of each vector of the last dimension; the dtype is that of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        rms_norm(x, self.weight.val(), self.epsilon)
    }
}
