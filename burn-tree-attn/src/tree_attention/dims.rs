//! Sizes of a call.

use burn::backend::TensorMetadata;

/// Sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dims {
    pub batch: usize,
    pub query_heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub head_dim: usize,
    pub value_dim: usize,
}

impl Dims {
    pub(crate) fn new<T: TensorMetadata>(query: &T, key: &T, value: &T) -> Self {
        Self::of_shapes([query, key, value].map(|tensor| tensor.shape().dims()))
    }

    /// Of query `[B, Hq, N, D]`, key `[B, Hkv, M, D]` and value `[B, Hkv, M, Dv]`.
    pub(crate) fn of_shapes([query, key, value]: [[usize; 4]; 3]) -> Self {
        Self {
            batch: query[0],
            query_heads: query[1],
            kv_heads: key[1],
            queries: query[2],
            keys: key[2],
            head_dim: query[3],
            value_dim: value[3],
        }
    }

    /// Query heads per key/value head.
    pub(crate) fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }

    /// `[B, Hkv, M, D]`
    pub(crate) fn key_shape(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.keys, self.head_dim]
    }

    /// `[B, Hkv, M, Dv]`
    pub(crate) fn value_shape(&self) -> [usize; 4] {
        [self.batch, self.kv_heads, self.keys, self.value_dim]
    }

    /// `[B, Hq, N, Dv]`
    pub(crate) fn output_shape(&self) -> [usize; 4] {
        [self.batch, self.query_heads, self.queries, self.value_dim]
    }

    /// `[B, Hq, N]`
    pub(crate) fn rows_shape(&self) -> [usize; 3] {
        [self.batch, self.query_heads, self.queries]
    }
}
