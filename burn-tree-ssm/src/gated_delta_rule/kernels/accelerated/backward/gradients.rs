//! The gradients of a window's rows, from the states and their gradients at its ends.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Sizes, Windows};
use super::super::blocks::*;
use super::super::rows::*;
use super::cube_window::*;
use super::gates::*;
use super::pairs::*;
use super::state_products::*;
use super::values::*;

/// Tensors that are read: those of the call, and what the kernels before computed; see
/// [`local`](super::local), [`scan`](super::scan) and [`reverse_scan`](super::reverse_scan).
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GradientInputs<E: Float> {
    pub query: Box<[E]>,
    pub key: Box<[E]>,
    pub value: Box<[E]>,
    pub grad_output: Box<[E]>,
    pub inverse: Box<[E]>,
    pub beta: Box<[f32]>,
    pub decays: Box<[f32]>,
    pub u: Box<[E]>,
    pub grad_u: Box<[E]>,
    pub entries: Box<[E]>,
    pub exits: Box<[E]>,
    /// `[R]` one past the last row of each row's subtree.
    pub subtree_ends: Box<[u32]>,
    pub entry_windows: Box<[u32]>,
    pub has_exit: Box<[u32]>,
}

/// Tensors that are written: the gradients of the inputs of the same names.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct GradientResults {
    pub query: Box<[Vector<u32, Const<4>>]>,
    pub key: Box<[Vector<u32, Const<4>>]>,
    pub value: Box<[Vector<u32, Const<4>>]>,
    pub log_decay: Box<[f32]>,
    pub beta: Box<[f32]>,
}

/// The gradients of query, key, value, log decay and beta, from what the kernels before computed.
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
    inputs: &GradientInputs<E>,
    windows: &Windows,
    results: &mut GradientResults,
    sizes: Sizes,
    scale: f32,
    #[comptime] config: WindowConfig,
    #[define(E)] _dtype: ElemType,
) {
    let key_tiles = comptime!(config.key_dim / 8);
    let number = CUBE_POS_X / sizes.key_heads;
    let key_head = CUBE_POS_X % sizes.key_heads;
    let group = sizes.value_heads / sizes.key_heads;
    let memory = Shared::<[u32]>::new_aligned_slice(
        comptime!(config.gradients_shared_bytes().div_ceil(4)),
        16usize,
    );
    let window = cube_window(shared_address(&memory), windows, number, config);
    let (start, length) = (window.start, window.length);

    let query = global_address::<E>(&inputs.query);
    let query = head_rows(query, start, sizes.key_heads, key_head, config.key_dim);
    copy_window_rows(
        &query,
        window.query,
        window.unit,
        length,
        config.key_dim,
        UNITS,
    );
    let key = global_address::<E>(&inputs.key);
    let key = head_rows(key, start, sizes.key_heads, key_head, config.key_dim);
    copy_window_rows(&key, window.key, window.unit, length, config.key_dim, UNITS);

    let mut sums = KeySums {
        query: Array::<Accumulator>::new(key_tiles),
        key: Array::<Accumulator>::new(key_tiles),
    };
    clear(&mut sums.query, key_tiles);
    clear(&mut sums.key, key_tiles);
    for of_group in 0..group {
        let head = key_head * group + of_group;
        add_value_head::<E>(
            &mut sums, inputs, results, &window, head, &sizes, scale, config,
        );
    }

    if window.plane < window.tiles {
        let lane = window.lane;
        let row = window.plane_row;
        let valid = length - row;
        let staged = row * comptime!(row_stride(config.key_dim) as u32);
        let query = output_address(&mut results.query);
        let query = head_rows(
            query,
            start + row,
            sizes.key_heads,
            key_head,
            config.key_dim,
        );
        store_sums::<E>(
            &sums.query,
            window.query + staged,
            &query,
            lane,
            valid,
            config.key_dim,
        );
        let key = output_address(&mut results.key);
        let key = head_rows(key, start + row, sizes.key_heads, key_head, config.key_dim);
        store_sums::<E>(
            &sums.key,
            window.key + staged,
            &key,
            lane,
            valid,
            config.key_dim,
        );
    }
}

/// Adds what a value head gives to the sums of its key head's rows, and writes its other gradients.
#[cube]
fn add_value_head<E: Float>(
    sums: &mut KeySums,
    inputs: &GradientInputs<E>,
    results: &mut GradientResults,
    window: &CubeWindow,
    head: u32,
    sizes: &Sizes,
    scale: f32,
    #[comptime] config: WindowConfig,
) {
    let heads = sizes.value_heads;
    copy_values::<E>(inputs, window, head, sizes, config);
    load_numbers::<E>(inputs, window, head, sizes);
    wait_copies(0usize);
    sync_cube();

    let lane_rows = lane_rows(window);
    let mut x = Array::<Fragment>::new(comptime!(config.value_dim / 16));
    let mut with_values = zero_rows();
    if window.plane < window.tiles {
        let value = global_address::<E>(&inputs.value);
        let value = head_rows(value, window.start, heads, head, config.value_dim);
        let grad = output_address(&mut results.value);
        let grad = head_rows(grad, window.start, heads, head, config.value_dim);
        multiply_inverse::<E>(
            &mut x,
            &mut with_values,
            window,
            &lane_rows,
            &value,
            &grad,
            config,
        );
    }
    // The inverse and the gradient of U have been read.
    sync_cube();
    let states = window_states::<E>(inputs, window, head, sizes, config);
    copy_part(&states, window, 0usize, config);
    let mut below = zero_rows();
    if window.plane < window.tiles {
        add_pairs::<E>(sums, &mut below, &x, window, &lane_rows, scale, config);
    }
    sync_cube();
    if window.plane < window.tiles {
        add_pairs_below::<E>(&mut sums.key, window, config);
    }

    // Products with the states, in parts of their key columns.
    sync_cube();
    copy_part(&states, window, 1usize, config);
    let mut products = zero_products();
    let mut of_states = 0.0f32;
    #[unroll]
    for part in 0..comptime!(config.key_dim / PART) {
        wait_copies(comptime!(usize::from((part + 1) * PART < config.key_dim)));
        sync_cube();
        of_states += multiply_parts::<E>(window, part, config);
        if window.plane < window.tiles {
            add_state_products::<E>(
                sums,
                &mut products,
                &x,
                window,
                &lane_rows,
                scale,
                part,
                config,
            );
        }
        sync_cube();
        if comptime!((part + 2) * PART < config.key_dim) {
            copy_part(&states, window, comptime!(part + 2), config);
        }
    }

    write_betas(
        results,
        &products,
        &with_values,
        &below,
        window,
        &lane_rows,
        head,
        sizes,
    );
    sum_planes(window, of_states);
    sync_cube();
    write_log_decays(results, window, head, sizes);
    sync_cube();
}

/// Starts copying the window's rows of a value head.
#[cube]
fn copy_values<E: Float>(
    inputs: &GradientInputs<E>,
    window: &CubeWindow,
    head: u32,
    sizes: &Sizes,
    #[comptime] config: WindowConfig,
) {
    let value_dim = comptime!(config.value_dim);
    let heads = sizes.value_heads;
    let (start, length, unit) = (window.start, window.length, window.unit);
    let u = head_rows(
        global_address::<E>(&inputs.u),
        start,
        heads,
        head,
        value_dim,
    );
    copy_window_rows(&u, window.u, unit, length, value_dim, UNITS);
    let grad = global_address::<E>(&inputs.grad_output);
    let grad = head_rows(grad, start, heads, head, value_dim);
    copy_window_rows(&grad, window.grad_output, unit, length, value_dim, UNITS);
    let grad = head_rows(
        global_address::<E>(&inputs.grad_u),
        start,
        heads,
        head,
        value_dim,
    );
    copy_window_rows(&grad, window.grad_u, unit, length, value_dim, UNITS);
    let inverse = head_rows(
        global_address::<E>(&inputs.inverse),
        start,
        heads,
        head,
        ROWS,
    );
    copy_window_rows(&inverse, window.inverse, unit, length, ROWS, UNITS);
    commit_copies();
}

/// The states at the window's ends, of a value head.
#[cube]
fn window_states<E: Float>(
    inputs: &GradientInputs<E>,
    window: &CubeWindow,
    head: u32,
    sizes: &Sizes,
    #[comptime] config: WindowConfig,
) -> WindowStates {
    let number = window.number as usize;
    let value_dim = comptime!(config.value_dim as u32);
    let state_bytes = comptime!((config.value_dim * 2 * config.key_dim) as u64);
    let heads = u64::cast_from(sizes.value_heads);
    let row_bytes = u64::cast_from(comptime!(2 * config.key_dim as u32));
    let with_entry = u64::cast_from(inputs.entry_windows[number]);
    let entry = (with_entry * heads + u64::cast_from(head)) * state_bytes;
    let exit = (u64::cast_from(window.number) * heads + u64::cast_from(head)) * state_bytes;
    // The gradient of the state after the window is 0 without an exit.
    let exit_rows = inputs.has_exit[number] * value_dim;
    WindowStates {
        entry: HeadRows {
            first: global_address::<E>(&inputs.entries) + entry,
            row_bytes,
        },
        exit: HeadRows {
            first: global_address::<E>(&inputs.exits) + exit,
            row_bytes,
        },
        exit_rows,
    }
}
