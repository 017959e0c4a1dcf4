//! What a cube of the kernel of a window's gradients has in shared memory, and who works on what.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::arguments::Windows;
use super::super::blocks::*;
use super::super::words::*;

/// Planes of a cube, one per 16-row tile.
pub(super) const PLANES: usize = TILES;
/// Units of a cube.
pub(crate) const UNITS: usize = PLANES * PLANE;
/// Key columns of a part of the states, of which two are in shared memory at a time.
pub(super) const PART: usize = 32;

/// Where a cube has what in shared memory, in bytes.
#[derive(Clone, Copy)]
struct Layout {
    key: usize,
    u: usize,
    grad_output: usize,
    /// The gradient of `U`, and when that is no longer needed, every second part of the states.
    grad_u: usize,
    /// The inverse, when that is no longer needed `N`, and then, over both tiles, the other parts.
    inverse: usize,
    grad_product: usize,
    /// Numbers per row of a window.
    numbers: usize,
    bytes: usize,
}

/// Numbers per row of a window.
const SUMS: usize = 0;
const ENDS: usize = 1;
const BETAS: usize = 2;
const EXITS: usize = 3;
const INTER: usize = 4;
const OF_EXIT: usize = 5;
/// One number per row and plane.
const COLUMN_SUMS: usize = 6;
const NUMBERS: usize = COLUMN_SUMS + PLANES;

impl WindowConfig {
    const fn gradients_layout(self) -> Layout {
        let (by_key, by_value) = (
            tile_bytes(ROWS, self.key_dim),
            tile_bytes(ROWS, self.value_dim),
        );
        let parts = 2 * tile_bytes(self.value_dim, PART);
        let u = 2 * by_key;
        let grad_output = u + by_value;
        let grad_u = grad_output + by_value;
        let inverse = grad_u + if by_value > parts { by_value } else { parts };
        let grad_product = inverse + SQUARE;
        let numbers = inverse
            + if 2 * SQUARE > parts {
                2 * SQUARE
            } else {
                parts
            };
        Layout {
            key: by_key,
            u,
            grad_output,
            grad_u,
            inverse,
            grad_product,
            numbers,
            // Sums of planes over the states come last.
            bytes: numbers + 4 * ROWS * NUMBERS + 4 * PLANES,
        }
    }

    /// Bytes of shared memory of a cube of
    /// [`gated_delta_rule_backward_gradients`](super::gradients::gated_delta_rule_backward_gradients).
    pub(crate) const fn gradients_shared_bytes(self) -> usize {
        self.gradients_layout().bytes
    }
}

/// A window in a cube: addresses in shared memory, and the rows of the unit.
#[derive(CubeType, Clone, Copy)]
pub(super) struct CubeWindow {
    pub number: u32,
    /// First row.
    pub start: u32,
    /// Rows.
    pub length: u32,
    /// 16-row tiles.
    pub tiles: u32,
    pub query: u32,
    pub key: u32,
    pub u: u32,
    pub grad_output: u32,
    /// See [`Layout`].
    pub grad_u: u32,
    /// See [`Layout`].
    pub inverse: u32,
    pub grad_product: u32,
    /// Path sums of the log decays to base 2.
    pub sums: u32,
    /// Ends of subtrees, counted within the window.
    pub ends: u32,
    pub betas: u32,
    /// Decays to the last token.
    pub to_last: u32,
    /// What the entry's state contributes to the gradients of the path sums.
    pub inter: u32,
    /// What the rows contribute to the gradient of the exit's decay.
    pub of_exit: u32,
    /// Sums of pairs that cross the edge above each row, by plane.
    pub column_sums: u32,
    /// Products of the entry's state with the gradient of the exit's, by plane.
    pub plane_sums: u32,
    pub unit: u32,
    pub lane: u32,
    pub plane: u32,
    /// First row of the plane.
    pub plane_row: u32,
    /// First row of the lane; its second is eight further.
    pub row: u32,
}

/// Window number `number`, whose tiles are at `shared`.
#[cube]
pub(super) fn cube_window(
    shared: u32,
    windows: &Windows,
    number: u32,
    #[comptime] config: WindowConfig,
) -> CubeWindow {
    let start = windows.starts[number as usize];
    let length = windows.lengths[number as usize];
    let layout = comptime!(config.gradients_layout());
    let numbers = shared + comptime!(layout.numbers as u32);
    let unit = UNIT_POS_X;
    let (lane, plane) = (unit % 32, unit / 32);
    let plane_row = plane * 16;
    CubeWindow {
        number,
        start,
        length,
        tiles: length.div_ceil(16u32),
        query: shared,
        key: shared + comptime!(layout.key as u32),
        u: shared + comptime!(layout.u as u32),
        grad_output: shared + comptime!(layout.grad_output as u32),
        grad_u: shared + comptime!(layout.grad_u as u32),
        inverse: shared + comptime!(layout.inverse as u32),
        grad_product: shared + comptime!(layout.grad_product as u32),
        sums: numbers + comptime!((4 * ROWS * SUMS) as u32),
        ends: numbers + comptime!((4 * ROWS * ENDS) as u32),
        betas: numbers + comptime!((4 * ROWS * BETAS) as u32),
        to_last: numbers + comptime!((4 * ROWS * EXITS) as u32),
        inter: numbers + comptime!((4 * ROWS * INTER) as u32),
        of_exit: numbers + comptime!((4 * ROWS * OF_EXIT) as u32),
        column_sums: numbers + comptime!((4 * ROWS * COLUMN_SUMS) as u32),
        plane_sums: numbers + comptime!((4 * ROWS * NUMBERS) as u32),
        unit,
        lane,
        plane,
        plane_row,
        row: plane_row + lane / 4,
    }
}

/// Path sums and betas of a lane's two rows.
#[derive(CubeType, Clone, Copy)]
pub(super) struct LaneRows {
    pub sum: f32,
    pub sum_8: f32,
    pub beta: f32,
    pub beta_8: f32,
}

/// Those of the unit.
#[cube]
pub(super) fn lane_rows(window: &CubeWindow) -> LaneRows {
    LaneRows {
        sum: load_number(window.sums + window.row * 4, 0usize),
        sum_8: load_number(window.sums + window.row * 4, 32usize),
        beta: load_number(window.betas + window.row * 4, 0usize),
        beta_8: load_number(window.betas + window.row * 4, 32usize),
    }
}

/// Two zeros: sums of the lane's rows.
#[cube]
pub(super) fn zero_rows() -> Array<f32> {
    let mut zeros = Array::<f32>::new(2usize);
    zeros[0] = 0.0f32;
    zeros[1] = 0.0f32;
    zeros
}

/// Sums of the plane's rows of the gradients of queries and keys.
#[derive(CubeType)]
pub(super) struct KeySums {
    pub query: Array<Accumulator>,
    pub key: Array<Accumulator>,
}
