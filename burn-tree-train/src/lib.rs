//! Losses and training steps on trees of trajectories.
//!
//! A model takes part by implementing [`TreeModel`]. Its final hidden states become
//! log-probabilities of the trained tokens with [`token_log_probs`], and those a loss, for example
//! with [`sft_loss`]. [`gather_rows()`], [`grouped_linear()`], [`rms_norm()`] and [`swiglu()`] are
//! building blocks of models whose Burn counterparts are slow or sum in arbitrary order.

#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

mod device_failure;
mod model;
pub mod objectives;
mod router_loss;
mod shadow;
mod sharing;
mod step;
mod step_bound;
mod step_time;

pub use device_failure::{ParameterFailure, check_device, check_parameters};
pub use model::{
    BlockContext, BlockError, BlockOutputs, BlockOutputsError, BlockPast, RecurrenceMismatch,
    RouterOutput, TreeModel, frozen,
};
pub use objectives::{sft_loss, try_sft_loss};
pub use router_loss::{RouterLoad, load_balancing_loss};
pub use shadow::{shadow, widen_gradients};
pub use sharing::{
    FormCost, MemoryLimit, NeitherFits, SharingChoice, SharingGate, TaskForm, Unfit,
};
pub use step::{
    NoGradientsCause, RouterLoss, StepError, StepGradients, StepOptions, step_forward,
    step_gradients, step_index_memory, step_router_load,
};
pub use step_bound::{ModelCost, StepBound, StepCounts};
pub use step_time::{
    Calibration, CalibrationOptions, FitError, StepTime, StepWork, TimedStep, calibrate,
};
