//! Which tokens the taps of a causal convolution read.

use tree_pack::IndexMemory;

use super::error::RecurrenceError;
use super::readers::Readers;
use super::tree::Tree;

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

impl ConvolutionPlan {
    pub(super) fn build(
        tree: &Tree,
        requested: &[u32],
        kernel_size: usize,
    ) -> Result<Self, RecurrenceError> {
        let (rows, states) = (tree.rows(), tree.n_initial_states());
        let counts = [rows, requested.len(), states];
        if !is_countable(kernel_size, counts) {
            return Err(RecurrenceError::KernelSize { kernel_size, rows });
        }
        let above = kernel_size - 1;
        let tail_rows = states * above;
        let sources = sources(tree, kernel_size);
        let requested_sources: Vec<u32> = requested
            .iter()
            .flat_map(|&row| {
                let start = row as usize * kernel_size;
                sources[start..start + above].iter().rev().copied()
            })
            .collect();
        let reads = listed_reads(&sources, &requested_sources, kernel_size);
        let mut parts = Readers::default();
        let mut readers = |sources| Readers::new(&reads, sources).cut(&mut parts, kernel_size);
        let row_readers = readers(0..rows);
        let tail_readers = readers(rows..rows + tail_rows);
        Ok(Self {
            kernel_size,
            rows,
            tail_rows,
            plain_runs: plain_runs(&sources, &row_readers, kernel_size),
            row_readers,
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

    /// `[R + 1]` how many rows from each one on are plain: their taps read them and the `K - 1`
    /// rows before them, the first of which has direct readers only.
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

/// Whether there is a tap, and all sources and readers of `[rows, requested rows, initial states]`
/// can be numbered in 31 bits.
fn is_countable(kernel_size: usize, counts: [usize; 3]) -> bool {
    let largest = kernel_size.checked_add(2).and_then(|readers| {
        let sum = counts.iter().try_fold(1usize, |sum, count| {
            count.checked_mul(readers - 1)?.checked_add(sum)
        });
        sum?.checked_mul(readers)
    });
    kernel_size > 0 && largest.is_some_and(|number| number <= i32::MAX as usize)
}

/// See [`ConvolutionPlan::sources`].
fn sources(tree: &Tree, kernel_size: usize) -> Vec<u32> {
    let (rows, above) = (tree.rows(), kernel_size - 1);
    let zero = (rows + tree.n_initial_states() * above) as u32;
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
    sources
}

/// Pairs of a source and a reader of it (see [`Readers`]), without the direct readers.
fn listed_reads(
    sources: &[u32],
    requested_sources: &[u32],
    kernel_size: usize,
) -> Vec<(u32, usize)> {
    let taps = sources.iter().enumerate().filter_map(|(index, &source)| {
        let (row, tap) = (index / kernel_size, index % kernel_size);
        let direct = row.checked_sub(tap) == Some(source as usize);
        (!direct).then_some((source, row * (kernel_size + 2) + tap))
    });
    let outgoing = requested_sources
        .iter()
        .enumerate()
        .map(|(index, &source)| (source, index * (kernel_size + 2) + kernel_size));
    taps.chain(outgoing).collect()
}

/// See [`ConvolutionPlan::plain_runs`].
fn plain_runs(sources: &[u32], row_readers: &Readers, kernel_size: usize) -> Vec<u32> {
    let (rows, above) = (sources.len() / kernel_size, kernel_size - 1);
    let is_listed = |row| row_readers.offsets[row] < row_readers.offsets[row + 1];
    let mut runs = vec![0; rows + 1];
    for row in (0..rows).rev() {
        let oldest = sources[row * kernel_size + above] as usize;
        if oldest + above == row && !is_listed(oldest) {
            runs[row] = runs[row + 1] + 1;
        }
    }
    runs
}
