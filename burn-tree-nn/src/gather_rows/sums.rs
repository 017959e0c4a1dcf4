//! The order in which the gradients of rows with several reads are summed.

use super::plan::GatherPlan;

/// Minimum number of reads per part: splitting shorter sums makes them slower.
#[cfg(feature = "cubecl-backend")]
const MIN_PART: usize = 32;

/// Sums over runs of reads. Part `p` is the sum of the reads
/// `part_reads[part_starts[p]..part_starts[p + 1]]`. Row `r` is the sum of
/// `reads[starts[r]..starts[r + 1]]`, where numbers at or above the number of indices denote parts.
#[cfg(feature = "cubecl-backend")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TwoLevelSum {
    pub(super) reads: Vec<u32>,
    pub(super) starts: Vec<u32>,
    pub(super) part_reads: Vec<u32>,
    pub(super) part_starts: Vec<u32>,
}

/// A sum over runs of rows as a sequence of gathers. Each level adds the rows `left` and `right` of
/// the level below, where the index after the last row denotes a row of zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SumLevels {
    pub(crate) levels: Vec<(Vec<u32>, Vec<u32>)>,
    /// For each row, the row of the last level that contains its sum.
    pub(crate) last: Vec<u32>,
}

impl GatherPlan {
    /// The sum over the reads of each row in two levels. Many reads of a row are split into parts
    /// of equal length; the number of parts is about the number of reads per part.
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
                    let index = self.indices().len() + sum.part_starts.len() - 1;
                    sum.reads.push(index as u32);
                    sum.part_reads.extend(part);
                    sum.part_starts.push(sum.part_reads.len() as u32);
                }
            }
            sum.starts.push(sum.reads.len() as u32);
        }
        sum
    }

    /// Levels of the pairwise sum of the gradients of each row, and the place of each row's sum.
    pub(crate) fn sum_levels(&self) -> SumLevels {
        // Runs of the values of one row, as indices into the level below.
        let mut runs: Vec<Vec<u32>> = (0..self.rows())
            .map(|row| self.reads_of(row).to_vec())
            .collect();
        let mut levels = Vec::new();
        let mut zero = self.indices().len() as u32;
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

#[cfg(all(test, feature = "cubecl-backend"))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every read is summed once, for its row, and no unit sums many reads.
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
