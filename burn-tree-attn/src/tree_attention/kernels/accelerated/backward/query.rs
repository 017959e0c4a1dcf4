//! Gradient of queries on tensor cores.
//!
//! A cube owns a tile of query rows, of one or two heads that share a key head, and walks over the
//! key tiles that it sees, in halves. Each plane has 32 (or 16) rows: it computes the scores and
//! from them the probabilities, `dO V^T`, and sums `dS K`, with `dS` turned from accumulators into
//! left operands in place.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Plan, QueryTile, Sizes};
use super::super::barrier::*;
use super::super::copies::copy_rows_of_both;
use super::super::products::*;
use super::arguments::*;
use super::blocks::*;
use super::by_query::*;
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

/// Gradient of the queries of one tile of query rows and `config.heads` query heads;
/// `grad_query` `[B, Hq, N, D]` as 16-byte chunks.
///
/// `plan`: by query tiles
///
/// Cubes: x = for each tile in the plan's order, the query heads by `config.heads`.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_query<E: Float>(
    tensors: &BackwardTensors<E>,
    plan: &Plan,
    grad_query: &mut [Vector<u32, Const<4>>],
    sizes: &Sizes,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (dim, blocks) = comptime!((config.head_dim, config.blocks));
    let row_tile_bytes = comptime!(tile_bytes(config.cube_rows(), dim) as u32);
    let stage_bytes = comptime!(config.key_stage_bytes() as u32);
    // 8-column tiles of the products of query rows and keys.
    let product_tiles = comptime!(STAGE_KEYS / 8);
    let parts = comptime!(PARTS as u32);
    let tile = tile_of_cube(&plan.lists, sizes, config);
    let steps = (tile.end - tile.begin) * parts;
    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * comptime!((16 * blocks) as u32);

    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.query_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let stages = shared + 2 * row_tile_bytes;
    let filled = shared + comptime!(config.query_barriers() as u32);
    let emptied = filled + comptime!(2 * BARRIER_BYTES as u32);
    if UNIT_POS_X == 0 {
        let (units, planes) = comptime!((config.query_units(), config.query_planes()));
        init_stage_barriers(filled, emptied, units, planes);
    }
    sync_cube();

    copy_queries::<E>(tensors, &tile, shared, config);
    let side = key_side::<E>(tensors, &tile, config);
    let mut entry = 0u32;
    let mut next_entry = 0u32;
    if steps > 0 {
        entry = plan.lists.entries[tile.begin as usize];
        next_entry = entry;
        copy_stage(&side, entry, 0u32, stages, filled, config);
    }
    let statistics = statistics_of_lane(
        &tensors.statistics,
        &tile,
        sizes,
        plane_row + lane / 4,
        config,
    );
    wait_copies(0usize);
    sync_cube();

    let rows = shared + plane_row * comptime!(row_stride(dim) as u32);
    let query_address = rows + lane_offset_by_rows(lane, dim);
    let product_lane = lane_offset_by_columns(lane, dim);
    let sum_lane = lane_offset_by_rows(lane, dim);
    let mut sums = zero_sums(comptime!(blocks * dim / 8));

    for step in 0..steps {
        let slot = step % 2;
        let stage = stages + slot * stage_bytes;
        let product_address = stage + product_lane;
        wait_barrier(filled + slot * BARRIER_BYTES as u32, step / 2 % 2);
        let mut products = zero_sums(comptime!(blocks * product_tiles));
        multiply_blocks::<E>(
            &mut products,
            query_address,
            product_address,
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
            let barrier = filled + other * BARRIER_BYTES as u32;
            let to = stages + other * stage_bytes;
            copy_stage(&side, next_entry, (step + 1) % parts, to, barrier, config);
        }

        exponents_of_queries(&mut products, &statistics, scores, product_tiles, config);
        if entry & 1 == 1 {
            hide_of_queries(
                &mut products,
                &plan.mask,
                &tile,
                (entry >> 1) * comptime!(KEY_ROWS as u32)
                    + step % parts * comptime!(STAGE_KEYS as u32)
                    + lane % 4 * 2,
                tile.query(plane_row + lane / 4),
                scores.window,
                product_tiles,
                config,
            );
        }
        let factors = score_factors::<E>(&products, &statistics, scores, config);

        let mut products = first_products(&statistics, config);
        multiply_blocks::<E>(
            &mut products,
            query_address + row_tile_bytes,
            product_address + comptime!(tile_bytes(STAGE_KEYS, dim) as u32),
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
        next_entry = plan.lists.entries[(tile.begin + after / parts) as usize];
    }
    // Each plane stages its sums where its queries were: no other plane reads them.
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
    let (dim, units) = comptime!((config.head_dim, config.query_units()));
    let valid = tile.valid_rows();
    #[unroll]
    for head in 0..comptime!(config.heads) {
        let offset = tile.first_row(head) * comptime!(2 * dim as u64);
        let query = global_address::<E>(&tensors.query) + offset;
        let gradient = global_address::<E>(&tensors.grad_output) + offset;
        let to = shared + comptime!(tile_bytes(head * QUERY_ROWS, dim) as u32);
        copy_rows(query, to, UNIT_POS_X, valid, QUERY_ROWS, dim, units, true);
        let to = to + comptime!(tile_bytes(config.cube_rows(), dim) as u32);
        copy_rows(
            gradient, to, UNIT_POS_X, valid, QUERY_ROWS, dim, units, true,
        );
    }
    commit_copies();
}

/// Addresses of what is streamed through the stages.
#[derive(CubeType, Clone, Copy)]
struct KeySide {
    key: u64,
    value: u64,
    n_keys: u32,
}

#[cube]
fn key_side<E: Float>(
    tensors: &BackwardTensors<E>,
    tile: &QueryTile,
    #[comptime] config: BackwardConfig,
) -> KeySide {
    let offset = tile.first_key * comptime!(2 * config.head_dim as u64);
    KeySide {
        key: global_address::<E>(&tensors.key) + offset,
        value: global_address::<E>(&tensors.value) + offset,
        n_keys: tile.n_keys,
    }
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

/// Derivatives of the scores by what `dO V^T` is about to be, from exponents, packed as left
/// operands to save registers.
#[cube]
fn score_factors<E: Float>(
    exponents: &Array<Accumulator>,
    statistics: &StatisticsOfLane,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) -> Array<Fragment> {
    let (blocks, product_tiles) = comptime!((config.blocks, STAGE_KEYS / 8));
    let mut factors = Array::<Fragment>::new(comptime!(blocks * product_tiles / 2));
    #[unroll]
    for i in 0..comptime!(blocks * product_tiles / 2) {
        let mut pair = Array::<Accumulator>::new(2usize);
        #[unroll]
        for of_pair in 0..2usize {
            let block = comptime!(2 * i / product_tiles);
            let exponents = exponents[comptime!(2 * i + of_pair)];
            let mut tile = powers(exponents);
            if comptime!(config.capped) {
                #[unroll]
                for j in 0..4usize {
                    let of_row = statistics.log_sum_exp[comptime!(2 * block + j / 2)];
                    let slope = cap_slope(exponents.extract(j), of_row, scores);
                    tile.insert(j, tile.extract(j) * slope);
                }
            }
            pair[of_pair] = tile;
        }
        factors[i] = pack_left::<E>(pair[0], pair[1]);
    }
    factors
}

/// What the products of a step `dO V^T` start from: minus the row's sum of output times gradient.
#[cube]
fn first_products(
    statistics: &StatisticsOfLane,
    #[comptime] config: BackwardConfig,
) -> Array<Accumulator> {
    let (blocks, product_tiles) = comptime!((config.blocks, STAGE_KEYS / 8));
    let mut products = Array::<Accumulator>::new(comptime!(blocks * product_tiles));
    #[unroll]
    for i in 0..comptime!(blocks * product_tiles) {
        let block = comptime!(i / product_tiles);
        let mut tile = Accumulator::empty();
        #[unroll]
        for j in 0..4usize {
            tile.insert(j, statistics.start[comptime!(2 * block + j / 2)]);
        }
        products[i] = tile;
    }
    products
}
