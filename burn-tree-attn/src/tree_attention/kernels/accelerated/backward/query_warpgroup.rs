//! Gradient of queries with warpgroups.
//!
//! As [`query`](super::query), but a cube is one warpgroup with 64 rows of one head, and right
//! operands come straight from shared memory. While one cube of a multiprocessor is at its
//! exponentials, the other one is at its products.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Plan, QueryTile, Sizes};
use super::super::copies::copy_panels_of_both;
use super::super::warpgroup::*;
use super::arguments::*;
use super::blocks::*;
use super::by_query::*;
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

/// Gradient of the queries of one tile of query rows and one query head; arguments as those of
/// [`tree_attention_backward_query`](super::query::tree_attention_backward_query).
///
/// Cubes: x = for each tile in the plan's order, the query heads.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_query_warpgroup<E: Float>(
    tensors: &BackwardTensors<E>,
    plan: &Plan,
    grad_query: &mut [Vector<u32, Const<4>>],
    sizes: &Sizes,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let dim = config.head_dim;
    let row_tile_bytes = comptime!(panel_tile_bytes(QUERY_ROWS, dim) as u32);
    let key_tile_bytes = comptime!(panel_tile_bytes(KEY_ROWS, dim) as u32);
    let product_tiles = comptime!(KEY_ROWS / 8);
    let size!(ProductSize) = comptime!(KEY_ROWS / 2);
    let size!(LeftSize) = comptime!(KEY_ROWS / 4);
    let size!(SumSize) = comptime!(dim / 2);

    let tile = tile_of_cube(&plan.lists, sizes, config);
    let (begin, end) = (tile.begin, tile.end);
    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * 16;
    let memory = Shared::<[u32]>::new_aligned_slice(
        comptime!(config.warpgroup_query_shared_bytes() / 4),
        1024usize,
    );
    let shared = shared_address(&memory);
    let stages = shared + 2 * row_tile_bytes;

    copy_queries::<E>(tensors, &tile, shared, config);
    let key_offset = tile.first_key * comptime!(2 * dim as u64);
    let key = global_address::<E>(&tensors.key) + key_offset;
    let value = global_address::<E>(&tensors.value) + key_offset;
    let mut entry = 0u32;
    let mut next_entry = 0u32;
    if begin < end {
        entry = plan.lists.entries[begin as usize];
        copy_stage(key, value, tile.n_keys, entry, stages, config);
        next_entry = plan.lists.entries[min(begin + 1, end - 1) as usize];
    }
    let statistics = statistics_of_lane(
        &tensors.statistics,
        &tile,
        sizes,
        plane_row + lane / 4,
        config,
    );

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
            copy_stage(key, value, tile.n_keys, next_entry, other, config);
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
        let mut exponents = tiles_of::<ProductSize>(products, product_tiles);
        exponents_of_queries(&mut exponents, &statistics, scores, product_tiles, config);
        if entry & 1 == 1 {
            hide_of_queries(
                &mut exponents,
                &plan.mask,
                &tile,
                (entry >> 1) * comptime!(KEY_ROWS as u32) + lane % 4 * 2,
                tile.first + plane_row + lane / 4,
                scores.window,
                product_tiles,
                config,
            );
        }
        let derivatives = derivatives_of_scores::<E, ProductSize, LeftSize>(
            &exponents,
            value_products,
            &statistics,
            scores,
            config,
        );
        sums = multiply_add_panel_columns::<E, SumSize, LeftSize>(
            derivatives,
            describe_by_columns(stage, KEY_ROWS),
            sums,
            KEY_ROWS,
            dim,
        );
        entry = next_entry;
        next_entry = plan.lists.entries[min(index + 2, end - 1) as usize];
    }

    // Each plane stages its rows where queries and gradients were, once all planes are done.
    wait_copies(0usize);
    sync_cube();
    let sums = tiles_of::<SumSize>(sums, comptime!(dim / 8));
    let rows = shared + plane_row * comptime!(row_stride(dim) as u32);
    store_query_sums::<E>(
        &sums,
        grad_query,
        rows,
        scores.scale,
        plane_row,
        &tile,
        config,
    );
}

/// Starts the copies of a tile's queries and gradients of the output.
#[cube]
fn copy_queries<E: Float>(
    tensors: &BackwardTensors<E>,
    tile: &QueryTile,
    shared: u32,
    #[comptime] config: BackwardConfig,
) {
    let dim = config.head_dim;
    let offset = tile.first_row(0usize) * comptime!(2 * dim as u64);
    let query = global_address::<E>(&tensors.query) + offset;
    let gradient = global_address::<E>(&tensors.grad_output) + offset;
    copy_panels_of_both(
        query,
        gradient,
        shared,
        tile.valid_rows(),
        QUERY_ROWS,
        dim,
        true,
    );
    commit_copies();
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
    let valid = n_keys - first;
    if valid >= comptime!(KEY_ROWS as u32) {
        copy_panels_of_both(key, value, stage, valid, KEY_ROWS, dim, false);
    } else {
        copy_panels_of_both(key, value, stage, valid, KEY_ROWS, dim, true);
    }
    commit_copies();
}

/// Derivatives of the scores, packed as a left operand, from exponents and products of gradients of
/// the output and values.
#[cube]
fn derivatives_of_scores<E: Float, N: Size, K: Size>(
    exponents: &Array<Accumulator>,
    products: Vector<f32, N>,
    statistics: &StatisticsOfLane,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) -> Vector<u32, K> {
    let mut derivatives = Vector::<u32, K>::empty();
    #[unroll]
    for n in 0..comptime!(KEY_ROWS / 8) {
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
                    let of_row = statistics.log_sum_exp[half];
                    factor *= cap_slope(exponents.extract(at), of_row, scores);
                }
                let product = products.extract(comptime!(4 * n + at));
                pair[i] = factor * (product + statistics.start[half]);
            }
            derivatives.insert(comptime!(2 * n + half), pack::<E>(pair[0], pair[1]));
        }
    }
    derivatives
}
