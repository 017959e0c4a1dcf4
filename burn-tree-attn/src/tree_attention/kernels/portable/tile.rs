//! What the kernels share: tiles staged through shared memory, and the two kinds of products.
//!
//! A cube works on a tile of `left` rows against tiles of `right` rows. Its units form a grid of
//! `unit_rows` x `lanes`; the unit at `(y, lane)` computes the scores of rows `y + unit_rows * r`
//! with columns `lane + lanes * c`, and of the results the rows `y + unit_rows * r`, vectors
//! `lane + lanes * v`. Neighbouring units so read neighbouring or equal addresses.
//!
//! Operands go through shared memory in chunks along the head dimension, in the type computed
//! with; rows there are padded by one vector against bank conflicts.

use cubecl::prelude::*;

/// Elements of a chunk of the operands of scores.
const SCORE_CHUNK: usize = 32;
/// Elements of a chunk of the operands of results.
const RESULT_CHUNK: usize = 64;

/// How a tile is shared out among units; part of the compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blocking {
    /// Rows per unit.
    pub rows: usize,
    /// Columns per unit.
    pub columns: usize,
    pub unit_rows: usize,
    pub lanes: usize,
    /// Elements of a vector, the kernels' `N`.
    pub vector: usize,
}

impl Blocking {
    pub(super) fn units(&self) -> usize {
        self.unit_rows * self.lanes
    }

    /// Rows of the tile that stays.
    pub(super) fn left(&self) -> usize {
        self.rows * self.unit_rows
    }

    /// Rows of the tiles that are passed.
    pub(super) fn right(&self) -> usize {
        self.columns * self.lanes
    }

    /// Vectors of each chunk into which a width of `vectors` is cut, scores.
    fn score_chunk(&self) -> usize {
        SCORE_CHUNK / self.vector
    }

    fn result_chunk(&self) -> usize {
        RESULT_CHUNK / self.vector
    }

    /// Vectors of the staging buffer, for head dimensions of `vectors` vectors.
    pub(super) fn stage_len(&self, vectors: usize) -> usize {
        let scores = (self.left() + self.right()) * (self.score_chunk().min(vectors) + 1);
        let results = self.right() * (self.result_chunk().min(vectors) + 1);
        scores.max(results)
    }

    /// Length of the buffer of weights, one for each row and column.
    pub(super) fn weights_len(&self) -> usize {
        self.left() * (self.right() + 1)
    }

    /// Vectors of a result row of `vectors` that one unit holds.
    pub(super) fn vectors_per_unit(&self, vectors: usize) -> usize {
        (0..vectors.div_ceil(self.result_chunk()))
            .map(|chunk| self.result_chunk_width(chunk, vectors).div_ceil(self.lanes))
            .sum()
    }

    fn score_chunk_width(&self, chunk: usize, vectors: usize) -> usize {
        (vectors - chunk * self.score_chunk()).min(self.score_chunk())
    }

    fn result_chunk_width(&self, chunk: usize, vectors: usize) -> usize {
        (vectors - chunk * self.result_chunk()).min(self.result_chunk())
    }
}

/// Position of a unit in the grid of its cube.
#[cube]
pub(super) fn unit_row(#[comptime] blocking: Blocking) -> usize {
    UNIT_POS as usize / comptime!(blocking.lanes)
}

/// Position of a unit in its row of the grid.
#[cube]
pub(super) fn lane(#[comptime] blocking: Blocking) -> usize {
    UNIT_POS as usize % comptime!(blocking.lanes)
}

/// Rows of a tensor `[.., rows, width]`.
#[derive(CubeType)]
pub(super) struct Rows {
    /// Vector at which the first row starts.
    pub start: usize,
    /// Rows that exist; later ones are zero.
    pub valid: usize,
}

/// Rows from row `first` on, of `vectors` vectors, of which `valid` exist.
#[cube]
pub(super) fn rows_from(first: usize, valid: usize, #[comptime] vectors: usize) -> Rows {
    Rows {
        start: first * vectors,
        valid,
    }
}

/// Part of a tile in the staging buffer.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Rows of the tile.
    rows: usize,
    /// Vectors of a row of the tensor.
    vectors: usize,
    /// First vector of the part.
    from: usize,
    /// Vectors of a row of the part.
    width: usize,
    /// Where it starts in the buffer.
    to: usize,
}

/// Copies a chunk of rows of `source` to `stage`, rows `width + 1` apart.
#[cube]
fn load<E: Float, A: Float, N: Size>(
    source: &[Vector<E, N>],
    rows: &Rows,
    stage: &mut Shared<[Vector<A, N>]>,
    #[comptime] chunk: Chunk,
    #[comptime] blocking: Blocking,
) {
    let (vectors, from) = comptime!((chunk.vectors, chunk.from));
    let (width, to) = comptime!((chunk.width, chunk.to));
    let total = comptime!(chunk.rows * width);
    let mut at = UNIT_POS as usize;
    while at < total {
        let row = at / width;
        let column = at % width;
        let mut vector = Vector::<A, N>::new(A::new(0.0));
        if row < rows.valid {
            vector = Vector::<A, N>::cast_from(source[rows.start + row * vectors + from + column]);
        }
        stage[to + row * (width + 1) + column] = vector;
        at += comptime!(blocking.units());
    }
}

/// This unit's part of the results, of `vectors` vectors a row: zeros.
#[cube]
pub(super) fn zero_results<A: Float, N: Size>(
    #[comptime] vectors: usize,
    #[comptime] blocking: Blocking,
) -> Array<Vector<A, N>> {
    let length = comptime!(blocking.rows * blocking.vectors_per_unit(vectors));
    let mut results = Array::<Vector<A, N>>::new(length);
    #[unroll]
    for at in 0..length {
        results[at] = Vector::<A, N>::new(A::new(0.0));
    }
    results
}

/// One factor for each of this unit's rows.
#[cube]
pub(super) fn same_factors<A: Float>(factor: A, #[comptime] blocking: Blocking) -> Array<A> {
    let mut factors = Array::<A>::new(comptime!(blocking.rows));
    #[unroll]
    for r in 0..comptime!(blocking.rows) {
        factors[r] = factor;
    }
    factors
}

/// Where the weight of one of this unit's rows and columns is in the buffer of weights.
#[cube]
pub(super) fn weight_at(
    #[comptime] row: usize,
    #[comptime] column: usize,
    #[comptime] blocking: Blocking,
) -> usize {
    let row = unit_row(blocking) + comptime!(row * blocking.unit_rows);
    row * comptime!(blocking.right() + 1) + lane(blocking) + comptime!(column * blocking.lanes)
}

/// Scores of the left rows with the right rows: element `r * columns + c` becomes the product of
/// this unit's row `r` with its column `c`, over `vectors` vectors.
///
/// Whatever the stage held before must not be needed any more.
#[cube]
pub(super) fn score_products<E: Float, A: Float, N: Size>(
    left: &[Vector<E, N>],
    left_rows: &Rows,
    right: &[Vector<E, N>],
    right_rows: &Rows,
    stage: &mut Shared<[Vector<A, N>]>,
    scores: &mut Array<A>,
    #[comptime] vectors: usize,
    #[comptime] blocking: Blocking,
) {
    let rows = comptime!(blocking.rows);
    let columns = comptime!(blocking.columns);
    #[unroll]
    for at in 0..comptime!(rows * columns) {
        scores[at] = A::new(0.0);
    }
    #[unroll]
    for chunk in 0..comptime!(vectors.div_ceil(blocking.score_chunk())) {
        let from = comptime!(chunk * blocking.score_chunk());
        let width = comptime!(blocking.score_chunk_width(chunk, vectors));
        let stride = comptime!(width + 1);
        let right_at = comptime!(blocking.left() * stride);
        sync_cube();
        let left_chunk = comptime!(Chunk {
            rows: blocking.left(),
            vectors,
            from,
            width,
            to: 0,
        });
        load::<E, A, N>(left, left_rows, stage, left_chunk, blocking);
        let right_chunk = comptime!(Chunk {
            rows: blocking.right(),
            to: right_at,
            ..left_chunk
        });
        load::<E, A, N>(right, right_rows, stage, right_chunk, blocking);
        sync_cube();
        let row_at = unit_row(blocking) * stride;
        let column_at = right_at + lane(blocking) * stride;
        for k in 0..width {
            let mut column_vectors = Array::<Vector<A, N>>::new(columns);
            #[unroll]
            for c in 0..columns {
                column_vectors[c] = stage[column_at + comptime!(c * blocking.lanes * stride) + k];
            }
            #[unroll]
            for r in 0..rows {
                let vector = stage[row_at + comptime!(r * blocking.unit_rows * stride) + k];
                #[unroll]
                for c in 0..columns {
                    scores[r * columns + c] += vector.dot(column_vectors[c]);
                }
            }
        }
    }
}

/// Adds to this unit's part of the results, `[rows, vectors_per_unit]`, the product of the weights
/// (left row x right row) with the right rows.
///
/// Starts with a barrier, so that units may have written the weights just before.
#[cube]
pub(super) fn add_weighted_rows<E: Float, A: Float, N: Size>(
    weights: &Shared<[A]>,
    right: &[Vector<E, N>],
    right_rows: &Rows,
    stage: &mut Shared<[Vector<A, N>]>,
    results: &mut Array<Vector<A, N>>,
    #[comptime] vectors: usize,
    #[comptime] blocking: Blocking,
) {
    let rows = comptime!(blocking.rows);
    let lanes = comptime!(blocking.lanes);
    let per_unit = comptime!(blocking.vectors_per_unit(vectors));
    let row = unit_row(blocking);
    let lane = lane(blocking);
    #[unroll]
    for part in 0..comptime!(vectors.div_ceil(blocking.result_chunk())) {
        let from = comptime!(part * blocking.result_chunk());
        let width = comptime!(blocking.result_chunk_width(part, vectors));
        let stride = comptime!(width + 1);
        let here = comptime!(width.div_ceil(lanes));
        let first = comptime!(part * blocking.result_chunk().div_ceil(lanes));
        sync_cube();
        let chunk = comptime!(Chunk {
            rows: blocking.right(),
            vectors,
            from,
            width,
            to: 0,
        });
        load::<E, A, N>(right, right_rows, stage, chunk, blocking);
        sync_cube();
        for k in 0..comptime!(blocking.right()) {
            let mut row_weights = Array::<Vector<A, N>>::new(rows);
            #[unroll]
            for r in 0..rows {
                let at =
                    (row + comptime!(r * blocking.unit_rows)) * comptime!(blocking.right() + 1);
                row_weights[r] = Vector::<A, N>::new(weights[at + k]);
            }
            #[unroll]
            for v in 0..here {
                // Lanes beyond the width compute a column again, which is not written.
                let column = min(lane + comptime!(v * lanes), comptime!(width - 1));
                let vector = stage[k * stride + column];
                #[unroll]
                for r in 0..rows {
                    results[r * per_unit + first + v] += row_weights[r] * vector;
                }
            }
        }
    }
}

/// Writes this unit's part of the results, times a factor for each row, to the rows of a tensor.
#[cube]
pub(super) fn write_rows<E: Float, A: Float, N: Size>(
    results: &Array<Vector<A, N>>,
    factors: &Array<A>,
    target: &mut [Vector<E, N>],
    target_rows: &Rows,
    #[comptime] vectors: usize,
    #[comptime] blocking: Blocking,
) {
    let lanes = comptime!(blocking.lanes);
    let per_unit = comptime!(blocking.vectors_per_unit(vectors));
    let lane = lane(blocking);
    #[unroll]
    for r in 0..comptime!(blocking.rows) {
        let row = unit_row(blocking) + comptime!(r * blocking.unit_rows);
        if row < target_rows.valid {
            let factor = Vector::<A, N>::new(factors[r]);
            #[unroll]
            for chunk in 0..comptime!(vectors.div_ceil(blocking.result_chunk())) {
                let from = comptime!(chunk * blocking.result_chunk());
                let width = comptime!(blocking.result_chunk_width(chunk, vectors));
                let first = comptime!(chunk * blocking.result_chunk().div_ceil(lanes));
                #[unroll]
                for v in 0..comptime!(width.div_ceil(lanes)) {
                    let column = lane + comptime!(v * lanes);
                    if column < width {
                        target[target_rows.start + row * vectors + from + column] =
                            Vector::<E, N>::cast_from(results[r * per_unit + first + v] * factor);
                    }
                }
            }
        }
    }
}
