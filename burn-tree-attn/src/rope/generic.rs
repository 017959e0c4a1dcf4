//! From Burn's backend primitives.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice, TensorData};
use burn_tree_kit::dtype::at_least_f32;

use super::settings::{RopeDirection, RopePairing, RopeSettings};
use crate::primitive::cast;

/// `x1 cos - x2 sin` and `x2 cos + x1 sin` in the places of `x1` and `x2`, the first and the second
/// elements of the pairs, and the sine negated for the backward direction.
pub(crate) fn rope<B: Backend>(
    x: FloatTensor<B>,
    position_ids: IntTensor<B>,
    settings: RopeSettings,
) -> FloatTensor<B> {
    let rotary_dim = settings.rotary_dim;
    let ([batch, heads, queries, head_dim], half) = (x.shape().dims(), rotary_dim / 2);
    let (dtype, device) = (x.dtype(), x.device());
    let accumulation = at_least_f32(dtype);

    let frequencies: Vec<f64> = settings.inverse_frequencies().collect();
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
    let sin = match settings.direction {
        RopeDirection::Forward => B::float_sin(angles),
        RopeDirection::Backward => B::float_neg(B::float_sin(angles)),
    };
    let scaled = |x| match settings.scaling.attention_factor() {
        1.0 => x,
        factor => B::float_mul_scalar(x, factor.into()),
    };
    let (cos, sin) = (scaled(cos), scaled(sin));

    let dims = |range| [0..batch, 0..heads, 0..queries, range].map(Slice::from);
    // First and second elements: two rows of `half`, or two columns.
    let (places, side) = match settings.pairing {
        RopePairing::Halves => ([2, half], 3),
        RopePairing::Interleaved => ([half, 2], 4),
    };
    let rotated = B::float_slice(x.clone(), &dims(0..rotary_dim));
    let shape = [batch, heads, queries, places[0], places[1]];
    let rotated = B::float_reshape(rotated, Shape::from(shape));
    let of_side = |element: usize| {
        let mut ranges = shape.map(|len| 0..len);
        ranges[side] = element..element + 1;
        let elements = B::float_slice(rotated.clone(), &ranges.map(Slice::from));
        let elements = B::float_reshape(elements, Shape::from([batch, heads, queries, half]));
        cast::<B>(elements, accumulation)
    };
    let (first, second) = (of_side(0), of_side(1));
    let turned_first = B::float_sub(
        B::float_mul(first.clone(), cos.clone()),
        B::float_mul(second.clone(), sin.clone()),
    );
    let turned_second = B::float_add(B::float_mul(second, cos), B::float_mul(first, sin));
    let turned = [turned_first, turned_second].map(|elements| {
        let mut shape = shape;
        shape[side] = 1;
        B::float_reshape(cast::<B>(elements, dtype.into()), Shape::from(shape))
    });
    let turned = B::float_reshape(
        B::float_cat(turned.to_vec(), side),
        Shape::from([batch, heads, queries, rotary_dim]),
    );
    if rotary_dim == head_dim {
        return turned;
    }
    let rest = B::float_slice(x, &dims(rotary_dim..head_dim));
    B::float_cat(vec![turned, rest], 3)
}
