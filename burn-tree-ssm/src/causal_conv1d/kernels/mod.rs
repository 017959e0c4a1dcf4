//! Kernels: a unit walks down rows with a vector of channels. The three parts of the channels are
//! launches of their own, each with its output (or gradient) in a tensor of its own.

// The language of kernels has no `&&` of what is known when it is compiled and what is not.
#![allow(clippy::collapsible_if)]

mod backward;
mod backward_pass;
mod backward_walk;
mod forward;
mod forward_pass;
mod readers;
mod walk;

use std::ops::Range;
use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{
    RowGroups, address_type, has_approximations, units_per_cube, vector_size,
};
use burn_tree_kit::implementation::Unavailable;
use cubecl::client::Client;
use cubecl::ir::AddressType;
use cubecl::prelude::*;

use super::settings::ConvolutionSettings;
use crate::recurrence::ConvolutionPlan;
use crate::recurrence::device::{ConvolutionList, DeviceLists};
pub(crate) use backward_pass::backward;
pub(crate) use forward_pass::forward;
use walk::{Convolution, SizesLaunch, SourcesLaunch};

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

    /// What taps read of some channels, as an argument.
    fn sources<F: Float, N: Size>(
        &self,
        x: &CubeTensor,
        tails: &CubeTensor,
        channels: &Range<usize>,
    ) -> SourcesLaunch<F, N> {
        let sizes = SizesLaunch::new(
            self.plan.rows(),
            self.plan.tail_rows(),
            self.channels / self.vector,
            channels.start / self.vector,
            channels.len() / self.vector,
            self.list(ConvolutionList::PlainRuns),
        );
        SourcesLaunch::new(buffer(x), buffer(tails), self.lists.buffer(), sizes)
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

/// A tensor as an argument.
fn buffer(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}
