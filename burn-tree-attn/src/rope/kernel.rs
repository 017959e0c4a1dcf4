//! A CubeCL kernel: one pass over the tensor.

// The language of kernels lacks a method on either side.
#![allow(clippy::manual_is_multiple_of)]

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{address_type, elem, empty};
use burn_tree_kit::dtype::at_least_f32;
use cubecl::client::Client;
use cubecl::prelude::*;

use super::settings::{RopeDirection, RopePairing, RopeSettings};
use crate::launch::elementwise;

/// Heads that a unit turns by the same angles.
const HEADS_PER_UNIT: usize = 4;

/// Sizes and strides of one call, strides in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Rows {
    heads: usize,
    rows: usize,
    batch_stride: usize,
    head_stride: usize,
    row_stride: usize,
    units: usize,
}

/// Vectors of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Head {
    /// Half of those that are turned.
    half: usize,
    /// That stay as they are.
    rest: usize,
    /// Those are there already.
    in_place: bool,
    /// Pairs are neighbours, not `half` vectors apart.
    interleaved: bool,
    backward: bool,
    /// Sine and cosine from the runtime: f64, which only runtimes with a full library have.
    native: bool,
}

impl Head {
    /// Of rows of `x` in vectors of `vector` elements.
    fn new(x: &CubeTensor, settings: RopeSettings, vector: usize, in_place: bool) -> Self {
        Self {
            half: settings.rotary_dim / 2 / vector,
            rest: (x.shape()[3] - settings.rotary_dim) / vector,
            in_place,
            interleaved: settings.pairing == RopePairing::Interleaved,
            backward: settings.direction == RopeDirection::Backward,
            native: x.dtype == DType::F64,
        }
    }

    /// Vectors of a row that units of their own work on.
    fn items(&self) -> usize {
        if self.in_place {
            self.half
        } else {
            self.half + self.rest
        }
    }
}

/// One unit for each two vectors of the same pairs (and each vector that stays) of each row, for a
/// few heads. The elements of interleaved pairs change places in registers. `frequencies` ends with
/// the factor of cosines and sines.
#[cube(launch_unchecked, address_type = "dynamic")]
fn rope_kernel<E: Float, A: Float, I: Int, N: Size>(
    x: &[Vector<E, N>],
    positions: &[I],
    frequencies: &[A],
    output: &mut [Vector<E, N>],
    sizes: Rows,
    #[comptime] head: Head,
    #[define(E, A, I)] _types: [ElemType; 3],
) {
    if ABSOLUTE_POS >= sizes.units {
        terminate!();
    }
    let item = ABSOLUTE_POS % comptime!(head.items());
    let place = ABSOLUTE_POS / comptime!(head.items());
    let row = place % sizes.rows;
    let place = place / sizes.rows;
    let head_groups = sizes.heads.div_ceil(HEADS_PER_UNIT);
    let first_head = place % head_groups * HEADS_PER_UNIT;
    let batch = place / head_groups;
    let end_head = min(first_head + HEADS_PER_UNIT, sizes.heads);
    let head_vectors = comptime!(2 * head.half + head.rest);

    let mut cos = Vector::<A, N>::empty();
    let mut sin = Vector::<A, N>::empty();
    if item < head.half {
        let position = A::cast_from(positions[batch * sizes.rows + row]);
        let length = N::value();
        let factor = frequencies[comptime!(head.half * length)];
        #[unroll]
        for i in 0..N::value() {
            let angle = position * frequencies[item * N::value() + i];
            let turn = turn::<A>(angle, head.native);
            cos.insert(i, turn.cos * factor);
            sin.insert(
                i,
                if comptime!(head.backward) {
                    -turn.sin * factor
                } else {
                    turn.sin * factor
                },
            );
        }
    }
    for h in first_head..end_head {
        let from = batch * sizes.batch_stride + h * sizes.head_stride + row * sizes.row_stride;
        let to = ((batch * sizes.heads + h) * sizes.rows + row) * head_vectors;
        if item < head.half {
            if comptime!(head.interleaved) {
                let low = Vector::<A, N>::cast_from(x[from + 2 * item]);
                let high = Vector::<A, N>::cast_from(x[from + 2 * item + 1]);
                let first = every_other::<A, N>(low, high, 0usize);
                let second = every_other::<A, N>(low, high, 1usize);
                let turned_first = first * cos - second * sin;
                let turned_second = second * cos + first * sin;
                let low = alternating::<A, N>(turned_first, turned_second, 0usize);
                let high = alternating::<A, N>(turned_first, turned_second, N::value());
                output[to + 2 * item] = Vector::<E, N>::cast_from(low);
                output[to + 2 * item + 1] = Vector::<E, N>::cast_from(high);
            } else {
                let first = Vector::<A, N>::cast_from(x[from + item]);
                let second = Vector::<A, N>::cast_from(x[from + item + head.half]);
                output[to + item] = Vector::<E, N>::cast_from(first * cos - second * sin);
                output[to + item + head.half] =
                    Vector::<E, N>::cast_from(second * cos + first * sin);
            }
        } else {
            output[to + item + head.half] = x[from + item + head.half];
        }
    }
}

/// The elements `from`, `from + 2`, ... of `low` and then `high`.
#[cube]
fn every_other<A: Float, N: Size>(
    low: Vector<A, N>,
    high: Vector<A, N>,
    #[comptime] from: usize,
) -> Vector<A, N> {
    let mut elements = Vector::<A, N>::empty();
    let length = N::value();
    #[unroll]
    for i in 0..length {
        let at = comptime!(from + 2 * i);
        if comptime!(at < length) {
            elements.insert(i, low.extract(at));
        } else {
            elements.insert(i, high.extract(comptime!(at - length)));
        }
    }
    elements
}

/// The elements from `from` on of `first` and `second` in turn.
#[cube]
fn alternating<A: Float, N: Size>(
    first: Vector<A, N>,
    second: Vector<A, N>,
    #[comptime] from: usize,
) -> Vector<A, N> {
    let mut elements = Vector::<A, N>::empty();
    #[unroll]
    for i in 0..N::value() {
        let at = comptime!((from + i) / 2);
        if comptime!((from + i) % 2 == 0) {
            elements.insert(i, first.extract(at));
        } else {
            elements.insert(i, second.extract(at));
        }
    }
    elements
}

/// Sine and cosine of an angle.
#[derive(CubeType, Clone, Copy)]
struct Turn<A: Float> {
    cos: A,
    sin: A,
}

/// GPUs' own sine and cosine are good to some 11 bits only, and near zero only, as far as WGSL
/// promises: so the angle is reduced to a quarter turn and both are taken from polynomials, to
/// about 1e-7 for angles up to 1e5. Reduction and coefficients are those of Moshier's Cephes
/// (`sinf.c`).
#[cube]
fn turn<A: Float>(angle: A, #[comptime] native: bool) -> Turn<A> {
    if comptime!(native) {
        Turn::<A> {
            cos: angle.cos(),
            sin: angle.sin(),
        }
    } else {
        let quarters = (angle * A::new(core::f32::consts::FRAC_2_PI)).round();
        // pi / 2 in parts of few bits, whose products with `quarters` are exact.
        let rest = angle
            - quarters * A::new(1.570_312_5)
            - quarters * A::new(4.837_513e-4)
            - quarters * A::new(7.549_79e-8);
        let square = rest * rest;
        let sine = rest
            + rest
                * square
                * (A::new(-1.666_665_5e-1)
                    + square * (A::new(8.332_161e-3) - square * A::new(1.951_529_6e-4)));
        let cosine = A::new(1.0) - A::new(0.5) * square
            + square
                * square
                * (A::new(4.166_664_6e-2)
                    + square * (A::new(-1.388_731_6e-3) + square * A::new(2.443_315_7e-5)));
        let quarter = i32::cast_from(quarters);
        let odd = quarter & 1 == 1;
        let first = select(odd, cosine, sine);
        let second = select(odd, sine, cosine);
        Turn::<A> {
            sin: select(quarter & 2 == 2, -first, first),
            cos: select((quarter + 1) & 2 == 2, -second, second),
        }
    }
}

/// As [`TreeAttentionOps::rope`](crate::TreeAttentionOps::rope): in place if `x` is contiguous and
/// nobody else holds it, otherwise to a new contiguous tensor, from any strides of `x` that keep
/// heads in one piece.
pub(crate) fn rope(x: CubeTensor, position_ids: CubeTensor, settings: RopeSettings) -> CubeTensor {
    let x = if x.meta.is_tiled() || x.meta.strides()[3] != 1 {
        into_contiguous(x)
    } else {
        x
    };
    let position_ids = into_contiguous(position_ids);
    let (client, dtype, shape) = (x.client.clone(), x.dtype, x.shape());
    let in_place = x.can_mut() && x.is_contiguous();
    let vector = vector_size(&x, settings);
    let head = Head::new(&x, settings, vector, in_place);
    let units = shape[0] * shape[1].div_ceil(HEADS_PER_UNIT) * shape[2] * head.items();
    let strides = x.meta.strides();
    let sizes = RowsLaunch::new(
        shape[1],
        shape[2],
        strides[0] / vector,
        strides[1] / vector,
        strides[2] / vector,
        units,
    );
    let computed = DType::from(at_least_f32(dtype));
    let (output, output_arg) = if in_place {
        (x.clone(), x.as_tensor_alias(0).into_buffer_arg())
    } else {
        let output = empty(&x, shape, dtype);
        (output.clone(), output.into_buffer_arg())
    };
    let address = address_type(&[&x, &output, &position_ids]);
    let types = [dtype, computed, position_ids.dtype].map(elem);
    let (count, dim) = elementwise(&client, units);
    // SAFETY: all indices come from the shapes and strides of the tensors.
    unsafe {
        rope_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address,
            vector,
            x.into_buffer_arg(),
            position_ids.into_buffer_arg(),
            frequencies(&client, settings, computed),
            output_arg,
            sizes,
            head,
            types,
        );
    }
    output
}

/// Elements of a vector: at most 16 bytes, and a divisor of all that is counted in vectors.
fn vector_size(x: &CubeTensor, settings: RopeSettings) -> usize {
    let (half, rest) = (settings.rotary_dim / 2, x.shape()[3] - settings.rotary_dim);
    let strides = x.meta.strides();
    let multiples = [half, rest, strides[0], strides[1], strides[2]];
    let most = x.client.properties().hardware.max_vector_size;
    let fits = |vector: &usize| {
        vector * x.dtype.size() <= 16
            && *vector <= most
            && multiples.iter().all(|len| len.is_multiple_of(*vector))
    };
    [8, 4, 2].into_iter().find(fits).unwrap_or(1)
}

/// The frequencies of all pairs on the device, and the factor of cosines and sines.
fn frequencies(client: &Client, settings: RopeSettings, dtype: DType) -> BufferArg {
    let factor = settings.scaling.attention_factor();
    let frequencies = settings.inverse_frequencies().chain([factor]);
    let buffer = match dtype {
        DType::F64 => client.create_from_slice(f64::as_bytes(&frequencies.collect::<Vec<_>>())),
        _ => {
            let frequencies: Vec<f32> = frequencies.map(|it| it as f32).collect();
            client.create_from_slice(f32::as_bytes(&frequencies))
        }
    };
    // SAFETY: the buffer was created with this length.
    unsafe { BufferArg::from_raw_parts(buffer, settings.rotary_dim / 2 + 1) }
}

#[cfg(test)]
mod tests {
    use burn::backend::ops::FloatTensorOps;
    use burn_cubecl::CubeBackend;

    use super::*;
    use crate::rope::RopeScaling;
    use crate::support::direct::{device, integers, random, values};

    #[test]
    fn rope_is_in_place_if_nobody_else_holds_the_tensor() {
        let Some(device) = device() else { return };
        let rope = |x: CubeTensor, rows: u32, pairing| {
            let positions = integers(&(0..rows).collect::<Vec<_>>(), 1, &device);
            // The device has taken note of the tensor.
            cubecl::future::block_on(x.client.sync()).unwrap();
            let settings = RopeSettings {
                theta: 1e4,
                rotary_dim: 8,
                pairing,
                direction: RopeDirection::Forward,
                scaling: RopeScaling::None,
            };
            super::rope(x, positions, settings)
        };
        let memory = |tensor: &CubeTensor| tensor.handle.memory.descriptor().id;
        // More heads than a unit turns, and dimensions that stay as they are.
        let new = || random([1, 9, 3, 12], 1, DType::F32, &device);

        for pairing in [RopePairing::Halves, RopePairing::Interleaved] {
            let held = new();
            let before = values(held.clone()).unwrap();
            let turned = rope(held.clone(), 3, pairing);
            assert_ne!(memory(&turned), memory(&held));
            assert_eq!(values(held).unwrap(), before);
            let expected = values(turned).unwrap();
            assert_ne!(expected, before);

            let alone = new();
            let of_input = memory(&alone);
            let turned = rope(alone, 3, pairing);
            assert_eq!(memory(&turned), of_input);
            assert_eq!(values(turned).unwrap(), expected);

            // The result has its rows one after another, which these are not.
            let transposed = CubeBackend::float_swap_dims(new(), 1, 2);
            let of_input = memory(&transposed);
            assert_ne!(memory(&rope(transposed, 9, pairing)), of_input);
        }
    }
}
