//! The intervals and positions of a mask on the host.

use std::fmt;

use tree_pack::IndexMemory;

use super::derived::Derived;

/// Intervals and positions of a [`TreeMask`](super::TreeMask) on the host, with what operations
/// have made from them so far: plans, and copies on devices.
pub struct Visibility {
    batch_size: usize,
    n_queries: usize,
    n_keys: usize,
    key_start: Vec<u32>,
    key_end: Vec<u32>,
    key_position: Vec<u32>,
    query_position: Vec<u32>,
    derived: Derived,
}

impl Visibility {
    /// Takes arrays that have been checked: `[B * M]`, query positions `[B * N]`.
    pub(crate) fn new(
        [batch_size, n_queries, n_keys]: [usize; 3],
        key_start: Vec<u32>,
        key_end: Vec<u32>,
        key_position: Vec<u32>,
        query_position: Vec<u32>,
    ) -> Self {
        Self {
            batch_size,
            n_queries,
            n_keys,
            key_start,
            key_end,
            key_position,
            query_position,
            derived: Derived::default(),
        }
    }

    /// Number of batch rows, `B`.
    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Number of query rows, `N`.
    pub fn n_queries(&self) -> usize {
        self.n_queries
    }

    /// Number of keys, `M`.
    pub fn n_keys(&self) -> usize {
        self.n_keys
    }

    /// `[B * M]` first query row that sees the key.
    pub fn key_start(&self) -> &[u32] {
        &self.key_start
    }

    /// `[B * M]` one past the last query row that sees the key.
    pub fn key_end(&self) -> &[u32] {
        &self.key_end
    }

    /// `[B * M]` position of the key on its path.
    pub fn key_position(&self) -> &[u32] {
        &self.key_position
    }

    /// `[B * N]` position of the query on its path.
    pub fn query_position(&self) -> &[u32] {
        &self.query_position
    }

    /// Number of visible (query, key) pairs, without a sliding window.
    pub fn visible_pairs(&self) -> u64 {
        let pairs = self.key_start.iter().zip(&self.key_end);
        pairs.map(|(&start, &end)| u64::from(end - start)).sum()
    }

    /// Bytes of the intervals and positions, and of what operations have made from them so far.
    pub fn index_memory(&self) -> IndexMemory {
        let arrays = [
            &self.key_start,
            &self.key_end,
            &self.key_position,
            &self.query_position,
        ];
        let bytes = arrays.map(|array| size_of_val(array.as_slice()) as u64);
        let own = IndexMemory {
            host_bytes: bytes.iter().sum(),
            device_bytes: 0,
        };
        own + self.derived.memory()
    }

    /// What operations have made from this mask.
    pub(crate) fn derived(&self) -> &Derived {
        &self.derived
    }
}

impl fmt::Debug for Visibility {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Visibility")
            .field("batch_size", &self.batch_size)
            .field("n_queries", &self.n_queries)
            .field("n_keys", &self.n_keys)
            .finish()
    }
}
