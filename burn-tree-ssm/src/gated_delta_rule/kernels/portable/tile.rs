//! Tiles, 64 rows by four columns for each lane, in f32: parts of matrices in buffers, blocks of
//! units, and sums.
//!
//! The units of a cube form a grid of 16 x `lanes`; the unit at `(y, lane)` holds the block of the
//! result at rows `4 y ..` and columns `4 lane ..` as four [`Quad`]s, one for each row.

use cubecl::prelude::*;

/// Four numbers next to each other in a row.
pub(super) type Quad = Vector<f32, Const<4>>;

/// Rows of a tile: as many as a window has at most.
pub(super) const TILE: usize = 64;
/// Units along the rows of a tile.
pub(super) const UNIT_ROWS: usize = TILE / 4;
/// Lanes of a tile as wide as it is high.
pub(super) const SQUARE_LANES: usize = TILE / 4;
/// Quads between rows of a square tile in shared memory: one more, against bank conflicts.
pub(super) const SQUARE_STRIDE: usize = SQUARE_LANES + 1;
/// Quads of a square tile in shared memory.
pub(super) const SQUARE_LEN: usize = TILE * SQUARE_STRIDE;

/// Quads of a tile of `lanes` lanes in shared memory.
pub(super) const fn tile_len(lanes: usize) -> usize {
    TILE * (lanes + 1)
}

/// A matrix within a buffer. Elements outside of it count as zero and are not read.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Matrix {
    /// Index of its first element.
    pub start: usize,
    /// From one row to the next.
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
}

/// The matrix without its first `rows` rows and `columns` columns; it has at least as many.
#[cube]
pub(super) fn part(matrix: &Matrix, rows: usize, columns: usize) -> Matrix {
    Matrix {
        start: matrix.start + rows * matrix.stride + columns,
        stride: matrix.stride,
        rows: matrix.rows - rows,
        columns: matrix.columns - columns,
    }
}

/// A number of a matrix.
#[cube]
pub(super) fn element<S: Float>(source: &[S], matrix: &Matrix, row: usize, column: usize) -> f32 {
    let mut value = 0.0f32;
    if row < matrix.rows && column < matrix.columns {
        value = f32::cast_from(source[matrix.start + row * matrix.stride + column]);
    }
    value
}

/// The numbers at columns `column ..` of a row.
#[cube]
pub(super) fn read<S: Float>(source: &[S], matrix: &Matrix, row: usize, column: usize) -> Quad {
    let mut quad = Quad::zeroed();
    #[unroll]
    for c in 0..4usize {
        quad.insert(c, element::<S>(source, matrix, row, column + c));
    }
    quad
}

/// Writes the numbers at columns `column ..` of a row, those that are within the matrix.
#[cube]
pub(super) fn write<S: Float>(
    quad: Quad,
    target: &mut [S],
    matrix: &Matrix,
    row: usize,
    column: usize,
) {
    #[unroll]
    for c in 0..4usize {
        if row < matrix.rows && column + c < matrix.columns {
            target[matrix.start + row * matrix.stride + column + c] = S::cast_from(quad.extract(c));
        }
    }
}

/// Row of the unit's block within a tile.
#[cube]
pub(super) fn block_row(#[comptime] lanes: usize) -> usize {
    UNIT_POS as usize / lanes * 4
}

/// Column of the unit's block within a tile.
#[cube]
pub(super) fn block_column(#[comptime] lanes: usize) -> usize {
    UNIT_POS as usize % lanes * 4
}

/// A block of zeros, for the unit to add products to.
#[cube]
pub(super) fn zeros(#[comptime] quads: usize) -> Array<Quad> {
    let mut block = Array::<Quad>::new(quads);
    #[unroll]
    for at in 0..quads {
        block[at] = Quad::zeroed();
    }
    block
}

/// Puts the unit's block, quads `first ..`, into a tile in shared memory.
#[cube]
pub(super) fn put(
    block: &Array<Quad>,
    #[comptime] first: usize,
    tile: &mut Shared<[Quad]>,
    #[comptime] lanes: usize,
) {
    let stride = comptime!(lanes + 1);
    #[unroll]
    for r in 0..4usize {
        tile[(block_row(lanes) + r) * stride + block_column(lanes) / 4] = block[first + r];
    }
}

/// The block with rows and columns exchanged.
#[cube]
pub(super) fn transposed(block: &Array<Quad>) -> Array<Quad> {
    let mut result = Array::<Quad>::new(4usize);
    #[unroll]
    for r in 0..4usize {
        let mut quad = Quad::zeroed();
        #[unroll]
        for c in 0..4usize {
            quad.insert(c, block[c].extract(r));
        }
        result[r] = quad;
    }
    result
}

/// Sums over the columns of a tile of quads that hold a number for each of the unit's four rows;
/// the units of [`is_first`] get those of rows `4 UNIT_POS ..`. All units must arrive; `scratch` is
/// a square tile.
#[cube]
pub(super) fn sum_columns(rows: Quad, scratch: &mut Shared<[Quad]>) -> Quad {
    let lanes = comptime!(SQUARE_LANES);
    sync_cube();
    scratch[block_row(lanes) / 4 * SQUARE_STRIDE + block_column(lanes) / 4] = rows;
    sync_cube();
    let mut sum = Quad::zeroed();
    if is_first() {
        for lane in 0..lanes {
            sum += scratch[UNIT_POS as usize * SQUARE_STRIDE + lane];
        }
    }
    sum
}

/// Sums over the rows of a tile of quads that hold a number for each of the unit's four columns.
/// See [`sum_columns`].
#[cube]
pub(super) fn sum_rows(columns: Quad, scratch: &mut Shared<[Quad]>) -> Quad {
    let lanes = comptime!(SQUARE_LANES);
    sync_cube();
    scratch[block_column(lanes) / 4 * SQUARE_STRIDE + block_row(lanes) / 4] = columns;
    sync_cube();
    let mut sum = Quad::zeroed();
    if is_first() {
        for row in 0..UNIT_ROWS {
            sum += scratch[UNIT_POS as usize * SQUARE_STRIDE + row];
        }
    }
    sum
}

/// Whether the unit is one of those that get sums.
#[cube]
pub(super) fn is_first() -> bool {
    UNIT_POS < comptime!(UNIT_ROWS as u32)
}
