//! What kernels are compiled for, and the layout of their shared memory.

use burn_tree_kit::cube::warpgroup::{BARRIER_BYTES, Major, Operand, TileProduct};

use crate::product::plan::{Ending, STEP, TILE_COLUMNS, TILE_ROWS};
use crate::product::{Form, Joined};

/// Bytes of a panel of 64 x 64 numbers.
pub(super) const PANEL_BYTES: usize = 64 * 64 * 2;
/// Bytes of a stage's left operand.
pub(super) const LEFT_BYTES: usize = TILE_ROWS * STEP * 2;
/// Bytes of a stage's right operand.
const RIGHT_BYTES: usize = TILE_COLUMNS * STEP * 2;
/// Bytes of a stage.
pub(super) const STAGE_BYTES: usize = LEFT_BYTES + RIGHT_BYTES;
/// Bytes of the barriers of a stage: filled, emptied.
pub(super) const STAGE_BARRIER_BYTES: usize = 2 * BARRIER_BYTES;
/// Panels of results of a warpgroup in shared memory.
const PANELS: usize = 4;
/// Columns of a narrow tile.
pub(super) const NARROW_COLUMNS: usize = 64;

/// What a kernel writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::product) enum Output {
    /// Sums rounded to the dtype of the operands.
    Rounded,
    /// Sums in f32.
    Wide,
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::product) struct ProductConfig {
    pub(in crate::product) form: Form,
    pub(in crate::product) joined: Joined,
    pub(in crate::product) output: Output,
    pub(in crate::product) ending: Ending,
}

impl ProductConfig {
    /// Stages in shared memory.
    pub(super) fn stages(self) -> usize {
        match self.output {
            Output::Rounded => 3,
            Output::Wide => 4,
        }
    }

    /// Where the panels of results start; those of the second warpgroup follow those of the first.
    pub(super) fn results_at(self) -> usize {
        self.stages() * STAGE_BYTES
    }

    /// Bytes of results of a warpgroup.
    pub(super) fn results_bytes(self) -> usize {
        match self.output {
            Output::Rounded => PANELS * PANEL_BYTES,
            Output::Wide => 0,
        }
    }

    /// Where the barriers of the stages start.
    pub(super) fn barriers_at(self) -> usize {
        self.results_at() + 2 * self.results_bytes()
    }

    /// Bytes of shared memory of a cube.
    pub(super) fn shared_bytes(self) -> usize {
        self.barriers_at() + self.stages() * STAGE_BARRIER_BYTES
    }

    /// The product of a step, by a warpgroup.
    pub(super) fn product(self) -> TileProduct {
        let operand = |major| Operand {
            major,
            panel_bytes: 0,
        };
        TileProduct {
            left: operand(self.form.left()),
            right: operand(self.form.right()),
            depth: STEP,
        }
    }

    /// The product of two steps for a narrow tile, by a warpgroup.
    pub(super) fn narrow_product(self) -> TileProduct {
        let operand = |major, panel_bytes| Operand { major, panel_bytes };
        TileProduct {
            left: operand(self.form.left(), LEFT_BYTES),
            right: operand(self.form.right(), PANEL_BYTES),
            depth: 2 * STEP,
        }
    }

    /// Bytes between the right operand's panels along its columns; of no meaning, but not 0, where
    /// a row of a panel is a column.
    pub(super) fn right_panel_bytes(self) -> usize {
        match self.form.right() {
            Major::Kept => PANEL_BYTES,
            Major::Summed => 16,
        }
    }
}
