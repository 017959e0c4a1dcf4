//! What can be wrong with the arguments of an operation, told before anything is dispatched: Burn
//! only logs a panic of a deferred task.

use burn::tensor::{DType, Device, FloatDType};
use thiserror::Error;

use crate::dtype::at_least_f32;

/// An operation refused an argument.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A tensor of another shape than the other arguments ask for.
    #[error("{op}: {tensor} has shape {found:?}, expected {expected}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// Name of the tensor.
        tensor: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape, and where the requirement comes from.
        expected: String,
    },
    /// A tensor of another element type than the operation takes.
    #[error("{op}: {tensor} is {found:?}, expected {expected}")]
    DType {
        /// The operation.
        op: &'static str,
        /// Name of the tensor.
        tensor: &'static str,
        /// Its dtype.
        found: DType,
        /// What is allowed.
        expected: String,
    },
    /// A tensor on another device than the first one.
    #[error("{op}: {tensor} is on {found}, expected {expected}, where {first} is")]
    Device {
        /// The operation.
        op: &'static str,
        /// Name of the tensor.
        tensor: &'static str,
        /// Its device.
        found: String,
        /// Name of the first tensor.
        first: &'static str,
        /// Its device.
        expected: String,
    },
    /// A number out of its range.
    #[error("{op}: {argument} is {value}, expected {expected}")]
    Number {
        /// The operation.
        op: &'static str,
        /// Name of the argument.
        argument: &'static str,
        /// Its value.
        value: f64,
        /// What is allowed.
        expected: &'static str,
    },
    /// An optional tensor that these arguments need.
    #[error("{op}: {tensor} is missing, expected {expected}")]
    Missing {
        /// The operation.
        op: &'static str,
        /// Name of the tensor.
        tensor: &'static str,
        /// The shape, and why it is needed.
        expected: String,
    },
    /// The plan of the operation has no place for these arguments.
    #[error("{op}: {reason}")]
    Plan {
        /// The operation.
        op: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// Checks the arguments of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Its name.
    pub op: &'static str,
}

impl Check {
    /// The shape that `reason` asks for.
    ///
    /// # Errors
    /// [`ArgumentError::Shape`]
    pub fn shape(
        self,
        tensor: &'static str,
        found: &[usize],
        expected: &[usize],
        reason: &str,
    ) -> Result<(), ArgumentError> {
        match found == expected {
            true => Ok(()),
            false => Err(ArgumentError::Shape {
                op: self.op,
                tensor,
                found: found.to_vec(),
                expected: format!("{expected:?} ({reason})"),
            }),
        }
    }

    /// No dimension may be 0.
    ///
    /// # Errors
    /// [`ArgumentError::Shape`]
    pub fn not_empty(self, tensor: &'static str, found: &[usize]) -> Result<(), ArgumentError> {
        match found.contains(&0) {
            false => Ok(()),
            true => Err(ArgumentError::Shape {
                op: self.op,
                tensor,
                found: found.to_vec(),
                expected: "at least 1 in each dimension".to_owned(),
            }),
        }
    }

    /// Floats of 16 to 64 bits.
    ///
    /// # Errors
    /// [`ArgumentError::DType`]
    pub fn float(self, tensor: &'static str, found: DType) -> Result<(), ArgumentError> {
        let supported = matches!(found, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
        match supported {
            true => Ok(()),
            false => Err(ArgumentError::DType {
                op: self.op,
                tensor,
                found,
                expected: "f64, f32, f16 or bf16".to_owned(),
            }),
        }
    }

    /// The dtype of the tensor named `first`.
    ///
    /// # Errors
    /// [`ArgumentError::DType`]
    pub fn same_dtype(
        self,
        tensor: &'static str,
        found: DType,
        first: &'static str,
        expected: DType,
    ) -> Result<(), ArgumentError> {
        match found == expected {
            true => Ok(()),
            false => Err(ArgumentError::DType {
                op: self.op,
                tensor,
                found,
                expected: format!("{expected:?}, the dtype of {first}"),
            }),
        }
    }

    /// The device of the tensor named `first`, apart from autodiff.
    ///
    /// # Errors
    /// [`ArgumentError::Device`]
    pub fn same_device(
        self,
        tensor: &'static str,
        found: Device,
        first: &'static str,
        expected: Device,
    ) -> Result<(), ArgumentError> {
        let (found, expected) = (found.inner(), expected.inner());
        match found == expected {
            true => Ok(()),
            false => Err(ArgumentError::Device {
                op: self.op,
                tensor,
                found: format!("{found:?}"),
                first,
                expected: format!("{expected:?}"),
            }),
        }
    }

    /// Positive where it is added: less than the smallest normal number may count as 0 there.
    ///
    /// # Errors
    /// [`ArgumentError::Number`]
    pub fn epsilon(self, value: f64, dtype: DType) -> Result<(), ArgumentError> {
        let (is_normal, expected) = match at_least_f32(dtype) {
            FloatDType::F64 => (value.is_normal(), "a positive number, normal in f64"),
            _ => (
                (value as f32).is_normal(),
                "a positive number, normal in f32",
            ),
        };
        match is_normal && value > 0.0 {
            true => Ok(()),
            false => Err(ArgumentError::Number {
                op: self.op,
                argument: "epsilon",
                value,
                expected,
            }),
        }
    }

    /// The plan of the operation, or why there is none.
    ///
    /// # Errors
    /// [`ArgumentError::Plan`]
    pub fn plan<T>(self, plan: Result<T, impl std::fmt::Display>) -> Result<T, ArgumentError> {
        plan.map_err(|error| ArgumentError::Plan {
            op: self.op,
            reason: error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The dtypes of all operations, and no others.
    #[test]
    fn dtypes() {
        let check = Check { op: "op" };
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            check.float("x", dtype).unwrap();
        }
        for dtype in [DType::Flex32, DType::I32] {
            assert_eq!(
                check.float("x", dtype).unwrap_err().to_string(),
                format!("op: x is {dtype:?}, expected f64, f32, f16 or bf16")
            );
        }
    }
}
