//! Takes the lists of a recurrence to devices, on first use.

use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;

use super::convolution::ConvolutionPlan;
use super::device::{ConvolutionList, DeviceLists, RecurrenceList, RunList};
use super::tree_recurrence::TreeRecurrence;

impl TreeRecurrence {
    /// The lists on the device of `near`.
    pub(crate) fn on_device(&self, near: &CubeTensor) -> Arc<DeviceLists<RecurrenceList>> {
        self.0.device_lists.get(near, |client| {
            let [slots, entries] = [self.window_slots(), self.path_entries()].map(unsigned);
            // In the order of `RecurrenceList`.
            let lists: [&[u32]; _] = [
                self.subtree_ends(),
                self.window_starts(),
                self.window_lengths(),
                &slots,
                self.path_offsets(),
                &entries,
                self.slot_child_offsets(),
                self.slot_children(),
                self.initial_child_offsets(),
                self.initial_children(),
            ];
            DeviceLists::new(client, &lists)
        })
    }

    /// The lists of the runs on the device of `near`.
    pub(crate) fn runs_on_device(&self, near: &CubeTensor) -> Arc<DeviceLists<RunList>> {
        self.0.run_lists.get(near, |client| {
            let runs = self.runs();
            // In the order of `RunList`.
            let lists: [&[u32]; _] = [
                &runs.offsets,
                &unsigned(&runs.entries),
                &runs.siblings,
                &runs.slot_child_offsets,
                &runs.slot_children,
                &runs.initial_child_offsets,
                &runs.initial_children,
            ];
            DeviceLists::new(client, &lists)
        })
    }
}

impl ConvolutionPlan {
    /// The lists on the device of `near`.
    pub(crate) fn on_device(&self, near: &CubeTensor) -> Arc<DeviceLists<ConvolutionList>> {
        self.device_lists.get(near, |client| {
            let (rows, tails) = (self.row_readers(), self.tail_readers());
            let parts = self.parts();
            // In the order of `ConvolutionList`.
            let lists: [&[u32]; _] = [
                self.sources(),
                self.requested_sources(),
                self.plain_runs(),
                &rows.offsets,
                &rows.readers,
                &tails.offsets,
                &tails.readers,
                &parts.offsets,
                &parts.readers,
            ];
            DeviceLists::new(client, &lists)
        })
    }
}

/// The same bits.
fn unsigned(values: &[i32]) -> Vec<u32> {
    values.iter().map(|&value| value as u32).collect()
}
