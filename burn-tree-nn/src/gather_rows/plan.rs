//! Which rows are gathered, and in which order their gradients are summed.

use tree_pack::IndexMemory;

/// Host-side plan of a gather: `output[i] = x[indices[i]]`, together with the fixed order in which
/// the gradient of a row that is read several times is summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherPlan {
    indices: Vec<u32>,
    /// Reads of row `r` are `reads[read_starts[r]..read_starts[r + 1]]`, ascending.
    read_starts: Vec<u32>,
    reads: Vec<u32>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_indices: super::kernel::IndexCache,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_sums: super::kernel::SumCache,
}

/// Reads that one unit sums at least: with fewer, cutting the sum in parts is slower.
#[cfg(feature = "cubecl-backend")]
const MIN_PART: usize = 32;

/// An index that is not a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("index {position} is {index}, but there are {rows} rows")]
pub struct GatherError {
    /// Where in the list of indices.
    pub position: usize,
    /// The index.
    pub index: u32,
    /// Number of rows.
    pub rows: usize,
}

impl GatherPlan {
    /// A gather of `indices` out of `rows` rows.
    pub fn new(indices: Vec<u32>, rows: usize) -> Result<Self, GatherError> {
        let mut read_starts = vec![0u32; rows + 1];
        for (position, &index) in indices.iter().enumerate() {
            if index as usize >= rows {
                return Err(GatherError {
                    position,
                    index,
                    rows,
                });
            }
            read_starts[index as usize + 1] += 1;
        }
        for row in 0..rows {
            read_starts[row + 1] += read_starts[row];
        }
        let mut next = read_starts.clone();
        let mut reads = vec![0; indices.len()];
        for (position, &index) in indices.iter().enumerate() {
            let slot = &mut next[index as usize];
            reads[*slot as usize] = position as u32;
            *slot += 1;
        }
        Ok(Self {
            indices,
            read_starts,
            reads,
            #[cfg(feature = "cubecl-backend")]
            device_indices: Default::default(),
            #[cfg(feature = "cubecl-backend")]
            device_sums: Default::default(),
        })
    }

    /// Bytes of the lists on the host, and of the indices as a device has them. The lists of a backward
    /// pass on a device are not counted.
    pub fn index_memory(&self) -> IndexMemory {
        let lists = [&self.indices, &self.read_starts, &self.reads];
        let bytes = lists.map(|list| size_of_val(list.as_slice()));
        IndexMemory {
            host_bytes: bytes.iter().sum::<usize>() as u64,
            device_bytes: bytes[0] as u64,
        }
    }

    /// Number of rows gathered from.
    pub fn rows(&self) -> usize {
        self.read_starts.len() - 1
    }

    /// The indices.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Positions at which `row` is read, ascending.
    pub fn reads_of(&self, row: usize) -> &[u32] {
        &self.reads[self.read_starts[row] as usize..self.read_starts[row + 1] as usize]
    }

    /// The sum over the reads of each row in two levels: the reads of a row that has many are cut
    /// into parts of equal length, about as many as each has reads.
    #[cfg(feature = "cubecl-backend")]
    pub(super) fn two_level_sum(&self) -> TwoLevelSum {
        let longest = (0..self.rows())
            .map(|row| self.reads_of(row).len())
            .max()
            .unwrap_or(0);
        let part = longest.isqrt().next_power_of_two().max(MIN_PART);
        let mut sum = TwoLevelSum {
            starts: vec![0],
            part_starts: vec![0],
            ..TwoLevelSum::default()
        };
        for row in 0..self.rows() {
            let reads = self.reads_of(row);
            if reads.len() <= part {
                sum.reads.extend(reads);
            } else {
                for part in reads.chunks(part) {
                    let index = self.indices.len() + sum.part_starts.len() - 1;
                    sum.reads.push(index as u32);
                    sum.part_reads.extend(part);
                    sum.part_starts.push(sum.part_reads.len() as u32);
                }
            }
            sum.starts.push(sum.reads.len() as u32);
        }
        sum
    }

    /// Levels of the pairwise sum of the gradients of each row, and where each row's sum ends up.
    pub(crate) fn sum_levels(&self) -> SumLevels {
        // Runs of the values of one row, as indices into the level below.
        let mut runs: Vec<Vec<u32>> = (0..self.rows())
            .map(|row| self.reads_of(row).to_vec())
            .collect();
        let mut levels = Vec::new();
        let mut zero = self.indices.len() as u32;
        while runs.iter().any(|run| run.len() > 1) {
            let (mut left, mut right) = (Vec::new(), Vec::new());
            for run in &mut runs {
                let mut sums = Vec::with_capacity(run.len().div_ceil(2));
                for pair in run.chunks(2) {
                    sums.push(left.len() as u32);
                    left.push(pair[0]);
                    right.push(pair.get(1).copied().unwrap_or(zero));
                }
                *run = sums;
            }
            zero = left.len() as u32;
            levels.push((left, right));
        }
        let last = runs
            .iter()
            .map(|run| run.first().copied().unwrap_or(zero))
            .collect();
        SumLevels { levels, last }
    }
}

/// Sums over runs of reads. Part `p` is the sum of the reads `part_reads[part_starts[p]..]` up to
/// the next start; row `r` that of `reads[starts[r]..]`, in which reads past the last index are
/// parts.
#[cfg(feature = "cubecl-backend")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TwoLevelSum {
    pub(super) reads: Vec<u32>,
    pub(super) starts: Vec<u32>,
    pub(super) part_reads: Vec<u32>,
    pub(super) part_starts: Vec<u32>,
}

/// A sum over runs of rows as a sequence of gathers: each level adds the rows `left` and `right`
/// of the level below, in which one past the last row is a row of zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SumLevels {
    pub(crate) levels: Vec<(Vec<u32>, Vec<u32>)>,
    /// For each row the row of the last level that holds its sum.
    pub(crate) last: Vec<u32>,
}

#[cfg(all(test, feature = "cubecl-backend"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every read is summed once, for its row; no unit sums many.
        #[test]
        fn two_levels_hold_every_read_once(
            indices in prop::collection::vec(prop_oneof![3 => Just(2u32), 1 => 0u32..5], 1..3000),
        ) {
            let plan = GatherPlan::new(indices, 5).unwrap();
            let sum = plan.two_level_sum();
            let run = |starts: &[u32], reads: &[u32], index: usize| {
                reads[starts[index] as usize..starts[index + 1] as usize].to_vec()
            };
            for row in 0..plan.rows() {
                let reads = run(&sum.starts, &sum.reads, row);
                prop_assert!(reads.len() <= 64);
                let mut all = Vec::new();
                for read in reads {
                    match (read as usize).checked_sub(plan.indices().len()) {
                        None => all.push(read),
                        Some(part) => {
                            let part = run(&sum.part_starts, &sum.part_reads, part);
                            prop_assert!(part.len() <= 64);
                            all.extend(part);
                        }
                    }
                }
                prop_assert_eq!(all, plan.reads_of(row));
            }
        }
    }
}
