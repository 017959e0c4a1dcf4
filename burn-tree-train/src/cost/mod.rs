//! The cost of a step in operations, time and memory, on trees and on separate trajectories.

mod sharing;
mod step_bound;
mod step_time;

pub use sharing::{
    MemoryLimit, NeitherFits, SharingChoice, SharingGate, TaskCost, TaskSharing, Unfit,
};
pub use step_bound::{ModelCost, StepBound, StepCounts};
pub use step_time::{
    Calibration, CalibrationOptions, FitError, StepTime, StepWork, TimedStep, calibrate,
};
