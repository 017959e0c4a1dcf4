//! Gradients of keys and values with products of four planes.
//!
//! As in [`key_value`](super::key_value), a cube owns a tile of keys, and two squads of four planes
//! share the work: the first computes `K Q^T`, from it the probabilities `P^T`, and sums `P^T dO`
//! to the gradient of the values; the second computes `V dO^T`, gets the probabilities through
//! shared memory, and sums `dS^T Q` to the gradient of the keys. One more plane copies pairs of
//! query tiles.

use cubecl;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::barrier::*;
use super::super::stage::*;
use super::super::tile::*;
use super::super::warpgroup::*;
use super::blocks::*;

/// Units of a squad, and of both.
const SQUAD: usize = PLANES * PLANE;
const COMPUTING: usize = 2 * SQUAD;
/// Units of a cube.
pub(crate) const UNITS: usize = COMPUTING + PLANE;
/// Barriers of a stage: queries there, gradients there, both free.
const STAGE_BARRIERS: usize = 3;
/// Probabilities are ready, and may be overwritten: named barriers.
const READY: u32 = 1;
const READ: u32 = 2;

/// Bytes of the shared memory of a cube, from its start: keys, values, stages, statistics of the
/// stages, probabilities on their way from squad to squad, barriers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    tile: usize,
    stages: usize,
    stage: usize,
    statistics: usize,
    probabilities: usize,
    barriers: usize,
    end: usize,
}

impl Layout {
    fn new(head_dim: usize) -> Self {
        let tile = panel_tile_bytes(KEY_ROWS, head_dim);
        let stages = 2 * tile;
        let stage = 2 * panel_tile_bytes(STAGE_ROWS, head_dim);
        let statistics = stages + STAGES * stage;
        let probabilities = statistics + STAGES * 2 * 4 * STAGE_ROWS;
        let barriers = probabilities + 2 * KEY_ROWS * STAGE_ROWS;
        Self {
            tile,
            stages,
            stage,
            statistics,
            probabilities,
            barriers,
            end: barriers + STAGES * STAGE_BARRIERS * BARRIER_BYTES,
        }
    }
}

/// Bytes of shared memory of a cube.
pub(crate) fn shared_bytes(head_dim: usize) -> usize {
    Layout::new(head_dim).end
}

/// Gradients of the keys and values of one tile of keys and one key head; arguments and cubes as
/// those of [`tree_attention_backward_key_value`](super::key_value::tree_attention_backward_key_value).
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_key_value_warpgroup<E: Float>(
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
    grad_key: &mut [Vector<u32, Const<4>>],
    grad_value: &mut [Vector<u32, Const<4>>],
    n_queries: u32,
    n_keys: u32,
    kv_heads: u32,
    group: u32,
    batches: u32,
    splits: u32,
    scale: f32,
    scale_log2: f32,
    cap_scale: f32,
    window: u32,
    #[comptime] config: BackwardConfig,
    #[comptime] partial: bool,
    #[define(E)] _dtype: ElemType,
) {
    let scores = Scores {
        scale,
        scale_log2,
        cap_scale,
        window,
    };
    let dim = comptime!(config.head_dim);
    let layout = comptime!(Layout::new(dim));
    let tiles = n_keys.div_ceil(comptime!(KEY_ROWS as u32));
    let split = CUBE_POS_X % splits;
    let kv_head = CUBE_POS_X / splits % kv_heads;
    let tile = order[(CUBE_POS_X / splits / kv_heads) as usize];
    let batch = tile / tiles;
    let first_key = tile % tiles * comptime!(KEY_ROWS as u32);
    let begin = offsets[tile as usize];
    let end = offsets[tile as usize + 1];
    let heads = group / splits;
    let query_heads = kv_heads * group;
    let first_head = batch * query_heads + kv_head * group + split * heads;
    // The tile's first key, of all batch rows and heads.
    let key_row = u64::cast_from(batch * kv_heads + kv_head) * u64::cast_from(n_keys)
        + u64::cast_from(first_key);

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
        copy_queries::<E>(
            query,
            grad_output,
            statistics,
            entries,
            begin,
            end,
            first_head,
            heads,
            n_queries,
            batches * query_heads,
            shared,
            config,
        );
    } else {
        let squad = UNIT_POS_X / SQUAD as u32;
        let from = key_row * comptime!(2 * dim as u64);
        let mut from = global_address::<E>(key) + from;
        if squad == 1 {
            from = global_address::<E>(value) + key_row * comptime!(2 * dim as u64);
        }
        let own = shared + squad * comptime!(layout.tile as u32);
        copy_panel_rows(
            from,
            own,
            UNIT_POS_X % SQUAD as u32,
            n_keys - first_key,
            KEY_ROWS,
            KEY_ROWS,
            dim,
            SQUAD,
            true,
        );
        wait_copies(0usize);
        fence_products();
        wait_for_units(3 + squad, SQUAD);
        if squad == 0 {
            add_to_values::<E>(
                key_start,
                key_end,
                key_position,
                query_position,
                entries,
                grad_value,
                begin,
                end,
                heads,
                batch,
                first_key,
                key_row,
                u64::cast_from(split * batches * kv_heads) * u64::cast_from(n_keys),
                n_queries,
                n_keys,
                shared,
                &scores,
                config,
                partial,
            );
        } else {
            add_to_keys::<E>(
                grad_key,
                begin,
                end,
                heads,
                first_key,
                key_row,
                u64::cast_from(split * batches * kv_heads) * u64::cast_from(n_keys),
                n_keys,
                shared,
                &scores,
                config,
                partial,
            );
        }
    }
}

/// What the copying plane does: for each head, pairs of query tiles, the gradients of their
/// outputs, and their statistics.
#[cube]
fn copy_queries<E: Float>(
    query: &[E],
    grad_output: &[E],
    statistics: &[f32],
    entries: &[u32],
    begin: u32,
    end: u32,
    first_head: u32,
    heads: u32,
    n_queries: u32,
    all_heads: u32,
    shared: u32,
    #[comptime] config: BackwardConfig,
) {
    let dim = comptime!(config.head_dim);
    let layout = comptime!(Layout::new(dim));
    let padded_queries =
        n_queries.div_ceil(comptime!(QUERY_ROWS as u32)) * comptime!(QUERY_ROWS as u32);
    let second_statistic = u64::cast_from(all_heads) * u64::cast_from(padded_queries) * 4;
    let unit = UNIT_POS_X % 32;
    let mut stage = 0u32;
    let mut parity = 1u32;
    for of_group in 0..heads {
        let head = first_head + of_group;
        let mut index = begin;
        while index < end {
            let barrier = shared
                + comptime!(layout.barriers as u32)
                + stage * comptime!((STAGE_BARRIERS * BARRIER_BYTES) as u32);
            let queries = shared
                + comptime!(layout.stages as u32)
                + stage * comptime!(layout.stage as u32);
            let words = shared
                + comptime!(layout.statistics as u32)
                + stage * comptime!((2 * 4 * STAGE_ROWS) as u32);
            wait_barrier(barrier + 16, parity);
            #[unroll]
            for half in 0..2u32 {
                let (entry, valid) = entry_of(entries, index + half, end, n_queries);
                let first = u64::cast_from((entry >> 1) * TILE_ROWS as u32);
                let row = u64::cast_from(head) * u64::cast_from(n_queries) + first;
                let from = global_address::<E>(query) + row * comptime!(2 * dim as u64);
                copy_tile(from, queries, half, unit, valid, entry, dim);
                let row = u64::cast_from(head) * u64::cast_from(padded_queries) + first;
                let from = global_address::<f32>(statistics) + row * 4;
                let words = words + comptime!(half * 4 * TILE_ROWS as u32);
                copy_words(from, words, unit, valid);
                let words = words + comptime!(4 * STAGE_ROWS as u32);
                copy_words(from + second_statistic, words, unit, valid);
            }
            commit_copies();
            #[unroll]
            for half in 0..2u32 {
                let (entry, valid) = entry_of(entries, index + half, end, n_queries);
                let first = u64::cast_from((entry >> 1) * TILE_ROWS as u32);
                let row = u64::cast_from(head) * u64::cast_from(n_queries) + first;
                let from = global_address::<E>(grad_output) + row * comptime!(2 * dim as u64);
                let to = queries + comptime!((layout.stage / 2) as u32);
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
}

/// What the first squad does.
#[cube]
fn add_to_values<E: Float>(
    key_start: &[u32],
    key_end: &[u32],
    key_position: &[u32],
    query_position: &[u32],
    entries: &[u32],
    grad_value: &mut [Vector<u32, Const<4>>],
    begin: u32,
    end: u32,
    heads: u32,
    batch: u32,
    first_key: u32,
    key_row: u64,
    split_rows: u64,
    n_queries: u32,
    n_keys: u32,
    shared: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
    #[comptime] partial: bool,
) {
    let dim = comptime!(config.head_dim);
    let layout = comptime!(Layout::new(dim));
    let size!(ProductSize) = comptime!(STAGE_ROWS / 2);
    let size!(PackedSize) = comptime!(STAGE_ROWS / 4);
    let size!(SumSize) = comptime!(dim / 2);
    let unit = UNIT_POS_X % SQUAD as u32;
    let lane = unit % 32;
    let key_in_tile = unit / 32 * 16 + lane / 4;
    let exchange = shared + comptime!(layout.probabilities as u32) + unit * CHUNK as u32;
    let keys = describe_by_rows(shared);

    let mut sums = Vector::<f32, SumSize>::new(0.0f32);
    let mut stage = 0u32;
    let mut parity = 0u32;
    let mut first = true;
    for _of_group in 0..heads {
        let mut index = begin;
        while index < end {
            let barrier = shared
                + comptime!(layout.barriers as u32)
                + stage * comptime!((STAGE_BARRIERS * BARRIER_BYTES) as u32);
            let queries = shared
                + comptime!(layout.stages as u32)
                + stage * comptime!(layout.stage as u32);
            let words = shared
                + comptime!(layout.statistics as u32)
                + stage * comptime!((2 * 4 * STAGE_ROWS) as u32)
                + lane % 4 * 8;
            wait_barrier(barrier, parity);
            let mut products = multiply_panel_rows::<E, ProductSize>(
                keys,
                describe_by_rows(queries),
                dim,
                KEY_ROWS,
                STAGE_ROWS,
            );
            let mut exponents = Vector::<f32, ProductSize>::empty();
            #[unroll]
            for n in 0..comptime!(STAGE_ROWS / 8) {
                let pair = load_pair(words, comptime!(n * 32));
                #[unroll]
                for i in 0..4usize {
                    let at = comptime!(4 * n + i);
                    let log_sum_exp = f32::reinterpret(pair.extract(comptime!(i % 2)));
                    let exponent = exponent(products.extract(at), log_sum_exp, scores, config);
                    exponents.insert(at, exponent);
                }
            }
            products = exponents;
            #[unroll]
            for half in 0..2usize {
                let (entry, _valid) = entry_of(entries, index + comptime!(half as u32), end, 0u32);
                if entry & 1 == 1 {
                    products = hide::<ProductSize>(
                        products,
                        half,
                        key_start,
                        key_end,
                        key_position,
                        query_position,
                        batch,
                        first_key + key_in_tile,
                        (entry >> 1) * TILE_ROWS as u32 + lane % 4 * 2,
                        n_keys,
                        n_queries,
                        scores.window,
                        config,
                    );
                }
            }
            let mut probabilities = Vector::<u32, PackedSize>::empty();
            let mut slopes = Vector::<u32, PackedSize>::empty();
            #[unroll]
            for n in 0..comptime!(STAGE_ROWS / 8) {
                #[unroll]
                for row in 0..2usize {
                    let at = comptime!(4 * n + 2 * row);
                    let (low, high) = (products.extract(at), products.extract(comptime!(at + 1)));
                    let (low_power, high_power) = (exp2(low), exp2(high));
                    let packed = pack::<E>(low_power, high_power);
                    probabilities.insert(comptime!(2 * n + row), packed);
                    if comptime!(config.capped) {
                        let pair = load_pair(words, comptime!(n * 32));
                        let low_lse = f32::reinterpret(pair.extract(0usize));
                        let high_lse = f32::reinterpret(pair.extract(1usize));
                        let packed = pack::<E>(
                            low_power * cap_slope(low, low_lse, scores),
                            high_power * cap_slope(high, high_lse, scores),
                        );
                        slopes.insert(comptime!(2 * n + row), packed);
                    }
                }
            }
            // The second squad has read the last ones.
            if !first {
                wait_for_units(READ, COMPUTING);
            }
            first = false;
            #[unroll]
            for chunk in 0..comptime!(STAGE_ROWS / 16) {
                let mut words = Fragment::empty();
                #[unroll]
                for i in 0..4usize {
                    let at = comptime!(4 * chunk + i);
                    if comptime!(config.capped) {
                        words.insert(i, slopes.extract(at));
                    } else {
                        words.insert(i, probabilities.extract(at));
                    }
                }
                store_chunk(exchange, comptime!(chunk * SQUAD * CHUNK), words);
            }
            signal_units(READY, COMPUTING);

            wait_barrier(barrier + 8, parity);
            let gradients = queries + comptime!((layout.stage / 2) as u32);
            sums = multiply_add_panel_columns::<E, SumSize, PackedSize>(
                probabilities,
                describe_by_columns(gradients, STAGE_ROWS),
                sums,
                STAGE_ROWS,
                dim,
            );
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
    }
    store_gradient::<E, SumSize>(
        sums,
        1.0f32,
        output_address(grad_value),
        key_row,
        split_rows,
        n_keys - first_key,
        shared,
        3u32,
        config,
        partial,
    );
}

/// What the second squad does.
#[cube]
fn add_to_keys<E: Float>(
    grad_key: &mut [Vector<u32, Const<4>>],
    begin: u32,
    end: u32,
    heads: u32,
    first_key: u32,
    key_row: u64,
    split_rows: u64,
    n_keys: u32,
    shared: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
    #[comptime] partial: bool,
) {
    let dim = comptime!(config.head_dim);
    let layout = comptime!(Layout::new(dim));
    let size!(ProductSize) = comptime!(STAGE_ROWS / 2);
    let size!(PackedSize) = comptime!(STAGE_ROWS / 4);
    let size!(SumSize) = comptime!(dim / 2);
    let unit = UNIT_POS_X % SQUAD as u32;
    let lane = unit % 32;
    let exchange = shared + comptime!(layout.probabilities as u32) + unit * CHUNK as u32;
    let own = shared + comptime!(layout.tile as u32);
    let values = describe_by_rows(own);

    let mut sums = Vector::<f32, SumSize>::new(0.0f32);
    let mut stage = 0u32;
    let mut parity = 0u32;
    let steps = (end - begin).div_ceil(2) * heads;
    for step in 0..steps {
        let barrier = shared
            + comptime!(layout.barriers as u32)
            + stage * comptime!((STAGE_BARRIERS * BARRIER_BYTES) as u32);
        let queries = shared
            + comptime!(layout.stages as u32)
            + stage * comptime!(layout.stage as u32);
        let words = shared
            + comptime!((layout.statistics + 4 * STAGE_ROWS) as u32)
            + stage * comptime!((2 * 4 * STAGE_ROWS) as u32)
            + lane % 4 * 8;
        wait_barrier(barrier + 8, parity);
        let gradients = queries + comptime!((layout.stage / 2) as u32);
        let products = multiply_panel_rows::<E, ProductSize>(
            values,
            describe_by_rows(gradients),
            dim,
            KEY_ROWS,
            STAGE_ROWS,
        );
        wait_barrier(barrier, parity);
        wait_for_units(READY, COMPUTING);
        let mut left = Vector::<u32, PackedSize>::empty();
        #[unroll]
        for chunk in 0..comptime!(STAGE_ROWS / 16) {
            let probabilities = load_chunk(exchange, comptime!(chunk * SQUAD * CHUNK));
            #[unroll]
            for i in 0..4usize {
                let (n, row) = comptime!((2 * chunk + i / 2, i % 2));
                let pair = load_pair(words, comptime!(n * 32));
                let at = comptime!(4 * n + 2 * row);
                let low = products.extract(at) + f32::reinterpret(pair.extract(0usize));
                let high = products.extract(comptime!(at + 1))
                    + f32::reinterpret(pair.extract(1usize));
                let factor = probabilities.extract(i);
                let packed =
                    pack::<E>(unpack_low::<E>(factor) * low, unpack_high::<E>(factor) * high);
                left.insert(comptime!(4 * chunk + i), packed);
            }
        }
        if step + 1 < steps {
            signal_units(READ, COMPUTING);
        }
        sums = multiply_add_panel_columns::<E, SumSize, PackedSize>(
            left,
            describe_by_columns(queries, STAGE_ROWS),
            sums,
            STAGE_ROWS,
            dim,
        );
        if lane == 0 {
            arrive(barrier + 16);
        }

        stage += 1;
        if stage == STAGES as u32 {
            stage = 0;
            parity = parity ^ 1;
        }
    }
    store_gradient::<E, SumSize>(
        sums,
        scores.scale,
        output_address(grad_key),
        key_row,
        split_rows,
        n_keys - first_key,
        own,
        4u32,
        config,
        partial,
    );
}

/// Writes a squad's sums times `factor`: to rows of 16-bit numbers, through the squad's own tile in
/// shared memory, or if `partial` to rows of f32 numbers from row `split_rows` on.
#[cube]
fn store_gradient<E: Float, N: Size>(
    sums: Vector<f32, N>,
    factor: f32,
    gradient: u64,
    key_row: u64,
    split_rows: u64,
    valid: u32,
    own: u32,
    named_barrier: u32,
    #[comptime] config: BackwardConfig,
    #[comptime] partial: bool,
) {
    let dim = comptime!(config.head_dim);
    let unit = UNIT_POS_X % SQUAD as u32;
    let lane = unit % 32;
    let plane_row = unit / 32 * 16;
    if comptime!(partial) {
        let row_of_lane = plane_row + lane / 4;
        let row = split_rows + key_row + u64::cast_from(row_of_lane);
        let address =
            gradient + row * comptime!(4 * dim as u64) + u64::cast_from(lane % 4 * 8);
        #[unroll]
        for row in 0..2usize {
            if row_of_lane + comptime!(8 * row as u32) < valid {
                #[unroll]
                for n in 0..comptime!(dim / 8) {
                    let at = comptime!(4 * n + 2 * row);
                    store_pair_global(
                        address,
                        comptime!(8 * row * 4 * dim + n * 32),
                        sums.extract(at) * factor,
                        sums.extract(comptime!(at + 1)) * factor,
                    );
                }
            }
        }
    } else {
        // All planes of the squad are done with the tile.
        wait_for_units(named_barrier, SQUAD);
        let to = gradient + key_row * comptime!(2 * dim as u64);
        store_panel_sums::<E, N>(sums, factor, factor, own, plane_row, KEY_ROWS, dim);
        sync_plane();
        store_panel_rows(own, to, plane_row, valid, KEY_ROWS, dim);
    }
}

/// Sets the exponents of what is hidden in half of a stage to minus infinity.
///
/// `key`: the lane's first key, `row`: its first query row.
#[cube]
fn hide<N: Size>(
    exponents: Vector<f32, N>,
    #[comptime] half: usize,
    key_start: &[u32],
    key_end: &[u32],
    key_position: &[u32],
    query_position: &[u32],
    batch: u32,
    key: u32,
    row: u32,
    n_keys: u32,
    n_queries: u32,
    window: u32,
    #[comptime] config: BackwardConfig,
) -> Vector<f32, N> {
    let mut starts = Array::<u32>::new(2usize);
    let mut lengths = Array::<u32>::new(2usize);
    let mut positions = Array::<u32>::new(2usize);
    #[unroll]
    for of_lane in 0..2usize {
        let key = key + comptime!(8 * of_lane as u32);
        starts[of_lane] = 0u32;
        lengths[of_lane] = 0u32;
        if key < n_keys {
            let at = batch * n_keys + key;
            starts[of_lane] = key_start[at as usize];
            lengths[of_lane] = key_end[at as usize] - starts[of_lane];
            if comptime!(config.window) {
                positions[of_lane] = key_position[at as usize];
            }
        }
    }
    let mut visible_only = exponents;
    #[unroll]
    for i in 0..comptime!(TILE_ROWS / 4) {
        let (tile, column) = comptime!((i / 2, i % 2));
        let n = comptime!(half * TILE_ROWS / 8 + tile);
        let row = row + comptime!((tile * 8 + column) as u32);
        let mut position = 0u32;
        if comptime!(config.window) {
            let index = batch * n_queries + min(row, n_queries - 1);
            position = query_position[index as usize];
        }
        #[unroll]
        for of_lane in 0..2usize {
            // Rows before the start wrap around to large numbers.
            let mut visible = row - starts[of_lane] < lengths[of_lane];
            if comptime!(config.window) {
                visible = visible && within_window(position, positions[of_lane], window);
            }
            let at = comptime!(4 * n + 2 * of_lane + column);
            let exponent = select(visible, exponents.extract(at), f32::NEG_INFINITY);
            visible_only.insert(at, exponent);
        }
    }
    visible_only
}
