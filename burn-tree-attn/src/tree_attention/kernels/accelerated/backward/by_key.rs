//! What both key and value kernels do: their products have keys as rows and queries as columns.

use cubecl::prelude::*;

use super::super::arguments::{Lists, Mask, Sizes, tile_at};
use super::super::products::hide_unless;
use super::arguments::{BackwardTensors, Scores};
use super::blocks::*;
use burn_tree_kit::cube::matrix::*;

/// A tile of keys of a key head, and those of its query heads that a cube goes through.
#[derive(CubeType, Clone, Copy)]
pub(super) struct KeyTile {
    /// Rows of a head in the statistics.
    pub padded_queries: u32,
    /// Number of the cube among the `splits` that share the tile.
    pub split: u32,
    pub splits: u32,
    pub kv_head: u32,
    pub batch: u32,
    /// First key of the tile in its batch row.
    pub first_key: u32,
    /// The tile's list.
    pub begin: u32,
    pub end: u32,
    pub heads: u32,
    /// As many as the list is long, for every head.
    pub steps: u32,
}

/// The tile of a cube if `splits` cubes share one.
#[cube]
pub(super) fn key_tile(lists: &Lists, sizes: &Sizes, splits: u32) -> KeyTile {
    let tiles = sizes.n_keys.div_ceil(comptime!(KEY_ROWS as u32));
    let padded_queries =
        sizes.n_queries.div_ceil(comptime!(QUERY_ROWS as u32)) * comptime!(QUERY_ROWS as u32);
    let split = CUBE_POS_X % splits;
    let kv_head = CUBE_POS_X / splits % sizes.kv_heads;
    let tile = tile_at(lists, CUBE_POS_X / splits / sizes.kv_heads, tiles, KEY_ROWS);
    let begin = lists.offsets[tile.number as usize];
    let end = lists.offsets[tile.number as usize + 1];
    let heads = sizes.group / splits;
    let steps = (end - begin) * heads;
    KeyTile {
        padded_queries,
        split,
        splits,
        kv_head,
        batch: tile.batch,
        first_key: tile.first,
        begin,
        end,
        heads,
        steps,
    }
}

/// Addresses of what is streamed through the stages, of head 0 of the cube's group.
#[derive(CubeType, Clone, Copy)]
pub(super) struct QuerySide {
    pub query: u64,
    pub grad_output: u64,
    pub statistics: u64,
    /// From log-sum-exps to sums of output times gradient, in bytes.
    pub second_statistic: u64,
    pub n_queries: u32,
    /// Rows of a head in the statistics.
    pub padded_queries: u32,
}

/// What the cube of a tile streams.
#[cube]
pub(super) fn query_side<E: Float>(
    tensors: &BackwardTensors<E>,
    tile: &KeyTile,
    sizes: &Sizes,
    #[comptime] head_dim: usize,
) -> QuerySide {
    let query_heads = sizes.kv_heads * sizes.group;
    let first_head =
        tile.batch * query_heads + tile.kv_head * sizes.group + tile.split * tile.heads;
    let head_offset = u64::cast_from(first_head)
        * u64::cast_from(sizes.n_queries)
        * comptime!(2 * head_dim as u64);
    QuerySide {
        query: global_address::<E>(&tensors.query) + head_offset,
        grad_output: global_address::<E>(&tensors.grad_output) + head_offset,
        statistics: global_address::<f32>(&tensors.statistics)
            + u64::cast_from(first_head) * u64::cast_from(tile.padded_queries) * 4,
        second_statistic: u64::cast_from(sizes.batches * query_heads)
            * u64::cast_from(tile.padded_queries)
            * 4,
        n_queries: sizes.n_queries,
        padded_queries: tile.padded_queries,
    }
}

/// The tile's first key in `[B * Hkv * M]`.
#[cube]
pub(super) fn first_key_row(tile: &KeyTile, sizes: &Sizes) -> u64 {
    u64::cast_from(tile.batch * sizes.kv_heads + tile.kv_head) * u64::cast_from(sizes.n_keys)
        + u64::cast_from(tile.first_key)
}

/// The steps of a cube: for each of its heads, the tile's list.
#[derive(CubeType)]
pub(super) struct Steps {
    /// Entry of the current step.
    pub entry: u32,
    /// Entry and head of the step after it.
    pub next_entry: u32,
    pub next_head: u32,
    /// Where that entry is in the list.
    index: u32,
}

/// Before the first step.
#[cube]
pub(super) fn steps_of(tile: &KeyTile) -> Steps {
    Steps {
        entry: 0u32,
        next_entry: 0u32,
        next_head: 0u32,
        index: tile.begin,
    }
}

#[cube]
impl Steps {
    /// Reads the entry of the first step.
    pub fn start(&mut self, lists: &Lists) {
        self.next_entry = lists.entries[self.index as usize];
    }

    /// Goes one step further.
    pub fn advance(&mut self, tile: &KeyTile, lists: &Lists) {
        self.entry = self.next_entry;
        self.index += 1;
        if self.index == tile.end {
            self.index = tile.begin;
            self.next_head += 1;
        }
        self.next_entry = lists.entries[self.index as usize];
    }
}

/// Where a query tile of a head starts.
#[derive(CubeType, Clone, Copy)]
pub(super) struct QueryRows {
    /// First row.
    pub first: u32,
    /// Addresses of its query and of its gradient of the output.
    pub query: u64,
    pub grad_output: u64,
}

/// Those of the next step.
#[cube]
pub(super) fn query_rows(
    side: &QuerySide,
    steps: &Steps,
    #[comptime] head_dim: usize,
) -> QueryRows {
    let first = (steps.next_entry >> 1) * comptime!(QUERY_ROWS as u32);
    let row =
        u64::cast_from(steps.next_head) * u64::cast_from(side.n_queries) + u64::cast_from(first);
    let offset = row * comptime!(2 * head_dim as u64);
    QueryRows {
        first,
        query: side.query + offset,
        grad_output: side.grad_output + offset,
    }
}

/// Starts the copies of the statistics of the query tile at row `first` of a head.
#[cube]
pub(super) fn copy_statistics(side: &QuerySide, first: u32, head: u32, statistics: u32) {
    let chunks = comptime!((4 * QUERY_ROWS / CHUNK) as u32);
    if UNIT_POS_X < 2 * chunks {
        let row =
            u64::cast_from(head) * u64::cast_from(side.padded_queries) + u64::cast_from(first);
        let mut from = side.statistics + row * 4;
        if UNIT_POS_X >= chunks {
            from += side.second_statistic;
        }
        from += u64::cast_from(UNIT_POS_X % chunks * CHUNK as u32);
        copy_chunk(from, 0usize, statistics + UNIT_POS_X * CHUNK as u32, 0usize);
    }
}

/// The statistics of two neighbouring query rows, in shared memory.
#[cube]
pub(super) fn statistics_of_pair(statistics: u32, #[comptime] offset: usize) -> (f32, f32) {
    let pair = load_pair(statistics, offset);
    (
        f32::reinterpret(pair.extract(0usize)),
        f32::reinterpret(pair.extract(1usize)),
    )
}

/// Turns products of keys and queries into the exponents of probabilities as powers of two.
/// `statistics`: address of the log-sum-exps of the lane's first columns.
#[cube]
pub(super) fn exponents_of_keys(
    products: &mut Array<Accumulator>,
    statistics: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) {
    let product_tiles = comptime!(QUERY_ROWS / 8);
    #[unroll]
    for n in 0..product_tiles {
        let (first, second) = statistics_of_pair(statistics, comptime!(n * 32));
        #[unroll]
        for block in 0..comptime!(config.blocks) {
            let at = comptime!(block * product_tiles + n);
            let tile = products[at];
            let mut exponents = Accumulator::empty();
            exponents.insert(
                0usize,
                exponent(tile.extract(0usize), first, scores, config),
            );
            exponents.insert(
                1usize,
                exponent(tile.extract(1usize), second, scores, config),
            );
            exponents.insert(
                2usize,
                exponent(tile.extract(2usize), first, scores, config),
            );
            exponents.insert(
                3usize,
                exponent(tile.extract(3usize), second, scores, config),
            );
            products[at] = exponents;
        }
    }
}

/// Probabilities times the slope of the softcap at their scores.
#[cube]
pub(super) fn cap_slopes_of_keys(
    powers: Accumulator,
    exponents: Accumulator,
    statistics: u32,
    #[comptime] offset: usize,
    scores: &Scores,
) -> Accumulator {
    let (first, second) = statistics_of_pair(statistics, offset);
    let mut slopes = Accumulator::empty();
    slopes.insert(
        0usize,
        powers.extract(0usize) * cap_slope(exponents.extract(0usize), first, scores),
    );
    slopes.insert(
        1usize,
        powers.extract(1usize) * cap_slope(exponents.extract(1usize), second, scores),
    );
    slopes.insert(
        2usize,
        powers.extract(2usize) * cap_slope(exponents.extract(2usize), first, scores),
    );
    slopes.insert(
        3usize,
        powers.extract(3usize) * cap_slope(exponents.extract(3usize), second, scores),
    );
    slopes
}

/// Sets the exponents of what is hidden to minus infinity.
///
/// `key`: the lane's first key, `row`: its first query row.
#[cube]
pub(super) fn hide_of_keys(
    exponents: &mut Array<Accumulator>,
    mask: &Mask,
    batch: u32,
    key: u32,
    row: u32,
    sizes: &Sizes,
    window: u32,
    #[comptime] config: BackwardConfig,
) {
    let product_tiles = comptime!(QUERY_ROWS / 8);
    let lane_keys = comptime!(2 * config.blocks);
    let mut starts = Array::<u32>::new(lane_keys);
    let mut lengths = Array::<u32>::new(lane_keys);
    let mut positions = Array::<u32>::new(lane_keys);
    #[unroll]
    for of_lane in 0..lane_keys {
        let key = key + comptime!((of_lane / 2 * 16 + of_lane % 2 * 8) as u32);
        starts[of_lane] = 0u32;
        lengths[of_lane] = 0u32;
        if key < sizes.n_keys {
            let at = batch * sizes.n_keys + key;
            starts[of_lane] = mask.key_start[at as usize];
            lengths[of_lane] = mask.key_end[at as usize] - starts[of_lane];
            if comptime!(config.window) {
                positions[of_lane] = mask.key_position[at as usize];
            }
        }
    }
    #[unroll]
    for i in 0..comptime!(2 * product_tiles) {
        let (n, column) = comptime!((i / 2, i % 2));
        let row = row + comptime!((n * 8 + column) as u32);
        let mut position = 0u32;
        if comptime!(config.window) {
            let index = batch * sizes.n_queries + min(row, sizes.n_queries - 1);
            position = mask.query_position[index as usize];
        }
        #[unroll]
        for of_lane in 0..lane_keys {
            let (block, half) = comptime!((of_lane / 2, of_lane % 2));
            // Rows before the start wrap around to large numbers.
            let mut visible = row - starts[of_lane] < lengths[of_lane];
            if comptime!(config.window) {
                visible = visible && within_window(position, positions[of_lane], window);
            }
            let at = comptime!(block * product_tiles + n);
            let element = comptime!(2 * half + column);
            hide_unless(visible, exponents, at, element);
        }
    }
}

/// Writes a plane's sums times `factor` to the gradient at `to`: those of the tile's keys from
/// `plane_row` on. `rows`: where the plane stages them in shared memory.
#[cube]
pub(super) fn store_key_sums<E: Float>(
    sums: &Array<Accumulator>,
    to: u64,
    rows: u32,
    factor: f32,
    plane_row: u32,
    tile: &KeyTile,
    sizes: &Sizes,
    #[comptime] config: BackwardConfig,
) {
    let (dim, blocks) = comptime!((config.head_dim, config.blocks));
    let lane = UNIT_POS_X % 32;
    // Signed, since all rows of the plane may overhang.
    let valid = i32::cast_from(sizes.n_keys - tile.first_key) - i32::cast_from(plane_row);
    let row = first_key_row(tile, sizes) + u64::cast_from(plane_row);
    if tile.splits > 1 {
        let rows = u64::cast_from(sizes.batches * sizes.kv_heads) * u64::cast_from(sizes.n_keys);
        let row = row + u64::cast_from(tile.split) * rows;
        let to = to + row * comptime!(4 * dim as u64);
        store_sums(sums, to, lane, factor, valid, dim, blocks);
    } else {
        stage_sums::<E>(sums, rows, lane, factor, dim, blocks);
        let to = to + row * comptime!(2 * dim as u64);
        store_rows(rows, to, lane, valid, dim, comptime!(16 * blocks));
    }
}
