//! Rotary embeddings by their definition.

use burn::tensor::{Int, Tensor, TensorData};

use super::settings::{RopeConfig, RopePairing};

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
    let frequencies = config.scaling.inverse_frequencies(config.theta, rotary_dim);
    let frequency = |dimension: usize| frequencies[pair_of(dimension)];
    let factor = config.scaling.attention_factor();
    let positions = position_ids.into_data().iter::<i64>().collect::<Vec<_>>();
    let angles = positions
        .iter()
        .flat_map(|&p| (0..rotary_dim).map(move |i| (p, i)));
    let angles: Vec<f64> = angles.map(|(p, i)| p as f64 * frequency(i)).collect();
    let table = |f: fn(f64) -> f64| {
        let values: Vec<f64> = angles.iter().map(|&angle| factor * f(angle)).collect();
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
