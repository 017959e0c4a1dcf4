//! Output and log-sum-exp: query tiles stay, key tiles pass, softmax goes along.

use cubecl::prelude::*;

use super::arguments::{KernelShape, Problem, Results, Tensors};
use super::scores::{
    HIDDEN, QueryPlace, hide_keys, probability, query_place, query_positions, score,
};
use super::tile::{
    add_weighted_rows, lane, score_products, unit_row, weight_at, write_rows, zero_results,
};

/// One cube for each query tile and query head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_forward<E: Float, A: Float, N: Size>(
    tensors: &Tensors<E, N>,
    plan: &[u32],
    results: &mut Results<E, A, N>,
    problem: &Problem,
    #[comptime] shape: KernelShape,
    #[define(E, A)] _types: [ElemType; 2],
) {
    if CUBE_POS >= problem.cubes as usize {
        terminate!();
    }
    let blocking = comptime!(shape.blocking);
    let (head_vectors, value_vectors) = comptime!((shape.head_vectors, shape.value_vectors));
    let place = query_place(plan, problem, comptime!(blocking.left()));
    let mut stage = Shared::<[Vector<A, N>]>::new_slice(comptime!(shape.stage_len()));
    let mut weights = Shared::<[A]>::new_slice(comptime!(blocking.weights_len()));
    let mut exchange = Shared::<[A]>::new_slice(comptime!(blocking.left() * blocking.lanes));

    let positions = query_positions(plan, problem, &place, shape);
    let mut running = running_rows::<A>(comptime!(blocking.rows));
    let mut sums = zero_results::<A, N>(value_vectors, blocking);
    let mut scores = Array::<A>::new(comptime!(blocking.rows * blocking.columns));

    let list = problem.offsets as usize + place.tile;
    for at in plan[list]..plan[list + 1] {
        let entry = plan[(problem.entries + at) as usize];
        let tile_key = (entry >> 1) as usize * comptime!(blocking.right());
        score_products::<E, A, N>(
            &tensors.query,
            &place.rows(head_vectors),
            &tensors.key,
            &place.key_rows(problem, tile_key, head_vectors),
            &mut stage,
            &mut scores,
            head_vectors,
            blocking,
        );
        let (scale, softcap) = (problem.scale.get::<A>(), problem.softcap.get::<A>());
        #[unroll]
        for at in 0..comptime!(blocking.rows * blocking.columns) {
            scores[at] = score::<A>(scores[at] * scale, softcap, shape).value;
        }
        if entry & 1 == 1 {
            hide_keys(
                &mut scores,
                &positions,
                plan,
                problem,
                &place,
                tile_key,
                shape,
            );
        }
        exchange_maxima(&scores, &mut exchange, shape);
        weigh_scores::<A, N>(
            &scores,
            &exchange,
            &mut running,
            &mut weights,
            &mut sums,
            shape,
        );
        add_weighted_rows::<E, A, N>(
            &weights,
            &tensors.value,
            &place.key_rows(problem, tile_key, value_vectors),
            &mut stage,
            &mut sums,
            value_vectors,
            blocking,
        );
    }

    let factors = finish_rows(
        &running,
        &mut exchange,
        &place,
        &mut results.log_sum_exp,
        shape,
    );
    write_rows::<E, A, N>(
        &sums,
        &factors,
        &mut results.output,
        &place.rows(value_vectors),
        value_vectors,
        blocking,
    );
}

/// Maximum and sum of weights, so far, of a unit's rows.
#[derive(CubeType)]
struct RunningRows<A: Float> {
    maximum: Array<A>,
    /// Of this unit's columns only, until the end.
    sum: Array<A>,
}

/// Rows of which no score has been seen.
#[cube]
fn running_rows<A: Float>(#[comptime] rows: usize) -> RunningRows<A> {
    let mut maximum = Array::<A>::new(rows);
    let mut sum = Array::<A>::new(rows);
    #[unroll]
    for r in 0..rows {
        maximum[r] = A::new(HIDDEN);
        sum[r] = A::new(0.0);
    }
    RunningRows::<A> { maximum, sum }
}

/// Writes the maxima of this unit's columns to shared memory, for the other units of the rows.
#[cube]
fn exchange_maxima<A: Float>(
    scores: &Array<A>,
    maxima: &mut Shared<[A]>,
    #[comptime] shape: KernelShape,
) {
    let blocking = comptime!(shape.blocking);
    let (columns, lanes) = comptime!((blocking.columns, blocking.lanes));
    #[unroll]
    for r in 0..comptime!(blocking.rows) {
        let mut maximum = scores[r * columns];
        #[unroll]
        for c in 1..columns {
            maximum = max(maximum, scores[r * columns + c]);
        }
        let row = unit_row(blocking) + comptime!(r * blocking.unit_rows);
        maxima[row * lanes + lane(blocking)] = maximum;
    }
    sync_cube();
}

/// Turns scores into weights relative to the maximum of all scores of the row so far, and rescales
/// the sums.
#[cube]
fn weigh_scores<A: Float, N: Size>(
    scores: &Array<A>,
    maxima: &Shared<[A]>,
    running: &mut RunningRows<A>,
    weights: &mut Shared<[A]>,
    sums: &mut Array<Vector<A, N>>,
    #[comptime] shape: KernelShape,
) {
    let blocking = comptime!(shape.blocking);
    let (columns, lanes) = comptime!((blocking.columns, blocking.lanes));
    #[unroll]
    for r in 0..comptime!(blocking.rows) {
        let row = unit_row(blocking) + comptime!(r * blocking.unit_rows);
        let mut maximum = running.maximum[r];
        for other in 0..lanes {
            maximum = max(maximum, maxima[row * lanes + other]);
        }
        let shrink = (running.maximum[r] - maximum).exp();
        running.maximum[r] = maximum;
        let mut sum = running.sum[r] * shrink;
        #[unroll]
        for c in 0..columns {
            let weight = probability::<A>(scores[r * columns + c], maximum);
            weights[weight_at(r, c, blocking)] = weight;
            sum += weight;
        }
        running.sum[r] = sum;
        let per_unit = comptime!(blocking.vectors_per_unit(shape.value_vectors));
        #[unroll]
        for v in 0..per_unit {
            sums[r * per_unit + v] *= Vector::<A, N>::new(shrink);
        }
    }
}

/// Adds the sums of weights of the units of a row, writes the log-sum-exps, and returns the factors
/// of the sums of values.
#[cube]
fn finish_rows<A: Float>(
    running: &RunningRows<A>,
    exchange: &mut Shared<[A]>,
    place: &QueryPlace,
    log_sum_exp: &mut [A],
    #[comptime] shape: KernelShape,
) -> Array<A> {
    let blocking = comptime!(shape.blocking);
    let (rows, lanes) = comptime!((blocking.rows, blocking.lanes));
    let (unit_row, lane) = (unit_row(blocking), lane(blocking));
    // The maxima of the last tile have been read before the barriers since.
    sync_cube();
    #[unroll]
    for r in 0..rows {
        let row = unit_row + comptime!(r * blocking.unit_rows);
        exchange[row * lanes + lane] = running.sum[r];
    }
    sync_cube();
    let mut factors = Array::<A>::new(rows);
    #[unroll]
    for r in 0..rows {
        let row = unit_row + comptime!(r * blocking.unit_rows);
        let mut sum = A::new(0.0);
        for other in 0..lanes {
            sum += exchange[row * lanes + other];
        }
        let blind = sum == A::new(0.0);
        let divisor = select(blind, A::new(1.0), sum);
        factors[r] = A::new(1.0) / divisor;
        if lane == 0 && row < place.query_rows {
            log_sum_exp[place.first_query + row] =
                select(blind, A::new(0.0), running.maximum[r] + divisor.ln());
        }
    }
    factors
}
