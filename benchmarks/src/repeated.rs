//! Checks on the device whether repetitions of a computation give the same bits.

use std::fmt;

use burn::tensor::{Bool, Device, Int, Tensor};
use serde::Serialize;

/// Number of runs, and of those that differ from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Repeated {
    /// Runs compared with the first.
    pub runs: usize,
    /// Runs with at least one different value.
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
    /// A count of no runs.
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

    /// Reads the counter. Waits for the device.
    pub fn result(self) -> Repeated {
        Repeated {
            runs: self.runs,
            different: self.different.into_scalar::<i64>() as usize,
        }
    }
}

/// Whether a value differs: all bits count except the sign of zero; NaN always differs.
pub fn differ<const D: usize>(first: &Tensor<D>, again: Tensor<D>) -> Tensor<1, Bool> {
    first.clone().not_equal(again).any()
}
