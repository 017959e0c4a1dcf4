//! Checks of an operation's arguments. They run before dispatch, because Burn only logs a panic in
//! a deferred task and continues.

use burn::tensor::{DType, Device, FloatDType};
use thiserror::Error;

use crate::dtype::at_least_f32;
use crate::implementation::Implementation;

/// An argument that an operation refuses. The message names the operation, the argument, its value
/// and the expected value.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ArgumentError {
    /// A tensor whose shape does not match the other arguments.
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
    /// A tensor whose element type the operation does not support.
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
    /// An optional tensor that the other arguments require.
    #[error("{op}: {tensor} is missing, expected {expected}")]
    Missing {
        /// The operation.
        op: &'static str,
        /// Name of the tensor.
        tensor: &'static str,
        /// The shape, and why it is needed.
        expected: String,
    },
    /// A list whose number of entries does not match the tensors.
    #[error("{op}: {argument} has {found} entries, expected {expected} ({reason})")]
    Length {
        /// The operation.
        op: &'static str,
        /// Name of the list.
        argument: &'static str,
        /// Its number of entries.
        found: usize,
        /// The number expected.
        expected: usize,
        /// Where the requirement comes from.
        reason: &'static str,
    },
    /// A list of sizes whose sum does not match the tensors.
    #[error("{op}: {argument} add up to {}, expected {expected} ({reason})", sum_text(.found))]
    Sum {
        /// The operation.
        op: &'static str,
        /// Name of the list.
        argument: &'static str,
        /// Its sum; `None` if that exceeds `usize`.
        found: Option<usize>,
        /// The sum expected.
        expected: usize,
        /// Where the requirement comes from.
        reason: &'static str,
    },
    /// A tensor of the operation would have more bytes than can be addressed.
    #[error("{op}: {what} of shape {shape:?} exceed 2^63 - 1 bytes")]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// The tensor, in plural.
        what: &'static str,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// The requested implementation does not support these tensors.
    #[error("{op}: implementation {requested:?} cannot run: {reason}")]
    Implementation {
        /// The operation.
        op: &'static str,
        /// The implementation.
        requested: Implementation,
        /// The reason.
        reason: String,
    },
    /// The arguments do not match the plan of the operation.
    #[error("{op}: {reason}")]
    Plan {
        /// The operation.
        op: &'static str,
        /// The contradiction.
        reason: String,
    },
}

fn sum_text(sum: &Option<usize>) -> String {
    match sum {
        Some(sum) => sum.to_string(),
        None => format!("more than {}", usize::MAX),
    }
}

/// Checks the arguments of one operation.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// Name of the operation in errors.
    pub op: &'static str,
}

impl Check {
    /// `found`, the shape of the tensor named `tensor`, must be `expected`; `reason` names the
    /// origin of this requirement.
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

    /// No dimension of the tensor may have size 0.
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

    /// The last dimension of the tensor must not have size 0; there may be no rows.
    ///
    /// # Errors
    /// [`ArgumentError::Shape`]
    pub fn has_columns(self, tensor: &'static str, found: &[usize]) -> Result<(), ArgumentError> {
        match found.last() {
            Some(1..) => Ok(()),
            _ => Err(ArgumentError::Shape {
                op: self.op,
                tensor,
                found: found.to_vec(),
                expected: "at least 1 in the last dimension".to_owned(),
            }),
        }
    }

    /// The dtype must be f64, f32, f16 or bf16.
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

    /// The dtype must be `expected`, that of the tensor named `first`.
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

    /// The device must be `expected`, that of the tensor named `first`. A device with autodiff
    /// equals the same device without it.
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

    /// `value`, which is added to numbers in at least f32, must be positive and normal there:
    /// devices may flush smaller ones to 0. `dtype` is that of the tensor.
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

    /// A list must have `expected` entries; `reason` names the origin of this requirement.
    ///
    /// # Errors
    /// [`ArgumentError::Length`]
    pub fn length(
        self,
        argument: &'static str,
        found: usize,
        expected: usize,
        reason: &'static str,
    ) -> Result<(), ArgumentError> {
        match found == expected {
            true => Ok(()),
            false => Err(ArgumentError::Length {
                op: self.op,
                argument,
                found,
                expected,
                reason,
            }),
        }
    }

    /// A list of sizes must add up to `expected`; `reason` names the origin of this requirement.
    ///
    /// # Errors
    /// [`ArgumentError::Sum`], also if the sum exceeds `usize`.
    pub fn sum(
        self,
        argument: &'static str,
        sizes: &[usize],
        expected: usize,
        reason: &'static str,
    ) -> Result<(), ArgumentError> {
        let found = sizes.iter().try_fold(0usize, |sum, &n| sum.checked_add(n));
        match found == Some(expected) {
            true => Ok(()),
            false => Err(ArgumentError::Sum {
                op: self.op,
                argument,
                found,
                expected,
                reason,
            }),
        }
    }

    /// Returns the plan of the operation, or converts its error to an [`ArgumentError`].
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

    const CHECK: Check = Check { op: "op" };

    fn text<T: std::fmt::Debug>(result: Result<T, ArgumentError>) -> String {
        result.unwrap_err().to_string()
    }

    #[test]
    fn shapes() {
        CHECK.shape("w", &[2, 3], &[2, 3], "of x").unwrap();
        assert_eq!(
            text(CHECK.shape("w", &[3], &[2], "rows of x")),
            "op: w has shape [3], expected [2] (rows of x)"
        );
        CHECK.not_empty("x", &[1, 2]).unwrap();
        assert_eq!(
            text(CHECK.not_empty("x", &[0, 2])),
            "op: x has shape [0, 2], expected at least 1 in each dimension"
        );
        CHECK.has_columns("x", &[0, 2]).unwrap();
        for shape in [&[2, 0][..], &[]] {
            assert_eq!(
                text(CHECK.has_columns("x", shape)),
                format!("op: x has shape {shape:?}, expected at least 1 in the last dimension")
            );
        }
    }

    #[test]
    fn dtypes() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            CHECK.float("x", dtype).unwrap();
            CHECK.same_dtype("y", dtype, "x", dtype).unwrap();
        }
        for dtype in [DType::Flex32, DType::I32] {
            assert_eq!(
                text(CHECK.float("x", dtype)),
                format!("op: x is {dtype:?}, expected f64, f32, f16 or bf16")
            );
        }
        assert_eq!(
            text(CHECK.same_dtype("y", DType::F16, "x", DType::F32)),
            "op: y is F16, expected F32, the dtype of x"
        );
    }

    /// The device without autodiff is the same device.
    #[cfg(feature = "flex")]
    #[test]
    fn devices() {
        let device = Device::flex();
        CHECK
            .same_device("y", device.clone().autodiff(), "x", device)
            .unwrap();
        let error = ArgumentError::Device {
            op: "op",
            tensor: "y",
            found: "A".to_owned(),
            first: "x",
            expected: "B".to_owned(),
        };
        assert_eq!(error.to_string(), "op: y is on A, expected B, where x is");
    }

    /// The last three are less than normal, 0 and infinite in f32.
    #[test]
    fn epsilons() {
        for (value, dtype) in [
            (1e-6, DType::F16),
            (1e-37, DType::F32),
            (1e-300, DType::F64),
        ] {
            CHECK.epsilon(value, dtype).unwrap();
        }
        for value in [0.0, -1.0, f64::NAN, 1e-40, 1e-50, 1e39] {
            assert_eq!(
                text(CHECK.epsilon(value, DType::BF16)),
                format!("op: epsilon is {value}, expected a positive number, normal in f32")
            );
        }
        assert_eq!(
            text(CHECK.epsilon(-1.0, DType::F64)),
            "op: epsilon is -1, expected a positive number, normal in f64"
        );
    }

    #[test]
    fn lists() {
        CHECK.length("sizes", 2, 2, "matrices of w").unwrap();
        assert_eq!(
            text(CHECK.length("sizes", 3, 2, "matrices of w")),
            "op: sizes has 3 entries, expected 2 (matrices of w)"
        );
        CHECK.sum("sizes", &[2, 0, 3], 5, "rows of x").unwrap();
        assert_eq!(
            text(CHECK.sum("sizes", &[2, 2], 5, "rows of x")),
            "op: sizes add up to 4, expected 5 (rows of x)"
        );
        // The wrapped sum would be correct.
        assert_eq!(
            text(CHECK.sum("sizes", &[usize::MAX, 6], 5, "rows of x")),
            format!(
                "op: sizes add up to more than {}, expected 5 (rows of x)",
                usize::MAX
            )
        );
    }

    #[test]
    fn plans() {
        assert_eq!(CHECK.plan(Ok::<_, String>(3)).unwrap(), 3);
        assert_eq!(text(CHECK.plan(Err::<u8, _>("no place"))), "op: no place");
    }
}
