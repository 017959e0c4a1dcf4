//! What does not depend on states: of every window and value head, the inverse that the delta rule
//! needs, how updates follow from it, and how outputs follow from updates.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::super::log_decay::log_decay_of;
use super::super::blocks::*;
use super::inverse::*;

/// Planes of a value head, one per 16-row tile.
const PLANES: usize = TILES;
/// Units of a value head.
const UNITS: usize = PLANES * PLANE;
/// Compile-time shape of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocalConfig {
    /// Numbers of a key, a multiple of 64.
    pub key_dim: usize,
    /// Value heads of a cube, all of one key head: 1 or 2.
    pub heads: usize,
}

impl LocalConfig {
    /// Units of a cube.
    pub(crate) const fn units(self) -> usize {
        self.heads * UNITS
    }

    /// Cubes of a window and a key head with `group` value heads.
    pub(crate) const fn parts(self, group: usize) -> usize {
        group.div_ceil(self.heads)
    }

    /// Where the heads' tiles start: first keys and queries, later each head's inverse and mixing.
    fn heads_at(self) -> usize {
        (2 * tile_bytes(ROWS, self.key_dim)).max(self.heads * 2 * SQUARE)
    }

    /// Bytes of a head: scores, factors (upper parts, lower parts), blocks on the diagonal, numbers
    /// of rows.
    const HEAD: usize = 3 * SQUARE + PLANES * BLOCK + 4 * ROWS * 4;

    /// Bytes of shared memory of a cube.
    pub(crate) fn shared_bytes(self) -> usize {
        self.heads_at() + self.heads * Self::HEAD
    }
}

/// For every row `i` and value head, over the columns `j` of the row's window:
/// * `inverse` `[R, HV, 64]`: `T0_ij`, the inverse of `I + beta_i k_i k_j` (`j` strictly above `i`)
/// * `mixing` `[R, HV, 64]`: `E_ij T0_ij beta_j`, from what the entry's state leaves of the values
///   to the updates; `E_ij` is the decay from `j` to `i`
/// * `scores` `[R, HV, 64]`: `E_ij scale q_i k_j`, from updates to outputs
/// * `decays` `[2, HV, R]`: `e^G`, the decay from the window's entry, and the decay to the window's
///   last token, 0 for rows that are not above it
///
/// Of `mixing` and `scores` only the 16 x 16 blocks on and below the diagonal are written.
///
/// Inputs: `query`, `key` `[R, HK, DK]`, `log_decay`, `beta` `[R, HV]`.
///
/// Cubes: x = the parts of the first window and key head, of the next key head, .., of the next
/// window.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_local<E: Float>(
    query: &[E],
    key: &[E],
    log_decay: &[f32],
    beta: &[f32],
    subtree_ends: &[u32],
    window_starts: &[u32],
    window_lengths: &[u32],
    inverse: &mut [Vector<u32, Const<4>>],
    mixing: &mut [Vector<u32, Const<4>>],
    scores: &mut [Vector<u32, Const<4>>],
    decays: &mut [f32],
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    scale: f32,
    #[comptime] config: LocalConfig,
    #[define(E)] _dtype: ElemType,
) {
    let key_dim = comptime!(config.key_dim);
    let stride = comptime!(row_stride(key_dim));
    let square_stride = comptime!(row_stride(ROWS));
    let group = value_heads / key_heads;
    let parts = group.div_ceil(comptime!(config.heads as u32));
    let part = CUBE_POS_X % parts;
    let key_head = CUBE_POS_X / parts % key_heads;
    let window = CUBE_POS_X / parts / key_heads;
    let start = window_starts[window as usize];
    let length = window_lengths[window as usize];
    let lane = UNIT_POS_X % 32;
    let of_cube = UNIT_POS_X / UNITS as u32;
    let unit = UNIT_POS_X % UNITS as u32;
    let plane = unit / 32;
    let of_group = part * comptime!(config.heads as u32) + of_cube;
    let head = key_head * group + of_group;
    // Rows that the units of a head that is not there work on.
    let length = select(of_group < group, length, 0u32);
    let tiles = length.div_ceil(16u32);

    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let queries = shared + comptime!(tile_bytes(ROWS, key_dim) as u32);
    let inverse_tile = shared + of_cube * comptime!(2 * SQUARE as u32);
    let mixing_tile = inverse_tile + SQUARE as u32;
    let scores_tile =
        shared + comptime!(config.heads_at() as u32) + of_cube * LocalConfig::HEAD as u32;
    let factors = scores_tile + SQUARE as u32;
    let blocks = factors + comptime!(2 * SQUARE as u32);
    let block = blocks + plane * BLOCK as u32;
    // Log decays, then their path sums, both to base 2; betas; ends of subtrees.
    let logs = blocks + comptime!((PLANES * BLOCK) as u32);
    let sums = logs + comptime!(4 * ROWS as u32);
    let betas = sums + comptime!(4 * ROWS as u32);
    let ends = betas + comptime!(4 * ROWS as u32);

    let of_keys = row_offset(start, key_heads, key_head, key_dim);
    let key_row_bytes = row_bytes(key_heads, key_dim);
    let valid = window_lengths[window as usize];
    copy_spread_rows(
        global_address::<E>(key) + of_keys,
        key_row_bytes,
        shared,
        UNIT_POS_X,
        valid,
        ROWS,
        key_dim,
        comptime!(config.units()),
    );
    copy_spread_rows(
        global_address::<E>(query) + of_keys,
        key_row_bytes,
        queries,
        UNIT_POS_X,
        valid,
        ROWS,
        key_dim,
        comptime!(config.units()),
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
    let sum = path_sum(logs, ends, unit);
    if unit % 2 == 0 {
        store_number(sums + unit * 2, 0usize, sum);
    }
    wait_copies(0usize);
    sync_cube();
    if unit < length {
        let sum = load_number(sums + unit * 4, 0usize);
        let difference = load_number(sums + (length - 1) * 4, 0usize) - sum;
        let above = load_word(ends + unit * 4, 0usize) == length;
        let at = (head * rows + start + unit) as usize;
        decays[at] = exp2(sum);
        let at = at + (value_heads * rows) as usize;
        decays[at] = select(above, exp2(difference), 0.0f32);
    }

    // The lane's first row; its second is eight further.
    let row = plane * 16 + lane / 4;
    if plane < tiles {
        let left = plane * comptime!(16 * stride as u32) + lane_offset_by_rows(lane, key_dim);
        let right = shared + lane_offset_by_columns(lane, key_dim);
        let to = row * square_stride as u32 + lane % 4 * 4;
        #[unroll]
        for tile in 0..TILES {
            if tile as u32 <= plane {
                // Of keys, then of queries.
                let mut products = Array::<Accumulator>::new(4usize);
                clear(&mut products, 4usize);
                #[unroll]
                for k in 0..comptime!(key_dim / 16) {
                    let right = load_block(right, comptime!(16 * tile * stride + 32 * k), false);
                    let of_key = load_block(shared + left, comptime!(32 * k), false);
                    add_product::<E>(&mut products, 0usize, of_key, right);
                    let of_query = load_block(queries + left, comptime!(32 * k), false);
                    add_product::<E>(&mut products, 2usize, of_query, right);
                }
                #[unroll]
                for half in 0..2usize {
                    let column = lane % 4 * 2 + comptime!((16 * tile + 8 * half) as u32);
                    let columns = columns(sums, ends, column);
                    let of_keys = products[half];
                    let of_queries = products[2 + half];
                    #[unroll]
                    for lower in 0..2usize {
                        let row = row + comptime!(8 * lower as u32);
                        let of_beta = load_number(betas + row * 4, 0usize);
                        let row_sum = load_number(sums + row * 4, 0usize);
                        let at = comptime!(8 * lower * square_stride + 32 * tile + 16 * half);
                        let low = decay_from(&columns, 0usize, row, row_sum)
                            * scale
                            * of_queries.extract(comptime!(2 * lower));
                        let high = decay_from(&columns, 1usize, row, row_sum)
                            * scale
                            * of_queries.extract(comptime!(2 * lower + 1));
                        store_word(scores_tile + to, at, pack::<E>(low, high));

                        let above = is_above(&columns, 0usize, row);
                        let low = of_beta * of_keys.extract(comptime!(2 * lower));
                        let low = select(above, low, 0.0f32);
                        let above = is_above(&columns, 1usize, row);
                        let high = of_beta * of_keys.extract(comptime!(2 * lower + 1));
                        let high = select(above, high, 0.0f32);
                        if tile as u32 == plane {
                            // Transposed.
                            let to = block
                                + (lane % 4 * 2 + comptime!(8 * half as u32))
                                    * comptime!(4 * BLOCK_STRIDE as u32)
                                + (lane / 4 + comptime!(8 * lower as u32)) * 4;
                            store_number(to, 0usize, low);
                            store_number(to, comptime!(4 * BLOCK_STRIDE), high);
                        } else {
                            let (upper_parts, lower_parts) = split(low, high);
                            store_word(factors + to, at, upper_parts);
                            store_word(factors + to, comptime!(at + SQUARE), lower_parts);
                        }
                    }
                }
            }
        }
    }

    let mut columns = Array::<Accumulator>::new(comptime!(2 * TILES));
    let mut upper = Array::<Fragment>::new(TILES);
    let mut lower = Array::<Fragment>::new(TILES);
    // Where a transposed block of the plane's column of blocks goes in a tile, in the first row of
    // blocks.
    let in_tile = lane / 4 * square_stride as u32 + plane * 32 + lane % 4 * 4;
    if plane < tiles {
        invert_block(block, lane);
        let from = block + lane / 4 * comptime!(4 * BLOCK_STRIDE as u32) + lane % 4 * 8;
        #[unroll]
        for half in 0..2usize {
            let mut tile = Accumulator::empty();
            #[unroll]
            for below in 0..2usize {
                let pair = load_pair(from, comptime!(32 * half + 32 * BLOCK_STRIDE * below));
                tile.insert(comptime!(2 * below), f32::reinterpret(pair.extract(0usize)));
                tile.insert(
                    comptime!(2 * below + 1),
                    f32::reinterpret(pair.extract(1usize)),
                );
            }
            columns[half] = tile;
        }
        let (of_upper, of_lower) = split_left(columns[0], columns[1]);
        upper[0] = of_upper;
        lower[0] = of_lower;
        let to = factors + plane * comptime!(16 * square_stride as u32) + in_tile;
        store_transposed(to, of_upper);
        store_transposed(to + SQUARE as u32, of_lower);
    }
    // From here on keys and queries are no longer needed.
    sync_cube();

    // The inverse is zero above the diagonal.
    let above =
        inverse_tile + lane / 2 * square_stride as u32 + plane * 32 + lane % 2 * CHUNK as u32;
    for tile in 0..min(plane, tiles) {
        let to = above + tile * comptime!(16 * square_stride as u32);
        store_chunk(to, 0usize, Fragment::new(0u32));
    }
    if plane < tiles {
        // Down the column of blocks, transposed: block (plane + d, plane).
        let by_columns = factors
            + lane_offset_by_columns(lane, ROWS)
            + plane * comptime!((16 * square_stride + 32) as u32);
        #[unroll]
        for d in 1..TILES {
            if plane + (d as u32) < tiles {
                let mut sum = Array::<Accumulator>::new(2usize);
                clear(&mut sum, 2usize);
                #[unroll]
                for e in 0..d {
                    let at = comptime!(16 * d * square_stride + 32 * e);
                    add_split(&mut sum, upper[e], lower[e], by_columns, at);
                }
                let (of_upper, of_lower) = split_left(sum[0], sum[1]);
                let mut product = Array::<Accumulator>::new(2usize);
                clear(&mut product, 2usize);
                let at = comptime!(16 * d * square_stride + 32 * d);
                add_split(&mut product, of_upper, of_lower, by_columns, at);
                columns[2 * d] = -product[0];
                columns[2 * d + 1] = -product[1];
                let (of_upper, of_lower) = split_left(columns[2 * d], columns[2 * d + 1]);
                upper[d] = of_upper;
                lower[d] = of_lower;
            }
        }

        // Rows of the transposed blocks are columns of the window.
        let mut column_betas = Array::<f32>::new(2usize);
        let mut column_sums = Array::<f32>::new(2usize);
        let mut column_ends = Array::<u32>::new(2usize);
        #[unroll]
        for below in 0..2usize {
            column_betas[below] = load_number(betas + row * 4, comptime!(32 * below));
            column_sums[below] = load_number(sums + row * 4, comptime!(32 * below));
            column_ends[below] = load_word(ends + row * 4, comptime!(32 * below));
        }
        #[unroll]
        for d in 0..TILES {
            if plane + (d as u32) < tiles {
                let to = in_tile + (plane + d as u32) * comptime!(16 * square_stride as u32);
                let of_inverse = pack_left::<E>(columns[2 * d], columns[2 * d + 1]);
                store_transposed(inverse_tile + to, of_inverse);
                let mut mixed = Array::<Accumulator>::new(2usize);
                #[unroll]
                for half in 0..2usize {
                    let tile = columns[2 * d + half];
                    let first = (plane + d as u32) * 16 + lane % 4 * 2 + comptime!(8 * half as u32);
                    let row_sums = load_pair(sums + first * 4, 0usize);
                    let mut of_tile = Accumulator::empty();
                    #[unroll]
                    for i in 0..4usize {
                        let below = comptime!(i / 2);
                        let of_row = first + comptime!((i % 2) as u32);
                        let row_sum = f32::reinterpret(row_sums.extract(comptime!(i % 2)));
                        let above = row + comptime!(8 * below as u32) <= of_row
                            && of_row < column_ends[below];
                        let decay = select(above, exp2(row_sum - column_sums[below]), 0.0f32);
                        of_tile.insert(i, tile.extract(i) * (column_betas[below] * decay));
                    }
                    mixed[half] = of_tile;
                }
                store_transposed(mixing_tile + to, pack_left::<E>(mixed[0], mixed[1]));
            }
        }
    }
    sync_cube();
    if plane < tiles {
        let of_rows = (start + plane * 16) * value_heads + head;
        let from = plane * comptime!(16 * square_stride as u32);
        let valid = length - plane * 16;
        let (needed, all) = (2 * (plane + 1), comptime!((ROWS / 8) as u32));
        store_results(
            inverse,
            inverse_tile + from,
            of_rows,
            value_heads,
            lane,
            valid,
            all,
        );
        store_results(
            mixing,
            mixing_tile + from,
            of_rows,
            value_heads,
            lane,
            valid,
            needed,
        );
        store_results(
            scores,
            scores_tile + from,
            of_rows,
            value_heads,
            lane,
            valid,
            needed,
        );
    }
}

/// The sum of log decays from the window's entry to row `unit / 2`; the unit sums every other four
/// columns, its neighbour the rest.
#[cube]
fn path_sum(logs: u32, ends: u32, unit: u32) -> f32 {
    let row = unit / 2;
    let offset = unit % 2 * CHUNK as u32;
    let mut sum = 0.0f32;
    #[unroll]
    for step in 0..comptime!(ROWS / 8) {
        let of_ends = load_chunk(ends + offset, comptime!(2 * CHUNK * step));
        let of_logs = load_chunk(logs + offset, comptime!(2 * CHUNK * step));
        #[unroll]
        for i in 0..4usize {
            let column = unit % 2 * 4 + comptime!((8 * step + i) as u32);
            let above = column <= row && row < of_ends.extract(i);
            sum += select(above, f32::reinterpret(of_logs.extract(i)), 0.0f32);
        }
    }
    sum + shuffle_xor(sum, 1u32)
}

/// Writes the first `valid` of a plane's 16 rows of a square tile to rows of a result, of each the
/// first `chunks` chunks.
#[cube]
fn store_results(
    result: &mut [Vector<u32, Const<4>>],
    rows: u32,
    first_row: u32,
    value_heads: u32,
    lane: u32,
    valid: u32,
    chunks: u32,
) {
    let row_chunks = comptime!((ROWS / 8) as u32);
    let column = lane % row_chunks;
    #[unroll]
    for pass in 0..comptime!(16 * ROWS / 8 / PLANE) {
        let row = lane / row_chunks + comptime!((pass * PLANE * 8 / ROWS) as u32);
        if row < valid && column < chunks {
            let from = rows + row * comptime!(row_stride(ROWS) as u32) + column * CHUNK as u32;
            let at = (first_row + row * value_heads) * row_chunks + column;
            result[at as usize] = load_chunk(from, 0usize);
        }
    }
}
