//! Output and log-sum-exp: query tiles stay, key tiles pass, softmax goes along.

use cubecl::prelude::*;

use super::arguments::{KernelShape, Problem};
use super::scores::{HIDDEN, hide_keys, probability, query_place, query_position, score};
use super::tile::{Rows, add_weighted_rows, lane, score_products, unit_row, write_rows};

/// One cube for each query tile and query head.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn attention_forward<E: Float, A: Float, N: Size>(
    query: &[Vector<E, N>],
    key: &[Vector<E, N>],
    value: &[Vector<E, N>],
    plan: &[u32],
    output: &mut [Vector<E, N>],
    log_sum_exp: &mut [A],
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
    let lanes = comptime!(blocking.lanes);
    let scale = scale.get::<A>();
    let softcap = softcap.get::<A>();
    let place = query_place(plan, &problem, comptime!(blocking.left()));
    let (first_query, first_key) = (place.first_query, place.first_key);
    let (query_rows, keys) = (place.query_rows, problem.keys as usize);
    let unit_row = unit_row(blocking);
    let lane = lane(blocking);

    let mut stage = Shared::<[Vector<A, N>]>::new_slice(comptime!(shape.stage_len()));
    let mut weights = Shared::<[A]>::new_slice(comptime!(blocking.weights_len()));
    let mut maxima = Shared::<[A]>::new_slice(comptime!(blocking.left() * lanes));

    let mut positions = Array::<usize>::new(rows);
    let mut row_max = Array::<A>::new(rows);
    // Of this unit's columns only, until the end.
    let mut row_sum = Array::<A>::new(rows);
    let n_results = comptime!(rows * blocking.vectors_per_unit(shape.value_vectors));
    let mut results = Array::<Vector<A, N>>::new(n_results);
    #[unroll]
    for r in 0..rows {
        let row = place.first_row + unit_row + comptime!(r * blocking.unit_rows);
        positions[r] = query_position(plan, &problem, place.batch, row, shape);
        row_max[r] = A::new(HIDDEN);
        row_sum[r] = A::new(0.0);
    }
    #[unroll]
    for at in 0..n_results {
        results[at] = Vector::<A, N>::new(A::new(0.0));
    }
    let mut scores = Array::<A>::new(comptime!(rows * columns));

    let list = problem.offsets as usize + place.tile;
    for at in plan[list]..plan[list + 1] {
        let entry = plan[(problem.entries + at) as usize];
        let tile_key = (entry >> 1) as usize * comptime!(blocking.right());
        let key_rows = keys - tile_key;
        score_products::<E, A, N>(
            query,
            &Rows {
                start: first_query * shape.head_vectors,
                valid: query_rows,
            },
            key,
            &Rows {
                start: (first_key + tile_key) * shape.head_vectors,
                valid: key_rows,
            },
            &mut stage,
            &mut scores,
            shape.head_vectors,
            blocking,
        );
        #[unroll]
        for at in 0..comptime!(rows * columns) {
            scores[at] = score::<A>(scores[at] * scale, softcap, shape).value;
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

        #[unroll]
        for r in 0..rows {
            let mut maximum = scores[r * columns];
            #[unroll]
            for c in 1..columns {
                maximum = max(maximum, scores[r * columns + c]);
            }
            let row = unit_row + comptime!(r * blocking.unit_rows);
            maxima[row * lanes + lane] = maximum;
        }
        sync_cube();
        #[unroll]
        for r in 0..rows {
            let row = unit_row + comptime!(r * blocking.unit_rows);
            let mut maximum = row_max[r];
            for other in 0..lanes {
                maximum = max(maximum, maxima[row * lanes + other]);
            }
            let shrink = (row_max[r] - maximum).exp();
            row_max[r] = maximum;
            let mut sum = row_sum[r] * shrink;
            #[unroll]
            for c in 0..columns {
                let weight = probability::<A>(scores[r * columns + c], maximum);
                weights[row * comptime!(blocking.right() + 1) + lane + comptime!(c * lanes)] =
                    weight;
                sum += weight;
            }
            row_sum[r] = sum;
            let per_unit = comptime!(blocking.vectors_per_unit(shape.value_vectors));
            #[unroll]
            for v in 0..per_unit {
                results[r * per_unit + v] *= Vector::<A, N>::new(shrink);
            }
        }
        add_weighted_rows::<E, A, N>(
            &weights,
            value,
            &Rows {
                start: (first_key + tile_key) * shape.value_vectors,
                valid: key_rows,
            },
            &mut stage,
            &mut results,
            shape.value_vectors,
            blocking,
        );
    }

    // The maxima of the last tile have been read before the barriers since.
    sync_cube();
    #[unroll]
    for r in 0..rows {
        let row = unit_row + comptime!(r * blocking.unit_rows);
        maxima[row * lanes + lane] = row_sum[r];
    }
    sync_cube();
    let mut factors = Array::<A>::new(rows);
    #[unroll]
    for r in 0..rows {
        let row = unit_row + comptime!(r * blocking.unit_rows);
        let mut sum = A::new(0.0);
        for other in 0..lanes {
            sum += maxima[row * lanes + other];
        }
        let blind = sum == A::new(0.0);
        let divisor = select(blind, A::new(1.0), sum);
        factors[r] = A::new(1.0) / divisor;
        if lane == 0 && row < query_rows {
            log_sum_exp[first_query + row] = select(blind, A::new(0.0), row_max[r] + divisor.ln());
        }
    }
    write_rows::<E, A, N>(
        &results,
        &factors,
        output,
        &Rows {
            start: first_query * shape.value_vectors,
            valid: query_rows,
        },
        shape.value_vectors,
        blocking,
    );
}
