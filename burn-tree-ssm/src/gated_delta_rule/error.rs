//! What can be wrong with the arguments, told before anything is computed.

use burn::tensor::DType;
use thiserror::Error;

use burn_tree_kit::implementation::Implementation;

/// [`try_tree_gated_delta_rule`](crate::try_tree_gated_delta_rule) refused its arguments.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum GatedDeltaRuleError {
    /// A dimension differs from what the other arguments ask for.
    #[error(
        "tree_gated_delta_rule: {tensor} has {dimension} {found}, expected {expected} ({reason})"
    )]
    Shape {
        /// Name of the tensor.
        tensor: &'static str,
        /// Name of the dimension.
        dimension: &'static str,
        /// Its size.
        found: usize,
        /// Required size.
        expected: usize,
        /// Where the requirement comes from.
        reason: &'static str,
    },
    /// Value heads cannot be shared out evenly among the key heads.
    #[error(
        "tree_gated_delta_rule: {value_heads} value heads are not a positive multiple of {key_heads} key heads"
    )]
    Heads {
        /// Heads of the value.
        value_heads: usize,
        /// Heads of query and key.
        key_heads: usize,
    },
    /// The head dimension is zero.
    #[error("tree_gated_delta_rule: the head dimension of {tensor} is 0, expected at least 1")]
    EmptyHead {
        /// Name of the tensor.
        tensor: &'static str,
    },
    /// A tensor that the call needs has more bytes than can be addressed.
    #[error("tree_gated_delta_rule: {what} of shape {shape:?} exceed 2^63 - 1 bytes")]
    TooLarge {
        /// The tensor, in plural.
        what: &'static str,
        /// Its shape.
        shape: [usize; 4],
    },
    /// A tensor of another element type than asked for.
    #[error("tree_gated_delta_rule: {tensor} is {found:?}, expected {expected:?} ({reason})")]
    DType {
        /// Name of the tensor.
        tensor: &'static str,
        /// Its dtype.
        found: DType,
        /// Required dtype.
        expected: DType,
        /// Where the requirement comes from.
        reason: &'static str,
    },
    /// An element type that is not a float of 16 to 64 bits.
    #[error("tree_gated_delta_rule: {tensor} is {found:?}, expected f64, f32, f16 or bf16")]
    UnsupportedDType {
        /// Name of the tensor.
        tensor: &'static str,
        /// Its dtype.
        found: DType,
    },
    /// Tensors on different devices.
    #[error(
        "tree_gated_delta_rule: {tensor} is on {found}, expected {expected} (the value's device)"
    )]
    Device {
        /// Name of the tensor.
        tensor: &'static str,
        /// Its device.
        found: String,
        /// The value's.
        expected: String,
    },
    /// Initial states are missing, or nobody starts from them.
    #[error(
        "tree_gated_delta_rule: initial_states holds {found} states, but the roots of the recurrence name {expected}"
    )]
    InitialStates {
        /// Number of states given.
        found: usize,
        /// Number of states that the recurrence names.
        expected: usize,
    },
    /// An option out of its range.
    #[error("tree_gated_delta_rule: option `{option}` is {value}, expected {expected}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// The implementation asked for does not run these tensors.
    #[error("tree_gated_delta_rule: implementation {requested:?} cannot run: {reason}")]
    Implementation {
        /// The implementation.
        requested: Implementation,
        /// Why not.
        reason: String,
    },
}
