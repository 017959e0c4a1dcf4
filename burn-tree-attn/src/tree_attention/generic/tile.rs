//! One tile of query rows with the keys it sees, as backend primitives.

use std::ops::Range;

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{Shape, Slice};
use burn_tree_kit::dtype::at_least_f32;

use super::mask::MaskTensors;
use crate::mask::{KeySpan, Tile, TilePlan};
use crate::primitive::cast;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;

/// Score of hidden pairs: finite, so that rows without visible keys stay finite until their
/// probabilities are set to zero.
const HIDDEN_SCORE: f64 = -1e30;

/// A tile's query rows `[Hkv, G * rows, ..]` (the query heads of a group folded into rows), and
/// the keys `[Hkv, keys, ..]` that some of the rows see, in the accumulation dtype.
pub(super) struct TileView<'a, B: Backend> {
    pub dims: Dims,
    pub batch: usize,
    pub rows: Range<usize>,
    /// Ascending ranges of keys, gathered in this order.
    pub keys: Vec<Range<usize>>,
    mask: &'a MaskTensors<B>,
    settings: AttentionSettings,
}

/// Scores of a tile, `[Hkv, G * rows, keys]`.
pub(super) struct Scores<B: Backend> {
    /// After scale and softcap, hidden pairs at [`HIDDEN_SCORE`].
    pub values: FloatTensor<B>,
    /// `tanh(score / softcap)`, for the backward pass.
    pub tanh: Option<FloatTensor<B>>,
    /// `[Hkv, G * rows, keys]`, true where the key is hidden.
    pub hidden: BoolTensor<B>,
}

impl<'a, B: Backend> TileView<'a, B> {
    pub(super) fn new(
        dims: Dims,
        plan: &TilePlan,
        tile: &Tile,
        mask: &'a MaskTensors<B>,
        settings: AttentionSettings,
    ) -> Self {
        Self {
            dims,
            batch: tile.batch,
            rows: tile.rows.clone(),
            keys: merge_keys(plan.spans(tile)),
            mask,
            settings,
        }
    }

    fn n_keys(&self) -> usize {
        self.keys.iter().map(Range::len).sum()
    }

    /// The tile's rows of `[B, Hq, N, X]`, as `[Hkv, G * rows, X]`.
    pub(super) fn rows_of(&self, tensor: &FloatTensor<B>) -> FloatTensor<B> {
        let shape = tensor.shape();
        let dtype = at_least_f32(tensor.dtype());
        let last = shape[3];
        let tile = B::float_slice(
            tensor.clone(),
            &[
                Slice::from(self.batch..self.batch + 1),
                Slice::from(0..shape[1]),
                Slice::from(self.rows.clone()),
                Slice::from(0..last),
            ],
        );
        let tile = B::float_reshape(tile, self.folded(last));
        cast::<B>(tile, dtype)
    }

    /// The keys seen by the tile, of `[B, Hkv, M, X]`, as `[Hkv, keys, X]`.
    pub(super) fn keys_of(&self, tensor: &FloatTensor<B>) -> FloatTensor<B> {
        let shape = tensor.shape();
        let parts = self
            .keys
            .iter()
            .map(|keys| B::float_slice(tensor.clone(), &self.key_slices(keys, shape[1], shape[3])));
        let keys = concatenate(parts.collect(), |parts| B::float_cat(parts, 2));
        let dtype = at_least_f32(keys.dtype());
        cast::<B>(
            B::float_reshape(keys, Shape::from([shape[1], self.n_keys(), shape[3]])),
            dtype,
        )
    }

    /// Adds `[Hkv, keys, X]` to these keys of `[B, Hkv, M, X]`.
    pub(super) fn add_to_keys(
        &self,
        mut total: FloatTensor<B>,
        grad: FloatTensor<B>,
    ) -> FloatTensor<B> {
        let shape = grad.shape();
        let mut offset = 0;
        for keys in &self.keys {
            let part = B::float_slice(
                grad.clone(),
                &[
                    Slice::from(0..shape[0]),
                    Slice::from(offset..offset + keys.len()),
                    Slice::from(0..shape[2]),
                ],
            );
            let part = B::float_reshape(part, Shape::from([1, shape[0], keys.len(), shape[2]]));
            let slices = self.key_slices(keys, shape[0], shape[2]);
            let sum = B::float_add(B::float_slice(total.clone(), &slices), part);
            total = B::float_slice_assign(total, &slices, sum);
            offset += keys.len();
        }
        total
    }

    /// Scores of the scaled query `[Hkv, G * rows, D]` against the gathered keys.
    pub(super) fn scores(&self, query: FloatTensor<B>, keys: FloatTensor<B>) -> Scores<B> {
        let hidden = self.hidden();
        let mut values = B::float_matmul(query, B::float_swap_dims(keys, 1, 2));
        let mut tanh = None;
        if let Some(cap) = self.settings.softcap {
            let bounded = B::float_tanh(B::float_div_scalar(values, cap.into()));
            values = B::float_mul_scalar(bounded.clone(), cap.into());
            tanh = Some(bounded);
        }
        let values = B::float_mask_fill(values, hidden.clone(), HIDDEN_SCORE.into());
        Scores {
            values,
            tanh,
            hidden,
        }
    }

    /// `[Hkv, G * rows, keys]`: outside the key's interval, or left of the sliding window.
    fn hidden(&self) -> BoolTensor<B> {
        let device = self.mask.key_start.device();
        let settings = get_device_settings::<B>(&device);
        let (int, bool) = (self.mask.key_start.dtype().into(), settings.bool_dtype);
        let grid = Shape::from([self.rows.len(), self.n_keys()]);
        let rows = B::int_arange(self.rows.start as i64..self.rows.end as i64, &device, int);
        let across = |rows: IntTensor<B>| {
            let column = B::int_reshape(rows, Shape::from([self.rows.len(), 1]));
            B::int_expand(column, grid.clone())
        };
        let down = |keys: &IntTensor<B>| B::int_expand(self.interval_keys(keys), grid.clone());
        let rows = across(rows);

        let before = B::int_lower(rows.clone(), down(&self.mask.key_start), bool);
        let after = B::int_greater_equal(rows, down(&self.mask.key_end), bool);
        let mut hidden = B::bool_or(before, after);
        if let Some(window) = self.settings.sliding_window {
            let positions = B::int_slice(
                self.mask.query_position.clone(),
                &[
                    Slice::from(self.batch..self.batch + 1),
                    Slice::from(self.rows.clone()),
                ],
            );
            // Positions fit in 31 bits, so a larger window hides nothing.
            let window = window.min(i32::MAX as usize) as i64;
            let left_of = B::int_sub_scalar(across(positions), window.into());
            let outside = B::int_lower_equal(down(&self.mask.key_position), left_of, bool);
            hidden = B::bool_or(hidden, outside);
        }
        let (kv_heads, group) = (self.dims.kv_heads, self.dims.group());
        let hidden = B::bool_reshape(hidden, Shape::from([1, 1, self.rows.len(), self.n_keys()]));
        let heads = Shape::from([kv_heads, group, self.rows.len(), self.n_keys()]);
        B::bool_reshape(B::bool_expand(hidden, heads), self.folded(self.n_keys()))
    }

    /// The tile's keys of `[B, M]`, as `[1, keys]`.
    fn interval_keys(&self, tensor: &IntTensor<B>) -> IntTensor<B> {
        let batch = Slice::from(self.batch..self.batch + 1);
        let parts = self
            .keys
            .iter()
            .map(|keys| B::int_slice(tensor.clone(), &[batch, Slice::from(keys.clone())]));
        concatenate(parts.collect(), |parts| B::int_cat(parts, 1))
    }

    fn key_slices(&self, keys: &Range<usize>, heads: usize, last: usize) -> [Slice; 4] {
        [
            Slice::from(self.batch..self.batch + 1),
            Slice::from(0..heads),
            Slice::from(keys.clone()),
            Slice::from(0..last),
        ]
    }

    fn folded(&self, last: usize) -> Shape {
        Shape::from([
            self.dims.kv_heads,
            self.dims.group() * self.rows.len(),
            last,
        ])
    }

    /// `[Hkv, G * rows, X]` back to `[1, Hq, rows, X]`.
    pub(super) fn unfold(&self, tensor: FloatTensor<B>) -> FloatTensor<B> {
        let last = tensor.shape()[2];
        B::float_reshape(
            tensor,
            Shape::from([1, self.dims.query_heads, self.rows.len(), last]),
        )
    }
}

/// Key ranges of the spans, adjacent ones joined.
fn merge_keys(spans: &[KeySpan]) -> Vec<Range<usize>> {
    let mut keys: Vec<Range<usize>> = Vec::new();
    for span in spans {
        let (start, end) = (span.key_start as usize, span.key_end as usize);
        match keys.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => keys.push(start..end),
        }
    }
    keys
}

fn concatenate<T>(mut parts: Vec<T>, cat: impl FnOnce(Vec<T>) -> T) -> T {
    match parts.len() {
        1 => parts.remove(0),
        _ => cat(parts),
    }
}
