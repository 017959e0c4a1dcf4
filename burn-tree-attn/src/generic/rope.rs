//! Rotary embeddings at given positions.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice, TensorData};

use super::accumulation_dtype;
use super::tile::cast;
use crate::ops::RopeDirection;

/// `theta^(-2 i / rotary_dim)` for the pairs `i < rotary_dim / 2`.
pub(crate) fn inverse_frequencies(theta: f64, rotary_dim: usize) -> impl Iterator<Item = f64> {
    (0..rotary_dim / 2).map(move |pair| theta.powf(-2.0 * pair as f64 / rotary_dim as f64))
}

/// `[x1 cos - x2 sin, x2 cos + x1 sin, rest]` with `x1`, `x2` the halves of the rotated
/// dimensions, and the sine negated for the backward direction.
pub(crate) fn rope<B: Backend>(
    x: FloatTensor<B>,
    position_ids: IntTensor<B>,
    theta: f64,
    rotary_dim: usize,
    direction: RopeDirection,
) -> FloatTensor<B> {
    let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
    let accumulation = accumulation_dtype(dtype);
    let (batch, queries, half) = (shape[0], shape[2], rotary_dim / 2);

    let frequencies: Vec<f64> = inverse_frequencies(theta, rotary_dim).collect();
    let frequencies =
        TensorData::new(frequencies, [1, 1, 1, half]).convert_dtype(accumulation.into());
    let frequencies = B::float_from_data(frequencies, &device);
    let positions = B::int_into_float(position_ids, accumulation);
    let positions = B::float_reshape(positions, Shape::from([batch, 1, queries, 1]));
    let grid = Shape::from([batch, 1, queries, half]);
    let angles = B::float_mul(
        B::float_expand(positions, grid.clone()),
        B::float_expand(frequencies, grid),
    );
    let cos = B::float_cos(angles.clone());
    let sin = match direction {
        RopeDirection::Forward => B::float_sin(angles),
        RopeDirection::Backward => B::float_neg(B::float_sin(angles)),
    };

    let dims = |range| [0..batch, 0..shape[1], 0..queries, range].map(Slice::from);
    let part = |range| cast::<B>(B::float_slice(x.clone(), &dims(range)), accumulation);
    let (first, second) = (part(0..half), part(half..rotary_dim));
    let turned_first = B::float_sub(
        B::float_mul(first.clone(), cos.clone()),
        B::float_mul(second.clone(), sin.clone()),
    );
    let turned_second = B::float_add(B::float_mul(second, cos), B::float_mul(first, sin));
    let mut parts = vec![
        cast::<B>(turned_first, dtype.into()),
        cast::<B>(turned_second, dtype.into()),
    ];
    if rotary_dim < shape[3] {
        parts.push(B::float_slice(x.clone(), &dims(rotary_dim..shape[3])));
    }
    B::float_cat(parts, 3)
}
