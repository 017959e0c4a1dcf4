//! Products of tiles, 64 rows by four columns for each lane, staged through shared memory in f32.
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

/// Terms of a product that are staged at a time.
const DEPTH: usize = 16;
const LEFT_STRIDE: usize = DEPTH / 4 + 1;

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

#[cube]
fn element<S: Float>(source: &[S], matrix: &Matrix, row: usize, column: usize) -> f32 {
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

/// Where the operands of a product are put together.
#[derive(CubeType)]
pub(super) struct Stage {
    /// `[TILE, DEPTH]`
    left: Shared<[Quad]>,
    /// `[DEPTH, 4 lanes]`
    right: Shared<[Quad]>,
}

#[cube]
pub(super) fn new_stage(#[comptime] lanes: usize) -> Stage {
    Stage {
        left: Shared::<[Quad]>::new_slice(comptime!(TILE * LEFT_STRIDE)),
        right: Shared::<[Quad]>::new_slice(comptime!(DEPTH * (lanes + 1))),
    }
}

/// Which way an operand lies in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Order {
    AsStored,
    Transposed,
}

/// Stages columns `from .. from + DEPTH` of the left operand.
#[cube]
fn load_left<S: Float>(
    source: &[S],
    matrix: &Matrix,
    from: usize,
    stage: &mut Stage,
    #[comptime] order: Order,
    #[comptime] lanes: usize,
) {
    let quads = comptime!(DEPTH / 4);
    let mut at = UNIT_POS as usize;
    while at < comptime!(TILE * DEPTH / 4) {
        let mut values = Quad::zeroed();
        // Neighbouring units read neighbouring numbers.
        if comptime!(order == Order::AsStored) {
            values = read::<S>(source, matrix, at / quads, from + at % quads * 4);
            stage.left[at / quads * LEFT_STRIDE + at % quads] = values;
        } else {
            #[unroll]
            for k in 0..4usize {
                let depth = from + at / TILE * 4 + k;
                values.insert(k, element::<S>(source, matrix, depth, at % TILE));
            }
            stage.left[at % TILE * LEFT_STRIDE + at / TILE] = values;
        }
        at += comptime!(UNIT_ROWS * lanes);
    }
}

/// Stages rows `from .. from + DEPTH` of the right operand.
#[cube]
fn load_right<S: Float>(
    source: &[S],
    matrix: &Matrix,
    from: usize,
    stage: &mut Stage,
    #[comptime] order: Order,
    #[comptime] lanes: usize,
) {
    let stride = comptime!(lanes + 1);
    let mut at = UNIT_POS as usize;
    while at < comptime!(DEPTH * lanes) {
        let mut values = Quad::zeroed();
        if comptime!(order == Order::AsStored) {
            values = read::<S>(source, matrix, from + at / lanes, at % lanes * 4);
            stage.right[at / lanes * stride + at % lanes] = values;
        } else {
            #[unroll]
            for c in 0..4usize {
                let column = at / DEPTH * 4 + c;
                values.insert(c, element::<S>(source, matrix, column, from + at % DEPTH));
            }
            stage.right[at % DEPTH * stride + at / DEPTH] = values;
        }
        at += comptime!(UNIT_ROWS * lanes);
    }
}

/// Adds to quads `first ..` of the block the product of `DEPTH` columns of the left operand, whose
/// quads from `left_from` on of each row, with the same rows of the right one, from `right_from`
/// on. Blocks past the first `rows` rows of the result stay as they are.
#[cube]
fn multiply(
    left: &Shared<[Quad]>,
    left_from: usize,
    right: &Shared<[Quad]>,
    right_from: usize,
    rows: usize,
    block: &mut Array<Quad>,
    #[comptime] first: usize,
    #[comptime] left_stride: usize,
    #[comptime] lanes: usize,
) {
    let right_stride = comptime!(lanes + 1);
    let row = block_row(lanes);
    let left_at = row * left_stride + left_from;
    let right_at = right_from * right_stride + block_column(lanes) / 4;
    if row < rows {
        for quad in 0..comptime!(DEPTH / 4) {
            let mut rights = Array::<Quad>::new(4usize);
            #[unroll]
            for k in 0..4usize {
                rights[k] = right[right_at + (quad * 4 + k) * right_stride];
            }
            #[unroll]
            for r in 0..4usize {
                let values = left[left_at + r * left_stride + quad];
                #[unroll]
                for k in 0..4usize {
                    block[first + r] += Quad::new(values.extract(k)) * rights[k];
                }
            }
        }
    }
}

/// Rows of a left operand.
#[cube]
fn operand_rows(matrix: &Matrix, #[comptime] order: Order) -> usize {
    if comptime!(order == Order::AsStored) {
        matrix.rows
    } else {
        matrix.columns
    }
}

/// Adds to the block the product over `depth` terms of two operands from buffers. All units must
/// arrive; starts and ends without a barrier, those in between keep the stage.
#[cube]
pub(super) fn add_product<L: Float, R: Float>(
    left: &[L],
    left_matrix: &Matrix,
    #[comptime] left_order: Order,
    right: &[R],
    right_matrix: &Matrix,
    #[comptime] right_order: Order,
    depth: usize,
    stage: &mut Stage,
    block: &mut Array<Quad>,
) {
    let lanes = comptime!(SQUARE_LANES);
    let mut from = 0usize;
    while from < depth {
        sync_cube();
        load_left::<L>(left, left_matrix, from, stage, left_order, lanes);
        load_right::<R>(right, right_matrix, from, stage, right_order, lanes);
        sync_cube();
        multiply(
            &stage.left,
            0usize,
            &stage.right,
            0usize,
            operand_rows(left_matrix, left_order),
            block,
            0usize,
            LEFT_STRIDE,
            lanes,
        );
        from += DEPTH;
    }
}

/// [`add_product`] whose left operand is a square tile of `depth` x `depth` numbers in shared
/// memory, which units may have written just before, with zeros around them.
#[cube]
pub(super) fn add_product_of_square<R: Float>(
    left: &Shared<[Quad]>,
    right: &[R],
    right_matrix: &Matrix,
    depth: usize,
    stage: &mut Stage,
    block: &mut Array<Quad>,
) {
    let lanes = comptime!(SQUARE_LANES);
    let mut from = 0usize;
    while from < depth {
        sync_cube();
        load_right::<R>(right, right_matrix, from, stage, Order::AsStored, lanes);
        sync_cube();
        multiply(
            left,
            from / 4,
            &stage.right,
            0usize,
            depth,
            block,
            0usize,
            SQUARE_STRIDE,
            lanes,
        );
        from += DEPTH;
    }
}

/// Adds to quads `first ..` of the block a product whose right operand is a tile in shared memory,
/// which units may have written just before, with zeros past `depth` rows.
#[cube]
pub(super) fn add_product_with_tile<L: Float>(
    left: &[L],
    left_matrix: &Matrix,
    #[comptime] left_order: Order,
    right: &Shared<[Quad]>,
    depth: usize,
    stage: &mut Stage,
    block: &mut Array<Quad>,
    #[comptime] first: usize,
    #[comptime] lanes: usize,
) {
    let mut from = 0usize;
    while from < depth {
        sync_cube();
        load_left::<L>(left, left_matrix, from, stage, left_order, lanes);
        sync_cube();
        multiply(
            &stage.left,
            0usize,
            right,
            from,
            operand_rows(left_matrix, left_order),
            block,
            first,
            LEFT_STRIDE,
            lanes,
        );
        from += DEPTH;
    }
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

/// Stores the product of a square tile in shared memory with `depth` rows of a matrix, all of whose
/// columns the target has, too.
#[cube]
pub(super) fn write_product_of_square<R: Float, O: Float>(
    left: &Shared<[Quad]>,
    right: &[R],
    right_matrix: &Matrix,
    depth: usize,
    stage: &mut Stage,
    target: &mut [O],
    target_matrix: &Matrix,
) {
    let row = block_row(SQUARE_LANES);
    let column = block_column(SQUARE_LANES);
    let mut from = 0usize;
    while from < right_matrix.columns {
        let mut block = zeros(4usize);
        let operand = part(right_matrix, 0usize, from);
        add_product_of_square::<R>(left, right, &operand, depth, stage, &mut block);
        #[unroll]
        for r in 0..4usize {
            write::<O>(block[r], target, target_matrix, row + r, from + column);
        }
        from += TILE;
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
