//! Which taps read a token, in the order in which gradients are summed.

use std::ops::Range;

/// Readers that one unit sums at least: with fewer, cutting the sum in parts is slower.
const MIN_PART: usize = 16;

/// Who reads each of a number of sources, in the order in which gradients are summed.
///
/// Tap `t` of row `r` is reader `r * (K + 2) + t`; position `i` of the outgoing tails `[X, K-1]` is
/// reader `i * (K + 2) + K`. Long lists are cut into parts, which can be summed at the same time:
/// part `p` is reader `p * (K + 2) + K + 1`, and
/// [`ConvolutionPlan::parts`](crate::ConvolutionPlan::parts) has what is in it.
#[derive(Debug)]
pub struct Readers {
    /// `[sources + 1]` where the list of each source starts.
    pub offsets: Vec<u32>,
    /// The lists.
    pub readers: Vec<u32>,
}

impl Readers {
    /// Those of the sources in a range, out of pairs of source and reader.
    pub(super) fn new(reads: &[(u32, usize)], sources: Range<usize>) -> Self {
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
    pub(super) fn cut(self, parts: &mut Self, kernel_size: usize) -> Self {
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
