//! Gradient of the queries, and what both backward kernels need of each query row.

use cubecl::prelude::*;

use super::arguments::{BackwardTensors, KernelShape, Problem};
use super::scores::{
    QueryPlace, hide_keys, probability, query_place, query_positions, scores_and_slopes,
};
use super::tile::{
    add_weighted_rows, same_factors, score_products, unit_row, weight_at, write_rows, zero_results,
};

/// For every query row, its log-sum-exp and `sum(grad_output * output)`, one after the other: one
/// buffer, since WGSL offers few bindings. One unit for each row.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn row_statistics<E: Float, A: Float, N: Size>(
    grad_output: &[Vector<E, N>],
    output: &[Vector<E, N>],
    log_sum_exp: &[A],
    statistics: &mut [A],
    rows: usize,
    #[comptime] value_vectors: usize,
    #[define(E, A)] _types: [ElemType; 2],
) {
    let row = ABSOLUTE_POS;
    if row >= rows {
        terminate!();
    }
    let mut delta = A::new(0.0);
    for v in 0..value_vectors {
        let gradient = Vector::<A, N>::cast_from(grad_output[row * value_vectors + v]);
        let value = Vector::<A, N>::cast_from(output[row * value_vectors + v]);
        delta += gradient.dot(value);
    }
    statistics[2 * row] = log_sum_exp[row];
    statistics[2 * row + 1] = delta;
}

/// Gradient of the queries, recomputing the probabilities from the log-sum-exp: query tiles stay.
/// One cube for each query tile and query head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_backward_query<E: Float, A: Float, N: Size>(
    tensors: &BackwardTensors<E, A, N>,
    plan: &[u32],
    grad_query: &mut [Vector<E, N>],
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

    let positions = query_positions(plan, problem, &place, shape);
    let statistics = statistics_of_unit::<A>(&tensors.statistics, &place, shape);
    let mut sums = zero_results::<A, N>(head_vectors, blocking);
    let mut scores = Array::<A>::new(comptime!(blocking.rows * blocking.columns));
    let mut slopes = Array::<A>::new(comptime!(blocking.rows * blocking.columns));
    let mut grad_weights = Array::<A>::new(comptime!(blocking.rows * blocking.columns));

    let list = problem.offsets as usize + place.tile;
    for at in plan[list]..plan[list + 1] {
        let entry = plan[(problem.entries + at) as usize];
        let tile_key = (entry >> 1) as usize * comptime!(blocking.right());
        let key_rows = place.key_rows(problem, tile_key, head_vectors);
        score_products::<E, A, N>(
            &tensors.query,
            &place.rows(head_vectors),
            &tensors.key,
            &key_rows,
            &mut stage,
            &mut scores,
            head_vectors,
            blocking,
        );
        scores_and_slopes(&mut scores, &mut slopes, problem, shape);
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
        score_products::<E, A, N>(
            &tensors.grad_output,
            &place.rows(value_vectors),
            &tensors.value,
            &place.key_rows(problem, tile_key, value_vectors),
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
                let weight = probability::<A>(scores[at], statistics.log_sum[r]);
                let gradient = weight * (grad_weights[at] - statistics.delta[r]) * slopes[at];
                weights[weight_at(r, c, blocking)] = gradient;
            }
        }
        add_weighted_rows::<E, A, N>(
            &weights,
            &tensors.key,
            &key_rows,
            &mut stage,
            &mut sums,
            head_vectors,
            blocking,
        );
    }

    write_rows::<E, A, N>(
        &sums,
        &same_factors(problem.scale.get::<A>(), blocking),
        grad_query,
        &place.rows(head_vectors),
        head_vectors,
        blocking,
    );
}

/// Statistics of a unit's query rows.
#[derive(CubeType)]
struct StatisticsOfUnit<A: Float> {
    log_sum: Array<A>,
    delta: Array<A>,
}

#[cube]
fn statistics_of_unit<A: Float>(
    statistics: &[A],
    place: &QueryPlace,
    #[comptime] shape: KernelShape,
) -> StatisticsOfUnit<A> {
    let blocking = comptime!(shape.blocking);
    let mut log_sum = Array::<A>::new(comptime!(blocking.rows));
    let mut delta = Array::<A>::new(comptime!(blocking.rows));
    #[unroll]
    for r in 0..comptime!(blocking.rows) {
        let row = unit_row(blocking) + comptime!(r * blocking.unit_rows);
        log_sum[r] = A::new(0.0);
        delta[r] = A::new(0.0);
        if row < place.query_rows {
            log_sum[r] = statistics[2 * (place.first_query + row)];
            delta[r] = statistics[2 * (place.first_query + row) + 1];
        }
    }
    StatisticsOfUnit::<A> { log_sum, delta }
}
