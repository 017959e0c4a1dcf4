//! Intervals of rows by key: made from layouts, and checked.

use tree_pack::{Gateway, TreeLayout};

use super::error::TreeMaskError;
use super::visibility::Visibility;

/// Lengths, rows and positions are `i32` on devices.
const MAX_INDEX: u64 = i32::MAX as u64;

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

impl Visibility {
    /// What [`TreeMask::with_past_keys`](super::TreeMask::with_past_keys) keeps on the host.
    /// Needs no device.
    ///
    /// # Errors
    /// As [`TreeMask::with_past_keys`](super::TreeMask::with_past_keys).
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

    pub(super) fn from_intervals(rows: &[KeyIntervals]) -> Result<Self, TreeMaskError> {
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
