//! Whether repetitions of a computation give the same numbers, compared on the device.

use std::fmt;

use burn::tensor::{Bool, Device, Int, Tensor};
use serde::Serialize;

/// Runs, and how many of them gave other numbers than the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Repeated {
    /// Runs that were compared with the first.
    pub runs: usize,
    /// Those in which at least one number differs.
    pub different: usize,
}

impl fmt::Display for Repeated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.different {
            0 => write!(f, "same"),
            different => write!(f, "{different} of {} differ", self.runs),
        }
    }
}

/// Counts runs that differ; the counter stays on the device.
pub struct Repetition {
    runs: usize,
    different: Tensor<1, Int>,
}

impl Repetition {
    /// No runs.
    pub fn new(device: &Device) -> Self {
        Self {
            runs: 0,
            different: Tensor::zeros([1], device),
        }
    }

    /// Adds a run.
    pub fn add(&mut self, differs: Tensor<1, Bool>) {
        self.runs += 1;
        self.different = self.different.clone() + differs.int();
    }

    /// Waits for the device.
    pub fn result(self) -> Repeated {
        Repeated {
            runs: self.runs,
            different: self.different.into_scalar::<i64>() as usize,
        }
    }
}

/// Whether a number differs: all bits count but the sign of zero, and NaN differs from itself.
pub fn differ<const D: usize>(first: &Tensor<D>, again: Tensor<D>) -> Tensor<1, Bool> {
    first.clone().not_equal(again).any()
}
