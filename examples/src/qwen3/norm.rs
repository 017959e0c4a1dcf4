//! Root-mean-square norm.

use burn::module::{Module, Param};
use burn::tensor::{DType, Tensor};

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
        let dtype = x.dtype();
        let wide = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let x = x.cast(wide);
        let mean_square = x.clone().square().mean_dim(D - 1);
        let normed = x * (mean_square + self.epsilon).sqrt().recip();
        let weight = self.weight.val().cast(wide).unsqueeze();
        (normed.cast(dtype).cast(wide) * weight).cast(dtype)
    }
}
