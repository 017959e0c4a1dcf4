//! The launches of a backward pass.

use std::ops::Range;

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, ops::reshape, tensor::CubeTensor};
use burn_tree_kit::cube::{address_type, column_sum, contiguous, cubes, elem, empty, units};
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;

use super::super::settings::ConvolutionSettings;
use super::super::tensors::{ConvolutionGradients, ConvolutionInputs, ConvolutionOutputs};
use super::backward::{BLOCK_ROWS, convolution_kernel, parts_kernel, tails_kernel};
use super::readers::ReadersLaunch;
use super::walk::SourcesLaunch;
use super::{Call, buffer};
use crate::recurrence::ConvolutionPlan;
use crate::recurrence::device::ConvolutionList;

/// See [`crate::TreeSsmOps::causal_conv1d_backward`]; a plan that passes [`check`](super::check).
pub(crate) fn backward(
    inputs: ConvolutionInputs<CubeBackend>,
    grads: ConvolutionOutputs<CubeBackend>,
    plan: &ConvolutionPlan,
    settings: ConvolutionSettings,
) -> ConvolutionGradients<CubeBackend> {
    let [x, weight, initial_tails] = contiguous([inputs.x, inputs.weight, inputs.initial_tails]);
    let call = Call::new(&x, &weight, &initial_tails, plan, settings);
    let taps = plan.kernel_size();
    let blocks = plan.rows().div_ceil(BLOCK_ROWS);
    let n_parts = plan.parts().offsets.len() - 1;
    let backward = Backward {
        tails: with_outgoing(initial_tails.clone(), grads.tails, plan),
        grad_outputs: contiguous([grads.first, grads.second, grads.third]),
        sums: empty(&x, [blocks * taps + n_parts, call.channels], DType::F32),
        first_part: blocks * taps,
        x,
        weight,
        call,
    };
    if n_parts > 0 {
        backward.sum_parts(n_parts);
    }
    let grad_x = backward.rows(blocks);
    let grad_tails = match plan.tail_rows() {
        0 => initial_tails,
        positions => backward.tails(positions),
    };
    let shape = [blocks, backward.call.channels * taps];
    let grad_weight = column_sum(backward.sums, shape, backward.weight.dtype);
    ConvolutionGradients {
        x: grad_x,
        weight: reshape(grad_weight, Shape::new([backward.call.channels, taps])),
        initial_tails: grad_tails,
    }
}

/// The incoming tails, followed by the gradients of the outgoing ones if there are any.
fn with_outgoing(
    initial_tails: CubeTensor,
    grad_tails: CubeTensor,
    plan: &ConvolutionPlan,
) -> CubeTensor {
    match (plan.tail_rows(), plan.requested_sources().len()) {
        (_, 0) => initial_tails,
        (0, _) => into_contiguous(grad_tails),
        _ => into_contiguous(CubeBackend::float_cat(vec![initial_tails, grad_tails], 0)),
    }
}

/// The launches of a backward pass.
struct Backward<'a> {
    call: Call<'a>,
    x: CubeTensor,
    weight: CubeTensor,
    /// See [`with_outgoing`].
    tails: CubeTensor,
    grad_outputs: [CubeTensor; 3],
    /// `[blocks, C, K]` of weights, then `[parts, C]` of lists of readers.
    sums: CubeTensor,
    first_part: usize,
}

impl Backward<'_> {
    /// What taps read of some channels, as an argument.
    fn sources<F: Float, N: Size>(&self, channels: &Range<usize>) -> SourcesLaunch<F, N> {
        self.call.sources(&self.x, &self.tails, channels)
    }

    /// The gradients of the outputs of a part, and lists of readers, as an argument.
    fn readers<F: Float, N: Size>(
        &self,
        part: usize,
        offsets: ConvolutionList,
        readers: ConvolutionList,
    ) -> ReadersLaunch<F, N> {
        let [offsets, readers] = [offsets, readers].map(|list| self.call.list(list));
        ReadersLaunch::new(
            buffer(&self.grad_outputs[part]),
            offsets,
            readers,
            self.first_part,
        )
    }

    fn address_type(&self) -> AddressType {
        address_type(&[&self.x, &self.weight, &self.tails, &self.sums])
    }

    fn dtypes(&self) -> [ElemType; 2] {
        [elem(self.x.dtype), elem(self.weight.dtype)]
    }

    fn sum_parts(&self, n_parts: usize) {
        for (part, channels) in self.call.settings.parts() {
            let total = n_parts * channels.len() / self.call.vector;
            let (count, dim) = units(&self.call.client, total);
            let (offsets, readers) = (ConvolutionList::PartOffsets, ConvolutionList::PartReaders);
            // SAFETY: as in the forward pass.
            unsafe {
                parts_kernel::launch_unchecked(
                    &self.call.client,
                    count,
                    dim,
                    self.address_type(),
                    self.call.vector,
                    self.sources(&channels),
                    buffer(&self.weight),
                    self.readers(part, offsets, readers),
                    buffer(&self.sums),
                    total,
                    self.call.convolution,
                    self.dtypes(),
                );
            }
        }
    }

    /// The gradient of `x`, and those of the weights by block of rows.
    fn rows(&self, blocks: usize) -> CubeTensor {
        let grad_x = empty(&self.x, self.x.meta.shape().clone(), self.x.dtype);
        for (part, channels) in self.call.settings.parts() {
            let (groups, columns) = self.call.groups(channels.len());
            let (count, dim) = cubes(&self.call.client, columns * blocks, groups.units);
            let offsets = ConvolutionList::RowReaderOffsets;
            // SAFETY: as in the forward pass.
            unsafe {
                convolution_kernel::launch_unchecked(
                    &self.call.client,
                    count,
                    dim,
                    self.address_type(),
                    self.call.vector,
                    self.sources(&channels),
                    buffer(&self.weight),
                    self.readers(part, offsets, ConvolutionList::RowReaders),
                    buffer(&grad_x),
                    buffer(&self.sums),
                    groups,
                    self.call.convolution,
                    self.dtypes(),
                );
            }
        }
        grad_x
    }

    /// The gradient of the incoming tails.
    fn tails(&self, positions: usize) -> CubeTensor {
        let grad_tails = empty(&self.x, [positions, self.call.channels], self.x.dtype);
        for (part, channels) in self.call.settings.parts() {
            let total = positions * channels.len() / self.call.vector;
            let (count, dim) = units(&self.call.client, total);
            let offsets = ConvolutionList::TailReaderOffsets;
            // SAFETY: as in the forward pass.
            unsafe {
                tails_kernel::launch_unchecked(
                    &self.call.client,
                    count,
                    dim,
                    self.address_type(),
                    self.call.vector,
                    self.sources(&channels),
                    buffer(&self.weight),
                    self.readers(part, offsets, ConvolutionList::TailReaders),
                    buffer(&self.sums),
                    buffer(&grad_tails),
                    total,
                    self.call.convolution,
                    self.dtypes(),
                );
            }
        }
        grad_tails
    }
}
