//! The tensors and sizes of one call.

use burn::backend::TensorMetadata;
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use crate::gated_delta_rule::tensors::{
    GatedDeltaRuleGradients, GatedDeltaRuleInputs, GatedDeltaRuleSaved,
};

pub(crate) type Inputs = GatedDeltaRuleInputs<CubeBackend>;
pub(crate) type Saved = GatedDeltaRuleSaved<CubeBackend>;
pub(crate) type Gradients = GatedDeltaRuleGradients<CubeBackend>;

/// Sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dims {
    /// With padding.
    pub rows: usize,
    pub key_heads: usize,
    pub value_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

impl Dims {
    /// Of `query [R, HK, DK]` and `value [R, HV, DV]`.
    pub(crate) fn new(query: &CubeTensor, value: &CubeTensor) -> Self {
        let [rows, key_heads, key_dim] = query.shape().dims();
        let [_, value_heads, value_dim] = value.shape().dims();
        Self::of_shapes(
            [1, rows, key_heads, key_dim],
            [1, rows, value_heads, value_dim],
        )
    }

    /// Of `query [B, N, HK, DK]` and `value [B, N, HV, DV]`.
    pub(crate) fn of_shapes(query: [usize; 4], value: [usize; 4]) -> Self {
        Self {
            rows: query[0] * query[1],
            key_heads: query[2],
            value_heads: value[2],
            key_dim: query[3],
            value_dim: value[3],
        }
    }
}
