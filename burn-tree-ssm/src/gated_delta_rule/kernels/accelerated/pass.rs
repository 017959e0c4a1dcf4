//! What the launches of one pass share, forward or backward.

use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::elem;
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::call::{Dims, Inputs};
use super::arguments::{GatesLaunch, PathListsLaunch, RunListsLaunch, SizesLaunch, WindowsLaunch};
use crate::recurrence::TreeRecurrence;
use crate::recurrence::device::{DeviceLists, RecurrenceList as List, RunList};

/// Where the launches run, and on what.
pub(super) struct Launches<'a> {
    pub(super) recurrence: &'a TreeRecurrence,
    pub(super) client: Client,
    pub(super) dims: Dims,
    pub(super) stored: ElemType,
    pub(super) scale: f32,
    lists: Arc<DeviceLists<List>>,
    run_lists: Arc<DeviceLists<RunList>>,
}

impl<'a> Launches<'a> {
    pub(super) fn new(inputs: &Inputs, recurrence: &'a TreeRecurrence, scale: f64) -> Self {
        let near = &inputs.value;
        Self {
            recurrence,
            client: near.client.clone(),
            dims: Dims::new(&inputs.query, near),
            stored: elem(near.dtype),
            scale: scale as f32,
            lists: recurrence.on_device(near),
            run_lists: recurrence.runs_on_device(near),
        }
    }

    /// A list as an argument.
    pub(super) fn list(&self, list: List) -> BufferArg {
        self.lists.list(list)
    }

    /// A list of the runs as an argument.
    pub(super) fn run_list(&self, list: RunList) -> BufferArg {
        self.run_lists.list(list)
    }

    /// The sizes as an argument.
    pub(super) fn sizes(&self) -> SizesLaunch {
        let dims = &self.dims;
        SizesLaunch::new(
            dims.rows as u32,
            dims.key_heads as u32,
            dims.value_heads as u32,
        )
    }

    /// The windows as an argument.
    pub(super) fn windows(&self) -> WindowsLaunch {
        WindowsLaunch::new(
            self.list(List::WindowStarts),
            self.list(List::WindowLengths),
        )
    }

    /// The windows and runs as an argument.
    pub(super) fn path_lists(&self) -> PathListsLaunch {
        let runs = RunListsLaunch::new(
            self.run_list(RunList::Offsets),
            self.run_list(RunList::Entries),
            self.run_list(RunList::Siblings),
        );
        PathListsLaunch::new(self.windows(), runs)
    }

    /// The gates as an argument.
    pub(super) fn gates(&self, inputs: &Inputs) -> GatesLaunch {
        GatesLaunch::new(
            buffer(&inputs.log_decay),
            buffer(&inputs.beta),
            self.list(List::SubtreeEnds),
        )
    }

    /// The size of a launch of `count` cubes.
    pub(super) fn cubes(&self, count: usize) -> CubeCount {
        CubeCount::Static(count as u32, 1, 1)
    }
}

/// A tensor as an argument.
pub(super) fn buffer(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}
