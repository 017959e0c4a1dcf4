//! Forward pass with matrix instructions: online softmax over the visible key tiles of a query
//! tile, scores and probabilities in registers.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use tree_training_cube::matrix::*;

/// Compile-time shape of the forward kernel: it depends on the dtype, the head dimension, the
/// number of query heads per key head and the options, not on the sizes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ForwardConfig {
    /// Numbers per row of query, key and value.
    pub head_dim: usize,
    /// Query rows of a tile.
    pub query_rows: usize,
    /// Query heads of one key head that a cube works on: the rows of its tile are
    /// `heads * query_rows`, head by head.
    pub heads: usize,
    /// Keys of a tile.
    pub key_rows: usize,
    /// Planes of a cube, each with an equal share of the rows.
    pub planes: usize,
    /// Tiles of keys and values in shared memory at a time.
    pub stages: usize,
    /// What happens to a product of query and key before the softmax.
    pub scores: ScoreMap,
    /// Whether there is a sliding window.
    pub window: bool,
}

/// What happens to a product of query and key before the softmax, which multiplies by a positive
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ScoreMap {
    /// Nothing.
    Plain,
    /// It is multiplied by any number, such as a negative scale.
    Multiplied,
    /// It is multiplied by any number and becomes its hyperbolic tangent.
    Capped,
}

impl ForwardConfig {
    /// 16-row blocks of a plane.
    pub fn blocks(&self) -> usize {
        self.heads * self.query_rows / self.planes / 16
    }

    /// Bytes of one stage: keys, values, and the intervals (and positions) of the keys.
    pub fn stage_bytes(&self) -> usize {
        2 * tile_bytes(self.key_rows, self.head_dim) + self.key_words() * self.key_rows * 4
    }

    /// Words per key besides its row: start and end of its interval, and its position.
    fn key_words(&self) -> usize {
        if self.window { 3 } else { 2 }
    }

    /// Bytes of shared memory of a cube.
    pub fn shared_bytes(&self) -> usize {
        tile_bytes(self.heads * self.query_rows, self.head_dim) + self.stages * self.stage_bytes()
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.planes * PLANE
    }
}

/// Scores start from here instead of minus infinity, so that the difference of two maxima is a
/// number: lower than any score that f32 sums of 16-bit products reach in practice.
pub(crate) const LOWEST: f32 = -1e30;
/// Growth of a row's maximum, as a power of two, up to which its sums are not rescaled.
pub(crate) const SLACK: f32 = 8.0;
pub(crate) const LN_2: f32 = core::f32::consts::LN_2;

/// Starts the copies of the tile of a plan's entry into the stage at `stage`.
///
/// `first_key`, `first_interval`: the batch row and head's first key in `key` and `value`, and the
/// batch row's first in the intervals.
#[cube]
fn copy_stage<E: Float>(
    key: &[E],
    value: &[E],
    key_start: &[u32],
    key_end: &[u32],
    key_position: &[u32],
    first_key: u64,
    first_interval: u32,
    n_keys: u32,
    entry: u32,
    stage: u32,
    #[comptime] config: ForwardConfig,
) {
    let (rows, dim, units) = comptime!((config.key_rows, config.head_dim, config.units()));
    let first = (entry >> 1) * comptime!(rows as u32);
    let offset = (first_key + u64::cast_from(first)) * comptime!(2 * dim as u64);
    let key = global_address::<E>(key) + offset;
    let value = global_address::<E>(value) + offset;
    let value_stage = stage + comptime!(tile_bytes(rows, dim) as u32);
    let valid = n_keys - first;
    if entry & 1 == 0 {
        copy_rows(key, stage, UNIT_POS_X, valid, rows, dim, units, false);
        copy_rows(
            value,
            value_stage,
            UNIT_POS_X,
            valid,
            rows,
            dim,
            units,
            false,
        );
    } else {
        copy_rows(key, stage, UNIT_POS_X, valid, rows, dim, units, true);
        copy_rows(
            value,
            value_stage,
            UNIT_POS_X,
            valid,
            rows,
            dim,
            units,
            true,
        );
        // Intervals may begin at any multiple of 4 bytes, so they are copied word by word.
        let words = stage + comptime!(2 * tile_bytes(rows, dim) as u32);
        let from = u64::cast_from(first_interval + first) * 4;
        copy_words(
            global_address::<u32>(key_start) + from,
            words,
            valid,
            config,
        );
        let words = words + comptime!(4 * rows as u32);
        copy_words(global_address::<u32>(key_end) + from, words, valid, config);
        if comptime!(config.window) {
            let words = words + comptime!(4 * rows as u32);
            copy_words(
                global_address::<u32>(key_position) + from,
                words,
                valid,
                config,
            );
        }
    }
}

/// Starts copying a word for each key of a tile, zeros from key `valid` on.
#[cube]
fn copy_words(from: u64, to: u32, valid: u32, #[comptime] config: ForwardConfig) {
    // There are fewer keys than units.
    let index = UNIT_POS_X;
    if index < comptime!(config.key_rows as u32) {
        copy_word_or_zero(
            from + u64::cast_from(index) * 4,
            to + index * 4,
            index < valid,
        );
    }
}

/// Attention of one tile of query rows of up to 8 heads that share a key head.
///
/// * `query`, `output` `[B, Hq, N, D]`, `key`, `value` `[B, Hkv, M, D]`, contiguous
/// * `key_start`, `key_end`, `key_position` `[B, M]`, `query_position` `[B, N]`
/// * `offsets`, `entries`, `order`: the plan by query tiles of `query_rows` x `key_rows`
/// * `output` as 16-byte chunks, `log_sum_exp` `[B, Hq, N]`
/// * `score_factor`: the number of [`ScoreMap`]; `scale_log2`: factor of what comes out of it,
///   times log2(e)
///
/// Cubes: x = tiles in `order`, y = `Hq / heads`.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_forward<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    key_start: &[u32],
    key_end: &[u32],
    key_position: &[u32],
    query_position: &[u32],
    offsets: &[u32],
    entries: &[u32],
    order: &[u32],
    output: &mut [Vector<u32, Const<4>>],
    log_sum_exp: &mut [f32],
    n_queries: u32,
    n_keys: u32,
    query_heads: u32,
    group: u32,
    scale_log2: f32,
    score_factor: f32,
    window: u32,
    #[comptime] config: ForwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let dim = comptime!(config.head_dim);
    let stride = comptime!(row_stride(dim));
    let query_rows = comptime!(config.query_rows as u32);
    let heads = comptime!(config.heads as u32);
    let blocks = comptime!(config.blocks());
    // 8-column tiles of the scores and of the output.
    let score_tiles = comptime!(config.key_rows / 8);
    let output_tiles = comptime!(dim / 8);

    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * comptime!((blocks * 16) as u32);
    let tiles = n_queries.div_ceil(query_rows);
    let tile = order[CUBE_POS_X as usize];
    let batch = tile / tiles;
    let first_query = tile % tiles * query_rows;
    let first_head = CUBE_POS_Y * heads;
    // Row of [B * Hq] and of [B * Hkv].
    let query_row = batch * query_heads + first_head;
    let key_row = batch * (query_heads / group) + first_head / group;

    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let stages = shared + comptime!(tile_bytes(config.heads * config.query_rows, dim) as u32);
    let stage_bytes = comptime!(config.stage_bytes() as u32);

    let first_key = u64::cast_from(key_row) * u64::cast_from(n_keys);
    let first_interval = batch * n_keys;

    let begin = offsets[tile as usize];
    let end = offsets[tile as usize + 1];

    #[unroll]
    for head in 0..comptime!(config.heads) {
        let row = u64::cast_from(query_row + comptime!(head as u32)) * u64::cast_from(n_queries)
            + u64::cast_from(first_query);
        let from = global_address::<E>(query) + row * comptime!(2 * dim as u64);
        let to = shared + comptime!((head * config.query_rows * stride) as u32);
        let valid = n_queries - first_query;
        copy_rows(
            from,
            to,
            UNIT_POS_X,
            valid,
            config.query_rows,
            dim,
            comptime!(config.units()),
            true,
        );
    }
    if begin < end {
        copy_stage::<E>(
            key,
            value,
            key_start,
            key_end,
            key_position,
            first_key,
            first_interval,
            n_keys,
            entries[begin as usize],
            stages,
            config,
        );
    }
    commit_copies();

    let query_address =
        shared + plane_row * comptime!(stride as u32) + lane_offset_by_rows(lane, dim);
    let key_lane = lane_offset_by_columns(lane, dim);
    let value_lane =
        lane_offset_by_rows(lane, dim) + comptime!(tile_bytes(config.key_rows, dim) as u32);

    let mut sums = Array::<Accumulator>::new(comptime!(blocks * output_tiles));
    #[unroll]
    for i in 0..comptime!(blocks * output_tiles) {
        sums[i] = Accumulator::new(0.0f32);
    }
    let mut row_maximum = Array::<f32>::new(comptime!(2 * blocks));
    let mut row_total = Array::<f32>::new(comptime!(2 * blocks));
    #[unroll]
    for row in 0..comptime!(2 * blocks) {
        row_maximum[row] = LOWEST;
        row_total[row] = 0.0f32;
    }

    let mut stage = stages;
    let mut next_stage = stages + stage_bytes;
    for index in begin..end {
        // This stage has landed, and no plane reads the other one any more.
        wait_copies(0usize);
        sync_cube();
        let entry = entries[index as usize];
        if index + 1 < end {
            copy_stage::<E>(
                key,
                value,
                key_start,
                key_end,
                key_position,
                first_key,
                first_interval,
                n_keys,
                entries[index as usize + 1],
                next_stage,
                config,
            );
        }
        commit_copies();

        // Scores
        let key_address = stage + key_lane;
        let mut scores = Array::<Accumulator>::new(comptime!(blocks * score_tiles));
        #[unroll]
        for i in 0..comptime!(blocks * score_tiles) {
            scores[i] = Accumulator::new(0.0f32);
        }
        #[unroll]
        for k in 0..comptime!(dim / 16) {
            let mut left = Array::<Fragment>::new(blocks);
            #[unroll]
            for block in 0..blocks {
                let offset = comptime!(block * 16 * stride + k * 32);
                left[block] = load_block(query_address, offset, false);
            }
            #[unroll]
            for n in 0..comptime!(config.key_rows / 16) {
                let offset = comptime!(n * 16 * stride + k * 32);
                let right = load_block(key_address, offset, false);
                #[unroll]
                for block in 0..blocks {
                    let at = comptime!(block * score_tiles + 2 * n);
                    scores[at] = multiply_add::<E>(
                        left[block],
                        right.extract(0usize),
                        right.extract(1usize),
                        scores[at],
                    );
                    scores[at + 1] = multiply_add::<E>(
                        left[block],
                        right.extract(2usize),
                        right.extract(3usize),
                        scores[at + 1],
                    );
                }
            }
        }
        if comptime!(config.scores != ScoreMap::Plain) {
            #[unroll]
            for i in 0..comptime!(blocks * score_tiles) {
                let mut mapped = Accumulator::empty();
                #[unroll]
                for j in 0..4usize {
                    let score = scores[i].extract(j) * score_factor;
                    if comptime!(config.scores == ScoreMap::Capped) {
                        mapped.insert(j, tanh(score));
                    } else {
                        mapped.insert(j, score);
                    }
                }
                scores[i] = mapped;
            }
        }
        if entry & 1 == 1 {
            mask_scores(
                &mut scores,
                stage + comptime!(2 * tile_bytes(config.key_rows, dim) as u32) + lane % 4 * 8,
                query_position,
                batch * n_queries,
                first_query,
                n_queries,
                plane_row + lane / 4,
                window,
                config,
            );
        }

        // Online softmax
        let mut next_maximum = Array::<f32>::new(comptime!(2 * blocks));
        let mut grows = false;
        #[unroll]
        for row in 0..comptime!(2 * blocks) {
            let (block, half) = comptime!((row / 2, row % 2));
            let mut highest = row_maximum[row];
            #[unroll]
            for n in 0..score_tiles {
                let tile = scores[comptime!(block * score_tiles + n)];
                highest = max(highest, tile.extract(comptime!(2 * half)));
                highest = max(highest, tile.extract(comptime!(2 * half + 1)));
            }
            let highest = row_max(highest);
            next_maximum[row] = highest;
            grows = grows || (highest - row_maximum[row]) * scale_log2 > SLACK;
        }
        // The maximum only keeps the powers in range, so a slightly lower one is as good: sums
        // are rescaled when some row of the plane grew by more than the slack.
        if plane_agrees_any(grows) {
            #[unroll]
            for row in 0..comptime!(2 * blocks) {
                let (block, half) = comptime!((row / 2, row % 2));
                let factor = exp2((row_maximum[row] - next_maximum[row]) * scale_log2);
                row_maximum[row] = next_maximum[row];
                row_total[row] *= factor;
                #[unroll]
                for n in 0..output_tiles {
                    let at = comptime!(block * output_tiles + n);
                    let mut sum = sums[at];
                    sum.insert(
                        comptime!(2 * half),
                        sum.extract(comptime!(2 * half)) * factor,
                    );
                    sum.insert(
                        comptime!(2 * half + 1),
                        sum.extract(comptime!(2 * half + 1)) * factor,
                    );
                    sums[at] = sum;
                }
            }
        }
        #[unroll]
        for row in 0..comptime!(2 * blocks) {
            let (block, half) = comptime!((row / 2, row % 2));
            let shift = row_maximum[row] * scale_log2;
            #[unroll]
            for n in 0..score_tiles {
                let at = comptime!(block * score_tiles + n);
                let mut tile = scores[at];
                let first = exp2(tile.extract(comptime!(2 * half)) * scale_log2 - shift);
                let second = exp2(tile.extract(comptime!(2 * half + 1)) * scale_log2 - shift);
                row_total[row] += first + second;
                tile.insert(comptime!(2 * half), first);
                tile.insert(comptime!(2 * half + 1), second);
                scores[at] = tile;
            }
        }

        // Output
        let value_address = stage + value_lane;
        #[unroll]
        for k in 0..comptime!(config.key_rows / 16) {
            let mut left = Array::<Fragment>::new(blocks);
            #[unroll]
            for block in 0..blocks {
                let at = comptime!(block * score_tiles + 2 * k);
                left[block] = pack_left::<E>(scores[at], scores[at + 1]);
            }
            #[unroll]
            for n in 0..comptime!(dim / 16) {
                let offset = comptime!(k * 16 * stride + n * 32);
                let right = load_block(value_address, offset, true);
                #[unroll]
                for block in 0..blocks {
                    let at = comptime!(block * output_tiles + 2 * n);
                    sums[at] = multiply_add::<E>(
                        left[block],
                        right.extract(0usize),
                        right.extract(1usize),
                        sums[at],
                    );
                    sums[at + 1] = multiply_add::<E>(
                        left[block],
                        right.extract(2usize),
                        right.extract(3usize),
                        sums[at + 1],
                    );
                }
            }
        }

        let this_stage = stage;
        stage = next_stage;
        next_stage = this_stage;
    }
    // Without entries, the copies of the query are still on their way.
    wait_copies(0usize);
    sync_cube();

    // Each plane stages its rows where its rows of the query were.
    let store_address = shared + (plane_row + lane / 4) * comptime!(stride as u32) + lane % 4 * 4;
    #[unroll]
    for row in 0..comptime!(2 * blocks) {
        let (block, half) = comptime!((row / 2, row % 2));
        let total = row_sum(row_total[row]);
        let seen = total > 0.0f32;
        let factor = select(seen, reciprocal(total), 0.0f32);
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
        let tile_row = plane_row + lane / 4 + comptime!((block * 16 + half * 8) as u32);
        let query_index = first_query + tile_row % query_rows;
        if lane % 4 == 0 && query_index < n_queries {
            let at = (query_row + tile_row / query_rows) * n_queries + query_index;
            let value = (row_maximum[row] * scale_log2 + log2(total)) * LN_2;
            log_sum_exp[at as usize] = select(seen, value, 0.0f32);
        }
    }
    sync_plane();
    let row_chunks = comptime!((2 * dim / CHUNK) as u32);
    let plane_chunks = comptime!(blocks * 16 * 2 * dim / CHUNK);
    #[unroll]
    for pass in 0..comptime!(plane_chunks / PLANE) {
        let chunk = lane + comptime!((pass * PLANE) as u32);
        let tile_row = plane_row + chunk / row_chunks;
        let column = chunk % row_chunks;
        let query_index = first_query + tile_row % query_rows;
        if query_index < n_queries {
            let from = shared + tile_row * comptime!(stride as u32) + column * CHUNK as u32;
            let at = (query_row + tile_row / query_rows) * n_queries + query_index;
            output[(at * row_chunks + column) as usize] = load_chunk(from, 0usize);
        }
    }
}

/// Sets the scores of keys that a row does not see to minus infinity.
///
/// `intervals`: address of the stage's intervals, plus 8 for every column pair of the lane;
/// `tile_row`: the lane's first row in the tile.
#[cube]
fn mask_scores(
    scores: &mut Array<Accumulator>,
    intervals: u32,
    query_position: &[u32],
    first_position: u32,
    first_query: u32,
    n_queries: u32,
    tile_row: u32,
    window: u32,
    #[comptime] config: ForwardConfig,
) {
    let blocks = comptime!(config.blocks());
    let score_tiles = comptime!(config.key_rows / 8);
    let query_rows = comptime!(config.query_rows as u32);
    let array_bytes = comptime!(config.key_rows * 4);
    let mut query_index = Array::<u32>::new(comptime!(2 * blocks));
    let mut positions = Array::<u32>::new(comptime!(2 * blocks));
    #[unroll]
    for row in 0..comptime!(2 * blocks) {
        let offset = comptime!((row / 2 * 16 + row % 2 * 8) as u32);
        let index = first_query + (tile_row + offset) % query_rows;
        query_index[row] = index;
        if comptime!(config.window) {
            // Rows past the last one see nothing anyway.
            let index = min(index, n_queries - 1);
            positions[row] = query_position[(first_position + index) as usize];
        }
    }
    #[unroll]
    for n in 0..score_tiles {
        let starts = load_pair(intervals, comptime!(n * 32));
        let ends = load_pair(intervals, comptime!(n * 32 + array_bytes));
        #[unroll]
        for row in 0..comptime!(2 * blocks) {
            let (block, half) = comptime!((row / 2, row % 2));
            let at = comptime!(block * score_tiles + n);
            let mut tile = scores[at];
            #[unroll]
            for column in 0..2usize {
                let mut visible = query_index[row] >= starts.extract(column)
                    && query_index[row] < ends.extract(column);
                if comptime!(config.window) {
                    let of_keys = load_pair(intervals, comptime!(n * 32 + 2 * array_bytes));
                    visible = visible && positions[row] < of_keys.extract(column) + window;
                }
                let element = comptime!(2 * half + column);
                let score = select(visible, tile.extract(element), f32::NEG_INFINITY);
                tile.insert(element, score);
            }
            scores[at] = tile;
        }
    }
}
