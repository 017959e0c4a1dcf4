//! The gradients of a window's rows, from the states and their gradients at its ends.

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use tree_training_cube::matrix::*;

use super::super::blocks::*;
use super::pairs::*;

/// Planes of a cube, one per 16-row tile.
const PLANES: usize = TILES;

/// Where a cube has what in shared memory, in bytes.
#[derive(Clone, Copy)]
struct Layout {
    key: usize,
    u: usize,
    grad_output: usize,
    /// The gradient of `U`, and when that is no longer needed, every second part of the states.
    grad_u: usize,
    /// The inverse, when that is no longer needed `N`, and then, over both tiles, the other parts.
    inverse: usize,
    grad_product: usize,
    /// Numbers per row of a window.
    numbers: usize,
    bytes: usize,
}

/// Numbers per row of a window.
const SUMS: usize = 0;
const ENDS: usize = 1;
const BETAS: usize = 2;
const EXITS: usize = 3;
const INTER: usize = 4;
const OF_EXIT: usize = 5;
/// One number per row and plane.
const COLUMN_SUMS: usize = 6;
const NUMBERS: usize = COLUMN_SUMS + PLANES;

impl WindowConfig {
    const fn gradients_layout(self) -> Layout {
        let (by_key, by_value) = (
            tile_bytes(ROWS, self.key_dim),
            tile_bytes(ROWS, self.value_dim),
        );
        let parts = 2 * tile_bytes(self.value_dim, PART);
        let square = tile_bytes(ROWS, ROWS);
        let u = 2 * by_key;
        let grad_output = u + by_value;
        let grad_u = grad_output + by_value;
        let inverse = grad_u + if by_value > parts { by_value } else { parts };
        let grad_product = inverse + square;
        let numbers = inverse
            + if 2 * square > parts {
                2 * square
            } else {
                parts
            };
        Layout {
            key: by_key,
            u,
            grad_output,
            grad_u,
            inverse,
            grad_product,
            numbers,
            // Sums of planes over the states come last.
            bytes: numbers + 4 * ROWS * NUMBERS + 4 * PLANES,
        }
    }

    /// Bytes of shared memory of a cube of [`gated_delta_rule_backward_gradients`].
    pub(crate) const fn gradients_shared_bytes(self) -> usize {
        self.gradients_layout().bytes
    }
}

/// The gradients of query, key, value, log decay and beta, from what the kernels before computed
/// (`decays`, `u`, `grad_u`,
/// `entries`, `entry_windows`, `exits`, `has_exit`: see there).
///
/// With `X = Tg^T dU` where `Tg = E . T0`, `S = X U^T` and `dP = E . scale dO U^T`:
/// * `dV = diag(beta) X`
/// * `N = -diag(beta) (E . S)` without its diagonal: the gradient of `K K^T`
/// * `dQ = dP K + diag(e^G scale) dO H^T`
/// * `dK = dP^T Q + (N + N^T) K - diag(beta e^G) X H^T + diag(decay to the last token) U dS^T`
/// * `dbeta_i = <X_i, V_i> - e^G_i <K_i, (X H^T)_i> - sum_j (E . K K^T . S)_ij` below the diagonal
/// * the gradient of the log decay of token `t` sums what crosses its edge: over the tokens `i` of its
///   subtree, `Z = N . K K^T + dP . Q K^T` of their pairs with tokens above `t` and what the entry's
///   state contributes to `i`; and the same for the state after the window. Sums of pairs that do not
///   cross, which would cancel, are not formed: the first token's gradient without a state is 0.
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
    let value_stride = comptime!(row_stride(value_dim) as u32);
    let square_stride = comptime!(row_stride(ROWS) as u32);
    let layout = comptime!(config.gradients_layout());
    let (key_tiles, value_tiles) = comptime!((key_dim / 8, value_dim / 8));

    let window = CUBE_POS_X / key_heads;
    let key_head = CUBE_POS_X % key_heads;
    let group = value_heads / key_heads;
    let start = window_starts[window as usize];
    let length = window_lengths[window as usize];
    let tiles = length.div_ceil(16u32);
    // The gradient of the state after the window is 0 without an exit.
    let exit_rows = has_exit[window as usize] * comptime!(value_dim as u32);
    let unit = UNIT_POS_X;
    let lane = unit % 32;
    let plane = unit / 32;
    let plane_row = plane * 16;
    // The lane's first row; its second is eight further.
    let row = plane_row + lane / 4;

    let memory = Shared::<[u32]>::new_aligned_slice(
        comptime!(config.gradients_shared_bytes().div_ceil(4)),
        16usize,
    );
    let shared = shared_address(&memory);
    let query_tile = shared;
    let key_tile = shared + comptime!(layout.key as u32);
    let u_tile = shared + comptime!(layout.u as u32);
    let output_tile = shared + comptime!(layout.grad_output as u32);
    let grad_u_tile = shared + comptime!(layout.grad_u as u32);
    let inverse_tile = shared + comptime!(layout.inverse as u32);
    let product_tile = shared + comptime!(layout.grad_product as u32);
    let numbers = shared + comptime!(layout.numbers as u32);
    let sums = numbers + comptime!((4 * ROWS * SUMS) as u32);
    let ends = numbers + comptime!((4 * ROWS * ENDS) as u32);
    let betas = numbers + comptime!((4 * ROWS * BETAS) as u32);
    let to_last = numbers + comptime!((4 * ROWS * EXITS) as u32);
    let inter = numbers + comptime!((4 * ROWS * INTER) as u32);
    let of_exit = numbers + comptime!((4 * ROWS * OF_EXIT) as u32);
    let column_sums = numbers + comptime!((4 * ROWS * COLUMN_SUMS) as u32);
    let plane_sums = numbers + comptime!((4 * ROWS * NUMBERS) as u32);

    let key_row_bytes = row_bytes(key_heads, key_dim);
    let value_row_bytes = row_bytes(value_heads, value_dim);
    let of_keys = row_offset(start, key_heads, key_head, key_dim);
    copy_spread_rows(
        global_address::<E>(query) + of_keys,
        key_row_bytes,
        query_tile,
        unit,
        length,
        ROWS,
        key_dim,
        UNITS,
    );
    copy_spread_rows(
        global_address::<E>(key) + of_keys,
        key_row_bytes,
        key_tile,
        unit,
        length,
        ROWS,
        key_dim,
        UNITS,
    );

    let by_rows = lane_offset_by_rows(lane, key_dim);
    let by_columns = lane_offset_by_columns(lane, key_dim);
    let value_by_rows = lane_offset_by_rows(lane, value_dim);
    let value_by_columns = lane_offset_by_columns(lane, value_dim);
    let square_by_columns = lane_offset_by_columns(lane, ROWS);

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
            u_tile,
            unit,
            length,
            ROWS,
            value_dim,
            UNITS,
        );
        copy_spread_rows(
            global_address::<E>(grad_output) + of_values,
            value_row_bytes,
            output_tile,
            unit,
            length,
            ROWS,
            value_dim,
            UNITS,
        );
        copy_spread_rows(
            global_address::<E>(grad_u) + of_values,
            value_row_bytes,
            grad_u_tile,
            unit,
            length,
            ROWS,
            value_dim,
            UNITS,
        );
        copy_spread_rows(
            global_address::<E>(inverse) + row_offset(start, value_heads, head, ROWS),
            row_bytes(value_heads, ROWS),
            inverse_tile,
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
            store_number(sums + unit * 4, 0usize, sum);
            store_number(to_last + unit * 4, 0usize, exit);
            store_number(betas + unit * 4, 0usize, of_beta);
            store_word(ends + unit * 4, 0usize, end);
            store_number(inter + unit * 4, 0usize, 0.0f32);
            store_number(of_exit + unit * 4, 0usize, 0.0f32);
            #[unroll]
            for of_plane in 0..PLANES {
                let offset = comptime!(4 * ROWS * of_plane);
                store_number(column_sums + unit * 4, offset, 0.0f32);
            }
        }
        wait_copies(0usize);
        sync_cube();

        let sum = load_number(sums + row * 4, 0usize);
        let sum_8 = load_number(sums + row * 4, 32usize);
        let of_beta = load_number(betas + row * 4, 0usize);
        let of_beta_8 = load_number(betas + row * 4, 32usize);

        // X = Tg^T dU, its products with the values, and the gradient of the values.
        let mut x = Array::<Fragment>::new(comptime!(value_dim / 16));
        let mut of_values_row = 0.0f32;
        let mut of_values_row_8 = 0.0f32;
        if plane < tiles {
            let mut of_x = Array::<Accumulator>::new(value_tiles);
            clear(&mut of_x, value_tiles);
            for row_tile in plane..tiles {
                let packed = load_block(
                    inverse_tile + row_tile * 16 * square_stride + plane * 32 + square_by_columns,
                    0usize,
                    true,
                );
                let left = transposed_decayed::<E>(packed, row_tile * 16, row, lane, sums, ends);
                add_rows::<E>(
                    &mut of_x,
                    left,
                    grad_u_tile + row_tile * 16 * value_stride + value_by_rows,
                    value_dim,
                );
            }
            let at =
                of_values + u64::cast_from(row) * value_row_bytes + u64::cast_from(lane % 4 * 4);
            let from = global_address::<E>(value) + at;
            let to = output_address(grad_value) + at;
            #[unroll]
            for half in 0..2usize {
                if row + comptime!(8 * half as u32) < length {
                    let further = value_row_bytes * comptime!(8 * half as u64);
                    let (from, to) = (from + further, to + further);
                    let beta = if comptime!(half == 0) {
                        of_beta
                    } else {
                        of_beta_8
                    };
                    let mut products = 0.0f32;
                    #[unroll]
                    for n in 0..value_tiles {
                        let tile = of_x[n];
                        let low = tile.extract(comptime!(2 * half));
                        let high = tile.extract(comptime!(2 * half + 1));
                        let values = load_word_global(from, comptime!(16 * n));
                        products += low * unpack_low::<E>(values);
                        products += high * unpack_high::<E>(values);
                        store_word_global(
                            to,
                            comptime!(16 * n),
                            pack::<E>(low * beta, high * beta),
                        );
                    }
                    if comptime!(half == 0) {
                        of_values_row = products;
                    } else {
                        of_values_row_8 = products;
                    }
                }
            }
            #[unroll]
            for k in 0..comptime!(value_dim / 16) {
                x[k] = pack_left::<E>(of_x[2 * k], of_x[2 * k + 1]);
            }
        }
        // The inverse and the gradient of U have been read.
        sync_cube();
        let state_bytes = comptime!((value_dim * 2 * key_dim) as u64);
        let state_heads = u64::cast_from(value_heads);
        let with_entry = u64::cast_from(entry_windows[window as usize]);
        let entry = global_address::<E>(entries)
            + (with_entry * state_heads + u64::cast_from(head)) * state_bytes;
        let exit = global_address::<E>(exits)
            + (u64::cast_from(window) * state_heads + u64::cast_from(head)) * state_bytes;
        copy_part(entry, exit, exit_rows, grad_u_tile, unit, config);

        // Sums over the columns of E . K K^T . S.
        let mut below = 0.0f32;
        let mut below_8 = 0.0f32;
        if plane < tiles {
            // Sums of Z over the columns before.
            let mut before = 0.0f32;
            let mut before_8 = 0.0f32;
            for column_tile in 0..plane + 1 {
                let right = column_tile * 16;
                let key_rows = key_tile + right * key_stride;
                let of_plane = plane_row * key_stride + by_rows;
                let with_key_rows = multiply_both::<E>(
                    key_tile + of_plane,
                    query_tile + of_plane,
                    key_rows + by_columns,
                    key_dim,
                );
                let with_u_rows = multiply_both_operands::<E>(
                    &x,
                    output_tile + plane_row * value_stride + value_by_rows,
                    u_tile + right * value_stride + value_by_columns,
                    value_dim,
                );

                let mut of_keys = Array::<Accumulator>::new(2usize);
                let mut of_products = Array::<Accumulator>::new(2usize);
                // Z of the lane's rows and four columns.
                let mut z = Array::<f32>::new(8usize);
                #[unroll]
                for half in 0..2usize {
                    let first = right + lane % 4 * 2 + comptime!(8 * half as u32);
                    let columns = columns(sums, ends, first);
                    let (keys, queries) = (with_key_rows[half], with_key_rows[half + 2]);
                    let (of_x, outputs) = (with_u_rows[half], with_u_rows[half + 2]);
                    let mut n = Accumulator::empty();
                    let mut p = Accumulator::empty();
                    #[unroll]
                    for i in 0..4usize {
                        let of = comptime!(i % 2);
                        let (of_row, of_sum, beta) = if comptime!(i < 2) {
                            (row, sum, of_beta)
                        } else {
                            (row + 8, sum_8, of_beta_8)
                        };
                        let decay = decay_from(&columns, of, of_row, of_sum);
                        let strict = select(first + comptime!(of as u32) < of_row, decay, 0.0f32);
                        let of_s = strict * of_x.extract(i);
                        let of_n = of_s * (-beta);
                        let of_p = decay * scale * outputs.extract(i);
                        let of_pair = of_s * keys.extract(i);
                        if comptime!(i < 2) {
                            below += of_pair;
                        } else {
                            below_8 += of_pair;
                        }
                        z[comptime!(i / 2 * 4 + half * 2 + of)] =
                            of_n * keys.extract(i) + of_p * queries.extract(i);
                        n.insert(i, of_n);
                        p.insert(i, of_p);
                    }
                    of_keys[half] = n;
                    of_products[half] = p;
                }
                let n = pack_left::<E>(of_keys[0], of_keys[1]);
                let p = pack_left::<E>(of_products[0], of_products[1]);
                let at = row * square_stride + column_tile * 32 + lane % 4 * 4;
                #[unroll]
                for i in 0..4usize {
                    let offset = comptime!(i % 2 * 8 * row_stride(ROWS) + i / 2 * 16);
                    store_word(inverse_tile + at, offset, n.extract(i));
                    store_word(product_tile + at, offset, p.extract(i));
                }
                #[unroll]
                for tile in 0..comptime!(key_dim / 16) {
                    let right = load_block(key_rows + by_rows, comptime!(tile * 32), true);
                    add_product::<E>(&mut of_query, comptime!(2 * tile), p, right);
                    add_product::<E>(&mut of_key, comptime!(2 * tile), n, right);
                }

                before = add_crossings(
                    &z,
                    0usize,
                    before,
                    row,
                    right,
                    lane,
                    ends,
                    column_sums + plane * comptime!(4 * ROWS as u32),
                );
                before_8 = add_crossings(
                    &z,
                    4usize,
                    before_8,
                    row + 8,
                    right,
                    lane,
                    ends,
                    column_sums + plane * comptime!(4 * ROWS as u32),
                );
            }
        }
        sync_cube();

        // The pairs' gradients, transposed: rows below.
        if plane < tiles {
            for row_tile in plane..tiles {
                let at = row_tile * 16 * square_stride + plane * 32 + square_by_columns;
                let n = load_block(inverse_tile + at, 0usize, true);
                let p = load_block(product_tile + at, 0usize, true);
                let rows_of = row_tile * 16 * key_stride + by_rows;
                add_rows::<E>(&mut of_key, p, query_tile + rows_of, key_dim);
                add_rows::<E>(&mut of_key, n, key_tile + rows_of, key_dim);
            }
        }

        // Products with the states, in parts of their key columns.
        sync_cube();
        copy_part(
            entry + comptime!(2 * PART as u64),
            exit + comptime!(2 * PART as u64),
            exit_rows,
            inverse_tile,
            unit,
            config,
        );
        let decay = exp2(sum);
        let decay_8 = exp2(sum_8);
        let exit_decay = load_number(to_last + row * 4, 0usize);
        let exit_decay_8 = load_number(to_last + row * 4, 32usize);
        // Products of the lane's rows with queries, with keys, and of those of the exit.
        let mut with_queries = Array::<f32>::new(2usize);
        let mut with_keys = Array::<f32>::new(2usize);
        let mut with_exit = Array::<f32>::new(2usize);
        #[unroll]
        for half in 0..2usize {
            with_queries[half] = 0.0f32;
            with_keys[half] = 0.0f32;
            with_exit[half] = 0.0f32;
        }
        let mut of_states = 0.0f32;
        let part_by_rows = lane_offset_by_rows(lane, PART);
        #[unroll]
        for part in 0..comptime!(key_dim / PART) {
            let entry_part = if comptime!(part % 2 == 0) {
                grad_u_tile
            } else {
                inverse_tile
            };
            let exit_part = entry_part + comptime!(tile_bytes(value_dim, PART) as u32);
            wait_copies(comptime!(usize::from((part + 1) * PART < key_dim)));
            sync_cube();
            of_states += multiply_parts::<E>(entry_part, exit_part, unit, config);
            if plane < tiles {
                #[unroll]
                for n in 0..comptime!(PART / 16) {
                    let mut products = Array::<Accumulator>::new(6usize);
                    clear(&mut products, 6usize);
                    #[unroll]
                    for k in 0..comptime!(value_dim / 16) {
                        let of_part = comptime!(k * 16 * row_stride(PART) + n * 32);
                        let of_row = comptime!(k * 32);
                        let rows = plane_row * value_stride + value_by_rows;
                        let of_entry = load_block(entry_part + part_by_rows, of_part, true);
                        let of_exit = load_block(exit_part + part_by_rows, of_part, true);
                        let outputs = load_block(output_tile + rows, of_row, false);
                        let us = load_block(u_tile + rows, of_row, false);
                        add_product::<E>(&mut products, 0usize, outputs, of_entry);
                        add_product::<E>(&mut products, 2usize, x[k], of_entry);
                        add_product::<E>(&mut products, 4usize, us, of_exit);
                    }
                    #[unroll]
                    for of_pair in 0..2usize {
                        let at = comptime!(part * PART / 8 + 2 * n + of_pair);
                        let words = row * key_stride + lane % 4 * 4;
                        let mut query_sum = of_query[at];
                        let mut key_sum = of_key[at];
                        let of_output = products[of_pair];
                        let of_x = products[comptime!(2 + of_pair)];
                        let of_u = products[comptime!(4 + of_pair)];
                        #[unroll]
                        for half in 0..2usize {
                            let offset = comptime!(16 * at + 8 * half * row_stride(key_dim));
                            let queries = load_word(query_tile + words, offset);
                            let keys = load_word(key_tile + words, offset);
                            let (decay, exit_decay, beta) = if comptime!(half == 0) {
                                (decay, exit_decay, of_beta)
                            } else {
                                (decay_8, exit_decay_8, of_beta_8)
                            };
                            #[unroll]
                            for of in 0..2usize {
                                let i = comptime!(2 * half + of);
                                let (query, key) = if comptime!(of == 0) {
                                    (unpack_low::<E>(queries), unpack_low::<E>(keys))
                                } else {
                                    (unpack_high::<E>(queries), unpack_high::<E>(keys))
                                };
                                let output = of_output.extract(i) * (decay * scale);
                                let x = of_x.extract(i) * decay;
                                let u = of_u.extract(i) * exit_decay;
                                with_queries[half] += output * query;
                                with_keys[half] += x * key;
                                with_exit[half] += u * key;
                                query_sum.insert(i, query_sum.extract(i) + output);
                                key_sum.insert(i, key_sum.extract(i) + (u - x * beta));
                            }
                        }
                        of_query[at] = query_sum;
                        of_key[at] = key_sum;
                    }
                }
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
            let (decayed, beta, direct, pairs) = if comptime!(half == 0) {
                (row, of_beta, of_values_row, below)
            } else {
                (row + 8, of_beta_8, of_values_row_8, below_8)
            };
            let with_queries = row_sum(with_queries[half]);
            let with_keys = row_sum(with_keys[half]);
            let with_exit = row_sum(with_exit[half]);
            let of_beta = row_sum(direct - pairs) - with_keys;
            if lane % 4 == 0 && decayed < length {
                store_number(inter + decayed * 4, 0usize, with_queries - beta * with_keys);
                store_number(of_exit + decayed * 4, 0usize, with_exit);
                grad_beta[((start + decayed) * value_heads + head) as usize] = of_beta;
            }
        }
        #[unroll]
        for step in 0..5u32 {
            of_states += shuffle_xor(of_states, comptime!(1u32 << step));
        }
        if lane == 0 {
            store_number(plane_sums + plane * 4, 0usize, of_states);
        }
        sync_cube();
        if unit < length {
            // The state after the window: the entry's state and the rows above.
            let last = load_number(sums + (length - 1) * 4, 0usize);
            let mut gradient = 0.0f32;
            #[unroll]
            for of_plane in 0..PLANES {
                gradient += load_number(plane_sums, comptime!(4 * of_plane));
            }
            gradient *= exp2(last);
            let end = load_word(ends + unit * 4, 0usize);
            #[unroll]
            for of_plane in 0..PLANES {
                gradient += load_number(column_sums + unit * 4, comptime!(4 * ROWS * of_plane));
            }
            #[unroll]
            for other in 0..ROWS {
                let above = (other as u32) < unit;
                let inside = unit <= other as u32 && (other as u32) < end;
                gradient += select(above, load_number(of_exit, comptime!(4 * other)), 0.0f32);
                gradient += select(inside, load_number(inter, comptime!(4 * other)), 0.0f32);
            }
            grad_log_decay[((start + unit) * value_heads + head) as usize] = gradient;
        }
        sync_cube();
    }

    if plane < tiles {
        let valid = length - plane_row;
        let of_keys = row_offset(start + plane_row, key_heads, key_head, key_dim);
        let staged = plane_row * key_stride;
        stage_rows::<E>(&of_query, query_tile + staged, lane, key_dim);
        store_spread_rows(
            query_tile + staged,
            output_address(grad_query) + of_keys,
            key_row_bytes,
            lane,
            valid,
            16usize,
            key_dim,
        );
        stage_rows::<E>(&of_key, key_tile + staged, lane, key_dim);
        store_spread_rows(
            key_tile + staged,
            output_address(grad_key) + of_keys,
            key_row_bytes,
            lane,
            valid,
            16usize,
            key_dim,
        );
    }
}
