//! Loading of log decays.

use cubecl::prelude::*;

use crate::gated_delta_rule::settings::LOWEST_LOG_DECAY;

/// A log decay as kernels compute with it: at least [`LOWEST_LOG_DECAY`]. (NaN stays.)
#[cube]
pub(super) fn log_decay_of(loaded: f32) -> f32 {
    select(
        loaded < LOWEST_LOG_DECAY,
        f32::new(LOWEST_LOG_DECAY),
        loaded,
    )
}
