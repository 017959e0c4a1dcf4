//! Gradient of queries with products of four planes.
//!
//! As in [`query`](super::query), a cube owns a tile of query rows, of two heads that share a key
//! head, one for each of two squads of four planes. A squad computes `Q K^T`, from it the
//! probabilities, `dO V^T` in halves, and sums `dS K`. One more plane copies pairs of key tiles.

use cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::barrier::*;
use super::super::stage::*;
use super::super::tile::*;
use super::super::warpgroup::*;
use super::blocks::*;

/// Query heads of a cube, one to a squad.
pub(crate) const HEADS: usize = 2;
/// Rows of a cube.
const ROWS_OF_CUBE: usize = HEADS * QUERY_ROWS;
/// Units of a squad, and of both.
const SQUAD: usize = PLANES * PLANE;
const COMPUTING: usize = HEADS * SQUAD;
/// Units of a cube.
pub(crate) const UNITS: usize = COMPUTING + PLANE;
/// Barriers of a stage: keys there, values there, both free.
const STAGE_BARRIERS: usize = 3;

/// Bytes of the shared memory of a cube, from its start: queries, gradients of the output, stages
/// of keys and values, intervals and positions of the keys of the stages, barriers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    tile: usize,
    stages: usize,
    stage: usize,
    words: usize,
    words_of_stage: usize,
    barriers: usize,
    end: usize,
}

impl Layout {
    fn new(config: &BackwardConfig) -> Self {
        let tile = panel_tile_bytes(ROWS_OF_CUBE, config.head_dim);
        let stages = 2 * tile;
        let stage = 2 * panel_tile_bytes(STAGE_ROWS, config.head_dim);
        let words = stages + STAGES * stage;
        let words_of_stage = if config.window { 3 } else { 2 } * 4 * STAGE_ROWS;
        let barriers = words + STAGES * words_of_stage;
        Self {
            tile,
            stages,
            stage,
            words,
            words_of_stage,
            barriers,
            end: barriers + STAGES * STAGE_BARRIERS * BARRIER_BYTES,
        }
    }
}

/// Bytes of shared memory of a cube.
pub(crate) fn shared_bytes(config: &BackwardConfig) -> usize {
    Layout::new(config).end
}

/// Gradient of the queries of one tile of query rows and two query heads; arguments as those of
/// [`tree_attention_backward_query`](super::query::tree_attention_backward_query).
///
/// Cubes: x = for each tile in `order`, pairs of query heads.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_query_warpgroup<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    grad_output: &[E],
    statistics: &[f32],
    key_start: &[u32],
    key_end: &[u32],
    key_position: &[u32],
    query_position: &[u32],
    offsets: &[u32],
    entries: &[u32],
    order: &[u32],
    grad_query: &mut [Vector<u32, Const<4>>],
    n_queries: u32,
    n_keys: u32,
    kv_heads: u32,
    group: u32,
    batches: u32,
    scale: f32,
    scale_log2: f32,
    cap_scale: f32,
    window: u32,
    #[comptime] config: BackwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let scores = Scores {
        scale,
        scale_log2,
        cap_scale,
        window,
    };
    let dim = comptime!(config.head_dim);
    let layout = comptime!(Layout::new(&config));
    let tiles = n_queries.div_ceil(comptime!(QUERY_ROWS as u32));
    let pairs = kv_heads * group / HEADS as u32;
    let first_head = CUBE_POS_X % pairs * HEADS as u32;
    let tile = order[(CUBE_POS_X / pairs) as usize];
    let batch = tile / tiles;
    let first_query = tile % tiles * comptime!(QUERY_ROWS as u32);
    let begin = offsets[tile as usize];
    let end = offsets[tile as usize + 1];

    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(layout.end / 4), 1024usize);
    let shared = shared_address(&memory);
    let barriers = shared + comptime!(layout.barriers as u32);
    if UNIT_POS_X == 0 {
        #[unroll]
        for stage in 0..STAGES {
            let barrier = barriers + comptime!((stage * STAGE_BARRIERS * BARRIER_BYTES) as u32);
            init_barrier(barrier, PLANE);
            init_barrier(barrier + 8, PLANE);
            init_barrier(barrier + 16, comptime!(COMPUTING / PLANE));
        }
    }
    sync_cube();

    if UNIT_POS_X >= COMPUTING as u32 {
        let first_key = u64::cast_from(batch * kv_heads + first_head / group) * u64::cast_from(n_keys);
        copy_keys::<E>(
            key,
            value,
            key_start,
            key_end,
            key_position,
            entries,
            begin,
            end,
            first_key,
            batch * n_keys,
            n_keys,
            shared,
            config,
        );
    } else {
        add_to_queries::<E>(
            query,
            grad_output,
            statistics,
            query_position,
            entries,
            grad_query,
            begin,
            end,
            batch,
            first_query,
            batch * kv_heads * group + first_head,
            batches * kv_heads * group,
            n_queries,
            shared,
            &scores,
            config,
        );
    }
}

/// What the copying plane does.
#[cube]
fn copy_keys<E: Float>(
    key: &[E],
    value: &[E],
    key_start: &[u32],
    key_end: &[u32],
    key_position: &[u32],
    entries: &[u32],
    begin: u32,
    end: u32,
    first_key: u64,
    first_interval: u32,
    n_keys: u32,
    shared: u32,
    #[comptime] config: BackwardConfig,
) {
    let dim = comptime!(config.head_dim);
    let layout = comptime!(Layout::new(&config));
    let unit = UNIT_POS_X % 32;
    let mut stage = 0u32;
    let mut parity = 1u32;
    let mut index = begin;
    while index < end {
        let barrier = shared
            + comptime!(layout.barriers as u32)
            + stage * comptime!((STAGE_BARRIERS * BARRIER_BYTES) as u32);
        let keys = shared
            + comptime!(layout.stages as u32)
            + stage * comptime!(layout.stage as u32);
        let words = shared
            + comptime!(layout.words as u32)
            + stage * comptime!(layout.words_of_stage as u32);
        wait_barrier(barrier + 16, parity);
        #[unroll]
        for half in 0..2u32 {
            let (entry, valid) = entry_of(entries, index + half, end, n_keys);
            let first = (entry >> 1) * TILE_ROWS as u32;
            if entry & 1 == 1 {
                let words = words + comptime!(half * 4 * TILE_ROWS as u32);
                let from = u64::cast_from(first_interval + first) * 4;
                copy_words(global_address::<u32>(key_start) + from, words, unit, valid);
                let words = words + comptime!(4 * STAGE_ROWS as u32);
                copy_words(global_address::<u32>(key_end) + from, words, unit, valid);
                if comptime!(config.window) {
                    let words = words + comptime!(4 * STAGE_ROWS as u32);
                    copy_words(global_address::<u32>(key_position) + from, words, unit, valid);
                }
            }
            let row = first_key + u64::cast_from(first);
            let from = global_address::<E>(key) + row * comptime!(2 * dim as u64);
            copy_tile(from, keys, half, unit, valid, entry, dim);
        }
        commit_copies();
        #[unroll]
        for half in 0..2u32 {
            let (entry, valid) = entry_of(entries, index + half, end, n_keys);
            let row = first_key + u64::cast_from((entry >> 1) * TILE_ROWS as u32);
            let from = global_address::<E>(value) + row * comptime!(2 * dim as u64);
            let to = keys + comptime!((layout.stage / 2) as u32);
            copy_tile(from, to, half, unit, valid, entry, dim);
        }
        commit_copies();
        land(barrier, 1usize);
        land(barrier + 8, 0usize);

        index += 2;
        stage += 1;
        if stage == STAGES as u32 {
            stage = 0;
            parity = parity ^ 1;
        }
    }
}

/// What the squads do.
#[cube]
fn add_to_queries<E: Float>(
    query: &[E],
    grad_output: &[E],
    statistics: &[f32],
    query_position: &[u32],
    entries: &[u32],
    grad_query: &mut [Vector<u32, Const<4>>],
    begin: u32,
    end: u32,
    batch: u32,
    first_query: u32,
    first_head: u32,
    all_heads: u32,
    n_queries: u32,
    shared: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) {
    let dim = comptime!(config.head_dim);
    let layout = comptime!(Layout::new(&config));
    let size!(ProductSize) = comptime!(STAGE_ROWS / 2);
    let size!(HalfSize) = comptime!(TILE_ROWS / 2);
    let size!(PackedSize) = comptime!(STAGE_ROWS / 4);
    let size!(SumSize) = comptime!(dim / 2);
    let squad = UNIT_POS_X / SQUAD as u32;
    let unit = UNIT_POS_X % SQUAD as u32;
    let lane = unit % 32;
    let plane_row = unit / 32 * 16;

    // The squad's head.
    let head = first_head + squad;
    let own = shared + squad * comptime!((QUERY_ROWS * 128) as u32);
    let row = u64::cast_from(head) * u64::cast_from(n_queries) + u64::cast_from(first_query);
    let offset = row * comptime!(2 * dim as u64);
    let valid = n_queries - first_query;
    copy_panel_rows(
        global_address::<E>(query) + offset,
        own,
        unit,
        valid,
        QUERY_ROWS,
        ROWS_OF_CUBE,
        dim,
        SQUAD,
        true,
    );
    copy_panel_rows(
        global_address::<E>(grad_output) + offset,
        own + comptime!(layout.tile as u32),
        unit,
        valid,
        QUERY_ROWS,
        ROWS_OF_CUBE,
        dim,
        SQUAD,
        true,
    );
    // Of the lane's two rows.
    let padded_queries =
        n_queries.div_ceil(comptime!(QUERY_ROWS as u32)) * comptime!(QUERY_ROWS as u32);
    let mut log_sum_exp = Array::<f32>::new(2usize);
    let mut output_sum = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let query = first_query + plane_row + lane / 4 + comptime!(8 * row as u32);
        let at = head * padded_queries + query;
        log_sum_exp[row] = statistics[at as usize];
        output_sum[row] = statistics[(all_heads * padded_queries + at) as usize];
    }
    wait_copies(0usize);
    fence_products();
    wait_for_units(1 + squad, SQUAD);

    let queries = describe_by_rows(own);
    let gradients = describe_by_rows(own + comptime!(layout.tile as u32));
    let mut sums = Vector::<f32, SumSize>::new(0.0f32);
    let mut stage = 0u32;
    let mut parity = 0u32;
    let mut index = begin;
    while index < end {
        let barrier = shared
            + comptime!(layout.barriers as u32)
            + stage * comptime!((STAGE_BARRIERS * BARRIER_BYTES) as u32);
        let keys = shared
            + comptime!(layout.stages as u32)
            + stage * comptime!(layout.stage as u32);
        let words = shared
            + comptime!(layout.words as u32)
            + stage * comptime!(layout.words_of_stage as u32)
            + lane % 4 * 8;
        wait_barrier(barrier, parity);
        let mut products = multiply_panel_rows::<E, ProductSize>(
            queries,
            describe_by_rows(keys),
            dim,
            ROWS_OF_CUBE,
            STAGE_ROWS,
        );
        let mut exponents = Vector::<f32, ProductSize>::empty();
        #[unroll]
        for i in 0..comptime!(STAGE_ROWS / 2) {
            let log_sum_exp = log_sum_exp[comptime!(i / 2 % 2)];
            exponents.insert(i, exponent(products.extract(i), log_sum_exp, scores, config));
        }
        products = exponents;
        #[unroll]
        for half in 0..2usize {
            let (entry, _valid) = entry_of(entries, index + comptime!(half as u32), end, 0u32);
            if entry & 1 == 1 {
                products = hide::<ProductSize>(
                    products,
                    words,
                    half,
                    query_position,
                    batch * n_queries,
                    first_query + plane_row + lane / 4,
                    n_queries,
                    scores.window,
                    config,
                );
            }
        }
        let mut packed = Vector::<u32, PackedSize>::empty();
        #[unroll]
        for i in 0..comptime!(STAGE_ROWS / 4) {
            let (low, high) = (products.extract(comptime!(2 * i)), products.extract(comptime!(2 * i + 1)));
            let (mut low_power, mut high_power) = (exp2(low), exp2(high));
            if comptime!(config.capped) {
                let log_sum_exp = log_sum_exp[comptime!(i % 2)];
                low_power *= cap_slope(low, log_sum_exp, scores);
                high_power *= cap_slope(high, log_sum_exp, scores);
            }
            packed.insert(i, pack::<E>(low_power, high_power));
        }
        wait_barrier(barrier + 8, parity);
        let values = keys + comptime!((layout.stage / 2) as u32);
        #[unroll]
        for half in 0..2usize {
            let of_output = multiply_panel_rows::<E, HalfSize>(
                gradients,
                describe_by_rows(values + comptime!((half * TILE_ROWS * 128) as u32)),
                dim,
                ROWS_OF_CUBE,
                STAGE_ROWS,
            );
            #[unroll]
            for i in 0..comptime!(TILE_ROWS / 4) {
                let at = comptime!(half * TILE_ROWS / 4 + i);
                let sum = output_sum[comptime!(i % 2)];
                let factor = packed.extract(at);
                let low = unpack_low::<E>(factor) * (of_output.extract(comptime!(2 * i)) + sum);
                let high = unpack_high::<E>(factor)
                    * (of_output.extract(comptime!(2 * i + 1)) + sum);
                packed.insert(at, pack::<E>(low, high));
            }
        }
        sums = multiply_add_panel_columns::<E, SumSize, PackedSize>(
            packed,
            describe_by_columns(keys, STAGE_ROWS),
            sums,
            STAGE_ROWS,
            dim,
        );
        sync_plane();
        if lane == 0 {
            arrive(barrier + 16);
        }

        index += 2;
        stage += 1;
        if stage == STAGES as u32 {
            stage = 0;
            parity = parity ^ 1;
        }
    }
    // All planes of the squad are done with its queries.
    wait_for_units(1 + squad, SQUAD);
    let factor = scores.scale;
    store_panel_sums::<E, SumSize>(sums, factor, factor, own, plane_row, ROWS_OF_CUBE, dim);
    sync_plane();
    let to = output_address(grad_query) + offset;
    store_panel_rows(own, to, plane_row, valid, ROWS_OF_CUBE, dim);
}

/// Sets the exponents of what is hidden in half of a stage to minus infinity.
///
/// `intervals`: address of those of the stage, plus 8 for every column pair of the lane;
/// `row`: the lane's first query row.
#[cube]
fn hide<N: Size>(
    exponents: Vector<f32, N>,
    intervals: u32,
    #[comptime] half: usize,
    query_position: &[u32],
    first_position: u32,
    row: u32,
    n_queries: u32,
    window: u32,
    #[comptime] config: BackwardConfig,
) -> Vector<f32, N> {
    let array_bytes = comptime!(STAGE_ROWS * 4);
    let mut positions = Array::<u32>::new(2usize);
    if comptime!(config.window) {
        #[unroll]
        for of_lane in 0..2usize {
            // Rows past the last one see nothing anyway.
            let index = min(row + comptime!(8 * of_lane as u32), n_queries - 1);
            positions[of_lane] = query_position[(first_position + index) as usize];
        }
    }
    let mut visible_only = exponents;
    #[unroll]
    for tile in 0..comptime!(TILE_ROWS / 8) {
        let n = comptime!(half * TILE_ROWS / 8 + tile);
        let starts = load_pair(intervals, comptime!(n * 32));
        let ends = load_pair(intervals, comptime!(n * 32 + array_bytes));
        #[unroll]
        for i in 0..4usize {
            let (of_lane, column) = comptime!((i / 2, i % 2));
            let row = row + comptime!(8 * of_lane as u32);
            let mut visible = row >= starts.extract(column) && row < ends.extract(column);
            if comptime!(config.window) {
                let of_keys = load_pair(intervals, comptime!(n * 32 + 2 * array_bytes));
                visible = visible
                    && within_window(positions[of_lane], of_keys.extract(column), window);
            }
            let at = comptime!(4 * n + i);
            let exponent = select(visible, exponents.extract(at), f32::NEG_INFINITY);
            visible_only.insert(at, exponent);
        }
    }
    visible_only
}
