//! What the forward kernels are compiled for, and how they lay out shared memory.

use burn_tree_kit::cube::matrix::*;

use super::super::barrier::BARRIER_BYTES;
use super::super::stage::*;
use super::super::warpgroup::*;
use super::softmax::ScoreMap;

/// Compile-time shape of the forward kernel: it depends on the dtype, the head dimension, the
/// number of query heads per key head and the options, not on the sizes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ForwardConfig {
    /// Numbers per row of query, key and value.
    pub head_dim: usize,
    /// Query rows of a tile.
    pub query_rows: usize,
    /// Query heads of one key head that a cube works on: the rows of its tile are
    /// `heads * query_rows`, head by head.
    pub heads: usize,
    /// Keys of a tile.
    pub key_rows: usize,
    /// Planes of a cube, each with an equal share of the rows.
    pub planes: usize,
    /// Tiles of keys and values in shared memory at a time.
    pub stages: usize,
    /// What happens to a product of query and key before the softmax.
    pub scores: ScoreMap,
    /// Whether there is a sliding window.
    pub window: bool,
}

impl ForwardConfig {
    /// Rows of a cube's tile of queries.
    pub fn rows(&self) -> usize {
        self.heads * self.query_rows
    }

    /// 16-row blocks of a plane.
    pub fn blocks(&self) -> usize {
        self.rows() / self.planes / 16
    }

    /// Bytes of one stage: keys, values, and the intervals (and positions) of the keys.
    pub fn stage_bytes(&self) -> usize {
        2 * tile_bytes(self.key_rows, self.head_dim) + key_words(self.window) * self.key_rows * 4
    }

    /// Bytes of shared memory of a cube.
    pub fn shared_bytes(&self) -> usize {
        tile_bytes(self.rows(), self.head_dim) + self.stages * self.stage_bytes()
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.planes * PLANE
    }

    /// That of the kernel of warpgroups.
    pub fn of_warpgroups(&self) -> WarpgroupForwardConfig {
        WarpgroupForwardConfig {
            head_dim: self.head_dim,
            query_rows: self.query_rows,
            heads: self.heads,
            scores: self.scores,
            window: self.window,
        }
    }
}

/// Compile-time shape of the kernel of warpgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WarpgroupForwardConfig {
    /// Numbers per row of query, key and value: 64 or 128.
    pub head_dim: usize,
    /// Query rows of a tile.
    pub query_rows: usize,
    /// Query heads of one key head that a cube works on: the rows of its tile are
    /// `heads * query_rows`, head by head.
    pub heads: usize,
    /// What happens to a product of query and key before the softmax.
    pub scores: ScoreMap,
    /// Whether there is a sliding window.
    pub window: bool,
}

impl WarpgroupForwardConfig {
    /// Rows of a cube's tile of queries.
    pub fn rows(&self) -> usize {
        self.heads * self.query_rows
    }

    /// Units that compute.
    pub fn computing_units(&self) -> usize {
        self.rows() / ROWS * PLANES * PLANE
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.computing_units() + COPYING
    }

    /// Bytes of the keys or values of a stage.
    pub fn key_bytes(&self) -> usize {
        panel_tile_bytes(STAGE_ROWS, self.head_dim)
    }

    /// Bytes of the intervals of a stage.
    pub fn words_bytes(&self) -> usize {
        key_words(self.window) * STAGE_ROWS * 4
    }

    /// Where the stages start: keys and values, in turn.
    pub fn stages_at(&self) -> usize {
        panel_tile_bytes(self.rows(), self.head_dim)
    }

    /// Where the intervals of the stages start.
    pub fn words_at(&self) -> usize {
        self.stages_at() + STAGES * 2 * self.key_bytes()
    }

    /// Where the barriers start: of each stage, keys there, keys free, values there, values free.
    pub fn barriers_at(&self) -> usize {
        self.words_at() + STAGES * self.words_bytes()
    }

    /// Bytes of shared memory of a cube.
    pub fn shared_bytes(&self) -> usize {
        self.barriers_at() + STAGES * 4 * BARRIER_BYTES
    }
}

/// Words per key besides its row: start and end of its interval, and its position.
fn key_words(window: bool) -> usize {
    if window { 3 } else { 2 }
}
