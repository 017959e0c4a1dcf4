//! Which rows are gathered, and in which order their gradients are summed.

/// Host-side plan of a gather: `output[i] = x[indices[i]]`, together with the fixed order in which
/// the gradient of a row that is read several times is summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherPlan {
    indices: Vec<u32>,
    /// Reads of row `r` are `reads[read_starts[r]..read_starts[r + 1]]`, ascending.
    read_starts: Vec<u32>,
    reads: Vec<u32>,
}

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
        })
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

/// A sum over runs of rows as a sequence of gathers: each level adds the rows `left` and `right`
/// of the level below, in which one past the last row is a row of zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SumLevels {
    pub(crate) levels: Vec<(Vec<u32>, Vec<u32>)>,
    /// For each row the row of the last level that holds its sum.
    pub(crate) last: Vec<u32>,
}
