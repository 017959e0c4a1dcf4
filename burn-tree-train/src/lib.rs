//! Losses and training steps on trees of trajectories.
//!
//! A model takes part by implementing [`TreeModel`]. [`step_gradients`] computes a whole optimizer
//! step: its packs, which may be parts of larger trees, log-probabilities of the trained tokens from
//! the head (`burn-tree-nn`), and a loss, for example [`sft_loss`] or one of [`objectives`]. What a
//! step costs, and whether sharing pays, is predicted by [`StepBound`] and [`StepTime`].

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

mod cost;
mod device_failure;
mod model;
pub mod objectives;
mod router_loss;
mod shadow;
mod step;

pub use cost::{
    Calibration, CalibrationOptions, FitError, FormCost, MemoryLimit, ModelCost, NeitherFits,
    SharingChoice, SharingGate, StepBound, StepCounts, StepTime, StepWork, TaskForm, TimedStep,
    Unfit, calibrate,
};
pub use device_failure::{ParameterFailure, check_device, check_parameters};
pub use model::{
    BlockContext, BlockError, BlockOutputs, BlockOutputsError, BlockPast, RecurrenceMismatch,
    RouterOutput, TreeModel, frozen,
};
pub use objectives::{sft_loss, try_sft_loss};
pub use router_loss::{RouterLoad, load_balancing_loss};
pub use shadow::{shadow, widen_gradients};
pub use step::{
    NoGradientsCause, PackLoss, RouterLoss, StepError, StepGradients, StepOptions, step_forward,
    step_gradients, step_index_memory, step_router_load,
};
