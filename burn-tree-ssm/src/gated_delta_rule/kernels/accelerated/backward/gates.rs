//! The numbers of a window's rows, and the gradients of beta and log decay.

use burn_tree_kit::cube::matrix::*;
use cubecl::prelude::*;

use super::super::arguments::Sizes;
use super::super::blocks::*;
use super::super::words::*;
use super::cube_window::*;
use super::gradients::{GradientInputs, GradientResults};
use super::state_products::StateProducts;

/// Writes the numbers of a value head's rows to shared memory, and zeros where sums will be.
#[cube]
pub(super) fn load_numbers<E: Float>(
    inputs: &GradientInputs<E>,
    window: &CubeWindow,
    head: u32,
    sizes: &Sizes,
) {
    let unit = window.unit;
    if unit < ROWS as u32 {
        let mut sum = 0.0f32;
        let mut exit = 0.0f32;
        let mut of_beta = 0.0f32;
        let mut end = 0u32;
        if unit < window.length {
            let row = window.start + unit;
            let at = (head * sizes.rows + window.start + unit) as usize;
            sum = inputs.decays[at];
            exit = inputs.decays[at + (2 * sizes.value_heads * sizes.rows) as usize];
            of_beta = inputs.beta[(row * sizes.value_heads + head) as usize];
            end = min(
                inputs.subtree_ends[row as usize] - window.start,
                window.length,
            );
        }
        store_number(window.sums + unit * 4, 0usize, sum);
        store_number(window.to_last + unit * 4, 0usize, exit);
        store_number(window.betas + unit * 4, 0usize, of_beta);
        store_word(window.ends + unit * 4, 0usize, end);
        store_number(window.inter + unit * 4, 0usize, 0.0f32);
        store_number(window.of_exit + unit * 4, 0usize, 0.0f32);
        #[unroll]
        for of_plane in 0..PLANES {
            let offset = comptime!(4 * ROWS * of_plane);
            store_number(window.column_sums + unit * 4, offset, 0.0f32);
        }
    }
}

/// Writes the gradients of the betas of the plane's rows to `grad_beta`, and to shared memory what
/// the rows' products with the states give to the gradients of log decays.
///
/// `with_values`, `below`: the lane's parts of the products of its rows of `X` with those of the
/// values, and of the sums over pairs with rows above.
#[cube]
pub(super) fn write_betas(
    results: &mut GradientResults,
    products: &StateProducts,
    with_values: &Array<f32>,
    below: &Array<f32>,
    window: &CubeWindow,
    lane_rows: &LaneRows,
    head: u32,
    sizes: &Sizes,
) {
    #[unroll]
    for half in 0..2usize {
        let beta = if comptime!(half == 0) {
            lane_rows.beta
        } else {
            lane_rows.beta_8
        };
        let row = window.row + comptime!(8 * half as u32);
        let with_queries = row_sum(products.with_queries[half]);
        let with_keys = row_sum(products.with_keys[half]);
        let with_exit = row_sum(products.with_exit[half]);
        let of_beta = row_sum(with_values[half] - below[half]) - with_keys;
        if window.lane % 4 == 0 && row < window.length {
            let inter = with_queries - beta * with_keys;
            store_number(window.inter + row * 4, 0usize, inter);
            store_number(window.of_exit + row * 4, 0usize, with_exit);
            results.beta[((window.start + row) * sizes.value_heads + head) as usize] = of_beta;
        }
    }
}

/// Writes a plane's sum of its units' numbers.
#[cube]
pub(super) fn sum_planes(window: &CubeWindow, number: f32) {
    let mut sum = number;
    #[unroll]
    for step in 0..5u32 {
        sum += shuffle_xor(sum, comptime!(1u32 << step));
    }
    if window.lane == 0 {
        store_number(window.plane_sums + window.plane * 4, 0usize, sum);
    }
}

/// Writes the gradients of the log decays, a row a unit, from the sums in shared memory.
#[cube]
pub(super) fn write_log_decays(
    results: &mut GradientResults,
    window: &CubeWindow,
    head: u32,
    sizes: &Sizes,
) {
    let unit = window.unit;
    if unit < window.length {
        // The state after the window: the entry's state and the rows above.
        let last = load_number(window.sums + (window.length - 1) * 4, 0usize);
        let mut gradient = 0.0f32;
        #[unroll]
        for of_plane in 0..PLANES {
            gradient += load_number(window.plane_sums, comptime!(4 * of_plane));
        }
        gradient *= exp2(last);
        let end = load_word(window.ends + unit * 4, 0usize);
        let of_columns = window.column_sums + unit * 4;
        #[unroll]
        for of_plane in 0..PLANES {
            gradient += load_number(of_columns, comptime!(4 * ROWS * of_plane));
        }
        #[unroll]
        for other in 0..ROWS {
            let above = (other as u32) < unit;
            let inside = unit <= other as u32 && (other as u32) < end;
            let of_exit = load_number(window.of_exit, comptime!(4 * other));
            gradient += select(above, of_exit, 0.0f32);
            let of_entry = load_number(window.inter, comptime!(4 * other));
            gradient += select(inside, of_entry, 0.0f32);
        }
        results.log_decay[((window.start + unit) * sizes.value_heads + head) as usize] = gradient;
    }
}
