//! The lists of a recurrence on devices, uploaded on first use.
//!
//! Signed numbers are stored as the u32 of the same bits: kernels read them with
//! `i32::cast_from`.

use std::sync::Arc;

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{DeviceCache, DeviceSections};
use cubecl::client::Client;
use cubecl::prelude::BufferArg;

use super::{ConvolutionPlan, TreeRecurrence};

/// Lists of a [`TreeRecurrence`]; see its methods of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecurrenceList {
    SubtreeEnds,
    WindowStarts,
    WindowLengths,
    WindowSlots,
    PathOffsets,
    PathEntries,
    SlotChildOffsets,
    SlotChildren,
    InitialChildOffsets,
    InitialChildren,
}

/// Lists of the [`Runs`](super::runs::Runs) of a recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunList {
    Offsets,
    Entries,
    Siblings,
    SlotChildOffsets,
    SlotChildren,
    InitialChildOffsets,
    InitialChildren,
}

/// Lists of a [`ConvolutionPlan`]; see its methods of the same names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConvolutionList {
    Sources,
    RequestedSources,
    PlainRuns,
    RowReaderOffsets,
    RowReaders,
    TailReaderOffsets,
    TailReaders,
    PartOffsets,
    PartReaders,
}

/// Lists on a device: one buffer of u32, each list also as a buffer of its own.
#[derive(Debug)]
pub(crate) struct DeviceLists<L> {
    sections: DeviceSections,
    list: std::marker::PhantomData<L>,
}

/// Lists on the devices that have used them.
pub(crate) type DeviceListsCache<L> = DeviceCache<Arc<DeviceLists<L>>>;

/// The place of a list in the buffer.
pub(crate) trait ListIndex {
    fn index(self) -> usize;
}

impl ListIndex for RecurrenceList {
    fn index(self) -> usize {
        self as usize
    }
}

impl ListIndex for RunList {
    fn index(self) -> usize {
        self as usize
    }
}

impl ListIndex for ConvolutionList {
    fn index(self) -> usize {
        self as usize
    }
}

impl<L: ListIndex> DeviceLists<L> {
    fn new(client: &Client, lists: &[&[u32]]) -> Arc<Self> {
        let sections = DeviceSections::new(client, lists);
        Arc::new(Self {
            sections: sections.expect("the number of rows is limited so that lists can be indexed"),
            list: std::marker::PhantomData,
        })
    }

    /// Bytes of all lists.
    pub(crate) fn bytes(&self) -> u64 {
        self.sections.bytes()
    }

    /// All lists as one buffer.
    pub(crate) fn buffer(&self) -> BufferArg {
        self.sections.buffer()
    }

    /// Where a list starts in [`buffer`](Self::buffer).
    pub(crate) fn start(&self, list: L) -> u32 {
        self.sections.start(list.index())
    }

    /// One list as a buffer of its own; of length 1 if it is empty.
    pub(crate) fn list(&self, list: L) -> BufferArg {
        self.sections.section(list.index())
    }
}

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
