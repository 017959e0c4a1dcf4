//! The launches of a forward pass.

use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_tree_kit::cube::{address_type, contiguous, cubes, elem, empty, units};

use super::super::settings::ConvolutionSettings;
use super::super::tensors::{ConvolutionInputs, ConvolutionOutputs};
use super::forward::{ROWS_PER_UNIT, convolution_kernel, tails_kernel};
use super::{Call, buffer};
use crate::recurrence::ConvolutionPlan;
use crate::recurrence::device::ConvolutionList;

/// See [`crate::TreeSsmOps::causal_conv1d`]; a plan that passes [`check`](super::check).
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
        let blocks = plan.rows().div_ceil(groups.groups() * ROWS_PER_UNIT);
        let (count, dim) = cubes(&call.client, columns * blocks, groups.units);
        // SAFETY: shapes as read from the tensors, lists within bounds by construction of the
        // plan; units without rows or channels store nothing.
        unsafe {
            convolution_kernel::launch_unchecked(
                &call.client,
                count,
                dim,
                call.address_type,
                call.vector,
                call.sources(&x, &initial_tails, &channels),
                buffer(&weight),
                buffer(&outputs[part]),
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
        tails: requested_tails(&call, &x, &initial_tails),
    }
}

/// The tails after requested rows.
fn requested_tails(call: &Call, x: &CubeTensor, initial_tails: &CubeTensor) -> CubeTensor {
    let positions = call.plan.requested_sources().len();
    let tails = empty(x, [positions.max(1), call.channels], x.dtype);
    if positions > 0 {
        let total = positions * call.channels / call.vector;
        let (count, dim) = units(&call.client, total);
        // SAFETY: as above.
        unsafe {
            tails_kernel::launch_unchecked(
                &call.client,
                count,
                dim,
                call.address_type.max(address_type(&[&tails])),
                call.vector,
                call.sources(x, initial_tails, &(0..call.channels)),
                buffer(&tails),
                call.list(ConvolutionList::RequestedSources),
                total,
                call.convolution,
                elem(x.dtype),
            );
        }
    }
    tails
}
