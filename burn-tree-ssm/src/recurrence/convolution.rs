//! Which rows a causal convolution reads on each path, and who reads a row.

use super::{RecurrenceError, TreeRecurrence};

/// Code of a value that is zero because the path has not begun.
const ZERO: i32 = -1;

/// What a causal convolution with `K` taps over the paths of a tree reads.
///
/// A **source** is a row, or a position of an incoming tail: the inputs of the last `K - 1` tokens
/// before a tree, oldest first, `[G, K-1]` flattened. Sources are coded as one number: a row is
/// itself, -1 is zero, and `-2 - t` is position `t` of the incoming tails.
#[derive(Debug)]
pub struct ConvolutionPlan {
    kernel_size: usize,
    ancestors: Vec<i32>,
    tails: Vec<i32>,
    reader_offsets: Vec<u32>,
    readers: Vec<u32>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_lists: super::device::DeviceListsCache<super::device::ConvolutionList>,
}

impl ConvolutionPlan {
    pub(super) fn build(
        recurrence: &TreeRecurrence,
        kernel_size: usize,
    ) -> Result<Self, RecurrenceError> {
        let tree = &recurrence.0.tree;
        let rows = tree.rows();
        let refuse = RecurrenceError::KernelSize { kernel_size, rows };
        let context = kernel_size.checked_sub(1).ok_or(refuse.clone())?;
        let requested = recurrence.requested_rows();
        let incoming = tree.n_initial_states();
        // Ancestors and tails, each also among the readers, and the offsets.
        let positions = [rows, rows, requested.len(), requested.len(), incoming];
        let numbers = positions.iter().try_fold(1 + rows, |sum, count| {
            count.checked_mul(context)?.checked_add(sum)
        });
        if numbers.is_none_or(|numbers| numbers > i32::MAX as usize) {
            return Err(refuse);
        }

        let mut ancestors = Vec::with_capacity(rows * context);
        let mut state = None;
        for row in 0..rows {
            if tree.is_padding(row) {
                ancestors.resize(ancestors.len() + context, ZERO);
                continue;
            }
            let depth = tree.depths[row] as usize;
            if depth == 0 {
                state = tree.initial_state(row);
            }
            let mut ancestor = row;
            for tau in 1..=context {
                ancestors.push(if tau <= depth {
                    ancestor = tree.parents[ancestor] as usize;
                    ancestor as i32
                } else {
                    // The last position of a tail is the token before the root.
                    state.map_or(ZERO, |state| {
                        let tail = state as usize * context;
                        -2 - (tail + context - (tau - depth)) as i32
                    })
                });
            }
        }

        let mut tails = Vec::with_capacity(requested.len() * context);
        for &row in requested {
            let row = row as usize;
            let before = &ancestors[row * context..(row + 1) * context];
            let oldest_first = before.iter().take(context.saturating_sub(1)).rev();
            tails.extend(oldest_first);
            tails.extend((context > 0).then_some(row as i32));
        }
        let (reader_offsets, readers) =
            readers(ancestors.iter().chain(&tails), rows, incoming * context);
        Ok(Self {
            kernel_size,
            ancestors,
            tails,
            reader_offsets,
            readers,
            #[cfg(feature = "cubecl-backend")]
            device_lists: Default::default(),
        })
    }

    /// Number of taps, `K`.
    pub fn kernel_size(&self) -> usize {
        self.kernel_size
    }

    /// `[R, K-1]` source of the token `tau` before each row on its path, at `tau - 1`; all zero in
    /// padding.
    pub fn ancestors(&self) -> &[i32] {
        &self.ancestors
    }

    /// `[X, K-1]` sources of the outgoing tails: the last `K - 1` tokens of the path that ends with
    /// each requested row, oldest first.
    pub fn tails(&self) -> &[i32] {
        &self.tails
    }

    /// `[R + G * (K-1) + 1]` where the list of every source starts in
    /// [`readers`](Self::readers): rows first, then positions of incoming tails.
    pub fn reader_offsets(&self) -> &[u32] {
        &self.reader_offsets
    }

    /// Where each source is read, ascending, as indices into [`ancestors`](Self::ancestors)
    /// followed by [`tails`](Self::tails). (That each row reads itself is in no list.)
    pub fn readers(&self) -> &[u32] {
        &self.readers
    }
}

/// The inverse of a list of sources, as offsets and indices.
fn readers<'a>(
    sources: impl Iterator<Item = &'a i32> + Clone,
    rows: usize,
    tail_positions: usize,
) -> (Vec<u32>, Vec<u32>) {
    let index = |source: i32| match source {
        ZERO => None,
        row if row >= 0 => Some(row as usize),
        tail => Some(rows + (-2 - tail) as usize),
    };
    let mut offsets = vec![0u32; rows + tail_positions + 1];
    for source in sources.clone().filter_map(|&source| index(source)) {
        offsets[source + 1] += 1;
    }
    for source in 1..offsets.len() {
        offsets[source] += offsets[source - 1];
    }
    let mut next = offsets.clone();
    let mut readers = vec![0; offsets[offsets.len() - 1] as usize];
    for (reader, &source) in sources.enumerate() {
        if let Some(source) = index(source) {
            readers[next[source] as usize] = reader as u32;
            next[source] += 1;
        }
    }
    (offsets, readers)
}
