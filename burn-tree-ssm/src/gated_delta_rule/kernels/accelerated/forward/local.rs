//! What does not depend on states: of every window and value head, the inverse that the delta rule
//! needs, how updates follow from it, and how outputs follow from updates.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Gates, Sizes, Windows};
use super::super::blocks::*;
use super::super::decays::*;
use super::super::rows::*;
use super::super::words::*;
use super::inverse::*;
use super::mixing::*;
use super::scores::*;

/// Planes of a value head, one per 16-row tile.
const PLANES: usize = TILES;
/// Units of a value head.
const UNITS: usize = PLANES * PLANE;

/// Compile-time shape of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocalConfig {
    /// Numbers of a key, a multiple of 64.
    pub key_dim: usize,
    /// Value heads of a cube, all of one key head: 1 or 2.
    pub heads: usize,
}

impl LocalConfig {
    /// Units of a cube.
    pub(crate) const fn units(self) -> usize {
        self.heads * UNITS
    }

    /// Cubes of a window and a key head with `group` value heads.
    pub(crate) const fn parts(self, group: usize) -> usize {
        group.div_ceil(self.heads)
    }

    /// Where the heads' tiles start: first keys and queries, later each head's inverse and mixing.
    fn heads_at(self) -> usize {
        (2 * tile_bytes(ROWS, self.key_dim)).max(self.heads * 2 * SQUARE)
    }

    /// Bytes of a head: scores, factors (upper parts, lower parts), blocks on the diagonal, numbers
    /// of rows.
    const HEAD: usize = 3 * SQUARE + PLANES * BLOCK + ROW_NUMBERS;

    /// Bytes of shared memory of a cube.
    pub(crate) fn shared_bytes(self) -> usize {
        self.heads_at() + self.heads * Self::HEAD
    }
}

/// Tensors that are read besides gates.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LocalInputs<E: Float> {
    /// `[R, HK, DK]`
    pub query: Box<[E]>,
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
}

/// Tensors that are written, for every row `i` and value head, over the columns `j` of the row's
/// window. Of `mixing` and `scores` only the 16 x 16 blocks on and below the diagonal are written.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LocalResults {
    /// `[R, HV, 64]`: `T0_ij`, the inverse of `I + beta_i k_i k_j` (`j` strictly above `i`)
    pub inverse: Box<[Vector<u32, Const<4>>]>,
    /// `[R, HV, 64]`: `E_ij T0_ij beta_j`, from what the entry's state leaves of the values to the
    /// updates; `E_ij` is the decay from `j` to `i`
    pub mixing: Box<[Vector<u32, Const<4>>]>,
    /// `[R, HV, 64]`: `E_ij scale q_i k_j`, from updates to outputs
    pub scores: Box<[Vector<u32, Const<4>>]>,
    /// `[2, HV, R]`: `e^G`, the decay from the window's entry, and the decay to the window's last
    /// token, 0 for rows that are not above it
    pub decays: Box<[f32]>,
}

/// A window of a value head in a cube: addresses in shared memory, and the rows of the unit.
#[derive(CubeType, Clone, Copy)]
pub(super) struct LocalWindow {
    /// Keys of the cube's key head; later, the inverse and mixing of its value heads.
    pub keys: u32,
    /// Queries of the cube's key head.
    pub queries: u32,
    pub inverse: u32,
    pub mixing: u32,
    pub scores: u32,
    /// Upper parts of the factors below the diagonal, then their lower parts.
    pub factors: u32,
    /// The plane's block on the diagonal.
    pub block: u32,
    /// Number of the unit among those of the head.
    pub unit: u32,
    pub lane: u32,
    pub plane: u32,
    /// First row of the lane; its second is eight further.
    pub row: u32,
    /// 16-row tiles of the window.
    pub tiles: u32,
}

/// The window of `length` rows whose tiles are at `shared`, of value head `of_cube` of the cube.
#[cube]
fn local_window(
    shared: u32,
    of_cube: u32,
    length: u32,
    #[comptime] config: LocalConfig,
) -> LocalWindow {
    let unit = UNIT_POS_X % UNITS as u32;
    let lane = UNIT_POS_X % 32;
    let plane = unit / 32;
    let inverse = shared + of_cube * comptime!(2 * SQUARE as u32);
    let scores = shared + comptime!(config.heads_at() as u32) + of_cube * LocalConfig::HEAD as u32;
    let factors = scores + SQUARE as u32;
    LocalWindow {
        keys: shared,
        queries: shared + comptime!(tile_bytes(ROWS, config.key_dim) as u32),
        inverse,
        mixing: inverse + SQUARE as u32,
        scores,
        factors,
        block: factors + comptime!(2 * SQUARE as u32) + plane * BLOCK as u32,
        unit,
        lane,
        plane,
        row: plane * 16 + lane / 4,
        tiles: length.div_ceil(16u32),
    }
}

/// The numbers of the rows of value head `of_cube` of the cube.
#[cube]
fn numbers_of(shared: u32, of_cube: u32, #[comptime] config: LocalConfig) -> RowNumbers {
    let first = comptime!((config.heads_at() + 3 * SQUARE + PLANES * BLOCK) as u32);
    row_numbers(shared + first + of_cube * LocalConfig::HEAD as u32)
}

/// See [`LocalResults`].
///
/// Cubes: x = the parts of the first window and key head, of the next key head, .., of the next
/// window.
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_local<E: Float>(
    inputs: &LocalInputs<E>,
    gates: &Gates,
    windows: &Windows,
    results: &mut LocalResults,
    sizes: Sizes,
    scale: f32,
    #[comptime] config: LocalConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (key_heads, value_heads) = (sizes.key_heads, sizes.value_heads);
    let group = value_heads / key_heads;
    let parts = group.div_ceil(comptime!(config.heads as u32));
    let key_head = CUBE_POS_X / parts % key_heads;
    let number = CUBE_POS_X / parts / key_heads;
    let start = windows.starts[number as usize];
    let valid = windows.lengths[number as usize];
    let of_cube = UNIT_POS_X / UNITS as u32;
    let of_group = CUBE_POS_X % parts * comptime!(config.heads as u32) + of_cube;
    let of_head = HeadWindow {
        start,
        // Rows that the units of a head that is not there work on.
        length: select(of_group < group, valid, 0u32),
        head: key_head * group + of_group,
        value_heads,
    };
    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let numbers = numbers_of(shared, of_cube, config);
    let window = local_window(shared, of_cube, of_head.length, config);

    let units = comptime!(config.units());
    let key = global_address::<E>(&inputs.key);
    let key = head_rows(key, start, key_heads, key_head, config.key_dim);
    copy_window_rows(&key, window.keys, UNIT_POS_X, valid, config.key_dim, units);
    let query = global_address::<E>(&inputs.query);
    let query = head_rows(query, start, key_heads, key_head, config.key_dim);
    copy_window_rows(
        &query,
        window.queries,
        UNIT_POS_X,
        valid,
        config.key_dim,
        units,
    );
    commit_copies();
    load_row_numbers(&numbers, gates, &of_head, window.unit);
    sync_cube();
    sum_logs(&numbers, window.unit);
    wait_copies(0usize);
    sync_cube();
    write_decays(results, &numbers, &of_head, &sizes, window.unit);

    if window.plane < window.tiles {
        multiply_keys::<E>(&window, &numbers, scale, config);
    }
    let mut columns = new_columns();
    if window.plane < window.tiles {
        invert_diagonal(&mut columns, &window);
    }
    // From here on keys and queries are no longer needed.
    sync_cube();
    clear_above_diagonal(&window);
    if window.plane < window.tiles {
        invert_below_diagonal(&mut columns, &window);
        store_columns::<E>(&columns, &window, &numbers);
    }
    sync_cube();
    if window.plane < window.tiles {
        write_results(results, &window, &of_head);
    }
}

/// Writes the sums of log decays, a row for two units, of which each sums every other four columns.
#[cube]
fn sum_logs(numbers: &RowNumbers, unit: u32) {
    let row = unit / 2;
    let offset = unit % 2 * CHUNK as u32;
    let mut sum = 0.0f32;
    #[unroll]
    for step in 0..comptime!(ROWS / 8) {
        let of_ends = load_chunk(numbers.ends + offset, comptime!(2 * CHUNK * step));
        let of_logs = load_chunk(numbers.logs + offset, comptime!(2 * CHUNK * step));
        #[unroll]
        for i in 0..4usize {
            let column = unit % 2 * 4 + comptime!((8 * step + i) as u32);
            let above = column <= row && row < of_ends.extract(i);
            sum += select(above, f32::reinterpret(of_logs.extract(i)), 0.0f32);
        }
    }
    let sum = sum + shuffle_xor(sum, 1u32);
    if unit % 2 == 0 {
        store_number(numbers.sums + unit * 2, 0usize, sum);
    }
}

/// Writes the decays of the window's rows.
#[cube]
fn write_decays(
    results: &mut LocalResults,
    numbers: &RowNumbers,
    of_head: &HeadWindow,
    sizes: &Sizes,
    unit: u32,
) {
    if unit < of_head.length {
        let sum = load_number(numbers.sums + unit * 4, 0usize);
        let to_last = decay_to_last(numbers, unit, sum, of_head.length);
        let at = (of_head.head * sizes.rows + of_head.start + unit) as usize;
        results.decays[at] = exp2(sum);
        results.decays[at + (sizes.value_heads * sizes.rows) as usize] = to_last;
    }
}

/// Writes the plane's rows of inverse, mixing and scores.
#[cube]
fn write_results(results: &mut LocalResults, window: &LocalWindow, of_head: &HeadWindow) {
    let from = window.plane * comptime!(16 * row_stride(ROWS) as u32);
    let (needed, all) = (2 * (window.plane + 1), comptime!((ROWS / 8) as u32));
    store_rows(
        &mut results.inverse,
        window.inverse + from,
        window,
        of_head,
        all,
    );
    store_rows(
        &mut results.mixing,
        window.mixing + from,
        window,
        of_head,
        needed,
    );
    store_rows(
        &mut results.scores,
        window.scores + from,
        window,
        of_head,
        needed,
    );
}

/// Writes a plane's 16 rows of a square tile, those that the window has, to rows of a result, of
/// each the first `chunks` chunks.
#[cube]
fn store_rows(
    result: &mut [Vector<u32, Const<4>>],
    rows: u32,
    window: &LocalWindow,
    of_head: &HeadWindow,
    chunks: u32,
) {
    let row_chunks = comptime!((ROWS / 8) as u32);
    let first = window.plane * 16;
    let first_row = (of_head.start + first) * of_head.value_heads + of_head.head;
    let column = window.lane % row_chunks;
    #[unroll]
    for pass in 0..comptime!(16 * ROWS / 8 / PLANE) {
        let row = window.lane / row_chunks + comptime!((pass * PLANE * 8 / ROWS) as u32);
        if row < of_head.length - first && column < chunks {
            let from = rows + row * comptime!(row_stride(ROWS) as u32) + column * CHUNK as u32;
            let at = (first_row + row * of_head.value_heads) * row_chunks + column;
            result[at as usize] = load_chunk(from, 0usize);
        }
    }
}
