//! Tree attention by its definition, one line per formula, with a dense `N x M` mask.

use burn::tensor::{Bool, Tensor, TensorData, activation};

use super::options::TreeAttentionOptions;
use crate::mask::TreeMask;

/// `[B, 1, N, M]`, true where the key is visible to the query.
pub fn dense_mask(mask: &TreeMask, sliding_window: Option<usize>) -> Tensor<4, Bool> {
    let (batch, queries, keys) = (mask.batch_size(), mask.n_queries(), mask.n_keys());
    let host = mask.visibility();
    let mut visible = Vec::with_capacity(batch * queries * keys);
    for b in 0..batch {
        for i in 0..queries {
            for j in 0..keys {
                let key = b * keys + j;
                let rows = host.key_start()[key] as usize..host.key_end()[key] as usize;
                let query_position = host.query_position()[b * queries + i] as usize;
                let in_window = sliding_window
                    .is_none_or(|w| host.key_position()[key] as usize + w > query_position);
                visible.push(rows.contains(&i) && in_window);
            }
        }
    }
    Tensor::from_data(
        TensorData::new(visible, [batch, 1, queries, keys]),
        mask.device(),
    )
}

/// Tree attention over a dense mask, in the dtype of its inputs.
pub fn tree_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mask: &TreeMask,
    options: TreeAttentionOptions,
) -> Tensor<4> {
    let [batch, query_heads, queries, head_dim] = query.dims();
    let keys = key.dims()[2];
    let group = query_heads / key.dims()[1];
    let visible =
        dense_mask(mask, options.sliding_window).expand([batch, query_heads, queries, keys]);
    let scale = options.scale.unwrap_or((head_dim as f64).powf(-0.5));

    let key = repeat_heads(key, group);
    let value = repeat_heads(value, group);
    let scores = query.matmul(key.transpose()) * scale;
    let scores = match options.softcap {
        // Not `scores / cap`: Burn 0.22 computes the backward of that division in f32.
        Some(cap) => (scores * cap.recip()).tanh() * cap,
        None => scores,
    };
    let scores = scores.mask_fill(visible.clone().bool_not(), -1e30);
    let probabilities = activation::softmax(scores, 3).mask_fill(visible.bool_not(), 0.0);
    probabilities.matmul(value)
}

/// `[B, H, M, D] -> [B, H * group, M, D]`, each head `group` times in a row.
fn repeat_heads(x: Tensor<4>, group: usize) -> Tensor<4> {
    let [batch, heads, rows, dim] = x.dims();
    x.unsqueeze_dim::<5>(2)
        .expand([batch, heads, group, rows, dim])
        .reshape([batch, heads * group, rows, dim])
}
