//! The lists of a plan on devices.

use burn_tree_kit::cube::{DeviceCache, DeviceList};
use cubecl::client::Client;

use super::sums::TwoLevelSum;

/// The indices, which the forward pass reads.
pub(crate) type IndexCache = DeviceCache<DeviceList>;
/// The lists that the backward pass reads.
pub(crate) type SumCache = DeviceCache<SumLists>;

/// See [`TwoLevelSum`].
#[derive(Clone, Debug)]
pub(crate) struct SumLists {
    pub(super) reads: DeviceList,
    pub(super) starts: DeviceList,
    /// `None` if no row is split into parts.
    pub(super) parts: Option<Parts>,
}

/// The parts of rows with many reads.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub(super) reads: DeviceList,
    pub(super) starts: DeviceList,
    pub(super) count: usize,
}

impl SumLists {
    pub(super) fn new(client: &Client, sum: &TwoLevelSum) -> Self {
        let list = |values: &[u32]| DeviceList::new(client, values);
        Self {
            reads: list(&sum.reads),
            starts: list(&sum.starts),
            parts: (!sum.part_reads.is_empty()).then(|| Parts {
                reads: list(&sum.part_reads),
                starts: list(&sum.part_starts),
                count: sum.part_starts.len() - 1,
            }),
        }
    }
}
