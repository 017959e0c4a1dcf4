//! Gradients of keys and values, recomputing the probabilities from the log-sum-exp.

use cubecl::prelude::*;

use super::arguments::{BackwardTensors, KernelShape, Problem};
use super::scores::{
    HIDDEN, Place, interval, place, probability, query_position, scores_and_slopes, sees,
};
use super::tile::{
    Blocking, Rows, add_weighted_rows, lane, rows_from, same_factors, score_products, unit_row,
    weight_at, write_rows, zero_results,
};

/// Gradients of keys and values: key tiles stay, the query tiles of all heads of the group pass.
/// One cube for each key tile and key/value head.
///
/// `gradients` holds those of the keys, and from vector `values_at` on those of the values.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_backward_key_value<E: Float, A: Float, N: Size>(
    tensors: &BackwardTensors<E, A, N>,
    plan: &[u32],
    gradients: &mut [Vector<E, N>],
    values_at: usize,
    problem: &Problem,
    #[comptime] shape: KernelShape,
    #[define(E, A)] _types: [ElemType; 2],
) {
    if CUBE_POS >= problem.cubes as usize {
        terminate!();
    }
    let blocking = comptime!(shape.blocking);
    let (head_vectors, value_vectors) = comptime!((shape.head_vectors, shape.value_vectors));
    let (queries, keys) = (problem.queries as usize, problem.keys as usize);
    let (heads, kv_heads) = (problem.query_heads as usize, problem.kv_heads as usize);
    let place = place(plan, problem, keys, kv_heads, comptime!(blocking.left()));
    let group = heads / kv_heads;
    let first_key = (place.batch * kv_heads + place.head) * keys + place.first_row;
    let key_rows = keys - place.first_row;
    let key_tile = rows_from(first_key, key_rows, head_vectors);
    let value_tile = rows_from(first_key, key_rows, value_vectors);
    let mut stage = Shared::<[Vector<A, N>]>::new_slice(comptime!(shape.stage_len()));
    let mut weights = Shared::<[A]>::new_slice(comptime!(blocking.weights_len()));

    let mut key_sums = zero_results::<A, N>(head_vectors, blocking);
    let mut value_sums = zero_results::<A, N>(value_vectors, blocking);
    let mut scores = Array::<A>::new(comptime!(blocking.rows * blocking.columns));
    let mut slopes = Array::<A>::new(comptime!(blocking.rows * blocking.columns));
    let mut grad_weights = Array::<A>::new(comptime!(blocking.rows * blocking.columns));
    let mut deltas = Array::<A>::new(comptime!(blocking.columns));

    let list = problem.offsets as usize + place.tile;
    for in_group in 0..group {
        let head = place.head * group + in_group;
        for at in plan[list]..plan[list + 1] {
            let entry = plan[(problem.entries + at) as usize];
            let tile_query = (entry >> 1) as usize * comptime!(blocking.right());
            let first_query = (place.batch * heads + head) * queries + tile_query;
            let query_rows = queries - tile_query;
            let query_tile = rows_from(first_query, query_rows, head_vectors);
            let grad_tile = rows_from(first_query, query_rows, value_vectors);
            score_products::<E, A, N>(
                &tensors.key,
                &key_tile,
                &tensors.query,
                &query_tile,
                &mut stage,
                &mut scores,
                head_vectors,
                blocking,
            );
            scores_and_slopes(&mut scores, &mut slopes, problem, shape);
            if entry & 1 == 1 {
                hide_queries(&mut scores, plan, problem, &place, tile_query, shape);
            }
            weigh_scores(
                &mut scores,
                &mut deltas,
                &mut weights,
                &tensors.statistics,
                first_query,
                query_rows,
                blocking,
            );
            add_weighted_rows::<E, A, N>(
                &weights,
                &tensors.grad_output,
                &grad_tile,
                &mut stage,
                &mut value_sums,
                value_vectors,
                blocking,
            );
            score_products::<E, A, N>(
                &tensors.value,
                &value_tile,
                &tensors.grad_output,
                &grad_tile,
                &mut stage,
                &mut grad_weights,
                value_vectors,
                blocking,
            );
            #[unroll]
            for r in 0..comptime!(blocking.rows) {
                #[unroll]
                for c in 0..comptime!(blocking.columns) {
                    let at = comptime!(r * blocking.columns + c);
                    let gradient = scores[at] * (grad_weights[at] - deltas[c]) * slopes[at];
                    weights[weight_at(r, c, blocking)] = gradient;
                }
            }
            add_weighted_rows::<E, A, N>(
                &weights,
                &tensors.query,
                &query_tile,
                &mut stage,
                &mut key_sums,
                head_vectors,
                blocking,
            );
        }
    }

    write_rows::<E, A, N>(
        &key_sums,
        &same_factors(problem.scale.get::<A>(), blocking),
        gradients,
        &key_tile,
        head_vectors,
        blocking,
    );
    let value_gradients = Rows {
        start: values_at + value_tile.start,
        valid: key_rows,
    };
    write_rows::<E, A, N>(
        &value_sums,
        &same_factors(A::new(1.0), blocking),
        gradients,
        &value_gradients,
        value_vectors,
        blocking,
    );
}

/// Hides the scores of a unit's keys with its query rows, of a tile that starts at `tile_query`,
/// where they are not seen.
#[cube]
fn hide_queries<A: Float>(
    scores: &mut Array<A>,
    plan: &[u32],
    problem: &Problem,
    place: &Place,
    tile_query: usize,
    #[comptime] shape: KernelShape,
) {
    let blocking = comptime!(shape.blocking);
    let columns = comptime!(blocking.columns);
    #[unroll]
    for r in 0..comptime!(blocking.rows) {
        let key = place.first_row + unit_row(blocking) + comptime!(r * blocking.unit_rows);
        let interval = interval(plan, problem, place.batch, key, shape);
        #[unroll]
        for c in 0..columns {
            let row = tile_query + lane(blocking) + comptime!(c * blocking.lanes);
            let position = query_position(plan, problem, place.batch, row, shape);
            if !sees(row, position, &interval, problem, shape) {
                scores[r * columns + c] = A::new(HIDDEN);
            }
        }
    }
}

/// Turns scores into probabilities, by the log-sum-exps of the query tile at `first_query`, and
/// reads the other statistic of its rows into `deltas`.
#[cube]
fn weigh_scores<A: Float>(
    scores: &mut Array<A>,
    deltas: &mut Array<A>,
    weights: &mut Shared<[A]>,
    statistics: &[A],
    first_query: usize,
    query_rows: usize,
    #[comptime] blocking: Blocking,
) {
    #[unroll]
    for c in 0..comptime!(blocking.columns) {
        let column = lane(blocking) + comptime!(c * blocking.lanes);
        let mut log_sum = A::new(0.0);
        deltas[c] = A::new(0.0);
        if column < query_rows {
            log_sum = statistics[2 * (first_query + column)];
            deltas[c] = statistics[2 * (first_query + column) + 1];
        }
        #[unroll]
        for r in 0..comptime!(blocking.rows) {
            let at = comptime!(r * blocking.columns + c);
            let weight = probability::<A>(scores[at], log_sum);
            scores[at] = weight;
            weights[weight_at(r, c, blocking)] = weight;
        }
    }
}
