//! What the launches of one call share.

use std::ops::Range;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{address_type, cubes, elem, empty, units};
use burn_tree_kit::implementation::Unavailable;
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::super::call::{Dims, Inputs};
use super::super::tile::TILE;
use super::super::window::ProblemLaunch;
use super::super::{elementwise, scan};
use crate::recurrence::TreeRecurrence;
use crate::recurrence::device::{DeviceLists, RecurrenceList};

/// A tensor as an argument.
pub(super) fn buffer(tensor: &CubeTensor) -> BufferArg {
    tensor.clone().into_buffer_arg()
}

/// Refuses what cannot be counted in one launch.
pub(in super::super) fn check_sizes(
    properties: &DeviceProperties,
    dims: &Dims,
) -> Result<(), Unavailable> {
    let tiles = dims.value_dim.div_ceil(scan::COLUMNS);
    let (x, y, _) = properties.hardware.max_cube_count;
    // There are at most as many windows as rows.
    let cubes = dims.rows.checked_mul(dims.value_heads * tiles);
    let countable = cubes
        .and_then(|cubes| u32::try_from(cubes).ok())
        .is_some_and(|cubes| u64::from(cubes.div_ceil(x)) <= u64::from(y));
    if !countable {
        return Err(Unavailable(format!(
            "{} rows of {} heads are too many for one launch",
            dims.rows, dims.value_heads
        )));
    }
    Ok(())
}

/// What the launches of a call share.
pub(in super::super) struct Call<'a> {
    pub(super) recurrence: &'a TreeRecurrence,
    pub(super) schedule: Arc<DeviceLists<RecurrenceList>>,
    /// For new tensors.
    pub(super) near: CubeTensor,
    pub(super) client: Client,
    pub(super) dims: Dims,
    pub(super) stored: ElemType,
    pub(super) scale: f32,
}

impl<'a> Call<'a> {
    pub(in super::super) fn new(
        inputs: &Inputs,
        recurrence: &'a TreeRecurrence,
        scale: f64,
    ) -> Self {
        Self {
            recurrence,
            schedule: recurrence.on_device(&inputs.value),
            near: inputs.value.clone(),
            client: inputs.value.client.clone(),
            dims: Dims::new(&inputs.query, &inputs.value),
            stored: elem(inputs.value.dtype),
            scale: scale as f32,
        }
    }

    /// Arguments of kernels with `items` pieces of work.
    pub(super) fn problem(&self, items: usize, first_path: usize) -> ProblemLaunch {
        let (dims, start) = (&self.dims, |list| self.schedule.start(list));
        ProblemLaunch::new(
            self.schedule.buffer(),
            self.scale,
            dims.key_heads as u32,
            dims.value_heads as u32,
            dims.key_dim as u32,
            dims.value_dim as u32,
            self.recurrence.window_rows() as u32,
            items as u32,
            first_path as u32,
            start(RecurrenceList::SubtreeEnds),
            start(RecurrenceList::WindowStarts),
            start(RecurrenceList::WindowLengths),
            start(RecurrenceList::WindowSlots),
            start(RecurrenceList::PathOffsets),
            start(RecurrenceList::PathEntries),
            self.recurrence.requested_rows().len() as u32,
            start(RecurrenceList::SlotChildOffsets),
            start(RecurrenceList::SlotChildren),
        )
    }

    /// A launch of `items` cubes of work; of one that has none if there is none.
    pub(super) fn cubes(&self, items: usize, units: u32) -> (CubeCount, CubeDim) {
        cubes(&self.client, items.max(1), units)
    }

    pub(super) fn windows(&self) -> usize {
        self.recurrence.n_windows()
    }

    /// Windows times value heads.
    pub(super) fn window_heads(&self) -> usize {
        self.windows() * self.dims.value_heads
    }

    /// Tiles of 64 keys.
    pub(super) fn key_tiles(&self) -> usize {
        self.dims.key_dim.div_ceil(TILE)
    }

    /// Paths times value heads times tiles of values.
    pub(super) fn path_tiles(&self, paths: &Range<usize>) -> usize {
        paths.len() * self.dims.value_heads * self.dims.value_dim.div_ceil(scan::COLUMNS)
    }

    pub(super) fn rows_of(&self, width: usize, dtype: DType) -> CubeTensor {
        let Dims {
            rows, value_heads, ..
        } = self.dims;
        empty(&self.near, [rows, value_heads, width], dtype)
    }

    /// `[R, HV, DK]`
    pub(super) fn key_rows(&self, dtype: DType) -> CubeTensor {
        self.rows_of(self.dims.key_dim, dtype)
    }

    /// `[R, HV, DV]`
    pub(super) fn value_rows(&self, dtype: DType) -> CubeTensor {
        self.rows_of(self.dims.value_dim, dtype)
    }

    /// `[max(count, 1), HV, DK, DV]`
    pub(in super::super) fn empty_states(&self, count: usize, dtype: DType) -> CubeTensor {
        let dims = &self.dims;
        let shape = [count.max(1), dims.value_heads, dims.key_dim, dims.value_dim];
        empty(&self.near, shape, dtype)
    }

    /// A state for each window.
    pub(in super::super) fn empty_window_states(&self) -> CubeTensor {
        self.empty_states(self.windows(), self.near.dtype)
    }

    /// Sets the rows of padding to zero.
    pub(super) fn clear_padding(&self, tensor: &CubeTensor) {
        let total = tensor.shape().num_elements();
        if !self.recurrence.has_padding() || total == 0 {
            return;
        }
        let (count, dim) = units(&self.client, total);
        // SAFETY: the tensor has a row for each of the schedule.
        unsafe {
            elementwise::clear_padding::launch_unchecked(
                &self.client,
                count,
                dim,
                address_type(&[tensor]),
                self.schedule.buffer(),
                tensor.clone().into_buffer_arg(),
                self.schedule.start(RecurrenceList::SubtreeEnds),
                total / self.dims.rows,
                total,
                elem(tensor.dtype),
            );
        }
    }
}
