//! Activation functions.

use cubecl::client::Client;
use cubecl::prelude::*;

use crate::cube::matrix::{exp2, reciprocal};

/// Whether kernels for this device may use the approximate instructions of NVIDIA GPUs (see
/// [`matrix`](crate::cube::matrix)).
pub fn has_approximations(client: &Client) -> bool {
    // Only CubeCL's C++ compiler for CUDA supports inline assembly, and only this compiler reports
    // asynchronous copies.
    client.properties().features.copy_async
}

/// `1 / (1 + e^-x)` for each number of a vector. `approximate` uses four instructions instead of
/// twenty and has a relative error of about 2^-21; it needs [`has_approximations`].
#[cube]
pub fn sigmoid<N: Size>(x: Vector<f32, N>, #[comptime] approximate: bool) -> Vector<f32, N> {
    if comptime!(approximate) {
        let mut result = Vector::<f32, N>::zeroed();
        #[unroll]
        for i in 0..N::value() {
            // -log2(e): e^-x as a power of two.
            let power = exp2(x.extract(i) * comptime!(-std::f32::consts::LOG2_E));
            result.insert(i, reciprocal(1.0f32 + power));
        }
        result
    } else {
        let one = Vector::<f32, N>::new(1.0f32);
        one / (one + (-x).exp())
    }
}
