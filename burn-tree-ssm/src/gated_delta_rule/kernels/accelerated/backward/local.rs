//! What does not depend on states: `W` and `U0` from the saved inverse, and the part of the
//! gradient of `U` that comes from the outputs of its own window.

use burn_tree_kit::cube::matrix::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Gates, Sizes, Windows};
use super::super::blocks::*;
use super::super::decays::*;
use super::super::rows::*;
use super::super::words::*;
use super::operators::*;

/// Planes of a cube, one per 16-row tile.
const PLANES: usize = TILES;
/// Units of a cube.
pub(crate) const UNITS: usize = PLANES * PLANE;

impl WindowConfig {
    /// The larger dimension.
    pub(super) fn wider(self) -> usize {
        self.key_dim.max(self.value_dim)
    }

    /// Where a cube of [`gated_delta_rule_backward_local`] has its tiles: query (later outputs),
    /// key, value, grad_output, inverse, products, numbers per row.
    fn local_offsets(self) -> [usize; 7] {
        let by_value = tile_bytes(ROWS, self.value_dim);
        let sizes = [
            tile_bytes(ROWS, self.wider()),
            tile_bytes(ROWS, self.key_dim),
            by_value,
            by_value,
            SQUARE,
            SQUARE,
        ];
        let mut offsets = [0; 7];
        for (i, size) in sizes.into_iter().enumerate() {
            offsets[i + 1] = offsets[i] + size;
        }
        offsets
    }

    /// Bytes of shared memory of a cube of [`gated_delta_rule_backward_local`].
    pub(crate) fn local_shared_bytes(self) -> usize {
        self.local_offsets()[6] + ROW_NUMBERS
    }
}

/// Tensors that are read.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LocalInputs<E: Float> {
    /// `[R, HK, DK]`
    pub query: Box<[E]>,
    /// `[R, HK, DK]`
    pub key: Box<[E]>,
    /// `[R, HV, DV]`
    pub value: Box<[E]>,
    /// `[R, HV, DV]`
    pub grad_output: Box<[E]>,
    /// `[R, HV, 64]`
    pub inverse: Box<[E]>,
}

/// Tensors that are written, for every row and value head. `T0` is the saved inverse, `E` are the
/// decays between tokens and `e^G` those from the window's entry.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct LocalResults {
    /// `[R, HV, DK]`: `e^G (T0 diag(beta)) K`
    pub w: Box<[Vector<u32, Const<4>>]>,
    /// `[R, HV, DV]`: `(E . T0 diag(beta)) V`, what the values would be without the entry's state
    pub u: Box<[Vector<u32, Const<4>>]>,
    /// `[R, HV, DV]`: `(E . scale Q K^T)^T dO`
    pub grad_u: Box<[Vector<u32, Const<4>>]>,
    /// `[3, HV, R]`: `G log2(e)`, `e^G`, and the decays to the window's last token, 0 for rows that
    /// are not above it
    pub decays: Box<[f32]>,
}

/// A window in a cube: addresses in shared memory, and the rows of the unit.
#[derive(CubeType, Clone, Copy)]
pub(super) struct LocalWindow {
    /// Later outputs.
    pub query: u32,
    pub key: u32,
    pub value: u32,
    pub grad_output: u32,
    pub inverse: u32,
    /// `P`, on and below the diagonal.
    pub product: u32,
    pub lane: u32,
    pub plane: u32,
    /// First row of the plane.
    pub plane_row: u32,
    /// First row of the lane; its second is eight further.
    pub row: u32,
    /// 16-row tiles of the window.
    pub tiles: u32,
}

/// The window of `length` rows whose tiles are at `shared`.
#[cube]
fn local_window(shared: u32, length: u32, #[comptime] config: WindowConfig) -> LocalWindow {
    let offsets = comptime!(config.local_offsets());
    let lane = UNIT_POS_X % 32;
    let plane = UNIT_POS_X / 32;
    let plane_row = plane * 16;
    LocalWindow {
        query: shared,
        key: shared + comptime!(offsets[1] as u32),
        value: shared + comptime!(offsets[2] as u32),
        grad_output: shared + comptime!(offsets[3] as u32),
        inverse: shared + comptime!(offsets[4] as u32),
        product: shared + comptime!(offsets[5] as u32),
        lane,
        plane,
        plane_row,
        row: plane_row + lane / 4,
        tiles: length.div_ceil(16u32),
    }
}

/// See [`LocalResults`].
///
/// Cubes: x = the value heads of the first window, of the second, ..
#[cube(launch_unchecked)]
pub(crate) fn gated_delta_rule_backward_local<E: Float>(
    inputs: &LocalInputs<E>,
    gates: &Gates,
    windows: &Windows,
    results: &mut LocalResults,
    sizes: Sizes,
    scale: f32,
    #[comptime] config: WindowConfig,
    #[define(E)] _dtype: ElemType,
) {
    let number = CUBE_POS_X / sizes.value_heads;
    let start = windows.starts[number as usize];
    let length = windows.lengths[number as usize];
    let of_head = HeadWindow {
        start,
        length,
        head: CUBE_POS_X % sizes.value_heads,
        value_heads: sizes.value_heads,
    };
    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.local_shared_bytes() / 4), 16usize);
    let shared = shared_address(&memory);
    let numbers = row_numbers(shared + comptime!(config.local_offsets()[6] as u32));
    let window = local_window(shared, length, config);

    copy_inputs::<E>(inputs, &window, &of_head, &sizes, config);
    load_row_numbers(&numbers, gates, &of_head, UNIT_POS_X);
    sync_cube();
    sum_logs(&numbers);
    wait_copies(0usize);
    sync_cube();
    write_decays(results, &numbers, &of_head, &sizes);

    if window.plane < window.tiles {
        multiply_queries::<E>(&window, &numbers, scale, config);
    }
    sync_cube();
    if window.plane < window.tiles {
        write_operators::<E>(results, &window, &numbers, &of_head, config);
        write_output_gradients::<E>(results, &window, &of_head, config);
    }
}

/// Starts copying the window's rows.
#[cube]
fn copy_inputs<E: Float>(
    inputs: &LocalInputs<E>,
    window: &LocalWindow,
    of_head: &HeadWindow,
    sizes: &Sizes,
    #[comptime] config: WindowConfig,
) {
    let (key_dim, value_dim) = comptime!((config.key_dim, config.value_dim));
    let (key_heads, heads) = (sizes.key_heads, sizes.value_heads);
    let (start, length, head) = (of_head.start, of_head.length, of_head.head);
    let key_head = head / (heads / key_heads);
    let query = global_address::<E>(&inputs.query);
    let query = head_rows(query, start, key_heads, key_head, key_dim);
    copy_window_rows(&query, window.query, UNIT_POS_X, length, key_dim, UNITS);
    let key = global_address::<E>(&inputs.key);
    let key = head_rows(key, start, key_heads, key_head, key_dim);
    copy_window_rows(&key, window.key, UNIT_POS_X, length, key_dim, UNITS);
    let value = global_address::<E>(&inputs.value);
    let value = head_rows(value, start, heads, head, value_dim);
    copy_window_rows(&value, window.value, UNIT_POS_X, length, value_dim, UNITS);
    let grad = global_address::<E>(&inputs.grad_output);
    let grad = head_rows(grad, start, heads, head, value_dim);
    copy_window_rows(
        &grad,
        window.grad_output,
        UNIT_POS_X,
        length,
        value_dim,
        UNITS,
    );
    let inverse = global_address::<E>(&inputs.inverse);
    let inverse = head_rows(inverse, start, heads, head, ROWS);
    copy_window_rows(&inverse, window.inverse, UNIT_POS_X, length, ROWS, UNITS);
    commit_copies();
}

/// Writes the sums of log decays, a row a unit.
#[cube]
fn sum_logs(numbers: &RowNumbers) {
    let unit = UNIT_POS_X;
    if unit < ROWS as u32 {
        let mut sum = 0.0f32;
        #[unroll]
        for column in 0..ROWS {
            let end = load_word(numbers.ends, comptime!(4 * column));
            let above = column as u32 <= unit && unit < end;
            sum += select(
                above,
                load_number(numbers.logs, comptime!(4 * column)),
                0.0f32,
            );
        }
        store_number(numbers.sums + unit * 4, 0usize, sum);
    }
}

/// Writes the decays of the window's rows.
#[cube]
fn write_decays(
    results: &mut LocalResults,
    numbers: &RowNumbers,
    of_head: &HeadWindow,
    sizes: &Sizes,
) {
    let unit = UNIT_POS_X;
    if unit < of_head.length {
        let sum = load_number(numbers.sums + unit * 4, 0usize);
        let at = (of_head.head * sizes.rows + of_head.start + unit) as usize;
        let part = (sizes.value_heads * sizes.rows) as usize;
        results.decays[at] = sum;
        results.decays[at + part] = exp2(sum);
        results.decays[at + 2 * part] = decay_to_last(numbers, unit, sum, of_head.length);
    }
}
