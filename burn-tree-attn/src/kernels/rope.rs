//! Rotary embeddings in one pass over the tensor.

use burn::backend::TensorMetadata;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::address_type;
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::*;

use super::elementwise_dim;
use crate::generic::accumulation_dtype;
use crate::ops::{RopeDirection, RopePairing, RopeSettings};

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
/// few heads. The elements of interleaved pairs change places in registers.
#[cube(launch_unchecked, address_type = "dynamic")]
fn rope_kernel<E: Float, A: Float, I: Int, N: Size>(
    x: &[Vector<E, N>],
    positions: &[I],
    frequencies: &[A],
    output: &mut [Vector<E, N>],
    sizes: Rows,
    #[comptime] head: Head,
    #[define(E)] _stored: ElemType,
    #[define(A)] _computed: ElemType,
    #[define(I)] _position: ElemType,
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
        #[unroll]
        for i in 0..N::value() {
            let angle = position * frequencies[item * N::value() + i];
            let turn = turn::<A>(angle, head.native);
            cos.insert(i, turn.cos);
            sin.insert(
                i,
                if comptime!(head.backward) {
                    -turn.sin
                } else {
                    turn.sin
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
    let rotary_dim = settings.rotary_dim;
    let x = if x.meta.is_tiled() || x.meta.strides()[3] != 1 {
        into_contiguous(x)
    } else {
        x
    };
    let position_ids = into_contiguous(position_ids);
    let (client, device, dtype, shape) = (x.client.clone(), x.device.clone(), x.dtype, x.shape());
    let (half, rest) = (rotary_dim / 2, shape[3] - rotary_dim);
    let in_place = x.can_mut() && x.is_contiguous();

    let strides = x.meta.strides();
    let multiples = [half, rest, strides[0], strides[1], strides[2]];
    let fits = |vector: &usize| {
        vector * dtype.size() <= 16
            && *vector <= client.properties().hardware.max_vector_size
            && multiples.iter().all(|len| len.is_multiple_of(*vector))
    };
    let vector = [8, 4, 2].into_iter().find(fits).unwrap_or(1);
    let head = Head {
        half: half / vector,
        rest: rest / vector,
        in_place,
        interleaved: settings.pairing == RopePairing::Interleaved,
        backward: settings.direction == RopeDirection::Backward,
        native: dtype == DType::F64,
    };
    let units = shape[0] * shape[1].div_ceil(HEADS_PER_UNIT) * shape[2] * head.items();
    let sizes = RowsLaunch::new(
        shape[1],
        shape[2],
        strides[0] / vector,
        strides[1] / vector,
        strides[2] / vector,
        units,
    );
    let computed = DType::from(accumulation_dtype(dtype));
    let frequencies = settings.inverse_frequencies();
    let frequencies = match computed {
        DType::F64 => client.create_from_slice(f64::as_bytes(&frequencies.collect::<Vec<_>>())),
        _ => {
            let frequencies: Vec<f32> = frequencies.map(|it| it as f32).collect();
            client.create_from_slice(f32::as_bytes(&frequencies))
        }
    };
    // SAFETY: the buffer was created with this length.
    let frequencies = unsafe { BufferArg::from_raw_parts(frequencies, half) };
    let output = if in_place {
        x.clone()
    } else {
        empty_device_contiguous_dtype(client.clone(), device, shape, dtype)
    };
    let address = address_type(&[&x, &output, &position_ids]);
    let output_arg = if in_place {
        output.as_tensor_alias(0).into_buffer_arg()
    } else {
        output.clone().into_buffer_arg()
    };
    let position = dtype_to_storage_type(position_ids.dtype);
    let dim = elementwise_dim(&client);
    // SAFETY: all indices come from the shapes and strides of the tensors.
    unsafe {
        rope_kernel::launch_unchecked(
            &client,
            calculate_cube_count_elemwise(&client, units, dim),
            dim,
            address,
            vector,
            x.into_buffer_arg(),
            position_ids.into_buffer_arg(),
            frequencies,
            output_arg,
            sizes,
            head,
            dtype_to_storage_type(dtype),
            dtype_to_storage_type(computed),
            position,
        );
    }
    output
}
