//! Products of tiles, staged through shared memory in f32.

use cubecl::prelude::*;

use super::tile::{
    Matrix, Quad, SQUARE_LANES, SQUARE_STRIDE, TILE, UNIT_ROWS, block_column, block_row, element,
    part, read, write, zeros,
};

/// Terms of a product that are staged at a time.
const DEPTH: usize = 16;
const LEFT_STRIDE: usize = DEPTH / 4 + 1;

/// Where the operands of a product are put together.
#[derive(CubeType)]
pub(super) struct Stage {
    /// `[TILE, DEPTH]`
    left: Shared<[Quad]>,
    /// `[DEPTH, 4 lanes]`
    right: Shared<[Quad]>,
}

/// Room for operands of tiles of `lanes` lanes.
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

/// Where a product goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// First quad of the unit's block.
    pub first: usize,
    /// Lanes of the tile.
    pub lanes: usize,
}

/// The block of a square tile.
const SQUARE: Place = Place {
    first: 0,
    lanes: SQUARE_LANES,
};

/// Adds to the block the product of `DEPTH` columns of the left operand, whose quads from
/// `left_from` on of each row, with the same rows of the right one, from `right_from` on. Blocks
/// past the first `rows` rows of the result stay as they are.
#[cube]
fn multiply(
    left: &Shared<[Quad]>,
    left_from: usize,
    right: &Shared<[Quad]>,
    right_from: usize,
    rows: usize,
    block: &mut Array<Quad>,
    #[comptime] left_stride: usize,
    #[comptime] place: Place,
) {
    let (first, lanes) = comptime!((place.first, place.lanes));
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

/// Adds to the block the product of two matrices, the right one transposed or not. See [`product`].
#[cube]
fn add_product<E: Float>(
    left: &[E],
    left_matrix: &Matrix,
    right: &[E],
    right_matrix: &Matrix,
    #[comptime] right_order: Order,
    stage: &mut Stage,
    block: &mut Array<Quad>,
) {
    let lanes = comptime!(SQUARE_LANES);
    let mut from = 0usize;
    while from < left_matrix.columns {
        sync_cube();
        load_left::<E>(left, left_matrix, from, stage, Order::AsStored, lanes);
        load_right::<E>(right, right_matrix, from, stage, right_order, lanes);
        sync_cube();
        multiply(
            &stage.left,
            0usize,
            &stage.right,
            0usize,
            left_matrix.rows,
            block,
            LEFT_STRIDE,
            comptime!(SQUARE),
        );
        from += DEPTH;
    }
}

/// The product of two matrices. All units must arrive; starts and ends without a barrier, those in
/// between keep the stage.
#[cube]
pub(super) fn product<E: Float>(
    left: &[E],
    left_matrix: &Matrix,
    right: &[E],
    right_matrix: &Matrix,
    stage: &mut Stage,
) -> Array<Quad> {
    let mut block = zeros(4usize);
    add_product::<E>(
        left,
        left_matrix,
        right,
        right_matrix,
        Order::AsStored,
        stage,
        &mut block,
    );
    block
}

/// The product of the rows of one matrix with those of another. See [`product`].
#[cube]
pub(super) fn product_of_rows<E: Float>(
    left: &[E],
    left_matrix: &Matrix,
    right: &[E],
    right_matrix: &Matrix,
    stage: &mut Stage,
) -> Array<Quad> {
    let mut block = zeros(4usize);
    add_product::<E>(
        left,
        left_matrix,
        right,
        right_matrix,
        Order::Transposed,
        stage,
        &mut block,
    );
    block
}

/// Adds to the block the product of a square tile of `depth` x `depth` numbers in shared memory,
/// which units may have written just before, with zeros around them, and a matrix. See [`product`].
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
            SQUARE_STRIDE,
            comptime!(SQUARE),
        );
        from += DEPTH;
    }
}

/// Adds to the block the product of an operand from a buffer and a tile in shared memory, which
/// units may have written just before, with zeros past `depth` rows. See [`product`].
#[cube]
pub(super) fn add_product_with_tile<L: Float>(
    left: &[L],
    left_matrix: &Matrix,
    #[comptime] left_order: Order,
    right: &Shared<[Quad]>,
    depth: usize,
    stage: &mut Stage,
    block: &mut Array<Quad>,
    #[comptime] place: Place,
) {
    let mut from = 0usize;
    while from < depth {
        sync_cube();
        load_left::<L>(
            left,
            left_matrix,
            from,
            stage,
            left_order,
            comptime!(place.lanes),
        );
        sync_cube();
        multiply(
            &stage.left,
            0usize,
            right,
            from,
            operand_rows(left_matrix, left_order),
            block,
            LEFT_STRIDE,
            place,
        );
        from += DEPTH;
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

/// Adds to a state, of `lanes` lanes, the product of transposed rows, `[.., DK]`, with a tile of
/// `depth` rows.
#[cube]
pub(super) fn add_to_state<E: Float>(
    source: &[E],
    rows: &Matrix,
    tile: &Shared<[Quad]>,
    depth: usize,
    stage: &mut Stage,
    state: &mut Array<Quad>,
    #[comptime] key_tiles: usize,
    #[comptime] lanes: usize,
) {
    #[unroll]
    for t in 0..key_tiles {
        let first = comptime!(4 * t);
        let place = comptime!(Place { first, lanes });
        let operand = part(rows, 0usize, comptime!(t * TILE));
        add_product_with_tile::<E>(
            source,
            &operand,
            Order::Transposed,
            tile,
            depth,
            stage,
            state,
            place,
        );
    }
}
