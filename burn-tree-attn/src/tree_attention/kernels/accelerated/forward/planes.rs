//! Forward pass on tensor cores: online softmax over the visible key tiles of a query tile, scores
//! and probabilities in registers.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::*;
use super::super::copies::*;
use super::super::products::*;
use super::config::ForwardConfig;
use super::planes_softmax::*;
use super::softmax::*;
use burn_tree_kit::cube::matrix::*;

/// Attention of one tile of query rows of up to 8 heads that share a key head.
///
/// `plan`: by query tiles of `query_rows` x `key_rows`
///
/// Cubes: x = tiles in the plan's order, y = `Hq / heads`.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_forward<E: Float>(
    tensors: &Tensors<E>,
    plan: &Plan,
    results: &mut Results,
    sizes: &Sizes,
    options: &ScoreOptions,
    #[comptime] config: ForwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let dim = comptime!(config.head_dim);
    let (rows, blocks) = comptime!((config.rows(), config.blocks()));
    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * comptime!((blocks * 16) as u32);
    let first_head = CUBE_POS_Y * comptime!(config.heads as u32);
    let tile = query_tile(
        &plan.lists,
        sizes,
        CUBE_POS_X,
        first_head,
        config.query_rows,
    );
    let (begin, end) = (tile.begin, tile.end);

    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let stages = shared + comptime!(tile_bytes(rows, dim) as u32);
    let stage_bytes = comptime!(config.stage_bytes() as u32);

    copy_queries::<E>(&tensors.query, &tile, shared, config);
    if begin < end {
        let entry = plan.lists.entries[begin as usize];
        copy_stage::<E>(tensors, &plan.mask, &tile, entry, stages, config);
    }
    commit_copies();

    let query_address =
        shared + plane_row * comptime!(row_stride(dim) as u32) + lane_offset_by_rows(lane, dim);
    let key_lane = lane_offset_by_columns(lane, dim);
    let value_lane =
        lane_offset_by_rows(lane, dim) + comptime!(tile_bytes(config.key_rows, dim) as u32);

    let mut sums = zero_sums(comptime!(blocks * dim / 8));
    let mut running = running_rows(comptime!(2 * blocks));
    let mut stage = stages;
    let mut next_stage = stages + stage_bytes;
    for index in begin..end {
        // This stage has landed, and no plane reads the other one any more.
        wait_copies(0usize);
        sync_cube();
        let entry = plan.lists.entries[index as usize];
        if index + 1 < end {
            let next_entry = plan.lists.entries[index as usize + 1];
            copy_stage::<E>(tensors, &plan.mask, &tile, next_entry, next_stage, config);
        }
        commit_copies();

        let mut scores = zero_sums(comptime!(blocks * config.key_rows / 8));
        multiply_blocks::<E>(
            &mut scores,
            query_address,
            stage + key_lane,
            dim,
            blocks,
            config.key_rows,
        );
        map_scores(&mut scores, options.factor, config);
        if entry & 1 == 1 {
            let intervals = comptime!(2 * tile_bytes(config.key_rows, dim) as u32);
            mask_scores(
                &mut scores,
                stage + intervals + lane % 4 * 8,
                &plan.mask,
                &tile,
                plane_row + lane / 4,
                options.window,
                config,
            );
        }
        raise_maxima(&scores, &mut sums, &mut running, options.scale_log2, config);
        scores_to_powers(&mut scores, &mut running, options.scale_log2, config);
        add_values::<E>(&mut sums, &scores, stage + value_lane, config);

        let this_stage = stage;
        stage = next_stage;
        next_stage = this_stage;
    }
    // Without entries, the copies of the query are still on their way.
    wait_copies(0usize);
    sync_cube();
    // Each plane stages its rows where its rows of the query were.
    stage_results::<E>(
        &sums,
        &running,
        &tile,
        results,
        shared,
        options.scale_log2,
        config,
    );
    sync_plane();
    store_output(results, &tile, shared, config);
}

/// Starts the copies of a tile's queries.
#[cube]
fn copy_queries<E: Float>(
    query: &[E],
    tile: &QueryTile,
    shared: u32,
    #[comptime] config: ForwardConfig,
) {
    let dim = comptime!(config.head_dim);
    #[unroll]
    for head in 0..comptime!(config.heads) {
        let from = global_address::<E>(query) + tile.first_row(head) * comptime!(2 * dim as u64);
        copy_rows(
            from,
            shared + comptime!(tile_bytes(head * config.query_rows, dim) as u32),
            UNIT_POS_X,
            tile.valid_rows(),
            config.query_rows,
            dim,
            comptime!(config.units()),
            true,
        );
    }
}

/// Starts the copies of the tile of a plan's entry into the stage at `stage`.
#[cube]
fn copy_stage<E: Float>(
    tensors: &Tensors<E>,
    mask: &Mask,
    tile: &QueryTile,
    entry: u32,
    stage: u32,
    #[comptime] config: ForwardConfig,
) {
    let (rows, dim, units) = comptime!((config.key_rows, config.head_dim, config.units()));
    let first = (entry >> 1) * comptime!(rows as u32);
    let offset = (tile.first_key + u64::cast_from(first)) * comptime!(2 * dim as u64);
    let key = global_address::<E>(&tensors.key) + offset;
    let value = global_address::<E>(&tensors.value) + offset;
    let valid = tile.n_keys - first;
    if entry & 1 == 0 {
        copy_rows_of_both(key, value, stage, valid, rows, dim, units, false);
    } else {
        copy_rows_of_both(key, value, stage, valid, rows, dim, units, true);
        copy_intervals(
            mask,
            stage + comptime!(2 * tile_bytes(rows, dim) as u32),
            tile.batch * tile.n_keys + first,
            UNIT_POS_X,
            valid,
            comptime!(4 * rows),
            config.window,
        );
    }
}

/// Writes the sums of a plane over their totals, rounded, to its rows of the tile in shared memory,
/// and the log-sum-exps.
#[cube]
fn stage_results<E: Float>(
    sums: &Array<Accumulator>,
    running: &RunningRows,
    tile: &QueryTile,
    results: &mut Results,
    shared: u32,
    scale_log2: f32,
    #[comptime] config: ForwardConfig,
) {
    let stride = comptime!(row_stride(config.head_dim));
    let output_tiles = comptime!(config.head_dim / 8);
    let lane = UNIT_POS_X % 32;
    let lane_row = UNIT_POS_X / 32 * comptime!((config.blocks() * 16) as u32) + lane / 4;
    let store_address = shared + lane_row * comptime!(stride as u32) + lane % 4 * 4;
    #[unroll]
    for row in 0..comptime!(2 * config.blocks()) {
        let (block, half) = comptime!((row / 2, row % 2));
        let tile_row = lane_row + comptime!((block * 16 + half * 8) as u32);
        let factor = running.finish(row, tile, tile_row, &mut results.log_sum_exp, scale_log2);
        #[unroll]
        for n in 0..output_tiles {
            let sum = sums[comptime!(block * output_tiles + n)];
            let word = pack::<E>(
                sum.extract(comptime!(2 * half)) * factor,
                sum.extract(comptime!(2 * half + 1)) * factor,
            );
            let offset = comptime!((block * 16 + half * 8) * stride + n * 16);
            store_word(store_address, offset, word);
        }
    }
}

/// Writes a plane's rows of the tile in shared memory to the output.
#[cube]
fn store_output(
    results: &mut Results,
    tile: &QueryTile,
    shared: u32,
    #[comptime] config: ForwardConfig,
) {
    let (dim, blocks) = comptime!((config.head_dim, config.blocks()));
    let plane_row = UNIT_POS_X / 32 * comptime!((blocks * 16) as u32);
    let row_chunks = comptime!((2 * dim / CHUNK) as u32);
    #[unroll]
    for pass in 0..comptime!(blocks * 16 * 2 * dim / CHUNK / PLANE) {
        let chunk = UNIT_POS_X % 32 + comptime!((pass * PLANE) as u32);
        let tile_row = plane_row + chunk / row_chunks;
        let column = chunk % row_chunks;
        let query = tile.query(tile_row);
        if query < tile.n_queries {
            let stride = comptime!(row_stride(dim) as u32);
            let from = shared + tile_row * stride + column * CHUNK as u32;
            let at = tile.at(tile_row, query);
            results.output[(at * row_chunks + column) as usize] = load_chunk(from, 0usize);
        }
    }
}
