//! Forward pass with warpgroups: one copies keys and values, two compute. One of these uses the
//! tensor cores while the other computes its softmax.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::arguments::*;
use super::barrier::*;
use super::copies::*;
use super::softmax::*;
use super::stage::*;
use super::warpgroup::*;
use burn_tree_kit::cube::matrix::*;

/// Compile-time shape of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WarpgroupForwardConfig {
    /// Numbers per row of query, key and value: 64 or 128.
    pub head_dim: usize,
    /// Query rows of a tile.
    pub query_rows: usize,
    /// Query heads of one key head that a cube works on: the rows of its tile are
    /// `heads * query_rows`, head by head.
    pub heads: usize,
    /// What happens to a product of query and key before the softmax.
    pub scores: ScoreMap,
    /// Whether there is a sliding window.
    pub window: bool,
}

impl WarpgroupForwardConfig {
    /// Rows of a cube's tile of queries.
    pub fn rows(&self) -> usize {
        self.heads * self.query_rows
    }

    /// Units that compute.
    pub fn computing_units(&self) -> usize {
        self.rows() / ROWS * PLANES * PLANE
    }

    /// Units of a cube.
    pub fn units(&self) -> usize {
        self.computing_units() + COPYING
    }

    fn key_bytes(&self) -> usize {
        panel_tile_bytes(STAGE_ROWS, self.head_dim)
    }

    /// Words per key besides its row: start and end of its interval, and its position.
    fn key_words(&self) -> usize {
        if self.window { 3 } else { 2 }
    }

    fn words_bytes(&self) -> usize {
        self.key_words() * STAGE_ROWS * 4
    }

    /// Where the stages start: keys and values, in turn.
    fn stages_at(&self) -> usize {
        panel_tile_bytes(self.rows(), self.head_dim)
    }

    /// Where the intervals of the stages start.
    fn words_at(&self) -> usize {
        self.stages_at() + STAGES * 2 * self.key_bytes()
    }

    /// Where the barriers start: of each stage, keys there, keys free, values there, values free.
    fn barriers_at(&self) -> usize {
        self.words_at() + STAGES * self.words_bytes()
    }

    /// Bytes of shared memory of a cube.
    pub fn shared_bytes(&self) -> usize {
        self.barriers_at() + STAGES * 4 * BARRIER_BYTES
    }
}

/// Attention of one tile of query rows of up to 8 heads that share a key head; arguments as those
/// of [`tree_attention_forward`](super::forward::tree_attention_forward).
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_forward_warpgroup<E: Float>(
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
    #[comptime] config: WarpgroupForwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let dim = comptime!(config.head_dim);
    let tiles = n_queries.div_ceil(comptime!(config.query_rows as u32));
    let tile = tile_at(&lists, CUBE_POS_X, tiles, config.query_rows);
    let first_head = CUBE_POS_Y * comptime!(config.heads as u32);
    // Row of [B * Hq] and of [B * Hkv].
    let query_row = tile.batch * query_heads + first_head;
    let key_row = tile.batch * (query_heads / group) + first_head / group;
    let begin = lists.offsets[tile.number as usize];
    let end = lists.offsets[tile.number as usize + 1];

    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 1024usize);
    let shared = shared_address(&memory);
    let barriers = shared + comptime!(config.barriers_at() as u32);
    if UNIT_POS_X == 0 {
        #[unroll]
        for stage in 0..STAGES {
            let barrier = barriers + comptime!((stage * 4 * BARRIER_BYTES) as u32);
            let planes = comptime!(config.computing_units() / PLANE);
            init_barrier(barrier, COPYING);
            init_barrier(barrier + 8, planes);
            init_barrier(barrier + 16, COPYING);
            init_barrier(barrier + 24, planes);
        }
    }
    sync_cube();

    if UNIT_POS_X >= comptime!(config.computing_units() as u32) {
        let first_key = u64::cast_from(key_row) * u64::cast_from(n_keys);
        let unit = UNIT_POS_X % COPYING as u32;
        let mut stage = 0u32;
        let mut parity = 1u32;
        // Barrier of the values that are on their way.
        let mut landing = barriers;
        let mut index = begin;
        while index < end {
            let key_stage = shared
                + comptime!(config.stages_at() as u32)
                + stage * comptime!(2 * config.key_bytes() as u32);
            let barrier = barriers + stage * comptime!(4 * BARRIER_BYTES as u32);
            let words = shared
                + comptime!(config.words_at() as u32)
                + stage * comptime!(config.words_bytes() as u32);

            wait_barrier(barrier + 8, parity);
            #[unroll]
            for half in 0..2u32 {
                let (entry, valid) = entry_of(&lists.entries, index + half, end, n_keys);
                let first = (entry >> 1) * TILE_ROWS as u32;
                if entry & 1 == 1 {
                    copy_intervals(
                        &mask,
                        words + comptime!(half * 4 * TILE_ROWS as u32),
                        tile.batch * n_keys + first,
                        unit,
                        valid,
                        comptime!(4 * STAGE_ROWS),
                        config.window,
                    );
                }
                let row = first_key + u64::cast_from(first);
                let from = global_address::<E>(key) + row * comptime!(2 * dim as u64);
                copy_tile(from, key_stage, half, unit, valid, entry, dim);
            }
            commit_copies();
            if index > begin {
                land(landing, 1usize);
            }

            wait_barrier(barrier + 24, parity);
            #[unroll]
            for half in 0..2u32 {
                let (entry, valid) = entry_of(&lists.entries, index + half, end, n_keys);
                let row = first_key + u64::cast_from((entry >> 1) * TILE_ROWS as u32);
                let from = global_address::<E>(value) + row * comptime!(2 * dim as u64);
                let to = key_stage + comptime!(config.key_bytes() as u32);
                copy_tile(from, to, half, unit, valid, entry, dim);
            }
            commit_copies();
            land(barrier, 1usize);

            landing = barrier + 16;
            index += 2;
            stage += 1;
            if stage == STAGES as u32 {
                stage = 0;
                parity = parity ^ 1;
            }
        }
        if begin < end {
            land(landing, 0usize);
        }
    } else {
        compute::<E>(
            query,
            &mask,
            &lists,
            output,
            log_sum_exp,
            n_queries,
            tile,
            query_row,
            begin,
            end,
            shared,
            barriers,
            scale_log2,
            score_factor,
            window,
            config,
        );
    }
}

/// What the computing planes do.
#[cube]
fn compute<E: Float>(
    query: &[E],
    mask: &Mask,
    lists: &Lists,
    output: &mut [Vector<u32, Const<4>>],
    log_sum_exp: &mut [f32],
    n_queries: u32,
    tile: Tile,
    query_row: u32,
    begin: u32,
    end: u32,
    shared: u32,
    barriers: u32,
    scale_log2: f32,
    score_factor: f32,
    window: u32,
    #[comptime] config: WarpgroupForwardConfig,
) {
    let dim = comptime!(config.head_dim);
    let score_tiles = comptime!(STAGE_ROWS / 8);
    let output_tiles = comptime!(dim / 8);
    let size!(ScoreSize) = comptime!(STAGE_ROWS / 2);
    let size!(ProbabilitySize) = comptime!(STAGE_ROWS / 4);
    let size!(OutputSize) = comptime!(dim / 2);

    let unit = UNIT_POS_X;
    let lane = unit % 32;
    let plane_row = unit / 32 * 16;
    let squad = unit / comptime!((PLANES * PLANE) as u32);

    #[unroll]
    for head in 0..comptime!(config.heads) {
        let row = u64::cast_from(query_row + comptime!(head as u32)) * u64::cast_from(n_queries)
            + u64::cast_from(tile.first);
        copy_panel_rows(
            global_address::<E>(query) + row * comptime!(2 * dim as u64),
            shared + comptime!((head * config.query_rows * 128) as u32),
            unit,
            n_queries - tile.first,
            config.query_rows,
            comptime!(config.rows()),
            dim,
            comptime!(config.computing_units()),
            true,
        );
    }
    commit_copies();
    wait_copies(0usize);
    fence_products();
    wait_for_units(1u32, comptime!(config.computing_units()));
    // The first squad's turn.
    if squad == 1 && begin < end {
        signal_units(2u32, comptime!(2 * PLANES * PLANE));
    }

    let query_tile = describe_by_rows(shared + squad * comptime!((ROWS * 128) as u32));
    let mut sums = Vector::<f32, OutputSize>::new(0.0f32);
    let mut probabilities = Vector::<u32, ProbabilitySize>::new(0u32);
    let mut row_maximum = Array::<f32>::new(2usize);
    let mut row_total = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        row_maximum[row] = LOWEST;
        row_total[row] = 0.0f32;
    }

    let mut stage = 0u32;
    let mut parity = 0u32;
    let mut last_stage = 0u32;
    let mut last_parity = 0u32;
    let mut index = begin;
    while index < end {
        let key_stage = shared
            + comptime!(config.stages_at() as u32)
            + stage * comptime!(2 * config.key_bytes() as u32);
        let barrier = barriers + stage * comptime!(4 * BARRIER_BYTES as u32);
        wait_for_units(2 + squad, comptime!(2 * PLANES * PLANE));
        if index > begin {
            sums = add_values::<E, OutputSize, ProbabilitySize>(
                sums,
                probabilities,
                shared,
                barriers,
                last_stage,
                last_parity,
                lane,
                config,
            );
        }
        wait_barrier(barrier, parity);
        let mut scores = multiply_panel_rows::<E, ScoreSize>(
            query_tile,
            describe_by_rows(key_stage),
            dim,
            comptime!(config.rows()),
            STAGE_ROWS,
        );
        if index + 2 < end || squad == 0 {
            signal_units(3 - squad, comptime!(2 * PLANES * PLANE));
        }

        if comptime!(config.scores != ScoreMap::Plain) {
            let mut mapped = Vector::<f32, ScoreSize>::empty();
            #[unroll]
            for i in 0..comptime!(STAGE_ROWS / 2) {
                let score = scores.extract(i);
                mapped.insert(i, mapped_score(score, score_factor, config.scores));
            }
            scores = mapped;
        }
        let words = shared
            + comptime!(config.words_at() as u32)
            + stage * comptime!(config.words_bytes() as u32)
            + lane % 4 * 8;
        #[unroll]
        for half in 0..2usize {
            let (entry, _valid) =
                entry_of(&lists.entries, index + comptime!(half as u32), end, 0u32);
            if entry & 1 == 1 {
                scores = mask_scores::<ScoreSize>(
                    scores,
                    words,
                    half,
                    mask,
                    tile.batch * n_queries,
                    tile.first,
                    n_queries,
                    plane_row + lane / 4,
                    window,
                    config,
                );
            }
        }
        sync_plane();
        if lane == 0 {
            arrive(barrier + 8);
        }

        // Online softmax, as in the kernel of single planes.
        let mut next_maximum = Array::<f32>::new(2usize);
        let mut grows = false;
        #[unroll]
        for row in 0..2usize {
            let mut highest = row_maximum[row];
            #[unroll]
            for n in 0..score_tiles {
                highest = max(highest, scores.extract(comptime!(4 * n + 2 * row)));
                highest = max(highest, scores.extract(comptime!(4 * n + 2 * row + 1)));
            }
            let highest = row_max(highest);
            next_maximum[row] = highest;
            grows = grows || (highest - row_maximum[row]) * scale_log2 > SLACK;
        }
        if plane_agrees_any(grows) {
            let mut rescaled = Vector::<f32, OutputSize>::empty();
            #[unroll]
            for row in 0..2usize {
                let factor = exp2((row_maximum[row] - next_maximum[row]) * scale_log2);
                row_maximum[row] = next_maximum[row];
                row_total[row] *= factor;
                #[unroll]
                for n in 0..output_tiles {
                    let at = comptime!(4 * n + 2 * row);
                    rescaled.insert(at, sums.extract(at) * factor);
                    rescaled.insert(comptime!(at + 1), sums.extract(comptime!(at + 1)) * factor);
                }
            }
            sums = rescaled;
        }
        let mut packed = Vector::<u32, ProbabilitySize>::empty();
        #[unroll]
        for row in 0..2usize {
            let shift = row_maximum[row] * scale_log2;
            #[unroll]
            for n in 0..score_tiles {
                let at = comptime!(4 * n + 2 * row);
                let first = exp2(scores.extract(at) * scale_log2 - shift);
                let second = exp2(scores.extract(comptime!(at + 1)) * scale_log2 - shift);
                row_total[row] += first + second;
                packed.insert(comptime!(2 * n + row), pack::<E>(first, second));
            }
        }
        probabilities = packed;

        last_stage = stage;
        last_parity = parity;
        index += 2;
        stage += 1;
        if stage == STAGES as u32 {
            stage = 0;
            parity = parity ^ 1;
        }
    }
    if begin < end {
        sums = add_values::<E, OutputSize, ProbabilitySize>(
            sums,
            probabilities,
            shared,
            barriers,
            last_stage,
            last_parity,
            lane,
            config,
        );
    }

    // Each squad stages its rows where its rows of the query were, once all its planes are done.
    wait_for_units(4 + squad, comptime!(PLANES * PLANE));
    let output_rows = OutputRows {
        query_row,
        first_query: tile.first,
        n_queries,
        query_rows: config.query_rows,
    };
    let mut factors = Array::<f32>::new(2usize);
    #[unroll]
    for row in 0..2usize {
        let total = row_sum(row_total[row]);
        let seen = total > 0.0f32;
        factors[row] = select(seen, reciprocal(total), 0.0f32);
        let tile_row = plane_row + lane / 4 + comptime!(8 * row as u32);
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
    let rows = comptime!(config.rows());
    store_panel_sums::<E, OutputSize>(sums, factors[0], factors[1], shared, plane_row, rows, dim);
    sync_plane();
    let row_chunks = comptime!((2 * dim / CHUNK) as u32);
    #[unroll]
    for pass in 0..comptime!(16 * 2 * dim / CHUNK / PLANE) {
        let chunk = lane + comptime!((pass * PLANE) as u32);
        let tile_row = plane_row + chunk / row_chunks;
        let column = chunk % row_chunks;
        let query = output_rows.query(tile_row);
        if query < n_queries {
            let at = output_rows.at(tile_row, query);
            output[(at * row_chunks + column) as usize] =
                load_panel_chunk(shared, tile_row, column, rows);
        }
    }
}

/// Adds the product of probabilities and the values of a stage, and frees them.
#[cube]
fn add_values<E: Float, N: Size, K: Size>(
    sums: Vector<f32, N>,
    probabilities: Vector<u32, K>,
    shared: u32,
    barriers: u32,
    stage: u32,
    parity: u32,
    lane: u32,
    #[comptime] config: WarpgroupForwardConfig,
) -> Vector<f32, N> {
    let value_stage = shared
        + comptime!((config.stages_at() + config.key_bytes()) as u32)
        + stage * comptime!(2 * config.key_bytes() as u32);
    let barrier = barriers + stage * comptime!(4 * BARRIER_BYTES as u32);
    wait_barrier(barrier + 16, parity);
    let sums = multiply_add_panel_columns::<E, N, K>(
        probabilities,
        describe_by_columns(value_stage, STAGE_ROWS),
        sums,
        STAGE_ROWS,
        config.head_dim,
    );
    if lane == 0 {
        arrive(barrier + 24);
    }
    sums
}

/// Scores with minus infinity for the keys of one half of a stage that a row does not see; the
/// arguments are those of the kernel of single planes.
#[cube]
fn mask_scores<N: Size>(
    scores: Vector<f32, N>,
    intervals: u32,
    #[comptime] half: usize,
    mask: &Mask,
    first_position: u32,
    first_query: u32,
    n_queries: u32,
    tile_row: u32,
    window: u32,
    #[comptime] config: WarpgroupForwardConfig,
) -> Vector<f32, N> {
    let array_bytes = comptime!(STAGE_ROWS * 4);
    let rows = rows_of_lane(
        mask,
        first_position,
        first_query,
        n_queries,
        tile_row,
        2usize,
        config.query_rows,
        config.window,
    );
    let mut masked = scores;
    #[unroll]
    for tile in 0..comptime!(TILE_ROWS / 8) {
        let n = comptime!(half * TILE_ROWS / 8 + tile);
        let starts = load_pair(intervals, comptime!(n * 32));
        let ends = load_pair(intervals, comptime!(n * 32 + array_bytes));
        #[unroll]
        for row in 0..2usize {
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
                let at = comptime!(4 * n + 2 * row + column);
                masked.insert(at, select(visible, scores.extract(at), f32::NEG_INFINITY));
            }
        }
    }
    masked
}
