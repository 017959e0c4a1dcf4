//! Public functions.

use burn::tensor::{Int, Tensor};

use crate::TreeMask;

/// Options of [`tree_attention`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeAttentionOptions {
    /// Factor of the scores; `head_dim^-1/2` if `None`.
    pub scale: Option<f64>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f64>,
    /// A query at path position `p` sees keys at positions `> p - sliding_window`.
    pub sliding_window: Option<usize>,
}

/// Attention over a tree: query `[B, Hq, N, D]`, key `[B, Hkv, M, D]`, value `[B, Hkv, M, Dv]`
/// -> `[B, Hq, N, Dv]`.
pub fn tree_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: &TreeMask,
    options: TreeAttentionOptions,
) -> Tensor<4> {
    todo!("{query:?} {key:?} {value:?} {mask:?} {options:?}")
}

/// Rotary embedding settings: rotate-half pairs `(i, i + rotary_dim / 2)`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the angles.
    pub theta: f64,
    /// Leading dimensions that are rotated; all of them if `None`.
    pub rotary_dim: Option<usize>,
}

/// Rotates `x [B, H, N, D]` by the angles of `position_ids [B, N]`.
pub fn rope(x: Tensor<4>, position_ids: Tensor<2, Int>, config: &RopeConfig) -> Tensor<4> {
    todo!("{x:?} {position_ids:?} {config:?}")
}
