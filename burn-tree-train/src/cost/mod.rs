//! What a step costs: operations, time and memory, on trees and on separate trajectories.

mod sharing;
mod step_bound;
mod step_time;

pub use sharing::{
    FormCost, MemoryLimit, NeitherFits, SharingChoice, SharingGate, TaskForm, Unfit,
};
pub use step_bound::{ModelCost, StepBound, StepCounts};
pub use step_time::{
    Calibration, CalibrationOptions, FitError, StepTime, StepWork, TimedStep, calibrate,
};
