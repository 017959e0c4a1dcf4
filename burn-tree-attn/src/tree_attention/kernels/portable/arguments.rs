//! What kernels are compiled for, and what changes from call to call.

use cubecl::prelude::*;

use super::tile::Blocking;

/// What a kernel is compiled for, besides its element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct KernelShape {
    /// Rows of the tile that stays are queries (forward, gradient of queries) or keys.
    pub blocking: Blocking,
    /// Vectors of a query or key.
    pub head_vectors: usize,
    /// Vectors of a value.
    pub value_vectors: usize,
    pub window: bool,
    pub softcap: bool,
}

impl KernelShape {
    pub(super) fn widest(&self) -> usize {
        self.head_vectors.max(self.value_vectors)
    }

    /// Vectors of the staging buffer.
    pub(super) fn stage_len(&self) -> usize {
        self.blocking.stage_len(self.widest())
    }

    pub(super) fn shared_bytes(&self, compute_size: usize) -> usize {
        let blocking = &self.blocking;
        let maxima = blocking.left() * blocking.lanes;
        let stage = self.stage_len() * blocking.vector;
        (stage + blocking.weights_len() + maxima) * compute_size
    }
}

/// Query, key and value, in vectors.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Tensors<E: Float, N: Size> {
    pub query: Box<[Vector<E, N>]>,
    pub key: Box<[Vector<E, N>]>,
    pub value: Box<[Vector<E, N>]>,
}

/// Output, in vectors, and log-sum-exp.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Results<E: Float, A: Float, N: Size> {
    pub output: Box<[Vector<E, N>]>,
    pub log_sum_exp: Box<[A]>,
}

/// What gradients are computed from.
#[derive(CubeType, CubeLaunch)]
pub(super) struct BackwardTensors<E: Float, A: Float, N: Size> {
    pub query: Box<[Vector<E, N>]>,
    pub key: Box<[Vector<E, N>]>,
    pub value: Box<[Vector<E, N>]>,
    /// Gradient of the output.
    pub grad_output: Box<[Vector<E, N>]>,
    /// For every query row, its log-sum-exp and `sum(grad_output * output)`.
    pub statistics: Box<[A]>,
}

/// Numbers that change from call to call.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Problem {
    pub query_heads: u32,
    pub kv_heads: u32,
    pub queries: u32,
    pub keys: u32,
    /// Positions in the sliding window.
    pub window: u32,
    /// Number of cubes with work.
    pub cubes: u32,
    /// Starts of the plan's sections.
    pub key_start: u32,
    pub key_end: u32,
    pub key_position: u32,
    pub query_position: u32,
    /// Of the side that stays.
    pub offsets: u32,
    pub entries: u32,
    pub order: u32,
    /// Factor of the products.
    pub scale: InputScalar,
    pub softcap: InputScalar,
}
