//! Losses and training steps on trees of trajectories.
//!
//! A model implements [`TreeModel`]. [`step_gradients`] computes an optimizer step on packs, which
//! may be parts of larger trees: the head (`burn-tree-nn`) computes the log-probabilities of the
//! trained tokens, and a loss, such as [`sft_loss`] or one of [`losses`], is computed from them.
//! [`StepBound`] and [`StepTime`] predict the cost of a step and the gain of prefix sharing.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

mod cost;
mod device_failure;
pub mod losses;
mod model;
mod router_loss;
mod shadow;
mod step;

pub use cost::{
    Calibration, CalibrationOptions, FitError, MemoryLimit, ModelCost, NeitherFits, SharingChoice,
    SharingGate, StepBound, StepCounts, StepTime, StepWork, TaskCost, TaskSharing, TimedStep,
    Unfit, calibrate,
};
pub use device_failure::{ParameterFailure, check_device, check_parameters};
pub use losses::{sft_loss, try_sft_loss};
pub use model::{
    BlockContext, BlockError, BlockOutputs, BlockOutputsError, BlockPast, RecurrenceMismatch,
    RouterOutput, TreeModel, frozen,
};
pub use router_loss::{RouterLoad, load_balancing_loss};
pub use shadow::{shadow, widen_gradients};
pub use step::{
    IntoPackLoss, NoGradientsCause, RouterLossOptions, StepError, StepGradients, StepOptions,
    step_forward, step_gradients, step_index_memory, step_router_load,
};
