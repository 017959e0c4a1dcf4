//! Products of a warpgroup, four planes (`wgmma`, compute capability 9.0): 64 rows per instruction,
//! right operands straight from shared memory.
//!
//! # Layouts
//!
//! A tile in shared memory is cut into panels of 64 columns (128 bytes); in a panel, row follows
//! row, and the eight 16-byte chunks of row `r` are permuted: chunk `c` lies at `c ^ (r % 8)`. This
//! is the 128-byte swizzle that the instructions undo; tiles start at multiples of 1024 bytes.
//!
//! Plane `p` of the warpgroup holds rows `16 p..` of sums and left operands, a lane of it as
//! [`matrix`](burn_tree_kit::cube::matrix) says for 16-row blocks.

use cubecl::prelude::*;

use burn_tree_kit::cube::matrix::*;

/// Planes that work on one product.
pub(crate) const PLANES: usize = 4;
/// Rows of a product.
pub(crate) const ROWS: usize = 64;
/// Columns of a panel.
const PANEL: usize = 64;
/// Bytes of a row of a panel.
const PANEL_ROW: usize = 2 * PANEL;

/// Bytes of a tile of `rows` rows.
pub(crate) const fn panel_tile_bytes(rows: usize, head_dim: usize) -> usize {
    2 * rows * head_dim
}

/// How units share out the copy of rows into a tile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PanelCopy {
    /// Rows to copy.
    pub rows: usize,
    /// Rows of the tile.
    pub tile_rows: usize,
    /// Numbers per row.
    pub head_dim: usize,
    /// Units that copy.
    pub units: usize,
}

/// Starts copying contiguous rows from `global` (the address of the first row) into the tile at
/// `shared`, by unit number `unit`. With `checked`, rows from `valid_rows` on become zero;
/// otherwise all are valid.
#[cube]
pub(crate) fn copy_panel_rows(
    global: u64,
    shared: u32,
    unit: u32,
    valid_rows: u32,
    #[comptime] copy: PanelCopy,
    #[comptime] checked: bool,
) {
    let (rows, tile_rows) = comptime!((copy.rows, copy.tile_rows));
    let (head_dim, units) = comptime!((copy.head_dim, copy.units));
    let row_chunks = comptime!(2 * head_dim / CHUNK);
    // Rows from pass to pass; with fewer than 8, the permutation changes.
    let pass_rows = comptime!(units / row_chunks);
    let passes = comptime!(rows / pass_rows);
    let from = global + u64::cast_from(unit * CHUNK as u32);
    let row = unit / row_chunks as u32;
    let column = unit % row_chunks as u32;
    let to =
        shared + column / 8 * comptime!((tile_rows * PANEL_ROW) as u32) + row * PANEL_ROW as u32;
    let chunk = (column % 8) ^ (row % 8);
    #[unroll]
    for pass in 0..passes {
        let pass_row = comptime!(pass * pass_rows);
        let global_offset = comptime!(pass * units * CHUNK);
        // `row` and `pass_row` have no bits in common.
        let permuted = chunk ^ comptime!((pass_row % 8) as u32);
        let to = to + permuted * CHUNK as u32;
        let shared_offset = comptime!(pass_row * PANEL_ROW);
        if comptime!(checked) {
            let valid = row + comptime!(pass_row as u32) < valid_rows;
            copy_chunk_or_zero(from, global_offset, to, shared_offset, valid);
        } else {
            copy_chunk(from, global_offset, to, shared_offset);
        }
    }
}

/// Makes what this unit wrote or saw written to shared memory visible to the products that it
/// starts afterwards.
#[cube]
pub(crate) fn fence_products() {
    gpu_asm!("fence.proxy.async.shared::cta;");
}

/// Descriptor of a tile whose columns are summed over: a left operand by its rows, a right operand
/// by its columns.
#[cube]
pub(crate) fn describe_by_rows(address: u32) -> u64 {
    // 8 rows are 1024 bytes apart; 128-byte swizzle.
    let layout = comptime!((1u64 << 16) | (64u64 << 32) | (1u64 << 62));
    u64::cast_from(address / 16) | layout
}

/// Descriptor of a tile of `tile_rows` rows whose rows are summed over: a right operand.
#[cube]
pub(crate) fn describe_by_columns(address: u32, #[comptime] tile_rows: usize) -> u64 {
    // Panels are a tile's rows apart, 8 rows 1024 bytes.
    let panel = comptime!((tile_rows * PANEL_ROW / 16) as u64);
    let layout = comptime!((panel << 16) | (64u64 << 32) | (1u64 << 62));
    u64::cast_from(address / 16) | layout
}

/// The products of 64 rows of the left tile and `2 N` rows of the right tile: `N` numbers per lane,
/// in 8-column blocks of four. Both tiles have `head_dim` columns, the left one `left_rows` rows,
/// the right one `right_rows`.
#[cube]
pub(crate) fn multiply_panel_rows<E: Float, N: Size>(
    left: u64,
    right: u64,
    #[comptime] head_dim: usize,
    #[comptime] left_rows: usize,
    #[comptime] right_rows: usize,
) -> Vector<f32, N> {
    let element = ptx_type::<E>().comptime();
    let numbers = N::value();
    let text = comptime!(rows_text(
        element,
        head_dim,
        left_rows,
        right_rows,
        2 * numbers
    ));
    let result: Vector<f32, N>;
    gpu_asm!(
        "{text} /* {result} {left} {right} */",
        left = in(_) read::<u64>(left), right = in(_) read::<u64>(right), result = out(_) result,
    );
    result
}

/// `sum + left * right` for a left operand in registers, of 64 rows and `rows` columns, and a right
/// tile of `rows` rows and `head_dim` columns. Lanes hold `N` numbers of the sum and `K` registers
/// of the left operand, 16 columns after 16 columns.
#[cube]
pub(crate) fn multiply_add_panel_columns<E: Float, N: Size, K: Size>(
    left: Vector<u32, K>,
    right: u64,
    sum: Vector<f32, N>,
    #[comptime] rows: usize,
    #[comptime] head_dim: usize,
) -> Vector<f32, N> {
    let element = ptx_type::<E>().comptime();
    let text = comptime!(columns_text(element, rows, head_dim));
    let result: Vector<f32, N>;
    gpu_asm!(
        "{text} /* {result} {sum} {left} {right} */",
        sum = in(_) read::<Vector<f32, N>>(sum), left = in(_) read::<Vector<u32, K>>(left),
        right = in(_) read::<u64>(right), result = out(_) result,
    );
    result
}

// Results

/// Writes a plane's 16 rows of sums, rounded, to rows from `plane_row` on of a tile of `tile_rows`
/// rows in shared memory; the lane's first row times `factor`, the second times `second_factor`.
#[cube]
pub(crate) fn store_panel_sums<E: Float, N: Size>(
    sums: Vector<f32, N>,
    factor: f32,
    second_factor: f32,
    tile: u32,
    plane_row: u32,
    #[comptime] tile_rows: usize,
    #[comptime] head_dim: usize,
) {
    let lane = UNIT_POS_X % 32;
    #[unroll]
    for row in 0..2usize {
        let factor = if comptime!(row == 0) {
            factor
        } else {
            second_factor
        };
        let tile_row = plane_row + lane / 4 + comptime!(8 * row as u32);
        let to = tile + tile_row * PANEL_ROW as u32 + lane % 4 * 4;
        #[unroll]
        for n in 0..comptime!(head_dim / 8) {
            let at = comptime!(4 * n + 2 * row);
            let word = pack::<E>(
                sums.extract(at) * factor,
                sums.extract(comptime!(at + 1)) * factor,
            );
            let chunk = comptime!((n % 8) as u32) ^ (tile_row % 8);
            let offset = comptime!(n / 8 * tile_rows * PANEL_ROW);
            store_word(to + chunk * CHUNK as u32, offset, word);
        }
    }
}

/// Reads a chunk of a tile of `tile_rows` rows in shared memory.
#[cube]
pub(crate) fn load_panel_chunk(
    tile: u32,
    row: u32,
    column: u32,
    #[comptime] tile_rows: usize,
) -> Fragment {
    let from = tile
        + column / 8 * comptime!((tile_rows * PANEL_ROW) as u32)
        + row * PANEL_ROW as u32
        + ((column % 8) ^ (row % 8)) * CHUNK as u32;
    load_chunk(from, 0usize)
}

/// Writes 16 rows from `plane_row` on of a tile in shared memory to contiguous rows in global
/// memory (the address of the tile's first row), by one plane; those from `valid` on are left out.
#[cube]
pub(crate) fn store_panel_rows(
    tile: u32,
    global: u64,
    plane_row: u32,
    valid: u32,
    #[comptime] tile_rows: usize,
    #[comptime] head_dim: usize,
) {
    let row_chunks = comptime!((2 * head_dim / CHUNK) as u32);
    #[unroll]
    for pass in 0..comptime!(16 * 2 * head_dim / CHUNK / PLANE) {
        let chunk = UNIT_POS_X % 32 + comptime!((pass * PLANE) as u32);
        let row = plane_row + chunk / row_chunks;
        let column = chunk % row_chunks;
        if row < valid {
            let to = global + u64::cast_from((row * row_chunks + column) * CHUNK as u32);
            store_chunk_global(to, load_panel_chunk(tile, row, column, tile_rows));
        }
    }
}

/// Operands: `$0` result, `$1` left descriptor, `$2` right descriptor.
fn rows_text(
    element: &str,
    head_dim: usize,
    left_rows: usize,
    right_rows: usize,
    columns: usize,
) -> String {
    let mut text =
        String::from("{ .reg .b64 left, right; .reg .pred add; wgmma.fence.sync.aligned; ");
    for step in 0..head_dim / 16 {
        // In units of 16 bytes: 16 columns within a panel, and panels.
        let offset = |rows: usize| step % 4 * 2 + step / 4 * rows * PANEL_ROW / 16;
        text += &format!(
            "add.s64 left, $1, {}; add.s64 right, $2, {}; setp.ne.u32 add, {}, 0; \
             wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{element}.{element} \
             $0, left, right, add, 1, 1, 0, 0; ",
            offset(left_rows),
            offset(right_rows),
            step.min(1),
        );
    }
    text + "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"
}

/// Operands: `$0` result, `$1` sum, `$2` left registers, `$3` right descriptor.
fn columns_text(element: &str, rows: usize, head_dim: usize) -> String {
    let numbers = head_dim / 2;
    let left = 2 * numbers;
    let mut text = String::from("{ .reg .b64 right; ");
    for number in 0..numbers {
        text += &format!("mov.f32 %{number}, %{}; ", numbers + number);
    }
    text += "wgmma.fence.sync.aligned; ";
    for step in 0..rows / 16 {
        let register = |index: usize| left + 4 * step + index;
        text += &format!(
            "add.s64 right, $3, {}; \
             wgmma.mma_async.sync.aligned.m64n{head_dim}k16.f32.{element}.{element} \
             $0, {{%{}, %{}, %{}, %{}}}, right, 1, 1, 1, 1; ",
            step * 16 * PANEL_ROW / 16,
            register(0),
            register(1),
            register(2),
            register(3),
        );
    }
    text + "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"
}
