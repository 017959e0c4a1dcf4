//! Who sees whom: one interval of query rows per key.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use tree_pack::{Gateway, IndexMemory, TreeLayout};

use crate::TreeMaskError;
use crate::visibility::Visibility;

/// Lengths, rows and positions are kept as `i32` on the device.
const MAX_INDEX: u64 = i32::MAX as u64;

/// Visibility of `M` keys to `N` queries in each of `B` rows: key `j` is visible to the queries
/// `key_start[j] <= i < key_end[j]`. Built once per batch and shared by all layers; cloning is
/// cheap.
///
/// The first `P = M - N` keys are past keys, computed in an earlier pack; the last `N` belong to
/// the queries themselves.
#[derive(Clone)]
pub struct TreeMask {
    visibility: Arc<Visibility>,
    tensors: MaskTensors,
    device: Device,
}

/// Device copy of the intervals and positions.
#[derive(Clone)]
pub(crate) struct MaskTensors {
    /// `[B, M]`
    pub key_start: Tensor<2, Int>,
    /// `[B, M]`
    pub key_end: Tensor<2, Int>,
    /// `[B, M]`
    pub key_position: Tensor<2, Int>,
    /// `[B, N]`
    pub query_position: Tensor<2, Int>,
}

/// Visibility of one batch row, key by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyIntervals {
    /// `[M]` first query row that sees the key.
    pub key_start: Vec<u32>,
    /// `[M]` one past the last query row that sees it; equal to `key_start` if none does.
    pub key_end: Vec<u32>,
    /// `[M]` position of the key on its path (for sliding windows).
    pub key_position: Vec<u32>,
    /// `[N]` position of the query on its path (for sliding windows).
    pub query_position: Vec<u32>,
}

/// Keys of one batch row that come before its own: rows of earlier packs, each visible to the
/// rows of this pack that descend from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PastKeys {
    /// `[P]` first row of this pack that descends from the key.
    pub start: Vec<u32>,
    /// `[P]` one past the last such row.
    pub end: Vec<u32>,
    /// `[P]` position of the key on its path.
    pub position: Vec<u32>,
}

impl From<&Gateway> for PastKeys {
    fn from(gateway: &Gateway) -> Self {
        let mut keys = Self::default();
        for run in &gateway.runs {
            for position in (run.position..).take(run.rows.len()) {
                keys.start.push(run.visible_to.start);
                keys.end.push(run.visible_to.end);
                keys.position.push(position);
            }
        }
        keys
    }
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
        Ok(Self::upload(
            Visibility::from_layouts(layouts, padded_len, past)?,
            device,
        ))
    }

    /// The mask of a batch described key by key; all rows have the same `N` and `M`.
    ///
    /// # Errors
    /// If the batch is empty, `M < N`, lengths differ, or an interval does not lie in `0..N`.
    pub fn from_intervals(rows: &[KeyIntervals], device: &Device) -> Result<Self, TreeMaskError> {
        Ok(Self::upload(Visibility::from_intervals(rows)?, device))
    }

    fn upload(visibility: Visibility, device: &Device) -> Self {
        let device = device.clone().inner();
        let batch_size = visibility.batch_size();
        let tensor = |values: &[u32]| {
            let shape = [batch_size, values.len() / batch_size];
            let values: Vec<i32> = values.iter().map(|&value| value as i32).collect();
            Tensor::<2, Int>::from_data(TensorData::new(values, shape), &device)
        };
        let tensors = MaskTensors {
            key_start: tensor(visibility.key_start()),
            key_end: tensor(visibility.key_end()),
            key_position: tensor(visibility.key_position()),
            query_position: tensor(visibility.query_position()),
        };
        Self {
            visibility: Arc::new(visibility),
            tensors,
            device,
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

    /// Bytes of the intervals and positions, and of the plans made from them so far.
    pub fn index_memory(&self) -> IndexMemory {
        let tensors = &self.tensors;
        let on_device = [
            &tensors.key_start,
            &tensors.key_end,
            &tensors.key_position,
            &tensors.query_position,
        ];
        let bytes = |tensor: &Tensor<2, Int>| tensor.shape().num_elements() * tensor.dtype().size();
        self.visibility.index_memory()
            + IndexMemory {
                host_bytes: 0,
                device_bytes: on_device.into_iter().map(bytes).sum::<usize>() as u64,
            }
    }

    /// Device the mask was built for, without autodiff.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// `[B, N]` position of every query row on its path.
    pub fn query_position(&self) -> Tensor<2, Int> {
        self.tensors.query_position.clone()
    }

    /// The intervals and positions on the host.
    pub fn visibility(&self) -> &Arc<Visibility> {
        &self.visibility
    }

    pub(crate) fn tensors(&self) -> MaskTensors {
        self.tensors.clone()
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

impl Visibility {
    /// What [`TreeMask::with_past_keys`] keeps on the host, without a device.
    ///
    /// # Errors
    /// As [`TreeMask::with_past_keys`].
    pub fn from_layouts(
        layouts: &[TreeLayout],
        padded_len: usize,
        past: &[PastKeys],
    ) -> Result<Self, TreeMaskError> {
        if past.len() != layouts.len() {
            return Err(TreeMaskError::PastBatch {
                found: past.len(),
                expected: layouts.len(),
            });
        }
        let past_len = past.iter().map(|keys| keys.start.len()).max().unwrap_or(0);
        let batch = || layouts.iter().zip(past).enumerate();
        let rows = batch()
            .map(|(batch, (layout, past))| {
                layout_intervals(batch, layout, padded_len, past, past_len)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let visibility = Self::from_intervals(&rows)?;
        for (batch, (layout, past)) in batch() {
            check_roots(batch, layout, padded_len, past)?;
        }
        Ok(visibility)
    }

    fn from_intervals(rows: &[KeyIntervals]) -> Result<Self, TreeMaskError> {
        let first = rows.first().ok_or(TreeMaskError::EmptyBatch)?;
        let (n_queries, n_keys) = (first.query_position.len(), first.key_start.len());
        if n_queries == 0 {
            return Err(TreeMaskError::EmptyBatch);
        }
        if n_keys < n_queries {
            return Err(TreeMaskError::FewKeys {
                keys: n_keys,
                queries: n_queries,
            });
        }
        for (batch, row) in rows.iter().enumerate() {
            validate(batch, row, n_queries, n_keys)?;
        }
        let join = |field: fn(&KeyIntervals) -> &Vec<u32>| -> Vec<u32> {
            rows.iter().flat_map(field).copied().collect()
        };
        Ok(Self::new(
            [rows.len(), n_queries, n_keys],
            join(|r| &r.key_start),
            join(|r| &r.key_end),
            join(|r| &r.key_position),
            join(|r| &r.query_position),
        ))
    }
}

fn check_length(
    batch: usize,
    field: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), TreeMaskError> {
    if found == expected {
        Ok(())
    } else {
        Err(TreeMaskError::Length {
            batch,
            field,
            found,
            expected,
        })
    }
}

fn check_size(batch: usize, field: &'static str, value: u64) -> Result<(), TreeMaskError> {
    if value <= MAX_INDEX {
        Ok(())
    } else {
        Err(TreeMaskError::TooLarge {
            batch,
            field,
            value,
            max: MAX_INDEX,
        })
    }
}

fn layout_intervals(
    batch: usize,
    layout: &TreeLayout,
    padded_len: usize,
    past: &PastKeys,
    past_len: usize,
) -> Result<KeyIntervals, TreeMaskError> {
    let len = layout.len();
    if len > padded_len {
        return Err(TreeMaskError::PaddedLength {
            batch,
            len,
            padded_len,
        });
    }
    check_size(batch, "padded length", padded_len as u64)?;
    check_length(batch, "parents", layout.parents.len(), len)?;
    check_length(batch, "subtree_ends", layout.subtree_ends.len(), len)?;
    check_length(batch, "position_ids", layout.position_ids.len(), len)?;
    check_length(batch, "past end", past.end.len(), past.start.len())?;
    check_length(
        batch,
        "past position",
        past.position.len(),
        past.start.len(),
    )?;

    let padded = |values: &[u32], len: usize| {
        let mut values = values.to_vec();
        values.resize(len, 0);
        values
    };
    let joined =
        |past: &[u32], own: &[u32]| [padded(past, past_len), padded(own, padded_len)].concat();
    let own_start: Vec<u32> = (0..len as u32).collect();
    Ok(KeyIntervals {
        key_start: joined(&past.start, &own_start),
        key_end: joined(&past.end, &layout.subtree_ends),
        key_position: joined(&past.position, &layout.position_ids),
        query_position: padded(&layout.position_ids, padded_len),
    })
}

/// Refuses roots below others that do not see a past key for each ancestor. The intervals of `past`
/// have been checked.
fn check_roots(
    batch: usize,
    layout: &TreeLayout,
    padded_len: usize,
    past: &PastKeys,
) -> Result<(), TreeMaskError> {
    // Past keys whose intervals begin at a row, and that end there.
    let mut begin = vec![0; padded_len + 1];
    let mut end = begin.clone();
    for (&first, &last) in past.start.iter().zip(&past.end) {
        begin[first as usize] += 1;
        end[last as usize] += 1;
    }
    let mut found = 0;
    for (row, (&parent, &depth)) in layout.parents.iter().zip(&layout.position_ids).enumerate() {
        // Not fewer than 0: an interval does not end before it begins.
        found = found + begin[row] - end[row];
        if parent >= 0 || depth == 0 || found == depth as usize {
            continue;
        }
        return Err(match found {
            0 => TreeMaskError::Continues { batch, row, depth },
            _ => TreeMaskError::Ancestors {
                batch,
                row,
                depth,
                found,
            },
        });
    }
    Ok(())
}

fn validate(
    batch: usize,
    row: &KeyIntervals,
    n_queries: usize,
    n_keys: usize,
) -> Result<(), TreeMaskError> {
    check_size(
        batch,
        "number of query rows",
        row.query_position.len() as u64,
    )?;
    check_size(batch, "number of keys", row.key_start.len() as u64)?;
    check_length(batch, "query_position", row.query_position.len(), n_queries)?;
    check_length(batch, "key_start", row.key_start.len(), n_keys)?;
    check_length(batch, "key_end", row.key_end.len(), n_keys)?;
    check_length(batch, "key_position", row.key_position.len(), n_keys)?;
    for (key, (&start, &end)) in row.key_start.iter().zip(&row.key_end).enumerate() {
        if start > end || end as usize > n_queries {
            return Err(TreeMaskError::Interval {
                batch,
                key,
                start,
                end,
                queries: n_queries,
            });
        }
    }
    for &position in row.key_position.iter().chain(&row.query_position) {
        check_size(batch, "position", u64::from(position))?;
    }
    Ok(())
}
