//! What a call is asked for, and what it returns.

use burn::tensor::{FloatDType, Tensor};
use burn_tree_kit::implementation::Implementation;

/// Options of [`tree_gated_delta_rule`](crate::tree_gated_delta_rule).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GatedDeltaRuleOptions {
    /// Factor of the query, in the range of f32 (f64 if the value is); `DK^-1/2` if `None`.
    pub scale: Option<f64>,
    /// Which implementation runs: the fastest available unless told otherwise.
    pub implementation: Implementation,
}

/// Resolved options of one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDeltaRuleSettings {
    /// Factor of the query.
    pub scale: f64,
    /// What is to run; checked before dispatch.
    pub implementation: Implementation,
}

/// What [`tree_gated_delta_rule`](crate::tree_gated_delta_rule) returns.
#[derive(Clone, Debug)]
pub struct GatedDeltaRuleOutput {
    /// `[B, N, HV, DV]` in the dtype of the value; zero in padding.
    pub output: Tensor<4>,
    /// `[X, HV, DK, DV]` the states after the requested rows, in f32 (f64 if the value is);
    /// `None` if there are none.
    pub states: Option<Tensor<4>>,
}

/// Log decays below this count as this: the exponential is 0 in f32, and sums that hold it keep the
/// digits of other log decays.
pub(crate) const LOWEST_LOG_DECAY: f32 = -104.0;

/// [`LOWEST_LOG_DECAY`] of computations in f32 or f64.
pub(crate) fn lowest_log_decay(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::F64 => -750.0,
        _ => LOWEST_LOG_DECAY.into(),
    }
}
