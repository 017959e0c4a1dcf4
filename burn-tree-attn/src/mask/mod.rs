//! Which rows see which keys: one interval of query rows for each key.

mod derived;
mod error;
mod intervals;
mod tile_plan;
mod visibility;

use std::fmt;
use std::sync::Arc;

use burn::tensor::Device;
use tree_pack::{IndexMemory, TreeLayout};

pub use error::TreeMaskError;
pub use intervals::{KeyIntervals, PastKeys};
#[cfg(feature = "cubecl-backend")]
pub(crate) use tile_plan::KeyRun;
pub use tile_plan::{KeySpan, Tile, TilePlan};
pub use visibility::Visibility;

/// Visibility of `M` keys to `N` queries in each of `B` rows: key `j` is visible to the queries
/// `key_start[j] <= i < key_end[j]`. Built once per batch and shared by all layers; cloning is
/// cheap.
///
/// The first `P = M - N` keys are past keys, computed in an earlier pack; the last `N` belong to
/// the queries themselves.
#[derive(Clone)]
pub struct TreeMask {
    visibility: Arc<Visibility>,
    device: Device,
}

impl TreeMask {
    /// The mask of a batch of layouts padded to `padded_len` rows; padding sees nothing.
    ///
    /// # Panics
    /// If [`try_from_layouts`](Self::try_from_layouts) refuses the arguments.
    pub fn from_layouts(layouts: &[TreeLayout], padded_len: usize, device: &Device) -> Self {
        Self::try_from_layouts(layouts, padded_len, device).unwrap_or_else(|e| panic!("{e}"))
    }

    /// The mask of a batch of layouts padded to `padded_len` rows; padding sees nothing.
    ///
    /// # Errors
    /// If a layout is longer than `padded_len`, inconsistent, or that of a pack that continues
    /// another one: its roots have a depth above 0, and ancestors that they would not see.
    pub fn try_from_layouts(
        layouts: &[TreeLayout],
        padded_len: usize,
        device: &Device,
    ) -> Result<Self, TreeMaskError> {
        let past = vec![PastKeys::default(); layouts.len()];
        Self::with_past_keys(layouts, padded_len, &past, device)
    }

    /// As [`try_from_layouts`](Self::try_from_layouts), with past keys before the own ones: key
    /// `j < P` of batch row `b` is `past[b]`'s, key `P + i` is row `i`. Rows with fewer than the
    /// largest number `P` of past keys are padded after theirs with keys that nobody sees.
    ///
    /// # Errors
    /// If a layout is longer than `padded_len`, an array is inconsistent, or a root at a depth
    /// above 0 sees another number of past keys: as many are its ancestors.
    pub fn with_past_keys(
        layouts: &[TreeLayout],
        padded_len: usize,
        past: &[PastKeys],
        device: &Device,
    ) -> Result<Self, TreeMaskError> {
        Ok(Self::new(
            Visibility::from_layouts(layouts, padded_len, past)?,
            device,
        ))
    }

    /// The mask of a batch described key by key; all rows have the same `N` and `M`.
    ///
    /// # Errors
    /// If the batch is empty, `M < N`, lengths differ, or an interval does not lie in `0..N`.
    pub fn from_intervals(rows: &[KeyIntervals], device: &Device) -> Result<Self, TreeMaskError> {
        Ok(Self::new(Visibility::from_intervals(rows)?, device))
    }

    fn new(visibility: Visibility, device: &Device) -> Self {
        Self {
            visibility: Arc::new(visibility),
            device: device.clone().inner(),
        }
    }

    /// Number of batch rows, `B`.
    pub fn batch_size(&self) -> usize {
        self.visibility.batch_size()
    }

    /// Number of query rows with padding, `N`.
    pub fn n_queries(&self) -> usize {
        self.visibility.n_queries()
    }

    /// Number of keys, `M = P + N` with `P` past keys.
    pub fn n_keys(&self) -> usize {
        self.visibility.n_keys()
    }

    /// Number of (query, key) pairs in which the key is visible, summed over the batch (without
    /// a sliding window).
    pub fn visible_pairs(&self) -> u64 {
        self.visibility.visible_pairs()
    }

    /// Bytes of the intervals and positions, and of what operations have made from them so far:
    /// plans, and copies on devices.
    pub fn index_memory(&self) -> IndexMemory {
        self.visibility.index_memory()
    }

    /// Device the mask was built for, without autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The intervals and positions on the host.
    pub fn visibility(&self) -> &Arc<Visibility> {
        &self.visibility
    }
}

impl fmt::Debug for TreeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TreeMask")
            .field("batch_size", &self.batch_size())
            .field("n_queries", &self.n_queries())
            .field("n_keys", &self.n_keys())
            .field("device", &self.device)
            .finish()
    }
}
