//! What forward and backward share: sizes, inputs, and a tile's rows as a matrix.

use std::borrow::Cow;
use std::ops::Range;

use burn_tree_kit::cpu::{Matrix, Real, Storage};

use super::blocks::KeyBlock;
use super::softmax::{hide, soften};
use crate::mask::Visibility;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;

/// Rows of a tile's matrices aimed for: query rows times query heads per key/value head.
const MATRIX_ROWS: usize = 256;

/// Query rows per tile.
pub(super) fn tile_rows(dims: &Dims) -> usize {
    (MATRIX_ROWS / dims.group())
        .next_multiple_of(32)
        .clamp(32, 128)
}

/// Inputs of one call, contiguous.
#[derive(Clone, Copy)]
pub(crate) struct Problem<'a, E: Storage> {
    pub dims: Dims,
    pub settings: AttentionSettings,
    pub visibility: &'a Visibility,
    /// `[B, Hq, N, D]`
    pub query: &'a [E],
    /// `[B, Hkv, M, D]`
    pub key: &'a [E],
    /// `[B, Hkv, M, Dv]`
    pub value: &'a [E],
}

/// The values in the type they are computed in; copied only if stored in another.
pub(super) fn computed<E: Storage>(values: &[E]) -> Cow<'_, [E::Compute]> {
    match E::as_compute(values) {
        Some(values) => Cow::Borrowed(values),
        None => Cow::Owned(values.iter().map(|value| value.widen()).collect()),
    }
}

/// One tile of one key/value head: its query rows with the query heads of the group interleaved,
/// row `r` of head `g` at matrix row `r * group + g`, so that a range of query rows is a range of
/// matrix rows.
#[derive(Clone)]
pub(super) struct HeadTile {
    pub dims: Dims,
    pub batch: usize,
    /// `batch * Hkv + head`
    pub kv_index: usize,
    pub rows: Range<usize>,
}

impl HeadTile {
    fn query_index(&self, member: usize) -> usize {
        self.kv_index * self.dims.group() + member
    }

    pub(super) fn matrix_rows(&self) -> usize {
        self.rows.len() * self.dims.group()
    }

    /// Where the row of `[B, Hq, N, width]` that is matrix row `index` begins.
    fn offset(&self, index: usize, width: usize) -> usize {
        let group = self.dims.group();
        let row = self.rows.start + index / group;
        (self.query_index(index % group) * self.dims.queries + row) * width
    }

    /// Copies the tile's rows of `[B, Hq, N, width]`, times `factor`.
    pub(super) fn load<E: Storage>(
        &self,
        out: &mut Vec<E::Compute>,
        tensor: &[E],
        width: usize,
        factor: E::Compute,
    ) {
        out.clear();
        out.reserve(self.matrix_rows() * width);
        for index in 0..self.matrix_rows() {
            let start = self.offset(index, width);
            out.extend(
                tensor[start..start + width]
                    .iter()
                    .map(|x| x.widen() * factor),
            );
        }
    }

    /// Calls `f` with each matrix row and the range of its values in `[B, Hq, N, width]`.
    pub(super) fn for_each_row(&self, width: usize, mut f: impl FnMut(usize, Range<usize>)) {
        for index in 0..self.matrix_rows() {
            let start = self.offset(index, width);
            f(index, start..start + width);
        }
    }

    /// Matrix rows of a block.
    pub(super) fn block_rows(&self, block: &KeyBlock) -> Range<usize> {
        let group = self.dims.group();
        (block.rows.start - self.rows.start) * group..(block.rows.end - self.rows.start) * group
    }

    /// Applies softcap and visibility to the scores `[block rows * group, block keys]`.
    pub(super) fn cap_and_hide<T: Real>(
        &self,
        scores: &mut [T],
        hidden: &mut Vec<T>,
        block: &KeyBlock,
        visibility: &Visibility,
        settings: &AttentionSettings,
    ) {
        if let Some(cap) = settings.softcap {
            soften(scores, T::from_f64(cap));
        }
        if block.full {
            return;
        }
        let rows_of_head = scores.chunks_exact_mut(block.n_keys * self.dims.group());
        for (row, scores) in block.rows.clone().zip(rows_of_head) {
            hidden.clear();
            let query_position = visibility.query_position()[self.batch * self.dims.queries + row];
            for keys in &block.keys {
                let keys = self.batch * self.dims.keys + keys.start
                    ..self.batch * self.dims.keys + keys.end;
                let (start, end) = (
                    &visibility.key_start()[keys.clone()],
                    &visibility.key_end()[keys.clone()],
                );
                let position = &visibility.key_position()[keys];
                let window = settings
                    .sliding_window
                    .map_or(u64::MAX, |window| window as u64);
                let lowest = (u64::from(query_position) + 1).saturating_sub(window) as u32;
                let row = row as u32;
                hidden.extend(start.iter().zip(end).zip(position).map(
                    |((&start, &end), &position)| {
                        if (start <= row) & (row < end) & (position >= lowest) {
                            T::ZERO
                        } else {
                            T::NEG_INFINITY
                        }
                    },
                ));
            }
            hide(scores, hidden);
        }
    }
}

/// The block's rows of a `[keys, width]` matrix: in place if contiguous, else copied to `copy`.
pub(super) fn block_keys<'a, T: Real>(
    block: &KeyBlock,
    matrix: &'a [T],
    width: usize,
    copy: &'a mut Vec<T>,
) -> Matrix<'a, T> {
    if let [keys] = block.keys.as_slice() {
        return Matrix::new(&matrix[keys.start * width..], keys.len(), width);
    }
    copy.clear();
    for keys in &block.keys {
        copy.extend_from_slice(&matrix[keys.start * width..keys.end * width]);
    }
    Matrix::new(copy, block.n_keys, width)
}
