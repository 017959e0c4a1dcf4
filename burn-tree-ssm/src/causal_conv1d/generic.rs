//! Implementation from Burn's primitives, for every backend: gathers of rows.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{FloatDType, IndexingUpdateOp, Shape, Slice};
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::primitive::{int_tensor, sigmoid, silu_with_slope};

use super::settings::ConvolutionSettings;
use super::tensors::{ConvolutionGradients, ConvolutionInputs, ConvolutionOutputs};
use crate::recurrence::ConvolutionPlan;

/// See [`crate::TreeSsmOps::causal_conv1d`].
pub(crate) fn forward<B: Backend>(
    inputs: ConvolutionInputs<B>,
    plan: &ConvolutionPlan,
    settings: ConvolutionSettings,
) -> ConvolutionOutputs<B> {
    let ConvolutionInputs {
        x,
        weight,
        initial_tails,
    } = inputs;
    let dtype = x.dtype();
    let wide = at_least_f32(dtype);
    let sources = sources::<B>(x, initial_tails, plan, wide);
    let tails = match plan.requested_sources() {
        [] => zero_row::<B>(&sources),
        requested => select::<B>(&sources, requested),
    };
    let weight = B::float_cast(weight, wide);
    let mut output = convolve::<B>(&taps::<B>(&sources, plan), &weight);
    if settings.silu {
        output = B::float_mul(output.clone(), sigmoid::<B>(output));
    }
    let output = B::float_cast(output, dtype.into());
    let [first, second, third] = settings.ranges().map(|channels| {
        let (rows, channels) = match channels.is_empty() {
            true => (0..1, 0..1),
            false => (0..plan.rows(), channels),
        };
        B::float_slice(output.clone(), &[range(rows), range(channels)])
    });
    ConvolutionOutputs {
        first,
        second,
        third,
        tails: B::float_cast(tails, dtype.into()),
    }
}

/// See [`crate::TreeSsmOps::causal_conv1d_backward`].
pub(crate) fn backward<B: Backend>(
    inputs: ConvolutionInputs<B>,
    grads: ConvolutionOutputs<B>,
    plan: &ConvolutionPlan,
    settings: ConvolutionSettings,
) -> ConvolutionGradients<B> {
    let ConvolutionInputs {
        x,
        weight,
        initial_tails,
    } = inputs;
    let (dtype, weight_dtype) = (x.dtype(), weight.dtype());
    let wide = at_least_f32(dtype);
    let (rows, tail_rows, kernel_size) = (plan.rows(), plan.tail_rows(), plan.kernel_size());
    let sources = sources::<B>(x, initial_tails.clone(), plan, wide);
    let taps = taps::<B>(&sources, plan);
    let weight = B::float_cast(weight, wide);

    let grad_outputs = [grads.first, grads.second, grads.third];
    let parts = settings.parts().map(|(part, _)| grad_outputs[part].clone());
    let mut grad = B::float_cast(B::float_cat(parts.collect(), 1), wide);
    if settings.silu {
        let (_, slope) = silu_with_slope::<B>(convolve::<B>(&taps, &weight));
        grad = B::float_mul(grad, slope);
    }
    // Padding reads nothing, whatever its gradient is.
    let own: Vec<u32> = tap_sources(plan, 0).collect();
    let zero = (rows + tail_rows) as u32;
    if own.contains(&zero) {
        let own: Vec<u32> = own.iter().map(|&row| row.min(rows as u32)).collect();
        let with_zero = B::float_cat(vec![grad.clone(), zero_row::<B>(&grad)], 0);
        grad = select::<B>(&with_zero, &own);
    }

    let mut grad_sources = B::float_zeros(sources.shape(), &sources.device(), wide);
    let mut grad_weight = Vec::with_capacity(kernel_size);
    for (tap, values) in taps.into_iter().enumerate() {
        let products = B::float_mul(grad.clone(), values);
        grad_weight.push(B::float_sum_dim(products, 0));
        let along = B::float_mul(grad.clone(), weight_row::<B>(&weight, tap));
        let indices: Vec<u32> = tap_sources(plan, tap).collect();
        grad_sources = add_rows::<B>(grad_sources, &indices, along);
    }
    if !plan.requested_sources().is_empty() {
        let grad_tails = B::float_cast(grads.tails, wide);
        grad_sources = add_rows::<B>(grad_sources, plan.requested_sources(), grad_tails);
    }
    grad_weight.reverse();
    let grad_weight = B::float_swap_dims(B::float_cat(grad_weight, 0), 0, 1);

    let channels = weight.shape()[0];
    let rows_of = |rows| {
        let part = B::float_slice(grad_sources.clone(), &[range(rows), range(0..channels)]);
        B::float_cast(part, dtype.into())
    };
    let grad_tails = match tail_rows {
        0 => initial_tails,
        _ => rows_of(rows..rows + tail_rows),
    };
    ConvolutionGradients {
        x: rows_of(0..rows),
        weight: B::float_cast(grad_weight, weight_dtype.into()),
        initial_tails: grad_tails,
    }
}

/// Rows, incoming tails and a row of zeros: what sources are numbers of.
fn sources<B: Backend>(
    x: FloatTensor<B>,
    initial_tails: FloatTensor<B>,
    plan: &ConvolutionPlan,
    wide: FloatDType,
) -> FloatTensor<B> {
    let x = B::float_cast(x, wide);
    let zeros = zero_row::<B>(&x);
    let mut parts = vec![x];
    if plan.tail_rows() > 0 {
        parts.push(B::float_cast(initial_tails, wide));
    }
    parts.push(zeros);
    B::float_cat(parts, 0)
}

fn zero_row<B: Backend>(near: &FloatTensor<B>) -> FloatTensor<B> {
    let shape = Shape::new([1, near.shape()[1]]);
    B::float_zeros(shape, &near.device(), near.dtype().into())
}

fn tap_sources(plan: &ConvolutionPlan, tap: usize) -> impl Iterator<Item = u32> {
    let taps = plan.sources().iter().skip(tap);
    taps.step_by(plan.kernel_size()).copied()
}

/// What each tap reads, `[R, C]` each.
fn taps<B: Backend>(sources: &FloatTensor<B>, plan: &ConvolutionPlan) -> Vec<FloatTensor<B>> {
    (0..plan.kernel_size())
        .map(|tap| select::<B>(sources, &tap_sources(plan, tap).collect::<Vec<_>>()))
        .collect()
}

fn convolve<B: Backend>(taps: &[FloatTensor<B>], weight: &FloatTensor<B>) -> FloatTensor<B> {
    taps.iter()
        .enumerate()
        .map(|(tap, values)| B::float_mul(values.clone(), weight_row::<B>(weight, tap)))
        .reduce(B::float_add)
        .expect("at least one tap")
}

/// Weights `[1, C]` of a tap: the last column is that of the token itself.
fn weight_row<B: Backend>(weight: &FloatTensor<B>, tap: usize) -> FloatTensor<B> {
    let [channels, kernel_size] = [weight.shape()[0], weight.shape()[1]];
    let column = kernel_size - 1 - tap;
    let column = B::float_slice(
        weight.clone(),
        &[range(0..channels), range(column..column + 1)],
    );
    B::float_reshape(column, Shape::new([1, channels]))
}

fn select<B: Backend>(rows: &FloatTensor<B>, indices: &[u32]) -> FloatTensor<B> {
    B::float_select(rows.clone(), 0, int_tensor::<B>(indices, &rows.device()))
}

fn add_rows<B: Backend>(
    sums: FloatTensor<B>,
    indices: &[u32],
    values: FloatTensor<B>,
) -> FloatTensor<B> {
    let indices = int_tensor::<B>(indices, &sums.device());
    B::float_select_assign(sums, 0, indices, values, IndexingUpdateOp::Add)
}

fn range(range: std::ops::Range<usize>) -> Slice {
    range.into()
}
