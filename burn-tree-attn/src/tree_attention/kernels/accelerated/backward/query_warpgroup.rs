//! Gradient of queries with warpgroups.
//!
//! As [`query`](super::query), but a cube is one warpgroup with 64 rows of one head, and right
//! operands come straight from shared memory. While one cube of a multiprocessor is at its
//! exponentials, the other one is at its products.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Lists, Mask, tile_at};
use super::super::copies::copy_panels_of_both;
use super::super::warpgroup::*;
use super::blocks::*;
use super::by_query::hide_of_queries;
use burn_tree_kit::cube::matrix::*;

/// Units of a cube.
pub(crate) const UNITS: usize = PLANES * PLANE;

impl BackwardConfig {
    /// Bytes of shared memory of a cube of the warpgroup query kernel: queries, gradients of the
    /// output, and two stages of keys and values.
    pub fn warpgroup_query_shared_bytes(&self) -> usize {
        2 * panel_tile_bytes(QUERY_ROWS, self.head_dim)
            + 4 * panel_tile_bytes(KEY_ROWS, self.head_dim)
    }
}

/// Starts the copies of a key tile into a stage.
#[cube]
fn copy_stage(
    key: u64,
    value: u64,
    n_keys: u32,
    entry: u32,
    stage: u32,
    #[comptime] config: BackwardConfig,
) {
    let dim = config.head_dim;
    let first = (entry >> 1) * comptime!(KEY_ROWS as u32);
    let offset = u64::cast_from(first) * comptime!(2 * dim as u64);
    let (key, value) = (key + offset, value + offset);
    let to = stage + comptime!(panel_tile_bytes(KEY_ROWS, dim) as u32);
    let valid = n_keys - first;
    if valid >= comptime!(KEY_ROWS as u32) {
        copy_panels_of_both(key, value, stage, to, valid, KEY_ROWS, dim, UNITS, false);
    } else {
        copy_panels_of_both(key, value, stage, to, valid, KEY_ROWS, dim, UNITS, true);
    }
    commit_copies();
}

/// Gradient of the queries of one tile of query rows and one query head; arguments as those of
/// [`tree_attention_backward_query`](super::query::tree_attention_backward_query).
///
/// Cubes: x = for each tile in `order`, the query heads.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_query_warpgroup<E: Float>(
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
    let dim = config.head_dim;
    let query_rows = comptime!(QUERY_ROWS as u32);
    let row_tile_bytes = comptime!(panel_tile_bytes(QUERY_ROWS, dim) as u32);
    let key_tile_bytes = comptime!(panel_tile_bytes(KEY_ROWS, dim) as u32);
    let product_tiles = comptime!(KEY_ROWS / 8);
    let size!(ProductSize) = comptime!(KEY_ROWS / 2);
    let size!(LeftSize) = comptime!(KEY_ROWS / 4);
    let size!(SumSize) = comptime!(dim / 2);

    let query_heads = sizes.kv_heads * sizes.group;
    let tiles = sizes.n_queries.div_ceil(query_rows);
    let padded_queries = tiles * query_rows;
    let head = CUBE_POS_X % query_heads;
    let tile = tile_at(&lists, CUBE_POS_X / query_heads, tiles, QUERY_ROWS);
    // Row of [B * Hq] and of [B * Hkv].
    let query_row = tile.batch * query_heads + head;
    let key_row = tile.batch * sizes.kv_heads + head / sizes.group;
    let begin = lists.offsets[tile.number as usize];
    let end = lists.offsets[tile.number as usize + 1];

    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * 16;

    let memory = Shared::<[u32]>::new_aligned_slice(
        comptime!(config.warpgroup_query_shared_bytes() / 4),
        1024usize,
    );
    let shared = shared_address(&memory);
    let stages = shared + 2 * row_tile_bytes;

    let valid_rows = sizes.n_queries - tile.first;
    let row =
        u64::cast_from(query_row) * u64::cast_from(sizes.n_queries) + u64::cast_from(tile.first);
    let query_offset = row * comptime!(2 * dim as u64);
    let from = global_address::<E>(query) + query_offset;
    copy_panel_rows(
        from, shared, UNIT_POS_X, valid_rows, QUERY_ROWS, QUERY_ROWS, dim, UNITS, true,
    );
    let from = global_address::<E>(grad_output) + query_offset;
    let to = shared + row_tile_bytes;
    copy_panel_rows(
        from, to, UNIT_POS_X, valid_rows, QUERY_ROWS, QUERY_ROWS, dim, UNITS, true,
    );
    commit_copies();

    let key_offset =
        u64::cast_from(key_row) * u64::cast_from(sizes.n_keys) * comptime!(2 * dim as u64);
    let from_key = global_address::<E>(key) + key_offset;
    let from_value = global_address::<E>(value) + key_offset;
    let mut entry = 0u32;
    let mut next_entry = 0u32;
    if begin < end {
        entry = lists.entries[begin as usize];
        copy_stage(from_key, from_value, sizes.n_keys, entry, stages, config);
        next_entry = lists.entries[min(begin + 1, end - 1) as usize];
    }

    // Log-sum-exps of the lane's rows to base 2, and minus their sums of output times gradient.
    let mut log_sum_exp = Array::<f32>::new(2usize);
    let mut start = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let at = query_row * padded_queries
            + tile.first
            + plane_row
            + lane / 4
            + comptime!(8 * row as u32);
        log_sum_exp[row] = statistics[at as usize];
        start[row] = statistics[(sizes.batches * query_heads * padded_queries + at) as usize];
    }

    let queries = describe_by_rows(shared);
    let gradients = describe_by_rows(shared + row_tile_bytes);
    let mut sums = Vector::<f32, SumSize>::new(0.0f32);

    for index in begin..end {
        let slot = (index - begin) % 2;
        let stage = stages + slot * 2 * key_tile_bytes;
        // This stage has landed, and no plane reads the other one any more.
        wait_copies(0usize);
        fence_products();
        sync_cube();
        if index + 1 < end {
            let other = stages + (1 - slot) * 2 * key_tile_bytes;
            copy_stage(
                from_key,
                from_value,
                sizes.n_keys,
                next_entry,
                other,
                config,
            );
        }

        let products = multiply_panel_rows::<E, ProductSize>(
            queries,
            describe_by_rows(stage),
            dim,
            QUERY_ROWS,
            KEY_ROWS,
        );
        let value_products = multiply_panel_rows::<E, ProductSize>(
            gradients,
            describe_by_rows(stage + key_tile_bytes),
            dim,
            QUERY_ROWS,
            KEY_ROWS,
        );

        let mut exponents = Array::<Accumulator>::new(product_tiles);
        #[unroll]
        for n in 0..product_tiles {
            let products = tile_of::<ProductSize>(products, n);
            let mut tile = Accumulator::empty();
            #[unroll]
            for j in 0..4usize {
                let of_row = log_sum_exp[comptime!(j / 2)];
                tile.insert(j, exponent(products.extract(j), of_row, &scores, config));
            }
            exponents[n] = tile;
        }
        if entry & 1 == 1 {
            hide_of_queries(
                &mut exponents,
                &mask,
                tile.batch,
                (entry >> 1) * comptime!(KEY_ROWS as u32) + lane % 4 * 2,
                tile.first + plane_row + lane / 4,
                &sizes,
                scores.window,
                product_tiles,
                config,
            );
        }
        let mut derivatives = Vector::<u32, LeftSize>::empty();
        #[unroll]
        for n in 0..product_tiles {
            let exponents = exponents[n];
            let powers = powers(exponents);
            #[unroll]
            for half in 0..2usize {
                let mut pair = Array::<f32>::new(2usize);
                #[unroll]
                for i in 0..2usize {
                    let at = comptime!(2 * half + i);
                    let mut factor = powers.extract(at);
                    if comptime!(config.capped) {
                        factor *= cap_slope(exponents.extract(at), log_sum_exp[half], &scores);
                    }
                    let product = value_products.extract(comptime!(4 * n + at));
                    pair[i] = factor * (product + start[half]);
                }
                derivatives.insert(comptime!(2 * n + half), pack::<E>(pair[0], pair[1]));
            }
        }
        sums = multiply_add_panel_columns::<E, SumSize, LeftSize>(
            derivatives,
            describe_by_columns(stage, KEY_ROWS),
            sums,
            KEY_ROWS,
            dim,
        );
        entry = next_entry;
        next_entry = lists.entries[min(index + 2, end - 1) as usize];
    }

    // Each plane stages its rows where queries and gradients were, once all planes are done.
    wait_copies(0usize);
    sync_cube();
    let mut tiles = Array::<Accumulator>::new(comptime!(dim / 8));
    #[unroll]
    for n in 0..comptime!(dim / 8) {
        tiles[n] = tile_of::<SumSize>(sums, n);
    }
    let rows = shared + plane_row * comptime!(row_stride(dim) as u32);
    stage_sums::<E>(&tiles, rows, lane, scores.scale, dim, 1usize);
    let row = row + u64::cast_from(plane_row);
    store_rows(
        rows,
        output_address(grad_query) + row * comptime!(2 * dim as u64),
        lane,
        // Negative if all rows of the plane overhang.
        i32::cast_from(valid_rows) - i32::cast_from(plane_row),
        dim,
        16usize,
    );
}
