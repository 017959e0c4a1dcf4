//! The operations by their definitions, one line per formula, with dense `N x M` masks: for
//! reading, and for tests to compare with. Gradients come from Burn's autodiff.

use burn::tensor::{Bool, Int, Tensor, TensorData, activation};

use crate::{RopeConfig, RopePairing, TreeAttentionOptions, TreeMask};

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

/// Rotary embedding: `x cos + turned sin` on the leading `rotary_dim` dimensions; `turned` has
/// `-second` where pairs have their first element, and `first` where they have the second.
pub fn rope(x: Tensor<4>, position_ids: Tensor<2, Int>, config: &RopeConfig) -> Tensor<4> {
    let [batch, heads, rows, dim] = x.dims();
    let rotary_dim = config.rotary_dim.unwrap_or(dim);
    let half = rotary_dim / 2;
    let pair_of = |dimension: usize| match config.pairing {
        RopePairing::Halves => dimension % half,
        RopePairing::Interleaved => dimension / 2,
    };
    let frequency = |dimension: usize| {
        let pair = pair_of(dimension) as f64;
        config.theta.powf(-2.0 * pair / rotary_dim as f64)
    };
    let positions = position_ids.into_data().iter::<i64>().collect::<Vec<_>>();
    let angles = positions
        .iter()
        .flat_map(|&p| (0..rotary_dim).map(move |i| (p, i)));
    let angles: Vec<f64> = angles.map(|(p, i)| p as f64 * frequency(i)).collect();
    let table = |f: fn(f64) -> f64| {
        let values: Vec<f64> = angles.iter().map(|&angle| f(angle)).collect();
        let data = TensorData::new(values, [batch, 1, rows, rotary_dim]);
        Tensor::<4>::from_data(data, (&x.device(), x.dtype()))
            .expand([batch, heads, rows, rotary_dim])
    };
    let rotated = x.clone().narrow(3, 0, rotary_dim);
    let turned = match config.pairing {
        RopePairing::Halves => {
            let [first, second] = [0, half].map(|start| rotated.clone().narrow(3, start, half));
            Tensor::cat(vec![-second, first], 3)
        }
        RopePairing::Interleaved => {
            let pairs: Tensor<5> = rotated.clone().reshape([batch, heads, rows, half, 2]);
            let [first, second] = [0, 1].map(|element| pairs.clone().narrow(4, element, 1));
            Tensor::cat(vec![-second, first], 4).reshape([batch, heads, rows, rotary_dim])
        }
    };
    let rotated = rotated * table(f64::cos) + turned * table(f64::sin);
    if rotary_dim == dim {
        return rotated;
    }
    Tensor::cat(vec![rotated, x.narrow(3, rotary_dim, dim - rotary_dim)], 3)
}
