//! Root-mean-square norm.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use burn_tree_nn::{rms_norm, zero_centered_rms_norm};

use super::source::{Initial, ParameterSource};
use crate::config::ModelConfig;

/// RMS norm over the last dimension, computed in at least f32: `y = w * cast(x * rsqrt(mean(x^2) +
/// eps))`, or with zero-centred weights `y = cast((1 + w) * x * rsqrt(mean(x^2) + eps))`.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[size]`
    pub weight: Param<Tensor<1>>,
    epsilon: f64,
    zero_centered: bool,
}

impl RmsNorm {
    /// The norm whose weight has the key `{prefix}.weight`.
    pub(crate) fn new<S: ParameterSource>(
        config: &ModelConfig,
        prefix: &str,
        size: usize,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let zero_centered = config.zero_centered_norms;
        let initial = match zero_centered {
            true => Initial::Zeros,
            false => Initial::Ones,
        };
        let weight = source.vector(&format!("{prefix}.weight"), size, initial)?;
        Ok(Self {
            weight: Param::from_tensor(weight),
            epsilon: config.rms_norm_eps,
            zero_centered,
        })
    }

    /// Normalises each vector of the last dimension. The result has the dtype of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let norm = match self.zero_centered {
            true => zero_centered_rms_norm,
            false => rms_norm,
        };
        norm(x, self.weight.val(), self.epsilon)
    }
}
