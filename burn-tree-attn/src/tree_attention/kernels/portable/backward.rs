//! Gradients from the probabilities, recomputed from the log-sum-exp.

use cubecl::prelude::*;

use super::arguments::{KernelShape, Problem};
use super::scores::{
    HIDDEN, hide_keys, interval, place, probability, query_place, query_position, score, sees,
};
use super::tile::{Rows, add_weighted_rows, lane, score_products, unit_row, write_rows};

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
    #[define(E)] _stored: ElemType,
    #[define(A)] _computed: ElemType,
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

/// Gradient of the queries: query tiles stay. One cube for each query tile and query head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_backward_query<E: Float, A: Float, N: Size>(
    query: &[Vector<E, N>],
    key: &[Vector<E, N>],
    value: &[Vector<E, N>],
    grad_output: &[Vector<E, N>],
    statistics: &[A],
    plan: &[u32],
    grad_query: &mut [Vector<E, N>],
    problem: Problem,
    scale: InputScalar,
    softcap: InputScalar,
    #[comptime] shape: KernelShape,
    #[define(E)] _stored: ElemType,
    #[define(A)] _computed: ElemType,
) {
    if CUBE_POS >= problem.cubes as usize {
        terminate!();
    }
    let blocking = comptime!(shape.blocking);
    let rows = comptime!(blocking.rows);
    let columns = comptime!(blocking.columns);
    let scale = scale.get::<A>();
    let softcap = softcap.get::<A>();
    let place = query_place(plan, &problem, comptime!(blocking.left()));
    let (first_query, first_key) = (place.first_query, place.first_key);
    let (query_rows, keys) = (place.query_rows, problem.keys as usize);
    let unit_row = unit_row(blocking);
    let lane = lane(blocking);

    let mut stage = Shared::<[Vector<A, N>]>::new_slice(comptime!(shape.stage_len()));
    let mut weights = Shared::<[A]>::new_slice(comptime!(blocking.weights_len()));

    let mut positions = Array::<usize>::new(rows);
    let mut log_sums = Array::<A>::new(rows);
    let mut deltas = Array::<A>::new(rows);
    #[unroll]
    for r in 0..rows {
        let row = unit_row + comptime!(r * blocking.unit_rows);
        positions[r] = query_position(plan, &problem, place.batch, place.first_row + row, shape);
        log_sums[r] = A::new(0.0);
        deltas[r] = A::new(0.0);
        if row < query_rows {
            log_sums[r] = statistics[2 * (first_query + row)];
            deltas[r] = statistics[2 * (first_query + row) + 1];
        }
    }
    let n_results = comptime!(rows * blocking.vectors_per_unit(shape.head_vectors));
    let mut results = Array::<Vector<A, N>>::new(n_results);
    #[unroll]
    for at in 0..n_results {
        results[at] = Vector::<A, N>::new(A::new(0.0));
    }
    let mut scores = Array::<A>::new(comptime!(rows * columns));
    let mut slopes = Array::<A>::new(comptime!(rows * columns));
    let mut grad_weights = Array::<A>::new(comptime!(rows * columns));

    let list = problem.offsets as usize + place.tile;
    for at in plan[list]..plan[list + 1] {
        let entry = plan[(problem.entries + at) as usize];
        let tile_key = (entry >> 1) as usize * comptime!(blocking.right());
        let key_rows = Rows {
            start: (first_key + tile_key) * shape.head_vectors,
            valid: keys - tile_key,
        };
        score_products::<E, A, N>(
            query,
            &Rows {
                start: first_query * shape.head_vectors,
                valid: query_rows,
            },
            key,
            &key_rows,
            &mut stage,
            &mut scores,
            shape.head_vectors,
            blocking,
        );
        #[unroll]
        for at in 0..comptime!(rows * columns) {
            let score = score::<A>(scores[at] * scale, softcap, shape);
            scores[at] = score.value;
            slopes[at] = score.slope;
        }
        if entry & 1 == 1 {
            hide_keys(
                &mut scores,
                &positions,
                plan,
                &problem,
                &place,
                tile_key,
                unit_row,
                lane,
                shape,
            );
        }
        score_products::<E, A, N>(
            grad_output,
            &Rows {
                start: first_query * shape.value_vectors,
                valid: query_rows,
            },
            value,
            &Rows {
                start: (first_key + tile_key) * shape.value_vectors,
                valid: keys - tile_key,
            },
            &mut stage,
            &mut grad_weights,
            shape.value_vectors,
            blocking,
        );
        #[unroll]
        for r in 0..rows {
            let row = unit_row + comptime!(r * blocking.unit_rows);
            #[unroll]
            for c in 0..columns {
                let at = comptime!(r * columns + c);
                let weight = probability::<A>(scores[at], log_sums[r]);
                let gradient = weight * (grad_weights[at] - deltas[r]) * slopes[at];
                weights[row * comptime!(blocking.right() + 1)
                    + lane
                    + comptime!(c * blocking.lanes)] = gradient;
            }
        }
        add_weighted_rows::<E, A, N>(
            &weights,
            key,
            &key_rows,
            &mut stage,
            &mut results,
            shape.head_vectors,
            blocking,
        );
    }

    let mut factors = Array::<A>::new(rows);
    #[unroll]
    for r in 0..rows {
        factors[r] = scale;
    }
    write_rows::<E, A, N>(
        &results,
        &factors,
        grad_query,
        &Rows {
            start: first_query * shape.head_vectors,
            valid: query_rows,
        },
        shape.head_vectors,
        blocking,
    );
}

/// Gradients of keys and values: key tiles stay, the query tiles of all heads of the group pass.
/// One cube for each key tile and key/value head.
///
/// `gradients` holds those of the keys, and from vector `values_at` on those of the values.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_backward_key_value<E: Float, A: Float, N: Size>(
    query: &[Vector<E, N>],
    key: &[Vector<E, N>],
    value: &[Vector<E, N>],
    grad_output: &[Vector<E, N>],
    statistics: &[A],
    plan: &[u32],
    gradients: &mut [Vector<E, N>],
    values_at: usize,
    problem: Problem,
    scale: InputScalar,
    softcap: InputScalar,
    #[comptime] shape: KernelShape,
    #[define(E)] _stored: ElemType,
    #[define(A)] _computed: ElemType,
) {
    if CUBE_POS >= problem.cubes as usize {
        terminate!();
    }
    let blocking = comptime!(shape.blocking);
    let rows = comptime!(blocking.rows);
    let columns = comptime!(blocking.columns);
    let scale = scale.get::<A>();
    let softcap = softcap.get::<A>();
    let (queries, keys) = (problem.queries as usize, problem.keys as usize);
    let (heads, kv_heads) = (problem.query_heads as usize, problem.kv_heads as usize);
    let place = place(plan, &problem, keys, kv_heads, comptime!(blocking.left()));
    let group = heads / kv_heads;
    let first_key = (place.batch * kv_heads + place.head) * keys + place.first_row;
    let key_rows = keys - place.first_row;
    let unit_row = unit_row(blocking);
    let lane = lane(blocking);

    let mut stage = Shared::<[Vector<A, N>]>::new_slice(comptime!(shape.stage_len()));
    let mut weights = Shared::<[A]>::new_slice(comptime!(blocking.weights_len()));

    let n_key_results = comptime!(rows * blocking.vectors_per_unit(shape.head_vectors));
    let n_value_results = comptime!(rows * blocking.vectors_per_unit(shape.value_vectors));
    let mut key_results = Array::<Vector<A, N>>::new(n_key_results);
    let mut value_results = Array::<Vector<A, N>>::new(n_value_results);
    #[unroll]
    for at in 0..n_key_results {
        key_results[at] = Vector::<A, N>::new(A::new(0.0));
    }
    #[unroll]
    for at in 0..n_value_results {
        value_results[at] = Vector::<A, N>::new(A::new(0.0));
    }
    let mut scores = Array::<A>::new(comptime!(rows * columns));
    let mut slopes = Array::<A>::new(comptime!(rows * columns));
    let mut grad_weights = Array::<A>::new(comptime!(rows * columns));
    let mut deltas = Array::<A>::new(columns);
    let key_tile = Rows {
        start: first_key * shape.head_vectors,
        valid: key_rows,
    };
    let value_tile = Rows {
        start: first_key * shape.value_vectors,
        valid: key_rows,
    };

    let list = problem.offsets as usize + place.tile;
    for in_group in 0..group {
        let head = place.head * group + in_group;
        for at in plan[list]..plan[list + 1] {
            let entry = plan[(problem.entries + at) as usize];
            let tile_query = (entry >> 1) as usize * comptime!(blocking.right());
            let first_query = (place.batch * heads + head) * queries + tile_query;
            let query_rows = queries - tile_query;
            let query_tile = Rows {
                start: first_query * shape.head_vectors,
                valid: query_rows,
            };
            let grad_tile = Rows {
                start: first_query * shape.value_vectors,
                valid: query_rows,
            };
            score_products::<E, A, N>(
                key,
                &key_tile,
                query,
                &query_tile,
                &mut stage,
                &mut scores,
                shape.head_vectors,
                blocking,
            );
            #[unroll]
            for at in 0..comptime!(rows * columns) {
                let score = score::<A>(scores[at] * scale, softcap, shape);
                scores[at] = score.value;
                slopes[at] = score.slope;
            }
            if entry & 1 == 1 {
                #[unroll]
                for r in 0..rows {
                    let key = place.first_row + unit_row + comptime!(r * blocking.unit_rows);
                    let interval = interval(plan, &problem, place.batch, key, shape);
                    #[unroll]
                    for c in 0..columns {
                        let row = tile_query + lane + comptime!(c * blocking.lanes);
                        let position = query_position(plan, &problem, place.batch, row, shape);
                        if !sees(row, position, &interval, &problem, shape) {
                            scores[r * columns + c] = A::new(HIDDEN);
                        }
                    }
                }
            }
            #[unroll]
            for c in 0..columns {
                let column = lane + comptime!(c * blocking.lanes);
                let mut log_sum = A::new(0.0);
                deltas[c] = A::new(0.0);
                if column < query_rows {
                    log_sum = statistics[2 * (first_query + column)];
                    deltas[c] = statistics[2 * (first_query + column) + 1];
                }
                #[unroll]
                for r in 0..rows {
                    let row = unit_row + comptime!(r * blocking.unit_rows);
                    let weight = probability::<A>(scores[r * columns + c], log_sum);
                    scores[r * columns + c] = weight;
                    weights[row * comptime!(blocking.right() + 1) + column] = weight;
                }
            }
            add_weighted_rows::<E, A, N>(
                &weights,
                grad_output,
                &grad_tile,
                &mut stage,
                &mut value_results,
                shape.value_vectors,
                blocking,
            );
            score_products::<E, A, N>(
                value,
                &value_tile,
                grad_output,
                &grad_tile,
                &mut stage,
                &mut grad_weights,
                shape.value_vectors,
                blocking,
            );
            #[unroll]
            for r in 0..rows {
                let row = unit_row + comptime!(r * blocking.unit_rows);
                #[unroll]
                for c in 0..columns {
                    let at = comptime!(r * columns + c);
                    let gradient = scores[at] * (grad_weights[at] - deltas[c]) * slopes[at];
                    let column = lane + comptime!(c * blocking.lanes);
                    weights[row * comptime!(blocking.right() + 1) + column] = gradient;
                }
            }
            add_weighted_rows::<E, A, N>(
                &weights,
                query,
                &query_tile,
                &mut stage,
                &mut key_results,
                shape.head_vectors,
                blocking,
            );
        }
    }

    let mut factors = Array::<A>::new(rows);
    #[unroll]
    for r in 0..rows {
        factors[r] = scale;
    }
    write_rows::<E, A, N>(
        &key_results,
        &factors,
        gradients,
        &key_tile,
        shape.head_vectors,
        blocking,
    );
    #[unroll]
    for r in 0..rows {
        factors[r] = A::new(1.0);
    }
    write_rows::<E, A, N>(
        &value_results,
        &factors,
        gradients,
        &Rows {
            start: values_at + first_key * shape.value_vectors,
            valid: key_rows,
        },
        shape.value_vectors,
        blocking,
    );
}
