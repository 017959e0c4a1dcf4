//! Memory of masks, plans and index lists.

use std::iter::Sum;
use std::ops::Add;

/// Bytes of masks, plans and index lists: the memory that tree training needs in addition to the
/// tensors of ordinary training.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexMemory {
    /// On the host.
    pub host_bytes: u64,
    /// On devices. For a backend that computes on the host, this is also host memory.
    pub device_bytes: u64,
}

impl Add for IndexMemory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            host_bytes: self.host_bytes + other.host_bytes,
            device_bytes: self.device_bytes + other.device_bytes,
        }
    }
}

impl Sum for IndexMemory {
    fn sum<I: Iterator<Item = Self>>(memory: I) -> Self {
        memory.fold(Self::default(), Add::add)
    }
}
