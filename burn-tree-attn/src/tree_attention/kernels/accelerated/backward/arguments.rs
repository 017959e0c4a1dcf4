//! What the backward kernels are given besides a plan and sizes.

use cubecl::prelude::*;

/// What gradients are computed from, contiguous.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct BackwardTensors<E: Float> {
    /// `[B, Hq, N, D]`
    pub query: Box<[E]>,
    /// `[B, Hkv, M, D]`
    pub key: Box<[E]>,
    /// `[B, Hkv, M, D]`
    pub value: Box<[E]>,
    /// Gradient of the output, `[B, Hq, N, D]`.
    pub grad_output: Box<[E]>,
    /// Of [`row_statistics`](super::statistics::row_statistics).
    pub statistics: Box<[f32]>,
}

/// Gradients of keys and values as 16-byte chunks: `[B, Hkv, M, D]`, or `[splits, B, Hkv, M, D]` in
/// f32 if several cubes share a tile of keys.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct KeyGradients {
    pub key: Box<[Vector<u32, Const<4>>]>,
    pub value: Box<[Vector<u32, Const<4>>]>,
}

/// How products of queries and keys become scores.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Scores {
    /// Factor of the products.
    pub scale: f32,
    /// Factor of the products, or of the hyperbolic tangent if scores are softcapped, times
    /// log2(e).
    pub scale_log2: f32,
    /// If scores are softcapped, factor of the products in the hyperbolic tangent.
    pub cap_scale: f32,
    /// Length of the sliding window, if there is one.
    pub window: u32,
}
