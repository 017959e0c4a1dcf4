//! A buffer of which several threads write disjoint parts.

use std::marker::PhantomData;
use std::ops::Range;

/// A mutable slice from which several threads take non-overlapping parts.
pub struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: parts handed out do not overlap (the contract of `slice`), so this is as good as sending
// each part to its thread.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}
// SAFETY: as a mutable slice.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    /// Borrows the slice while parts of it are in use.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            borrow: PhantomData,
        }
    }

    /// The elements `range` of the slice.
    ///
    /// # Panics
    /// If `range` does not lie within the slice.
    ///
    /// # Safety
    /// No two parts in use at a time may overlap.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: within the borrowed slice (asserted); not aliased (the caller's promise).
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
