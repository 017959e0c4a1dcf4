//! Gradient of queries on tensor cores.
//!
//! A cube owns a tile of query rows, of one or two heads that share a key head, and walks over the
//! key tiles that it sees, in halves. Each plane has 32 (or 16) rows: it computes the scores and
//! from them the probabilities, `dO V^T`, and sums `dS K`, with `dS` turned from accumulators into
//! left operands in place.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Lists, Mask, tile_at};
use super::super::barrier::*;
use super::super::copies::copy_rows_of_both;
use super::blocks::*;
use super::by_query::hide_of_queries;
use burn_tree_kit::cube::matrix::*;

/// Keys of a stage: part of a tile of the plan.
const STAGE_KEYS: usize = 32;
/// Stages of a key tile.
const PARTS: usize = KEY_ROWS / STAGE_KEYS;

impl BackwardConfig {
    /// Rows of a cube of the query kernel.
    fn cube_rows(&self) -> usize {
        self.heads * QUERY_ROWS
    }

    fn query_planes(&self) -> usize {
        self.cube_rows() / 16 / self.blocks
    }

    /// Units of a cube of the query kernel.
    pub fn query_units(&self) -> usize {
        self.query_planes() * PLANE
    }

    /// Bytes of one stage: keys and values.
    fn key_stage_bytes(&self) -> usize {
        2 * tile_bytes(STAGE_KEYS, self.head_dim)
    }

    /// Where barriers lie in shared memory, after queries, gradients of the output, and two stages.
    fn query_barriers(&self) -> usize {
        2 * tile_bytes(self.cube_rows(), self.head_dim) + 2 * self.key_stage_bytes()
    }

    /// Bytes of shared memory of a cube of the query kernel.
    pub fn query_shared_bytes(&self) -> usize {
        self.query_barriers() + 4 * BARRIER_BYTES
    }
}

/// Addresses of what is streamed through the stages.
#[derive(CubeType, Clone, Copy)]
struct KeySide {
    key: u64,
    value: u64,
    n_keys: u32,
}

/// Starts the copies of part of a key tile into a stage, after which units arrive at `barrier`.
#[cube]
fn copy_stage(
    side: &KeySide,
    entry: u32,
    part: u32,
    stage: u32,
    barrier: u32,
    #[comptime] config: BackwardConfig,
) {
    let (dim, units) = comptime!((config.head_dim, config.query_units()));
    let first = (entry >> 1) * comptime!(KEY_ROWS as u32) + part * comptime!(STAGE_KEYS as u32);
    let offset = u64::cast_from(first) * comptime!(2 * dim as u64);
    let key = side.key + offset;
    let value = side.value + offset;
    if first + comptime!(STAGE_KEYS as u32) <= side.n_keys {
        let valid = comptime!(STAGE_KEYS as u32);
        copy_rows_of_both(key, value, stage, valid, STAGE_KEYS, dim, units, false);
    } else {
        // A tile may end before this part of it begins.
        let valid = side.n_keys - min(first, side.n_keys);
        copy_rows_of_both(key, value, stage, valid, STAGE_KEYS, dim, units, true);
    }
    arrive_after_copies(barrier);
}

/// Gradient of the queries of one tile of query rows and `config.heads` query heads.
///
/// * `query`, `grad_output`, `grad_query` `[B, Hq, N, D]`, `key`, `value` `[B, Hkv, M, D]`,
///   contiguous
/// * `statistics`: of [`row_statistics`](super::statistics::row_statistics)
/// * `lists`: the plan by query tiles
///
/// Cubes: x = for each tile in `order`, the query heads by `config.heads`.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_query<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    grad_output: &[E],
    statistics: &[f32],
    mask: Mask,
    lists: Lists,
    grad_query: &mut [Vector<u32, Const<4>>],
    sizes: Sizes,
    scores: Scores,
    #[comptime] config: BackwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (dim, blocks, heads) = comptime!((config.head_dim, config.blocks, config.heads));
    let stride = comptime!(row_stride(dim));
    let query_rows = comptime!(QUERY_ROWS as u32);
    let row_tile_bytes = comptime!(tile_bytes(config.cube_rows(), dim) as u32);
    let key_tile_bytes = comptime!(tile_bytes(STAGE_KEYS, dim) as u32);
    let stage_bytes = comptime!(config.key_stage_bytes() as u32);
    // 8-column tiles of the products of query rows and keys, and of the gradient.
    let product_tiles = comptime!(STAGE_KEYS / 8);
    let sum_tiles = comptime!(dim / 8);

    let query_heads = sizes.kv_heads * sizes.group;
    let head_tiles = query_heads / comptime!(heads as u32);
    let tiles = sizes.n_queries.div_ceil(query_rows);
    let padded_queries = tiles * query_rows;
    let tile = tile_at(&lists, CUBE_POS_X / head_tiles, tiles, QUERY_ROWS);
    let first_head = CUBE_POS_X % head_tiles * comptime!(heads as u32);
    // Row of [B * Hq] and of [B * Hkv].
    let query_row = tile.batch * query_heads + first_head;
    let key_row = tile.batch * sizes.kv_heads + first_head / sizes.group;
    let begin = lists.offsets[tile.number as usize];
    let steps = (lists.offsets[tile.number as usize + 1] - begin) * comptime!(PARTS as u32);

    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * comptime!((16 * blocks) as u32);

    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.query_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let stages = shared + 2 * row_tile_bytes;
    let filled = shared + comptime!(config.query_barriers() as u32);
    let emptied = filled + comptime!(2 * BARRIER_BYTES as u32);
    if UNIT_POS_X == 0 {
        init_stage_barriers(
            filled,
            emptied,
            comptime!(config.query_units()),
            comptime!(config.query_planes()),
        );
    }
    sync_cube();

    let units = comptime!(config.query_units());
    let valid_rows = sizes.n_queries - tile.first;
    #[unroll]
    for head in 0..heads {
        let row = u64::cast_from(query_row + comptime!(head as u32))
            * u64::cast_from(sizes.n_queries)
            + u64::cast_from(tile.first);
        let offset = row * comptime!(2 * dim as u64);
        let to = shared + comptime!((head * QUERY_ROWS * stride) as u32);
        copy_rows(
            global_address::<E>(query) + offset,
            to,
            UNIT_POS_X,
            valid_rows,
            QUERY_ROWS,
            dim,
            units,
            true,
        );
        copy_rows(
            global_address::<E>(grad_output) + offset,
            to + row_tile_bytes,
            UNIT_POS_X,
            valid_rows,
            QUERY_ROWS,
            dim,
            units,
            true,
        );
    }
    commit_copies();

    let key_offset =
        u64::cast_from(key_row) * u64::cast_from(sizes.n_keys) * comptime!(2 * dim as u64);
    let side = KeySide {
        key: global_address::<E>(key) + key_offset,
        value: global_address::<E>(value) + key_offset,
        n_keys: sizes.n_keys,
    };
    let mut entry = 0u32;
    let mut next_entry = 0u32;
    if steps > 0 {
        entry = lists.entries[begin as usize];
        next_entry = entry;
        copy_stage(&side, entry, 0u32, stages, filled, config);
    }

    // Log-sum-exps of the lane's rows to base 2, and minus their sums of output times gradient.
    let mut log_sum_exp = Array::<f32>::new(comptime!(2 * blocks));
    let mut start = Array::<f32>::new(comptime!(2 * blocks));
    #[unroll]
    for row in 0..comptime!(2 * blocks) {
        let offset = comptime!((row / 2 * 16 + row % 2 * 8) as u32);
        let tile_row = plane_row + lane / 4 + offset;
        let at = (query_row + tile_row / query_rows) * padded_queries
            + tile.first
            + tile_row % query_rows;
        log_sum_exp[row] = statistics[at as usize];
        start[row] = statistics[(sizes.batches * query_heads * padded_queries + at) as usize];
    }
    wait_copies(0usize);
    sync_cube();

    let rows = shared + plane_row * comptime!(stride as u32);
    let query_address = rows + lane_offset_by_rows(lane, dim);
    let gradient_address = query_address + row_tile_bytes;
    let product_lane = lane_offset_by_columns(lane, dim);
    let sum_lane = lane_offset_by_rows(lane, dim);

    let mut sums = Array::<Accumulator>::new(comptime!(blocks * sum_tiles));
    #[unroll]
    for i in 0..comptime!(blocks * sum_tiles) {
        sums[i] = Accumulator::new(0.0f32);
    }

    for step in 0..steps {
        let slot = step % 2;
        let parity = step / 2 % 2;
        let stage = stages + slot * stage_bytes;
        wait_barrier(filled + slot * BARRIER_BYTES as u32, parity);

        let mut products = Array::<Accumulator>::new(comptime!(blocks * product_tiles));
        #[unroll]
        for i in 0..comptime!(blocks * product_tiles) {
            products[i] = Accumulator::new(0.0f32);
        }
        multiply_blocks::<E>(
            &mut products,
            query_address,
            stage + product_lane,
            dim,
            blocks,
            STAGE_KEYS,
        );

        // The other stage is refilled once all planes have left it.
        if step + 1 < steps {
            let other = 1 - slot;
            if step > 0 {
                wait_barrier(emptied + other * BARRIER_BYTES as u32, (step - 1) / 2 % 2);
            }
            copy_stage(
                &side,
                next_entry,
                (step + 1) % comptime!(PARTS as u32),
                stages + other * stage_bytes,
                filled + other * BARRIER_BYTES as u32,
                config,
            );
        }

        #[unroll]
        for i in 0..comptime!(blocks * product_tiles) {
            let block = comptime!(i / product_tiles);
            let mut tile = products[i];
            #[unroll]
            for j in 0..4usize {
                let of_row = log_sum_exp[comptime!(2 * block + j / 2)];
                tile.insert(j, exponent(tile.extract(j), of_row, &scores, config));
            }
            products[i] = tile;
        }
        if entry & 1 == 1 {
            hide_of_queries(
                &mut products,
                &mask,
                tile.batch,
                (entry >> 1) * comptime!(KEY_ROWS as u32)
                    + step % comptime!(PARTS as u32) * comptime!(STAGE_KEYS as u32)
                    + lane % 4 * 2,
                tile.first + (plane_row + lane / 4) % query_rows,
                &sizes,
                scores.window,
                product_tiles,
                config,
            );
        }
        // Derivatives of the scores by what V dO^T is about to be, packed to save registers.
        let mut factors = Array::<Fragment>::new(comptime!(blocks * product_tiles / 2));
        #[unroll]
        for i in 0..comptime!(blocks * product_tiles / 2) {
            let mut pair = Array::<Accumulator>::new(2usize);
            #[unroll]
            for of_pair in 0..2usize {
                let block = comptime!(2 * i / product_tiles);
                let exponents = products[comptime!(2 * i + of_pair)];
                let mut tile = powers(exponents);
                if comptime!(config.capped) {
                    #[unroll]
                    for j in 0..4usize {
                        let of_row = log_sum_exp[comptime!(2 * block + j / 2)];
                        let slope = cap_slope(exponents.extract(j), of_row, &scores);
                        tile.insert(j, tile.extract(j) * slope);
                    }
                }
                pair[of_pair] = tile;
            }
            factors[i] = pack_left::<E>(pair[0], pair[1]);
        }

        let mut products = Array::<Accumulator>::new(comptime!(blocks * product_tiles));
        #[unroll]
        for i in 0..comptime!(blocks * product_tiles) {
            let block = comptime!(i / product_tiles);
            let mut tile = Accumulator::empty();
            #[unroll]
            for j in 0..4usize {
                tile.insert(j, start[comptime!(2 * block + j / 2)]);
            }
            products[i] = tile;
        }
        multiply_blocks::<E>(
            &mut products,
            gradient_address,
            stage + key_tile_bytes + product_lane,
            dim,
            blocks,
            STAGE_KEYS,
        );
        let mut left = Array::<Fragment>::new(comptime!(blocks * product_tiles / 2));
        #[unroll]
        for i in 0..comptime!(blocks * product_tiles / 2) {
            let (first, second) = (products[2 * i], products[2 * i + 1]);
            left[i] = pack_products::<E>(factors[i], first, second);
        }
        add_blocks::<E>(&mut sums, &left, stage + sum_lane, dim, blocks, STAGE_KEYS);
        sync_plane();
        if lane == 0 {
            arrive(emptied + slot * BARRIER_BYTES as u32);
        }

        entry = next_entry;
        let after = min(step + 2, steps - 1);
        next_entry = lists.entries[(begin + after / comptime!(PARTS as u32)) as usize];
    }

    // Each plane stages its sums where its queries were: no other plane reads them.
    stage_sums::<E>(&sums, rows, lane, scores.scale, dim, blocks);
    let head = plane_row / query_rows;
    let plane_query = plane_row % query_rows;
    let at = u64::cast_from(query_row + head) * u64::cast_from(sizes.n_queries)
        + u64::cast_from(tile.first + plane_query);
    store_rows(
        rows,
        output_address(grad_query) + at * comptime!(2 * dim as u64),
        lane,
        // Negative if all rows of the plane overhang.
        i32::cast_from(valid_rows) - i32::cast_from(plane_query),
        dim,
        comptime!(16 * blocks),
    );
}
