//! Forward pass with warpgroups: one copies keys and values, two compute. One of these uses the
//! tensor cores while the other computes its softmax.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::*;
use super::super::barrier::*;
use super::super::stage::*;
use super::super::warpgroup::*;
use super::config::WarpgroupForwardConfig;
use super::softmax::*;
use super::warpgroups_copies::*;
use super::warpgroups_softmax::*;
use burn_tree_kit::cube::matrix::*;

/// Attention of one tile of query rows of up to 8 heads that share a key head; arguments and cubes
/// as those of [`tree_attention_forward`](super::planes::tree_attention_forward).
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_forward_warpgroup<E: Float>(
    tensors: &Tensors<E>,
    plan: &Plan,
    results: &mut Results,
    sizes: &Sizes,
    options: &ScoreOptions,
    #[comptime] config: WarpgroupForwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let first_head = CUBE_POS_Y * comptime!(config.heads as u32);
    let tile = query_tile(
        &plan.lists,
        sizes,
        CUBE_POS_X,
        first_head,
        config.query_rows,
    );
    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 1024usize);
    let shared = shared_address(&memory);
    if UNIT_POS_X == 0 {
        init_barriers(shared, config);
    }
    sync_cube();
    if UNIT_POS_X >= comptime!(config.computing_units() as u32) {
        copy_stages::<E>(tensors, plan, &tile, shared, config);
    } else {
        compute::<E>(
            &tensors.query,
            plan,
            results,
            &tile,
            options,
            shared,
            config,
        );
    }
}

/// What the computing planes do.
#[cube]
fn compute<E: Float>(
    query: &[E],
    plan: &Plan,
    results: &mut Results,
    tile: &QueryTile,
    options: &ScoreOptions,
    shared: u32,
    #[comptime] config: WarpgroupForwardConfig,
) {
    let dim = comptime!(config.head_dim);
    let size!(ScoreSize) = comptime!(STAGE_ROWS / 2);
    let size!(ProbabilitySize) = comptime!(STAGE_ROWS / 4);
    let size!(OutputSize) = comptime!(dim / 2);

    let (begin, end) = (tile.begin, tile.end);
    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * 16;
    let warpgroup = UNIT_POS_X / comptime!((PLANES * PLANE) as u32);
    load_queries::<E>(query, tile, shared, config);
    // The first warpgroup's turn.
    if warpgroup == 1 && begin < end {
        signal_units(2u32, comptime!(2 * PLANES * PLANE));
    }

    let queries = describe_by_rows(shared + warpgroup * comptime!((ROWS * 128) as u32));
    let mut sums = Vector::<f32, OutputSize>::new(0.0f32);
    let mut probabilities = Vector::<u32, ProbabilitySize>::new(0u32);
    let mut running = running_rows(2usize);
    let mut slot = Slot {
        stage: 0u32,
        parity: 0u32,
    };
    let mut last = Slot {
        stage: 0u32,
        parity: 0u32,
    };
    let mut index = begin;
    while index < end {
        let stage = stage_at(shared, slot.stage, config);
        wait_for_units(2 + warpgroup, comptime!(2 * PLANES * PLANE));
        if index > begin {
            sums = add_values::<E, OutputSize, ProbabilitySize>(
                sums,
                probabilities,
                shared,
                &last,
                config,
            );
        }
        wait_barrier(stage.barrier, slot.parity);
        let mut scores = multiply_panel_rows::<E, ScoreSize>(
            queries,
            describe_by_rows(stage.keys),
            dim,
            comptime!(config.rows()),
            STAGE_ROWS,
        );
        if index + 2 < end || warpgroup == 0 {
            signal_units(3 - warpgroup, comptime!(2 * PLANES * PLANE));
        }

        if comptime!(config.scores != ScoreMap::Plain) {
            scores = mapped_scores::<ScoreSize>(scores, options.factor, config.scores);
        }
        #[unroll]
        for half in 0..2usize {
            let of_half = index + comptime!(half as u32);
            let (entry, _valid) = entry_of(&plan.lists.entries, of_half, end, 0u32);
            if entry & 1 == 1 {
                scores = mask_scores::<ScoreSize>(
                    scores,
                    stage.words + lane % 4 * 8,
                    half,
                    &plan.mask,
                    tile,
                    plane_row + lane / 4,
                    options.window,
                    config.window,
                );
            }
        }
        sync_plane();
        if lane == 0 {
            arrive(stage.barrier + 8);
        }
        sums = raise_maxima::<OutputSize, ScoreSize>(
            sums,
            scores,
            &mut running,
            options.scale_log2,
            dim,
        );
        probabilities = powers_of_scores::<E, ScoreSize, ProbabilitySize>(
            scores,
            &mut running,
            options.scale_log2,
        );

        last.stage = slot.stage;
        last.parity = slot.parity;
        index += 2;
        slot.advance();
    }
    if begin < end {
        sums = add_values::<E, OutputSize, ProbabilitySize>(
            sums,
            probabilities,
            shared,
            &last,
            config,
        );
    }
    // Each warpgroup stages its rows where its rows of the query were, once all its planes are done.
    wait_for_units(4 + warpgroup, comptime!(PLANES * PLANE));
    store_results::<E, OutputSize>(
        sums,
        &running,
        tile,
        results,
        shared,
        options.scale_log2,
        config,
    );
}

/// Copies a tile's queries, by the computing units, and waits for them.
#[cube]
fn load_queries<E: Float>(
    query: &[E],
    tile: &QueryTile,
    shared: u32,
    #[comptime] config: WarpgroupForwardConfig,
) {
    let dim = comptime!(config.head_dim);
    let copy = comptime!(PanelCopy {
        rows: config.query_rows,
        tile_rows: config.rows(),
        head_dim: dim,
        units: config.computing_units(),
    });
    #[unroll]
    for head in 0..comptime!(config.heads) {
        let from = global_address::<E>(query) + tile.first_row(head) * comptime!(2 * dim as u64);
        let to = shared + comptime!((head * config.query_rows * 128) as u32);
        copy_panel_rows(from, to, UNIT_POS_X, tile.valid_rows(), copy, true);
    }
    commit_copies();
    wait_copies(0usize);
    fence_products();
    wait_for_units(1u32, comptime!(config.computing_units()));
}

/// Adds the product of probabilities and the values of a stage, and frees them.
#[cube]
fn add_values<E: Float, N: Size, K: Size>(
    sums: Vector<f32, N>,
    probabilities: Vector<u32, K>,
    shared: u32,
    slot: &Slot,
    #[comptime] config: WarpgroupForwardConfig,
) -> Vector<f32, N> {
    let stage = stage_at(shared, slot.stage, config);
    wait_barrier(stage.barrier + 16, slot.parity);
    let sums = multiply_add_panel_columns::<E, N, K>(
        probabilities,
        describe_by_columns(stage.values, STAGE_ROWS),
        sums,
        STAGE_ROWS,
        config.head_dim,
    );
    if UNIT_POS_X % 32 == 0 {
        arrive(stage.barrier + 24);
    }
    sums
}

/// Writes the sums of a plane over their totals, rounded, to its rows of the tile in shared memory
/// and from there to the output, and the log-sum-exps.
#[cube]
fn store_results<E: Float, N: Size>(
    sums: Vector<f32, N>,
    running: &RunningRows,
    tile: &QueryTile,
    results: &mut Results,
    shared: u32,
    scale_log2: f32,
    #[comptime] config: WarpgroupForwardConfig,
) {
    let (rows, dim) = comptime!((config.rows(), config.head_dim));
    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * 16;
    let mut factors = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let tile_row = plane_row + lane / 4 + comptime!(8 * row as u32);
        factors[row] = running.finish(row, tile, tile_row, &mut results.log_sum_exp, scale_log2);
    }
    store_panel_sums::<E, N>(sums, factors[0], factors[1], shared, plane_row, rows, dim);
    sync_plane();
    let row_chunks = comptime!((2 * dim / CHUNK) as u32);
    #[unroll]
    for pass in 0..comptime!(16 * 2 * dim / CHUNK / PLANE) {
        let chunk = lane + comptime!((pass * PLANE) as u32);
        let tile_row = plane_row + chunk / row_chunks;
        let column = chunk % row_chunks;
        let query = tile.query(tile_row);
        if query < tile.n_queries {
            let at = tile.at(tile_row, query);
            results.output[(at * row_chunks + column) as usize] =
                load_panel_chunk(shared, tile_row, column, rows);
        }
    }
}
