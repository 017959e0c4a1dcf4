//! Plans of gathers.

use tree_pack::IndexMemory;

/// Plan of a gather on the host: `output[i] = x[indices[i]]`, together with the fixed order in
/// which the gradients of a row that is read several times are summed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatherPlan {
    indices: Vec<u32>,
    /// Reads of row `r` are `reads[read_starts[r]..read_starts[r + 1]]`, ascending.
    read_starts: Vec<u32>,
    reads: Vec<u32>,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_indices: super::lists::IndexCache,
    #[cfg(feature = "cubecl-backend")]
    pub(super) device_sums: super::lists::SumCache,
}

/// Errors of [`GatherPlan::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GatherError {
    /// An index is not below the number of rows.
    #[error("index {position} is {index}, but there are {rows} rows")]
    Index {
        /// Its position in the list of indices.
        position: usize,
        /// The index.
        index: u32,
        /// Number of rows.
        rows: usize,
    },
    /// More rows than the signed 32-bit indices of tensors allow.
    #[error("{rows} rows, expected at most 2^31")]
    TooManyRows {
        /// Number of rows.
        rows: usize,
    },
    /// More indices than signed 32-bit integers allow.
    #[error("{indices} indices, expected fewer than 2^31")]
    TooManyIndices {
        /// Number of indices.
        indices: usize,
    },
}

impl GatherPlan {
    /// Plans the gather of `indices` out of `rows` rows.
    ///
    /// # Errors
    /// If an index is not below `rows`, or there are 2^31 or more indices or more than 2^31 rows.
    pub fn new(indices: Vec<u32>, rows: usize) -> Result<Self, GatherError> {
        check_counts(indices.len(), rows)?;
        let mut read_starts = vec![0u32; rows + 1];
        for (position, &index) in indices.iter().enumerate() {
            if index as usize >= rows {
                return Err(GatherError::Index {
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

    /// Bytes of the lists on the host, and of the indices on a device. Uploads of the backward pass
    /// are not counted.
    pub fn index_memory(&self) -> IndexMemory {
        let lists = [&self.indices, &self.read_starts, &self.reads];
        let bytes = lists.map(|list| size_of_val(list.as_slice()));
        IndexMemory {
            host_bytes: bytes.iter().sum::<usize>() as u64,
            device_bytes: bytes[0] as u64,
        }
    }

    /// Number of rows of the source tensor.
    pub fn rows(&self) -> usize {
        self.read_starts.len() - 1
    }

    /// The index of the row that each row of the output reads.
    pub fn indices(&self) -> &[u32] {
        &self.indices
    }

    /// Rows of the output that read `row`, ascending.
    pub fn reads_of(&self, row: usize) -> &[u32] {
        &self.reads[self.read_starts[row] as usize..self.read_starts[row + 1] as usize]
    }
}

/// The largest index and the number of indices must fit into i32.
fn check_counts(indices: usize, rows: usize) -> Result<(), GatherError> {
    const MOST: usize = i32::MAX as usize;
    match (rows > MOST + 1, indices > MOST) {
        (true, _) => Err(GatherError::TooManyRows { rows }),
        (_, true) => Err(GatherError::TooManyIndices { indices }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_must_fit_in_signed_32_bits() {
        let most = i32::MAX as usize;
        check_counts(most, most + 1).unwrap();
        let text = |indices, rows| check_counts(indices, rows).unwrap_err().to_string();
        assert_eq!(text(0, most + 2), "2147483649 rows, expected at most 2^31");
        assert_eq!(
            text(most + 1, 1),
            "2147483648 indices, expected fewer than 2^31"
        );
    }
}
