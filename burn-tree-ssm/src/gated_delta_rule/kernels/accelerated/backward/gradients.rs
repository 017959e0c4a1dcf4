//! The gradients of a window's rows, from the states and their gradients at its ends.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blocks::*;
use super::cube_window::*;
use super::pairs::*;
use super::state_products::*;
use super::values::*;

/// The gradients of query, key, value, log decay and beta, from what the kernels before computed
/// (`decays`, `u`, `grad_u`, `entries`, `entry_windows`, `exits`, `has_exit`: see there).
///
/// With `X = Tg^T dU` where `Tg = E . T0`, `S = X U^T` and `dP = E . scale dO U^T`:
/// * `dV = diag(beta) X`
/// * `N = -diag(beta) (E . S)` without its diagonal: the gradient of `K K^T`
/// * `dQ = dP K + diag(e^G scale) dO H^T`
/// * `dK = dP^T Q + (N + N^T) K - diag(beta e^G) X H^T + diag(decay to the last token) U dS^T`
/// * `dbeta_i = <X_i, V_i> - e^G_i <K_i, (X H^T)_i> - sum_j (E . K K^T . S)_ij` below the diagonal
/// * the gradient of the log decay of token `t` sums what crosses its edge: over the tokens `i` of
///   its subtree, `Z = N . K K^T + dP . Q K^T` of their pairs with tokens above `t` and what the
///   entry's state contributes to `i`; and the same for the state after the window. Sums of pairs
///   that do not cross, which would cancel, are not formed: the first token's gradient without a
///   state is 0.
///
/// Each gradient is summed by one plane, over the value heads of a key head in their order.
///
/// Cubes: x = the key heads of the first window, of the second, ..
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_backward_gradients<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    grad_output: &[E],
    inverse: &[E],
    beta: &[f32],
    decays: &[f32],
    u: &[E],
    grad_u: &[E],
    entries: &[E],
    exits: &[E],
    subtree_ends: &[u32],
    window_starts: &[u32],
    window_lengths: &[u32],
    entry_windows: &[u32],
    has_exit: &[u32],
    grad_query: &mut [Vector<u32, Const<4>>],
    grad_key: &mut [Vector<u32, Const<4>>],
    grad_value: &mut [Vector<u32, Const<4>>],
    grad_log_decay: &mut [f32],
    grad_beta: &mut [f32],
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    scale: f32,
    #[comptime] config: WindowConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let key_stride = comptime!(row_stride(key_dim) as u32);
    let key_tiles = comptime!(key_dim / 8);

    let number = CUBE_POS_X / key_heads;
    let key_head = CUBE_POS_X % key_heads;
    let group = value_heads / key_heads;
    let start = window_starts[number as usize];
    let length = window_lengths[number as usize];
    // The gradient of the state after the window is 0 without an exit.
    let exit_rows = has_exit[number as usize] * comptime!(value_dim as u32);
    let memory = Shared::<[u32]>::new_aligned_slice(
        comptime!(config.gradients_shared_bytes().div_ceil(4)),
        16usize,
    );
    let shared = shared_address(&memory);
    let window = cube_window(shared, length, config);
    let (unit, lane, plane) = (window.unit, window.lane, window.plane);

    let key_row_bytes = row_bytes(key_heads, key_dim);
    let value_row_bytes = row_bytes(value_heads, value_dim);
    let of_keys = row_offset(start, key_heads, key_head, key_dim);
    copy_spread_rows(
        global_address::<E>(query) + of_keys,
        key_row_bytes,
        window.query,
        unit,
        length,
        ROWS,
        key_dim,
        UNITS,
    );
    copy_spread_rows(
        global_address::<E>(key) + of_keys,
        key_row_bytes,
        window.key,
        unit,
        length,
        ROWS,
        key_dim,
        UNITS,
    );

    let mut of_query = Array::<Accumulator>::new(key_tiles);
    let mut of_key = Array::<Accumulator>::new(key_tiles);
    clear(&mut of_query, key_tiles);
    clear(&mut of_key, key_tiles);

    for of_group in 0..group {
        let head = key_head * group + of_group;
        let of_values = row_offset(start, value_heads, head, value_dim);
        copy_spread_rows(
            global_address::<E>(u) + of_values,
            value_row_bytes,
            window.u,
            unit,
            length,
            ROWS,
            value_dim,
            UNITS,
        );
        copy_spread_rows(
            global_address::<E>(grad_output) + of_values,
            value_row_bytes,
            window.grad_output,
            unit,
            length,
            ROWS,
            value_dim,
            UNITS,
        );
        copy_spread_rows(
            global_address::<E>(grad_u) + of_values,
            value_row_bytes,
            window.grad_u,
            unit,
            length,
            ROWS,
            value_dim,
            UNITS,
        );
        copy_spread_rows(
            global_address::<E>(inverse) + row_offset(start, value_heads, head, ROWS),
            row_bytes(value_heads, ROWS),
            window.inverse,
            unit,
            length,
            ROWS,
            ROWS,
            UNITS,
        );
        commit_copies();
        if unit < ROWS as u32 {
            let mut sum = 0.0f32;
            let mut exit = 0.0f32;
            let mut of_beta = 0.0f32;
            let mut end = 0u32;
            if unit < length {
                let at = (head * rows + start + unit) as usize;
                sum = decays[at];
                exit = decays[at + (2 * value_heads * rows) as usize];
                of_beta = beta[((start + unit) * value_heads + head) as usize];
                end = min(subtree_ends[(start + unit) as usize] - start, length);
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
        wait_copies(0usize);
        sync_cube();

        let lane_rows = lane_rows(&window);
        let mut x = Array::<Fragment>::new(comptime!(value_dim / 16));
        let mut with_values = zero_rows();
        if plane < window.tiles {
            multiply_inverse::<E>(
                &mut x,
                &mut with_values,
                &window,
                &lane_rows,
                global_address::<E>(value) + of_values,
                output_address(grad_value) + of_values,
                value_row_bytes,
                config,
            );
        }
        // The inverse and the gradient of U have been read.
        sync_cube();
        let state_bytes = comptime!((value_dim * 2 * key_dim) as u64);
        let state_heads = u64::cast_from(value_heads);
        let with_entry = u64::cast_from(entry_windows[number as usize]);
        let entry = global_address::<E>(entries)
            + (with_entry * state_heads + u64::cast_from(head)) * state_bytes;
        let exit = global_address::<E>(exits)
            + (u64::cast_from(number) * state_heads + u64::cast_from(head)) * state_bytes;
        copy_part(entry, exit, exit_rows, window.grad_u, unit, config);

        let mut below = zero_rows();
        if plane < window.tiles {
            add_pairs::<E>(
                &mut of_query,
                &mut of_key,
                &mut below,
                &x,
                &window,
                &lane_rows,
                scale,
                config,
            );
        }
        sync_cube();
        if plane < window.tiles {
            add_pairs_below::<E>(&mut of_key, &window, config);
        }

        // Products with the states, in parts of their key columns.
        sync_cube();
        copy_part(
            entry + comptime!(2 * PART as u64),
            exit + comptime!(2 * PART as u64),
            exit_rows,
            window.inverse,
            unit,
            config,
        );
        let mut products = StateProducts {
            with_queries: zero_rows(),
            with_keys: zero_rows(),
            with_exit: zero_rows(),
        };
        let mut of_states = 0.0f32;
        #[unroll]
        for part in 0..comptime!(key_dim / PART) {
            let entry_part = if comptime!(part % 2 == 0) {
                window.grad_u
            } else {
                window.inverse
            };
            let exit_part = entry_part + comptime!(tile_bytes(value_dim, PART) as u32);
            wait_copies(comptime!(usize::from((part + 1) * PART < key_dim)));
            sync_cube();
            of_states += multiply_parts::<E>(entry_part, exit_part, unit, config);
            if plane < window.tiles {
                add_state_products::<E>(
                    &mut of_query,
                    &mut of_key,
                    &mut products,
                    &x,
                    &window,
                    &lane_rows,
                    entry_part,
                    exit_part,
                    scale,
                    part,
                    config,
                );
            }
            sync_cube();
            if comptime!((part + 2) * PART < key_dim) {
                let further = comptime!(((part + 2) * 2 * PART) as u64);
                copy_part(
                    entry + further,
                    exit + further,
                    exit_rows,
                    entry_part,
                    unit,
                    config,
                );
            }
        }

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
            if lane % 4 == 0 && row < length {
                store_number(
                    window.inter + row * 4,
                    0usize,
                    with_queries - beta * with_keys,
                );
                store_number(window.of_exit + row * 4, 0usize, with_exit);
                grad_beta[((start + row) * value_heads + head) as usize] = of_beta;
            }
        }
        #[unroll]
        for step in 0..5u32 {
            of_states += shuffle_xor(of_states, comptime!(1u32 << step));
        }
        if lane == 0 {
            store_number(window.plane_sums + plane * 4, 0usize, of_states);
        }
        sync_cube();
        if unit < length {
            // The state after the window: the entry's state and the rows above.
            let last = load_number(window.sums + (length - 1) * 4, 0usize);
            let mut gradient = 0.0f32;
            #[unroll]
            for of_plane in 0..PLANES {
                gradient += load_number(window.plane_sums, comptime!(4 * of_plane));
            }
            gradient *= exp2(last);
            let end = load_word(window.ends + unit * 4, 0usize);
            #[unroll]
            for of_plane in 0..PLANES {
                gradient += load_number(
                    window.column_sums + unit * 4,
                    comptime!(4 * ROWS * of_plane),
                );
            }
            #[unroll]
            for other in 0..ROWS {
                let above = (other as u32) < unit;
                let inside = unit <= other as u32 && (other as u32) < end;
                gradient += select(
                    above,
                    load_number(window.of_exit, comptime!(4 * other)),
                    0.0f32,
                );
                gradient += select(
                    inside,
                    load_number(window.inter, comptime!(4 * other)),
                    0.0f32,
                );
            }
            grad_log_decay[((start + unit) * value_heads + head) as usize] = gradient;
        }
        sync_cube();
    }

    if plane < window.tiles {
        let plane_row = window.plane_row;
        let valid = length - plane_row;
        let of_keys = row_offset(start + plane_row, key_heads, key_head, key_dim);
        let staged = plane_row * key_stride;
        stage_rows::<E>(&of_query, window.query + staged, lane, key_dim);
        store_spread_rows(
            window.query + staged,
            output_address(grad_query) + of_keys,
            key_row_bytes,
            lane,
            valid,
            16usize,
            key_dim,
        );
        stage_rows::<E>(&of_key, window.key + staged, lane, key_dim);
        store_spread_rows(
            window.key + staged,
            output_address(grad_key) + of_keys,
            key_row_bytes,
            lane,
            valid,
            16usize,
            key_dim,
        );
    }
}
