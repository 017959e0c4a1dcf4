//! What does not depend on states: `W` and `U0` from the saved inverse, and the part of the
//! gradient of `U` that comes from the outputs of its own window.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::super::log_decay::log_decay_of;
use super::super::blocks::*;

/// Planes of a cube, one per 16-row tile.
const PLANES: usize = TILES;
/// Units of a cube.
pub(crate) const UNITS: usize = PLANES * PLANE;

impl WindowConfig {
    fn wider(self) -> usize {
        if self.key_dim > self.value_dim {
            self.key_dim
        } else {
            self.value_dim
        }
    }

    /// Where a cube of [`gated_delta_rule_backward_local`] has its tiles: query (later outputs),
    /// key, value, grad_output, inverse, products, numbers per row.
    fn local_offsets(self) -> [usize; 7] {
        let (by_key, by_value) = (
            tile_bytes(ROWS, self.key_dim),
            tile_bytes(ROWS, self.value_dim),
        );
        let square = tile_bytes(ROWS, ROWS);
        let mut offsets = [0; 7];
        let sizes = [
            tile_bytes(ROWS, self.wider()),
            by_key,
            by_value,
            by_value,
            square,
            square,
        ];
        let mut i = 0;
        while i < 6 {
            offsets[i + 1] = offsets[i] + sizes[i];
            i += 1;
        }
        offsets
    }

    /// Bytes of shared memory of a cube of [`gated_delta_rule_backward_local`].
    pub(crate) fn local_shared_bytes(self) -> usize {
        self.local_offsets()[6] + 4 * ROWS * 4
    }
}

/// For every row and value head, with `T0` the saved inverse, `E` the decays between tokens and
/// `e^G` those from the window's entry:
/// * `w` `[R, HV, DK]`: `e^G (T0 diag(beta)) K`
/// * `u` `[R, HV, DV]`: `(E . T0 diag(beta)) V`, what the values would be without the entry's state
/// * `grad_u` `[R, HV, DV]`: `(E . scale Q K^T)^T dO`
/// * `decays` `[3, HV, R]`: `G log2(e)`, `e^G`, and the decays to the window's last token, 0 for
///   rows that are not above it
///
/// Inputs: `query`, `key` `[R, HK, DK]`, `value`, `grad_output` `[R, HV, DV]`, `inverse`
/// `[R, HV, 64]`, `log_decay`, `beta` `[R, HV]`.
///
/// Cubes: x = the value heads of the first window, of the second, ..
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_backward_local<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    grad_output: &[E],
    inverse: &[E],
    log_decay: &[f32],
    beta: &[f32],
    subtree_ends: &[u32],
    window_starts: &[u32],
    window_lengths: &[u32],
    w: &mut [Vector<u32, Const<4>>],
    u: &mut [Vector<u32, Const<4>>],
    grad_u: &mut [Vector<u32, Const<4>>],
    decays: &mut [f32],
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    scale: f32,
    #[comptime] config: WindowConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let (key_stride, value_stride) = comptime!((row_stride(key_dim), row_stride(value_dim)));
    let square_stride = comptime!(row_stride(ROWS) as u32);
    let offsets = comptime!(config.local_offsets());

    let window = CUBE_POS_X / value_heads;
    let head = CUBE_POS_X % value_heads;
    let key_head = head / (value_heads / key_heads);
    let start = window_starts[window as usize];
    let length = window_lengths[window as usize];
    let tiles = length.div_ceil(16u32);
    let unit = UNIT_POS_X;
    let lane = unit % 32;
    let plane = unit / 32;

    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.local_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let query_tile = shared;
    let key_tile = shared + comptime!(offsets[1] as u32);
    let value_tile = shared + comptime!(offsets[2] as u32);
    let gradient_tile = shared + comptime!(offsets[3] as u32);
    let inverse_tile = shared + comptime!(offsets[4] as u32);
    let product_tile = shared + comptime!(offsets[5] as u32);
    // Log decays, then their path sums, both to base 2; betas; ends of subtrees.
    let logs = shared + comptime!(offsets[6] as u32);
    let sums = logs + comptime!(4 * ROWS as u32);
    let betas = sums + comptime!(4 * ROWS as u32);
    let ends = betas + comptime!(4 * ROWS as u32);

    let of_keys = row_offset(start, key_heads, key_head, key_dim);
    let of_values = row_offset(start, value_heads, head, value_dim);
    let of_inverse = row_offset(start, value_heads, head, ROWS);
    let key_row_bytes = row_bytes(key_heads, key_dim);
    let value_row_bytes = row_bytes(value_heads, value_dim);
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
    copy_spread_rows(
        global_address::<E>(value) + of_values,
        value_row_bytes,
        value_tile,
        unit,
        length,
        ROWS,
        value_dim,
        UNITS,
    );
    copy_spread_rows(
        global_address::<E>(grad_output) + of_values,
        value_row_bytes,
        gradient_tile,
        unit,
        length,
        ROWS,
        value_dim,
        UNITS,
    );
    copy_spread_rows(
        global_address::<E>(inverse) + of_inverse,
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
        let mut log = 0.0f32;
        let mut of_beta = 0.0f32;
        let mut end = 0u32;
        if unit < length {
            let at = ((start + unit) * value_heads + head) as usize;
            log = log_decay_of(log_decay[at]) * comptime!(core::f32::consts::LOG2_E);
            of_beta = beta[at];
            end = min(subtree_ends[(start + unit) as usize] - start, length);
        }
        store_number(logs + unit * 4, 0usize, log);
        store_number(betas + unit * 4, 0usize, of_beta);
        store_word(ends + unit * 4, 0usize, end);
    }
    sync_cube();
    if unit < ROWS as u32 {
        let mut sum = 0.0f32;
        #[unroll]
        for column in 0..ROWS {
            let above = column as u32 <= unit && unit < load_word(ends, comptime!(4 * column));
            sum += select(above, load_number(logs, comptime!(4 * column)), 0.0f32);
        }
        store_number(sums + unit * 4, 0usize, sum);
    }
    wait_copies(0usize);
    sync_cube();
    if unit < length {
        let last = length - 1;
        let sum = load_number(sums + unit * 4, 0usize);
        let difference = load_number(sums + last * 4, 0usize) - sum;
        let above = load_word(ends + unit * 4, 0usize) == length;
        let at = (head * rows + start + unit) as usize;
        let part = (value_heads * rows) as usize;
        decays[at] = sum;
        decays[at + part] = exp2(sum);
        decays[at + 2 * part] = select(above, exp2(difference), 0.0f32);
    }

    let by_rows = lane_offset_by_rows(lane, key_dim);
    let by_columns = lane_offset_by_columns(lane, key_dim);
    let value_by_rows = lane_offset_by_rows(lane, value_dim);
    let plane_row = plane * 16;
    // The lane's first row; its second is eight further.
    let row = plane_row + lane / 4;
    let sum = load_number(sums + row * 4, 0usize);
    let sum_8 = load_number(sums + row * 4, 32usize);

    // P = E . scale Q K^T, on and below the diagonal.
    if plane < tiles {
        for column_tile in 0..plane + 1 {
            let (first, second) = multiply_rows::<E>(
                query_tile + plane_row * comptime!(key_stride as u32) + by_rows,
                key_tile + column_tile * comptime!(16 * key_stride as u32) + by_columns,
                key_dim,
            );
            let to = product_tile + row * square_stride + column_tile * 32 + lane % 4 * 4;
            #[unroll]
            for half in 0..2usize {
                let product = if comptime!(half == 0) { first } else { second };
                let column = column_tile * 16 + lane % 4 * 2 + comptime!(8 * half as u32);
                let columns = columns(sums, ends, column);
                let low = product.extract(0usize) * scale * decay_from(&columns, 0usize, row, sum);
                let high = product.extract(1usize) * scale * decay_from(&columns, 1usize, row, sum);
                store_word(to, comptime!(16 * half), pack::<E>(low, high));
                let row = row + 8;
                let low =
                    product.extract(2usize) * scale * decay_from(&columns, 0usize, row, sum_8);
                let high =
                    product.extract(3usize) * scale * decay_from(&columns, 1usize, row, sum_8);
                store_word(
                    to,
                    comptime!(16 * half + 8 * row_stride(ROWS)),
                    pack::<E>(low, high),
                );
            }
        }
    }
    sync_cube();

    if plane < tiles {
        let mut of_w = Array::<Accumulator>::new(comptime!(key_dim / 8));
        let mut of_u = Array::<Accumulator>::new(comptime!(value_dim / 8));
        clear(&mut of_w, comptime!(key_dim / 8));
        clear(&mut of_u, comptime!(value_dim / 8));
        let inverse_rows =
            inverse_tile + plane_row * square_stride + lane_offset_by_rows(lane, ROWS);
        for column_tile in 0..plane + 1 {
            let packed = load_block(inverse_rows + column_tile * 32, 0usize, false);
            let (first, second) = unpack_left::<E>(packed);
            let mut plain = Array::<Accumulator>::new(2usize);
            let mut decayed = Array::<Accumulator>::new(2usize);
            #[unroll]
            for half in 0..2usize {
                let entries = if comptime!(half == 0) { first } else { second };
                let column = column_tile * 16 + lane % 4 * 2 + comptime!(8 * half as u32);
                let columns = columns(sums, ends, column);
                let of_columns = load_pair(betas + column * 4, 0usize);
                let mut of_plain = Accumulator::empty();
                let mut of_decayed = Accumulator::empty();
                #[unroll]
                for i in 0..4usize {
                    let of = comptime!(i % 2);
                    let beta = f32::reinterpret(of_columns.extract(of));
                    let (of_row, of_sum) = if comptime!(i < 2) {
                        (row, sum)
                    } else {
                        (row + 8, sum_8)
                    };
                    // Columns past the window's length may hold anything.
                    let above = is_above(&columns, of, of_row);
                    let number = select(above, entries.extract(i) * beta, 0.0f32);
                    let decay = decay_from(&columns, of, of_row, of_sum);
                    of_plain.insert(i, number);
                    of_decayed.insert(i, number * decay);
                }
                plain[half] = of_plain;
                decayed[half] = of_decayed;
            }
            let right = column_tile * 16;
            add_rows::<E>(
                &mut of_w,
                pack_left::<E>(plain[0], plain[1]),
                key_tile + right * comptime!(key_stride as u32) + by_rows,
                key_dim,
            );
            add_rows::<E>(
                &mut of_u,
                pack_left::<E>(decayed[0], decayed[1]),
                value_tile + right * comptime!(value_stride as u32) + value_by_rows,
                value_dim,
            );
        }
        let (decay, decay_8) = (exp2(sum), exp2(sum_8));
        #[unroll]
        for n in 0..comptime!(key_dim / 8) {
            let mut tile = of_w[n];
            tile.insert(0usize, tile.extract(0usize) * decay);
            tile.insert(1usize, tile.extract(1usize) * decay);
            tile.insert(2usize, tile.extract(2usize) * decay_8);
            tile.insert(3usize, tile.extract(3usize) * decay_8);
            of_w[n] = tile;
        }

        // Queries are no longer needed by any plane: each stages its rows there.
        let staged = query_tile + plane_row * comptime!(row_stride(config.wider()) as u32);
        let valid = length - plane_row;
        let first = start + plane_row;
        stage_rows::<E>(&of_w, staged, lane, key_dim);
        store_spread_rows(
            staged,
            output_address(w) + row_offset(first, value_heads, head, key_dim),
            row_bytes(value_heads, key_dim),
            lane,
            valid,
            16usize,
            key_dim,
        );
        let of_values = row_offset(first, value_heads, head, value_dim);
        stage_rows::<E>(&of_u, staged, lane, value_dim);
        store_spread_rows(
            staged,
            output_address(u) + of_values,
            value_row_bytes,
            lane,
            valid,
            16usize,
            value_dim,
        );

        let mut of_gradient = Array::<Accumulator>::new(comptime!(value_dim / 8));
        clear(&mut of_gradient, comptime!(value_dim / 8));
        let product_columns = product_tile + plane * 32 + lane_offset_by_columns(lane, ROWS);
        for row_tile in plane..tiles {
            let left = load_block(
                product_columns + row_tile * 16 * square_stride,
                0usize,
                true,
            );
            add_rows::<E>(
                &mut of_gradient,
                left,
                gradient_tile + row_tile * comptime!(16 * value_stride as u32) + value_by_rows,
                value_dim,
            );
        }
        stage_rows::<E>(&of_gradient, staged, lane, value_dim);
        store_spread_rows(
            staged,
            output_address(grad_u) + of_values,
            value_row_bytes,
            lane,
            valid,
            16usize,
            value_dim,
        );
    }
}
