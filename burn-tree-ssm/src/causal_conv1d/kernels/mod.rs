//! Kernels: a unit walks down rows with a vector of channels. The three parts of the channels are
//! launches of their own, each with its output (or gradient) in a tensor of its own.

// The language of kernels has no `&&` of what is known when it is compiled and what is not.
#![allow(clippy::collapsible_if)]

mod backward;
mod forward;
mod walk;

use std::sync::Arc;

use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Shape};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, ops::reshape, tensor::CubeTensor};
use burn_tree_kit::cube::{
    RowGroups, address_type, column_sum, contiguous, cubes, elem, empty, has_approximations, units,
    units_per_cube, vector_size,
};
use burn_tree_kit::implementation::Unavailable;
use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};

use super::settings::ConvolutionSettings;
use super::tensors::{ConvolutionGradients, ConvolutionInputs, ConvolutionOutputs};
use crate::recurrence::ConvolutionPlan;
use crate::recurrence::device::{ConvolutionList, DeviceLists};
use backward::ReaderListsLaunch;
use walk::{Convolution, SizesLaunch};

/// Most numbers of a vector: a unit keeps several for each tap in registers.
const VECTOR: usize = 4;

/// Most units side by side.
const LANES: u32 = 32;

/// Most units of a cube, several of which then fit on a multiprocessor.
const UNITS: u32 = 128;

/// Most taps: each is unrolled.
const MAX_TAPS: usize = 8;

/// Refuses what the kernels do not compute.
pub(crate) fn check(plan: &ConvolutionPlan) -> Result<(), Unavailable> {
    match plan.kernel_size() {
        ..=MAX_TAPS => Ok(()),
        taps => Err(Unavailable(format!(
            "{taps} taps; at most {MAX_TAPS} are unrolled"
        ))),
    }
}

/// What the launches of one call have in common.
struct Call<'a> {
    client: Client,
    lists: Arc<DeviceLists<ConvolutionList>>,
    plan: &'a ConvolutionPlan,
    settings: ConvolutionSettings,
    convolution: Convolution,
    vector: usize,
    channels: usize,
    address_type: AddressType,
}

impl<'a> Call<'a> {
    fn new(
        x: &CubeTensor,
        weight: &CubeTensor,
        initial_tails: &CubeTensor,
        plan: &'a ConvolutionPlan,
        settings: ConvolutionSettings,
    ) -> Self {
        let client = x.client.clone();
        let lists = plan.on_device(x);
        // Kernels take them from the start of the buffer.
        debug_assert_eq!(lists.start(ConvolutionList::Sources), 0);
        // Vectors that divide each part.
        let parts = settings.parts().map(|(_, channels)| channels.len());
        let divisor = parts.fold(0, greatest_common_divisor);
        let vector = vector_size(&client, &[x.dtype, weight.dtype], divisor);
        Self {
            lists,
            plan,
            settings,
            convolution: Convolution {
                taps: plan.kernel_size(),
                silu: settings.silu,
                tails: plan.tail_rows() > 0,
                approximate: has_approximations(&client),
            },
            vector: vector.min(VECTOR),
            channels: x.meta.shape()[1],
            address_type: address_type(&[x, weight, initial_tails]),
            client,
        }
    }

    /// Where a list starts in the buffer of all lists.
    fn list(&self, list: ConvolutionList) -> usize {
        self.lists.start(list) as usize
    }

    fn sizes(&self, channels: &std::ops::Range<usize>) -> SizesLaunch {
        SizesLaunch::new(
            self.plan.rows(),
            self.plan.tail_rows(),
            self.channels / self.vector,
            channels.start / self.vector,
            channels.len() / self.vector,
            self.list(ConvolutionList::PlainRuns),
        )
    }

    /// How the units of a cube share `channels` and rows, and the cubes that all channels take.
    fn groups(&self, channels: usize) -> (RowGroups, usize) {
        let width = channels / self.vector;
        let units = units_per_cube(&self.client).min(UNITS);
        let groups = RowGroups {
            units,
            lanes: (width.next_power_of_two() as u32).min(LANES).min(units),
            plane: 1,
        };
        (groups, width.div_ceil(groups.lanes as usize))
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
}

/// See [`crate::TreeSsmOps::causal_conv1d`]; a plan that passes [`check`].
pub(crate) fn forward(
    inputs: ConvolutionInputs<CubeBackend>,
    plan: &ConvolutionPlan,
    settings: ConvolutionSettings,
) -> ConvolutionOutputs<CubeBackend> {
    let [x, weight, initial_tails] = contiguous([inputs.x, inputs.weight, inputs.initial_tails]);
    let call = Call::new(&x, &weight, &initial_tails, plan, settings);
    let dtypes = [elem(x.dtype), elem(weight.dtype)];
    // Parts without channels are not read.
    let mut outputs = [0; 3].map(|_| empty(&x, [1, 1], x.dtype));
    for (part, channels) in settings.parts() {
        outputs[part] = empty(&x, [plan.rows(), channels.len()], x.dtype);
        let (groups, columns) = call.groups(channels.len());
        let blocks = plan
            .rows()
            .div_ceil(groups.groups() * forward::ROWS_PER_UNIT);
        let (count, dim) = cubes(&call.client, columns * blocks, groups.units);
        // SAFETY: shapes as read from the tensors, lists within bounds by construction of the
        // plan; units without rows or channels store nothing.
        unsafe {
            forward::convolution_kernel::launch_unchecked(
                &call.client,
                count,
                dim,
                call.address_type,
                call.vector,
                x.clone().into_buffer_arg(),
                weight.clone().into_buffer_arg(),
                initial_tails.clone().into_buffer_arg(),
                call.lists.buffer(),
                outputs[part].clone().into_buffer_arg(),
                call.sizes(&channels),
                groups,
                call.convolution,
                dtypes,
            );
        }
    }
    let [first, second, third] = outputs;
    ConvolutionOutputs {
        first,
        second,
        third,
        tails: requested_tails(&call, &x, initial_tails),
    }
}

fn requested_tails(call: &Call, x: &CubeTensor, initial_tails: CubeTensor) -> CubeTensor {
    let positions = call.plan.requested_sources().len();
    let tails = empty(x, [positions.max(1), call.channels], x.dtype);
    if positions > 0 {
        let total = positions * call.channels / call.vector;
        let (count, dim) = units(&call.client, total);
        // SAFETY: as above.
        unsafe {
            forward::tails_kernel::launch_unchecked(
                &call.client,
                count,
                dim,
                call.address_type.max(address_type(&[&tails])),
                call.vector,
                x.clone().into_buffer_arg(),
                initial_tails.into_buffer_arg(),
                call.lists.buffer(),
                tails.clone().into_buffer_arg(),
                call.sizes(&(0..call.channels)),
                call.list(ConvolutionList::RequestedSources),
                total,
                call.convolution,
                elem(x.dtype),
            );
        }
    }
    tails
}

/// See [`crate::TreeSsmOps::causal_conv1d_backward`]; a plan that passes [`check`].
pub(crate) fn backward(
    inputs: ConvolutionInputs<CubeBackend>,
    grads: ConvolutionOutputs<CubeBackend>,
    plan: &ConvolutionPlan,
    settings: ConvolutionSettings,
) -> ConvolutionGradients<CubeBackend> {
    let [x, weight, initial_tails] = contiguous([inputs.x, inputs.weight, inputs.initial_tails]);
    let call = Call::new(&x, &weight, &initial_tails, plan, settings);
    let taps = plan.kernel_size();
    let blocks = plan.rows().div_ceil(backward::BLOCK_ROWS);
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
    fn readers(&self, offsets: ConvolutionList, readers: ConvolutionList) -> ReaderListsLaunch {
        let [offsets, readers] = [offsets, readers].map(|list| self.call.list(list));
        ReaderListsLaunch::new(offsets, readers, self.first_part)
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
            // SAFETY: as in the forward pass.
            unsafe {
                backward::parts_kernel::launch_unchecked(
                    &self.call.client,
                    count,
                    dim,
                    self.address_type(),
                    self.call.vector,
                    self.x.clone().into_buffer_arg(),
                    self.weight.clone().into_buffer_arg(),
                    self.tails.clone().into_buffer_arg(),
                    self.grad_outputs[part].clone().into_buffer_arg(),
                    self.call.lists.buffer(),
                    self.sums.clone().into_buffer_arg(),
                    self.call.sizes(&channels),
                    self.readers(ConvolutionList::PartOffsets, ConvolutionList::PartReaders),
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
            // SAFETY: as in the forward pass.
            unsafe {
                backward::convolution_kernel::launch_unchecked(
                    &self.call.client,
                    count,
                    dim,
                    self.address_type(),
                    self.call.vector,
                    self.x.clone().into_buffer_arg(),
                    self.weight.clone().into_buffer_arg(),
                    self.tails.clone().into_buffer_arg(),
                    self.grad_outputs[part].clone().into_buffer_arg(),
                    self.call.lists.buffer(),
                    grad_x.clone().into_buffer_arg(),
                    self.sums.clone().into_buffer_arg(),
                    self.call.sizes(&channels),
                    self.readers(
                        ConvolutionList::RowReaderOffsets,
                        ConvolutionList::RowReaders,
                    ),
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
            // SAFETY: as in the forward pass.
            unsafe {
                backward::tails_kernel::launch_unchecked(
                    &self.call.client,
                    count,
                    dim,
                    self.address_type(),
                    self.call.vector,
                    self.x.clone().into_buffer_arg(),
                    self.weight.clone().into_buffer_arg(),
                    self.tails.clone().into_buffer_arg(),
                    self.grad_outputs[part].clone().into_buffer_arg(),
                    self.call.lists.buffer(),
                    self.sums.clone().into_buffer_arg(),
                    grad_tails.clone().into_buffer_arg(),
                    self.call.sizes(&channels),
                    self.readers(
                        ConvolutionList::TailReaderOffsets,
                        ConvolutionList::TailReaders,
                    ),
                    total,
                    self.call.convolution,
                    self.dtypes(),
                );
            }
        }
        grad_tails
    }
}
