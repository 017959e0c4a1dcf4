//! Which tokens the taps of a causal convolution read, and which taps read a token.

use tree_pack::IndexMemory;

use super::{RecurrenceError, TreeRecurrence};

/// Readers that one unit sums at least: with fewer, cutting the sum in parts is slower.
const MIN_PART: usize = 16;

/// The taps of a causal convolution with `K` of them over the paths of a batch of trees.
///
/// Tap `t` of a row reads the token `t` steps above it on its path. What it reads, its **source**,
/// is a number: first the `R` rows, then the positions of the incoming tails `[G, K-1]` (the inputs
/// of the `K - 1` tokens before a tree, oldest first), and one for zero.
#[derive(Debug)]
pub struct ConvolutionPlan {
    kernel_size: usize,
    rows: usize,
    tail_rows: usize,
    sources: Vec<u32>,
    requested_sources: Vec<u32>,
    row_readers: Readers,
    tail_readers: Readers,
    parts: Readers,
    plain_runs: Vec<u32>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_lists: super::device::DeviceListsCache<super::device::ConvolutionList>,
}

/// Who reads each of a number of sources, in the order in which gradients are summed.
///
/// Tap `t` of row `r` is reader `r * (K + 2) + t`; position `i` of the outgoing tails `[X, K-1]` is
/// reader `i * (K + 2) + K`. Long lists are cut into parts, which can be summed at the same time:
/// part `p` is reader `p * (K + 2) + K + 1`, and [`ConvolutionPlan::parts`] has what is in it.
#[derive(Debug)]
pub struct Readers {
    /// `[sources + 1]` where the list of each source starts.
    pub offsets: Vec<u32>,
    /// The lists.
    pub readers: Vec<u32>,
}

impl ConvolutionPlan {
    pub(super) fn build(
        recurrence: &TreeRecurrence,
        kernel_size: usize,
    ) -> Result<Self, RecurrenceError> {
        let tree = &recurrence.0.tree;
        let rows = tree.rows();
        let refuse = RecurrenceError::KernelSize { kernel_size, rows };
        let above = kernel_size.checked_sub(1).ok_or(refuse.clone())?;
        let (states, requested) = (tree.n_initial_states(), recurrence.requested_rows());
        let largest = kernel_size.checked_add(2).and_then(|readers| {
            [rows, requested.len(), states]
                .iter()
                .try_fold(1usize, |sum, count| {
                    count.checked_mul(readers - 1)?.checked_add(sum)
                })
                .and_then(|sum| sum.checked_mul(readers))
        });
        if largest.is_none_or(|number| number > i32::MAX as usize) {
            return Err(refuse);
        }

        let tail_rows = states * above;
        let zero = (rows + tail_rows) as u32;
        let mut sources = Vec::with_capacity(rows * kernel_size);
        for (row, &parent) in tree.parents.iter().enumerate() {
            if tree.is_padding(row) {
                sources.extend(std::iter::repeat_n(zero, kernel_size));
                continue;
            }
            sources.push(row as u32);
            if parent >= 0 {
                let start = parent as usize * kernel_size;
                sources.extend_from_within(start..start + above);
            } else {
                let state = tree.initial_state(row);
                let tail = state.map(|state| rows + state as usize * above);
                let before = |position: usize| tail.map_or(zero, |tail| (tail + position) as u32);
                // The last position of a tail is the token before the root.
                sources.extend((0..above).rev().map(before));
            }
        }
        let of_tail = |&row: &u32| {
            let start = row as usize * kernel_size;
            sources[start..start + above].iter().rev().copied()
        };
        let requested_sources: Vec<u32> = requested.iter().flat_map(of_tail).collect();

        let taps = sources.iter().enumerate().filter_map(|(index, &source)| {
            let (row, tap) = (index / kernel_size, index % kernel_size);
            let direct = row.checked_sub(tap) == Some(source as usize);
            (!direct).then_some((source, row * (kernel_size + 2) + tap))
        });
        let outgoing = requested_sources
            .iter()
            .enumerate()
            .map(|(index, &source)| (source, index * (kernel_size + 2) + kernel_size));
        let reads: Vec<(u32, usize)> = taps.chain(outgoing).collect();
        let mut parts = Readers::default();
        let mut readers = |sources| Readers::new(&reads, sources).cut(&mut parts, kernel_size);
        let row_readers = readers(0..rows);
        let tail_readers = readers(rows..rows + tail_rows);
        let mut plain_runs = vec![0; rows + 1];
        for row in (0..rows).rev() {
            let is_listed = |row| row_readers.offsets[row] < row_readers.offsets[row + 1];
            let oldest = sources[row * kernel_size + above] as usize;
            if oldest + above == row && !is_listed(oldest) {
                plain_runs[row] = plain_runs[row + 1] + 1;
            }
        }
        Ok(Self {
            kernel_size,
            rows,
            tail_rows,
            row_readers,
            plain_runs,
            tail_readers,
            parts,
            sources,
            requested_sources,
            #[cfg(feature = "cubecl-backend")]
            device_lists: Default::default(),
        })
    }

    /// Number of taps, `K`.
    pub fn kernel_size(&self) -> usize {
        self.kernel_size
    }

    /// Rows of the flattened batch, `R`.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Positions of the incoming tails, `G * (K-1)`.
    pub fn tail_rows(&self) -> usize {
        self.tail_rows
    }

    /// `[R, K]` source of each tap of each row; all of a padding row read zero.
    pub fn sources(&self) -> &[u32] {
        &self.sources
    }

    /// `[X, K-1]` sources of the outgoing tails: the last `K - 1` tokens of the path that ends with
    /// each requested row, oldest first.
    pub fn requested_sources(&self) -> &[u32] {
        &self.requested_sources
    }

    /// Who reads each row, without the direct readers: tap `t` of row `r + t` where that is `t`
    /// steps below row `r`.
    pub fn row_readers(&self) -> &Readers {
        &self.row_readers
    }

    /// The parts of long lists of readers.
    pub fn parts(&self) -> &Readers {
        &self.parts
    }

    /// `[R + 1]` how many rows from each one on are plain: their taps read them and the `K - 1` rows
    /// before them, the first of which has direct readers only.
    pub fn plain_runs(&self) -> &[u32] {
        &self.plain_runs
    }

    /// Who reads each position of the incoming tails.
    pub fn tail_readers(&self) -> &Readers {
        &self.tail_readers
    }

    /// Bytes of the lists and of their copies on devices.
    pub fn index_memory(&self) -> IndexMemory {
        let readers = [&self.row_readers, &self.tail_readers, &self.parts];
        let lists = [&self.sources, &self.requested_sources, &self.plain_runs];
        let lists = readers
            .into_iter()
            .flat_map(|readers| [&readers.offsets, &readers.readers])
            .chain(lists);
        #[cfg(feature = "cubecl-backend")]
        let device_bytes = self.device_lists.sum(|lists| lists.bytes());
        #[cfg(not(feature = "cubecl-backend"))]
        let device_bytes = 0;
        IndexMemory {
            host_bytes: lists.map(|list| size_of_val(list.as_slice()) as u64).sum(),
            device_bytes,
        }
    }
}

impl Readers {
    /// Those of the sources in a range, out of pairs of source and reader.
    fn new(reads: &[(u32, usize)], sources: std::ops::Range<usize>) -> Self {
        let of_range = || {
            let reads = reads
                .iter()
                .map(|&(source, reader)| (source as usize, reader));
            reads
                .filter(|(source, _)| sources.contains(source))
                .map(|(source, reader)| (source - sources.start, reader))
        };
        let mut offsets = vec![0u32; sources.len() + 1];
        for (source, _) in of_range() {
            offsets[source + 1] += 1;
        }
        for source in 0..sources.len() {
            offsets[source + 1] += offsets[source];
        }
        let mut next = offsets.clone();
        let mut readers = vec![0; offsets[sources.len()] as usize];
        for (source, reader) in of_range() {
            readers[next[source] as usize] = reader as u32;
            next[source] += 1;
        }
        Self { offsets, readers }
    }

    /// The same with parts, which are added to `parts`, in place of long lists: each about as long
    /// as there are parts of the list.
    fn cut(self, parts: &mut Self, kernel_size: usize) -> Self {
        let mut cut = Self::default();
        for range in self.offsets.windows(2) {
            let list = &self.readers[range[0] as usize..range[1] as usize];
            let part = list.len().isqrt().max(MIN_PART);
            if list.len() <= part {
                cut.readers.extend(list);
            } else {
                for list in list.chunks(part) {
                    let index = parts.offsets.len() - 1;
                    cut.readers
                        .push((index * (kernel_size + 2) + kernel_size + 1) as u32);
                    parts.readers.extend(list);
                    parts.offsets.push(parts.readers.len() as u32);
                }
            }
            cut.offsets.push(cut.readers.len() as u32);
        }
        cut
    }
}

impl Default for Readers {
    /// Without sources.
    fn default() -> Self {
        Self {
            offsets: vec![0],
            readers: Vec::new(),
        }
    }
}
