//! From Burn's backend primitives: tiles of query rows against the runs of keys that they see, in
//! memory O(N x tile). Runs on every backend, and tests compare other implementations with it.

mod mask;
mod tile;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::Shape;
use burn_tree_kit::dtype::at_least_f32;

use super::dims::Dims;
use super::options::AttentionSettings;
use crate::mask::Visibility;
use crate::primitive::cast;
use mask::MaskTensors;
use tile::TileView;

/// Query rows per tile.
const TILE_ROWS: usize = 128;

/// As [`tree_attention`](crate::TreeAttentionOps::tree_attention).
pub(crate) fn forward<B: Backend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dims = Dims::new(&query, &key, &value);
    let (dtype, device) = (query.dtype(), query.device());
    let computed = at_least_f32(dtype);
    let mask = MaskTensors::<B>::of(visibility, &device);
    let plan = visibility.plan(TILE_ROWS, settings.sliding_window);
    let mut outputs = vec![Vec::new(); dims.batch];
    let mut log_sums = vec![Vec::new(); dims.batch];
    for tile in plan.tiles() {
        let view = TileView::new(dims, &plan, tile, &mask, settings);
        let (output, log_sum) = if view.keys.is_empty() {
            let zeros = |last, dtype| {
                let shape = Shape::from([1, dims.query_heads, tile.rows.len(), last]);
                B::float_zeros(shape, &device, dtype)
            };
            (zeros(dims.value_dim, dtype.into()), zeros(1, computed))
        } else {
            let query = B::float_mul_scalar(view.rows_of(&query), settings.scale.into());
            let scores = view.scores(query, view.keys_of(&key));
            let max = B::float_max_dim(scores.values.clone(), 2);
            let exp = B::float_exp(B::float_sub(scores.values, max.clone()));
            let exp = B::float_mask_fill(exp, scores.hidden, 0.0.into());
            let sum = B::float_sum_dim(exp.clone(), 2);
            let bool = burn::backend::get_device_settings::<B>(&device).bool_dtype;
            let blind = B::float_equal_elem(sum.clone(), 0.0.into(), bool);
            let sum = B::float_mask_fill(sum, blind.clone(), 1.0.into());
            let output = B::float_div(B::float_matmul(exp, view.keys_of(&value)), sum.clone());
            let log_sum =
                B::float_mask_fill(B::float_add(max, B::float_log(sum)), blind, 0.0.into());
            (
                cast::<B>(view.unfold(output), dtype.into()),
                view.unfold(log_sum),
            )
        };
        outputs[tile.batch].push(output);
        log_sums[tile.batch].push(log_sum);
    }
    let log_sum_exp = stack::<B>(log_sums);
    let rows = Shape::from(dims.rows_shape());
    (stack::<B>(outputs), B::float_reshape(log_sum_exp, rows))
}

/// As [`tree_attention_backward`](crate::TreeAttentionOps::tree_attention_backward).
/// Probabilities are recomputed from the log-sum-exp.
pub(crate) fn backward<B: Backend>(
    grad_output: FloatTensor<B>,
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    output: FloatTensor<B>,
    log_sum_exp: FloatTensor<B>,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> (FloatTensor<B>, FloatTensor<B>, FloatTensor<B>) {
    let dims = Dims::new(&query, &key, &value);
    let (dtype, device) = (query.dtype(), query.device());
    let computed = at_least_f32(dtype);
    let mask = MaskTensors::<B>::of(visibility, &device);
    let plan = visibility.plan(TILE_ROWS, settings.sliding_window);
    let rows = Shape::from([dims.batch, dims.query_heads, dims.queries, 1]);
    let log_sum_exp = B::float_reshape(log_sum_exp, rows);
    let mut grad_key = B::float_zeros(dims.key_shape().into(), &device, computed);
    let mut grad_value = B::float_zeros(dims.value_shape().into(), &device, computed);
    let mut grad_queries = vec![Vec::new(); dims.batch];
    for tile in plan.tiles() {
        let view = TileView::new(dims, &plan, tile, &mask, settings);
        if view.keys.is_empty() {
            let shape = Shape::from([1, dims.query_heads, tile.rows.len(), dims.head_dim]);
            grad_queries[tile.batch].push(B::float_zeros(shape, &device, dtype.into()));
            continue;
        }
        let scaled = B::float_mul_scalar(view.rows_of(&query), settings.scale.into());
        let (keys, values) = (view.keys_of(&key), view.keys_of(&value));
        let grad = view.rows_of(&grad_output);
        let delta = B::float_sum_dim(B::float_mul(grad.clone(), view.rows_of(&output)), 2);

        let scores = view.scores(scaled.clone(), keys.clone());
        let shifted = B::float_sub(scores.values, view.rows_of(&log_sum_exp));
        let probabilities =
            B::float_mask_fill(B::float_exp(shifted), scores.hidden.clone(), 0.0.into());
        let transposed = B::float_swap_dims(probabilities.clone(), 1, 2);
        grad_value = view.add_to_keys(grad_value, B::float_matmul(transposed, grad.clone()));

        let grad_probabilities = B::float_matmul(grad, B::float_swap_dims(values, 1, 2));
        let mut grad_scores = B::float_mul(probabilities, B::float_sub(grad_probabilities, delta));
        if let Some(tanh) = scores.tanh {
            // d/ds [c tanh(s / c)] = 1 - tanh^2
            let square = B::float_mul(tanh.clone(), tanh);
            let slope = B::float_add_scalar(B::float_neg(square), 1.0.into());
            grad_scores = B::float_mul(grad_scores, slope);
        }
        let transposed = B::float_swap_dims(grad_scores.clone(), 1, 2);
        grad_key = view.add_to_keys(grad_key, B::float_matmul(transposed, scaled));
        let grad_query =
            B::float_mul_scalar(B::float_matmul(grad_scores, keys), settings.scale.into());
        grad_queries[tile.batch].push(cast::<B>(view.unfold(grad_query), dtype.into()));
    }
    let grad_query = stack::<B>(grad_queries);
    (
        grad_query,
        cast::<B>(grad_key, dtype.into()),
        cast::<B>(grad_value, dtype.into()),
    )
}

/// Tiles `[1, H, rows, X]` of each batch row, joined to `[B, H, N, X]`.
fn stack<B: Backend>(batches: Vec<Vec<FloatTensor<B>>>) -> FloatTensor<B> {
    let rows = batches
        .into_iter()
        .map(|tiles| B::float_cat(tiles, 2))
        .collect();
    B::float_cat(rows, 0)
}
