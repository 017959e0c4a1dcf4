//! Windows as tiles of equal size, and between rows of the batch and tiles.

use std::ops::Range;

use burn::backend::{
    Backend, TensorMetadata,
    tensor::{Device, FloatTensor, IntTensor},
};
use burn::tensor::{FloatDType, TensorData};

use super::array::Array;
use crate::recurrence::TreeRecurrence;

/// The windows of a step: one of each path of a level that is long enough.
pub(super) struct Step {
    /// Tiles of the windows.
    pub(super) tiles: Range<usize>,
    /// The paths, of which the step takes the same window in order, from the first.
    pub(super) paths: Range<usize>,
    /// `(tile in the step, slot)` of states that are kept.
    pub(super) slots: Vec<(usize, usize)>,
}

/// One tile `[C, ..]` per window, in the order in which they are computed: level by level, within
/// a level step by step. Tiles of short windows are filled up with copies of their first row,
/// which the masks keep out.
pub(super) struct Tiles<B: Backend> {
    /// Rows of a tile, `C`: a power of two.
    pub(super) size: usize,
    /// Number of tiles, `W`.
    pub(super) count: usize,
    /// Steps of each level.
    pub(super) levels: Vec<Vec<Step>>,
    /// `[W, 1, C, C]` 1 where row `j` is row `i` or an ancestor of it.
    pub(super) mask: Array<B>,
    /// `[W, 1, C, C]` 1 where row `j` is an ancestor of row `i`.
    pub(super) ancestors: Array<B>,
    /// `[W, 1, C, 1]` 1 in rows that are not filled up.
    pub(super) real: Array<B>,
    /// `[W, 1, C, 1]` 1 in real rows of windows whose last state is used.
    pub(super) to_exit: Array<B>,
    /// `[W, 1, C, 1]` 1 in the last real row of windows whose last state is used.
    pub(super) exit: Array<B>,
    dtype: FloatDType,
    /// `[W * C]` row of the batch.
    rows: IntTensor<B>,
    /// `[R]` row of the tiles, `W * C` in padding.
    tile_rows: IntTensor<B>,
    padded: bool,
}

impl<B: Backend> Tiles<B> {
    pub(super) fn new(recurrence: &TreeRecurrence, device: &Device<B>, dtype: FloatDType) -> Self {
        let (starts, lengths) = (recurrence.window_starts(), recurrence.window_lengths());
        let longest = lengths.iter().copied().max().unwrap_or(1) as usize;
        let size = longest.next_power_of_two();
        let (windows, levels) = schedule(recurrence);
        let count = windows.len();

        let mut rows = Vec::with_capacity(count * size);
        let mut tile_rows = vec![(count * size) as i32; recurrence.rows()];
        let square = count * size * size;
        let (mut mask, mut ancestors) = (vec![0.0; square], vec![0.0; square]);
        let mut columns = [(); 3].map(|()| vec![0.0; count * size]);
        let [real, to_exit, exit] = &mut columns;
        for (tile, window) in windows.iter().enumerate() {
            let (start, length) = (starts[*window] as usize, lengths[*window] as usize);
            let first = tile * size;
            for i in 0..size {
                rows.push((start + if i < length { i } else { 0 }) as i32);
            }
            real[first..first + length].fill(1.0);
            if has_exit(recurrence, *window) {
                to_exit[first..first + length].fill(1.0);
                exit[first + length - 1] = 1.0;
            }
            for j in 0..length {
                tile_rows[start + j] = (first + j) as i32;
                let end = recurrence.subtree_ends()[start + j] as usize - start;
                for i in j..end.min(length) {
                    let index = (first + i) * size + j;
                    mask[index] = 1.0;
                    ancestors[index] = f32::from(u8::from(i > j));
                }
            }
        }
        let indices = |values: Vec<i32>| {
            let length = values.len();
            B::int_from_data(TensorData::new(values, [length]), device)
        };
        let squares = |values| Array::from_values(values, [count, 1, size, size], device, dtype);
        let [real, to_exit, exit] =
            columns.map(|values| Array::from_values(values, [count, 1, size, 1], device, dtype));
        Self {
            size,
            count,
            levels,
            mask: squares(mask),
            ancestors: squares(ancestors),
            real,
            to_exit,
            exit,
            dtype,
            rows: indices(rows),
            tile_rows: indices(tile_rows),
            padded: recurrence.has_padding(),
        }
    }

    /// `[R, H, D]` -> `[W, H * group, C, D]`, each head `group` times.
    pub(super) fn gather(&self, tensor: FloatTensor<B>, group: usize) -> Array<B> {
        let tiles = Array::<B>(B::float_select(tensor, 0, self.rows.clone())).cast(self.dtype);
        let (heads, width) = (tiles.size(1), tiles.size(2));
        let (count, size) = (self.count, self.size);
        tiles
            .reshape([count, size, heads, width])
            .swap(1, 2)
            .reshape([count, heads, 1, size, width])
            .expand([count, heads, group, size, width])
            .reshape([count, heads * group, size, width])
    }

    /// The inverse of [`gather`](Self::gather), with zeros in padding: heads of a group are summed.
    pub(super) fn scatter(
        &self,
        tiles: Array<B>,
        group: usize,
        dtype: FloatDType,
    ) -> FloatTensor<B> {
        let (heads, width) = (tiles.size(1), tiles.size(3));
        let (count, size) = (self.count, self.size);
        let mut rows = if group > 1 {
            tiles
                .reshape([count, heads / group, group, size, width])
                .sum(2)
                .reshape([count, heads / group, size, width])
        } else {
            tiles
        };
        rows = rows
            .cast(dtype)
            .swap(1, 2)
            .reshape([count * size, heads / group, width]);
        if self.padded {
            let device = rows.0.device();
            let zero = Array::zeros([1, heads / group, width], &device, dtype);
            rows = Array::cat(vec![rows, zero], 0);
        }
        B::float_select(rows.0, 0, self.tile_rows.clone())
    }
}

/// Whether the state after a window is used: by the next window of the path, or through a slot.
fn has_exit(recurrence: &TreeRecurrence, window: usize) -> bool {
    recurrence.window_slots()[window] >= 0
        || recurrence
            .path_offsets()
            .binary_search(&(window as u32 + 1))
            .is_err()
}

/// The windows in the order in which they are computed, and where to find those of a step.
fn schedule(recurrence: &TreeRecurrence) -> (Vec<usize>, Vec<Vec<Step>>) {
    let offsets = recurrence.path_offsets();
    let length = |path: usize| (offsets[path + 1] - offsets[path]) as usize;
    let mut windows = Vec::with_capacity(recurrence.n_windows());
    let mut levels = Vec::with_capacity(recurrence.levels().len());
    for level in recurrence.levels() {
        let mut steps = Vec::new();
        // Paths are sorted by length: those that are still running are the first ones.
        for step in 0..length(level.start) {
            let running = level
                .clone()
                .take_while(|&path| length(path) > step)
                .count();
            let first = windows.len();
            let paths = level.start..level.start + running;
            windows.extend(paths.clone().map(|path| offsets[path] as usize + step));
            let slots = windows[first..]
                .iter()
                .enumerate()
                .filter_map(|(tile, &window)| {
                    let slot = usize::try_from(recurrence.window_slots()[window]);
                    Some((tile, slot.ok()?))
                })
                .collect();
            steps.push(Step {
                tiles: first..windows.len(),
                paths,
                slots,
            });
        }
        levels.push(steps);
    }
    (windows, levels)
}

/// `[.., columns]` -> `[.., size]`: cut off, or filled up with zeros.
pub(super) fn fit_columns<B: Backend>(tiles: Array<B>, size: usize) -> Array<B> {
    let [count, heads, rows, columns] = [0, 1, 2, 3].map(|dim| tiles.size(dim));
    if size <= columns {
        return tiles.narrow(3, 0..size);
    }
    let (device, dtype) = (tiles.0.device(), tiles.0.dtype().into());
    let zeros = Array::zeros([count, heads, rows, size - columns], &device, dtype);
    Array::cat(vec![tiles, zeros], 3)
}
