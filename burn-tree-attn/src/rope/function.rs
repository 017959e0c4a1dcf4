//! The public functions.

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
use burn_tree_kit::check::ArgumentError;

use super::check::check;
use super::settings::{RopeConfig, RopeDirection, RopeSettings};
use crate::ops::TreeAttentionOps;

/// Rotates `x [B, H, N, D]` by the angles of `position_ids [B, N]`.
///
/// Pair `i` of a row at position `p` turns by `p * theta^(-2 i / rotary_dim)`, or as the
/// [`RopeScaling`](crate::RopeScaling) says; the pairs are those of
/// [`RopePairing`](super::RopePairing), and dimensions from `rotary_dim` on stay as they are. Angles and products
/// are computed in f32 (f64 for f64 inputs). The result has the dtype of `x`: f64, f32, f16 or
/// bf16. Differentiable in `x`.
///
/// Su et al., *RoFormer* (2021).
///
/// # Panics
/// With the text of the error if [`try_rope`] refuses the arguments.
///
/// # Example
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use burn_tree_attn::{RopeConfig, rope};
///
/// let device = Device::flex();
/// let x = Tensor::<4>::ones([1, 1, 3, 2], &device);
/// // Rows 1 and 2 are siblings: the same position on two paths.
/// let position_ids = Tensor::<2, Int>::from_ints([[0, 1, 1]], &device);
/// let rotated = rope(x, position_ids, &RopeConfig::new(10_000.0));
/// let rotated = rotated.into_data().to_vec::<f32>().unwrap();
/// assert_eq!(rotated[0..2], [1.0, 1.0]);
/// assert!((rotated[2] - (1f32.cos() - 1f32.sin())).abs() < 1e-6);
/// assert_eq!(rotated[2..4], rotated[4..6]);
/// ```
pub fn rope(x: Tensor<4>, position_ids: Tensor<2, Int>, config: &RopeConfig) -> Tensor<4> {
    try_rope(x, position_ids, config).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`rope`], with an error for arguments that do not fit.
///
/// # Errors
/// If the shapes, the device or the dtype do not fit, or a setting is out of its range.
pub fn try_rope(
    x: Tensor<4>,
    position_ids: Tensor<2, Int>,
    config: &RopeConfig,
) -> Result<Tensor<4>, ArgumentError> {
    let rotary_dim = check(&x, &position_ids, config)?;
    Ok(Tensor::from_dispatch(<Dispatch as TreeAttentionOps>::rope(
        x.into_dispatch(),
        position_ids.into_dispatch(),
        RopeSettings {
            theta: config.theta,
            rotary_dim,
            pairing: config.pairing,
            direction: RopeDirection::Forward,
            scaling: config.scaling,
        },
    )))
}
