//! Kernels: one vector per unit.

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{address_type, contiguous, elem, empty, units, vector_size};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    one / (one + (-x).exp())
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn forward_kernel<F: Float, N: Size>(
    gate: &[Vector<F, N>],
    up: &[Vector<F, N>],
    output: &mut [Vector<F, N>],
    total: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let x = Vector::<f32, N>::cast_from(gate[ABSOLUTE_POS]);
    let silu = Vector::<F, N>::cast_from(x * sigmoid::<N>(x));
    let up = Vector::<f32, N>::cast_from(up[ABSOLUTE_POS]);
    output[ABSOLUTE_POS] = Vector::cast_from(Vector::<f32, N>::cast_from(silu) * up);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward_kernel<F: Float, N: Size>(
    gate: &[Vector<F, N>],
    up: &[Vector<F, N>],
    grad: &[Vector<F, N>],
    grad_gate: &mut [Vector<F, N>],
    grad_up: &mut [Vector<F, N>],
    total: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let x = Vector::<f32, N>::cast_from(gate[ABSOLUTE_POS]);
    let up = Vector::<f32, N>::cast_from(up[ABSOLUTE_POS]);
    let grad = Vector::<f32, N>::cast_from(grad[ABSOLUTE_POS]);
    let open = sigmoid::<N>(x);
    let silu = x * open;
    grad_up[ABSOLUTE_POS] = Vector::cast_from(grad * silu);
    // d silu / d gate = s + silu (1 - s)
    let slope = open + silu * (Vector::<f32, N>::new(1.0f32) - open);
    grad_gate[ABSOLUTE_POS] = Vector::cast_from(grad * up * slope);
}

/// See [`crate::TreeNnOps::swiglu`].
pub(crate) fn forward(gate: CubeTensor, up: CubeTensor) -> CubeTensor {
    let [gate, up] = contiguous([gate, up]);
    let client = gate.client.clone();
    let output = empty(&gate, gate.meta.shape().clone(), gate.dtype);
    let elements = gate.meta.num_elements();
    let vector = vector_size(&client, &[gate.dtype], elements);
    let (count, dim) = units(&client, elements / vector);
    // SAFETY: all tensors have one shape and are contiguous.
    unsafe {
        forward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&gate]),
            vector,
            gate.clone().into_buffer_arg(),
            up.into_buffer_arg(),
            output.clone().into_buffer_arg(),
            elements / vector,
            elem(gate.dtype),
        );
    }
    output
}

/// See [`crate::TreeNnOps::swiglu_backward`].
pub(crate) fn backward(
    gate: CubeTensor,
    up: CubeTensor,
    grad: CubeTensor,
) -> (CubeTensor, CubeTensor) {
    let [gate, up, grad] = contiguous([gate, up, grad]);
    let client = gate.client.clone();
    let [grad_gate, grad_up] =
        [&gate, &up].map(|tensor| empty(tensor, tensor.meta.shape().clone(), gate.dtype));
    let elements = gate.meta.num_elements();
    let vector = vector_size(&client, &[gate.dtype], elements);
    let (count, dim) = units(&client, elements / vector);
    // SAFETY: all tensors have one shape and are contiguous.
    unsafe {
        backward_kernel::launch_unchecked(
            &client,
            count,
            dim,
            address_type(&[&gate]),
            vector,
            gate.clone().into_buffer_arg(),
            up.into_buffer_arg(),
            grad.into_buffer_arg(),
            grad_gate.clone().into_buffer_arg(),
            grad_up.clone().into_buffer_arg(),
            elements / vector,
            elem(gate.dtype),
        );
    }
    (grad_gate, grad_up)
}
