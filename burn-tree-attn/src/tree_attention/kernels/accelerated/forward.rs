//! Forward pass on tensor cores: online softmax over the visible key tiles of a query
//! tile, scores and probabilities in registers.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::arguments::*;
use super::copies::*;
use super::softmax::*;
use burn_tree_kit::cube::matrix::*;

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

/// Starts the copies of the tile of a plan's entry into the stage at `stage`.
///
/// `first_key`, `first_interval`: the batch row and head's first key in `key` and `value`, and the
/// batch row's first in the intervals.
#[cube]
fn copy_stage<E: Float>(
    key: &[E],
    value: &[E],
    mask: &Mask,
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
        copy_intervals(
            mask,
            stage + comptime!(2 * tile_bytes(rows, dim) as u32),
            first_interval + first,
            UNIT_POS_X,
            valid,
            comptime!(4 * rows),
            config.window,
        );
    }
}

/// Attention of one tile of query rows of up to 8 heads that share a key head.
///
/// * `query`, `output` `[B, Hq, N, D]`, `key`, `value` `[B, Hkv, M, D]`, contiguous
/// * `lists`: the plan by query tiles of `query_rows` x `key_rows`
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
    mask: Mask,
    lists: Lists,
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
    let blocks = comptime!(config.blocks());
    // 8-column tiles of the scores and of the output.
    let score_tiles = comptime!(config.key_rows / 8);
    let output_tiles = comptime!(dim / 8);

    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * comptime!((blocks * 16) as u32);
    let tiles = n_queries.div_ceil(comptime!(config.query_rows as u32));
    let tile = tile_at(&lists, CUBE_POS_X, tiles, config.query_rows);
    let first_head = CUBE_POS_Y * comptime!(config.heads as u32);
    // Row of [B * Hq] and of [B * Hkv].
    let query_row = tile.batch * query_heads + first_head;
    let key_row = tile.batch * (query_heads / group) + first_head / group;

    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let stages = shared + comptime!(tile_bytes(config.heads * config.query_rows, dim) as u32);
    let stage_bytes = comptime!(config.stage_bytes() as u32);

    let first_key = u64::cast_from(key_row) * u64::cast_from(n_keys);
    let first_interval = tile.batch * n_keys;

    let begin = lists.offsets[tile.number as usize];
    let end = lists.offsets[tile.number as usize + 1];

    #[unroll]
    for head in 0..comptime!(config.heads) {
        let row = u64::cast_from(query_row + comptime!(head as u32)) * u64::cast_from(n_queries)
            + u64::cast_from(tile.first);
        let from = global_address::<E>(query) + row * comptime!(2 * dim as u64);
        let to = shared + comptime!((head * config.query_rows * stride) as u32);
        let valid = n_queries - tile.first;
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
            &mask,
            first_key,
            first_interval,
            n_keys,
            lists.entries[begin as usize],
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
        let entry = lists.entries[index as usize];
        if index + 1 < end {
            copy_stage::<E>(
                key,
                value,
                &mask,
                first_key,
                first_interval,
                n_keys,
                lists.entries[index as usize + 1],
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
                    let score = scores[i].extract(j);
                    mapped.insert(j, mapped_score(score, score_factor, config.scores));
                }
                scores[i] = mapped;
            }
        }
        if entry & 1 == 1 {
            mask_scores(
                &mut scores,
                stage + comptime!(2 * tile_bytes(config.key_rows, dim) as u32) + lane % 4 * 8,
                &mask,
                tile.batch * n_queries,
                tile.first,
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
    let output_rows = OutputRows {
        query_row,
        first_query: tile.first,
        n_queries,
        query_rows: config.query_rows,
    };
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
        output_rows.store_log_sum_exp(
            log_sum_exp,
            tile_row,
            lane,
            &row_maximum,
            row,
            total,
            scale_log2,
            seen,
        );
    }
    sync_plane();
    let row_chunks = comptime!((2 * dim / CHUNK) as u32);
    let plane_chunks = comptime!(blocks * 16 * 2 * dim / CHUNK);
    #[unroll]
    for pass in 0..comptime!(plane_chunks / PLANE) {
        let chunk = lane + comptime!((pass * PLANE) as u32);
        let tile_row = plane_row + chunk / row_chunks;
        let column = chunk % row_chunks;
        let query = output_rows.query(tile_row);
        if query < n_queries {
            let from = shared + tile_row * comptime!(stride as u32) + column * CHUNK as u32;
            let at = output_rows.at(tile_row, query);
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
    mask: &Mask,
    first_position: u32,
    first_query: u32,
    n_queries: u32,
    tile_row: u32,
    window: u32,
    #[comptime] config: ForwardConfig,
) {
    let lane_rows = comptime!(2 * config.blocks());
    let score_tiles = comptime!(config.key_rows / 8);
    let array_bytes = comptime!(config.key_rows * 4);
    let rows = rows_of_lane(
        mask,
        first_position,
        first_query,
        n_queries,
        tile_row,
        lane_rows,
        config.query_rows,
        config.window,
    );
    #[unroll]
    for n in 0..score_tiles {
        let starts = load_pair(intervals, comptime!(n * 32));
        let ends = load_pair(intervals, comptime!(n * 32 + array_bytes));
        #[unroll]
        for row in 0..lane_rows {
            let (block, half) = comptime!((row / 2, row % 2));
            let at = comptime!(block * score_tiles + n);
            let mut tile = scores[at];
            #[unroll]
            for column in 0..2usize {
                let visible = sees(
                    &rows,
                    row,
                    starts,
                    ends,
                    column,
                    intervals,
                    comptime!(n * 32 + 2 * array_bytes),
                    window,
                    config.window,
                );
                let element = comptime!(2 * half + column);
                let score = select(visible, tile.extract(element), f32::NEG_INFINITY);
                tile.insert(element, score);
            }
            scores[at] = tile;
        }
    }
}
