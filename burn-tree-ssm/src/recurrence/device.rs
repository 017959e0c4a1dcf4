//! The lists of a recurrence as kernels find them: on devices, in one buffer.
//!
//! Signed numbers are stored as the u32 of the same bits: kernels read them with
//! `i32::cast_from`.

use std::sync::Arc;

use burn_tree_kit::cube::{DeviceCache, DeviceSections};
use cubecl::client::Client;
use cubecl::prelude::BufferArg;

/// Lists of a [`TreeRecurrence`](crate::TreeRecurrence); see its methods of the same names.
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

/// Lists of a [`ConvolutionPlan`](crate::ConvolutionPlan); see its methods of the same names.
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
    pub(super) fn new(client: &Client, lists: &[&[u32]]) -> Arc<Self> {
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
