//! Derives the gateway of a pack from the rows before its roots.

use std::ops::Range;

use super::gateway::{Gateway, PastRun};
use super::pack::Pack;
use crate::layout::TreeLayout;

/// An inconsistency of a gateway.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("gateway: {what} {index}: got {value}, expected {expected}")]
pub struct GatewayError {
    /// The field.
    pub what: &'static str,
    /// Index of the run or root.
    pub index: usize,
    /// What was found.
    pub value: String,
    /// What was expected.
    pub expected: String,
}

impl Gateway {
    /// The gateway of a pack with this layout whose roots continue the given rows of the pack
    /// `parent`, one for each root.
    ///
    /// `packs` are the packs of the step from index `first_pack` on; they include `parent` and its
    /// ancestors, which are valid.
    pub(crate) fn derive(
        packs: &[Pack],
        first_pack: u32,
        parent: u32,
        continued: &[u32],
        layout: &TreeLayout,
    ) -> Result<Self, GatewayError> {
        let roots: Vec<_> = layout.roots().collect();
        if continued.len() != roots.len() || roots.is_empty() {
            let [value, expected] = [continued.len(), roots.len().max(1)].map(|n| n.to_string());
            return Err(GatewayError {
                what: "number of root_parents",
                index: 0,
                value,
                expected,
            });
        }
        let parent_pack = &packs[(parent - first_pack) as usize];
        let mut gateway = Self {
            parent,
            runs: outer_runs(parent_pack, continued, &roots)?,
            root_parents: Vec::new(),
        };
        let mut past_keys = gateway.past_keys() as u32;

        let owner = &parent_pack.layout;
        let ancestors = ancestor_segments(owner, continued)?;
        let mut last_keys = Vec::with_capacity(ancestors.len());
        for ancestor in &ancestors {
            let segment = owner.segments[ancestor.segment as usize];
            past_keys += segment.end - segment.start;
            last_keys.push(past_keys - 1);
            gateway.push_run(PastRun {
                pack: parent,
                rows: segment.start..segment.end,
                position: owner.position_ids[segment.start as usize],
                visible_to: rows_of(&roots, &ancestor.roots),
            });
        }
        gateway.root_parents = continued
            .iter()
            .map(|&row| {
                let before = ancestors
                    .partition_point(|other| owner.segments[other.segment as usize].start <= row);
                last_keys[before - 1]
            })
            .collect();
        Ok(gateway)
    }
}

/// A segment on the paths of several roots.
struct Ancestor {
    segment: u32,
    /// The roots, as numbers.
    roots: Range<usize>,
}

/// Segments of a layout on the paths of roots that continue its rows, in ascending order.
fn ancestor_segments(
    layout: &TreeLayout,
    continued: &[u32],
) -> Result<Vec<Ancestor>, GatewayError> {
    let error = |index: usize, expected: &str| {
        Err(GatewayError {
            what: "row before root",
            index,
            value: continued[index].to_string(),
            expected: expected.to_owned(),
        })
    };
    let mut ancestors = Vec::new();
    for (root, &row) in continued.iter().enumerate() {
        let after = layout.segments.partition_point(|other| other.start <= row);
        if after == 0 || layout.segments[after - 1].end != row + 1 {
            return error(root, "the last row of a segment");
        }
        let mut next = Some(after as u32 - 1);
        while let Some(segment) = next {
            let node = layout.segments[segment as usize];
            let subtree = node.start..layout.subtree_ends[node.start as usize];
            // In depth-first order, the previous root has already found the common ancestors.
            if root > 0 && subtree.contains(&continued[root - 1]) {
                break;
            }
            let later = &continued[root + 1..];
            let end = root + 1 + later.partition_point(|row| subtree.contains(row));
            ancestors.push(Ancestor {
                segment,
                roots: root..end,
            });
            next = node.parent;
        }
    }
    ancestors.sort_unstable_by_key(|ancestor| ancestor.segment);
    let twice = ancestors
        .windows(2)
        .find(|pair| pair[0].segment == pair[1].segment);
    match twice {
        Some(pair) => error(
            pair[0].roots.start.max(pair[1].roots.start),
            "roots in depth-first order",
        ),
        None => Ok(ancestors),
    }
}

/// The past keys of the parent that are also past keys of a pack whose roots continue the given
/// rows.
fn outer_runs(
    parent: &Pack,
    continued: &[u32],
    roots: &[Range<u32>],
) -> Result<Vec<PastRun>, GatewayError> {
    let mut outer = Gateway {
        parent: 0,
        runs: Vec::new(),
        root_parents: Vec::new(),
    };
    let starts: Vec<u32> = parent.layout.roots().map(|rows| rows.start).collect();
    // Start of the parent's root above each root.
    let above: Vec<u32> = continued
        .iter()
        .map(|row| starts[starts.partition_point(|start| start <= row) - 1])
        .collect();
    if let Some(index) = (1..above.len()).find(|&index| above[index - 1] > above[index]) {
        return Err(GatewayError {
            what: "row before root",
            index,
            value: continued[index].to_string(),
            expected: "roots in depth-first order".into(),
        });
    }
    for run in parent.gateway.iter().flat_map(|gateway| &gateway.runs) {
        let before = |row: u32| above.partition_point(|&start| start < row);
        let seen_by = before(run.visible_to.start)..before(run.visible_to.end);
        if !seen_by.is_empty() {
            outer.push_run(PastRun {
                visible_to: rows_of(roots, &seen_by),
                ..run.clone()
            });
        }
    }
    Ok(outer.runs)
}

/// Rows of the subtrees of consecutive roots.
fn rows_of(subtrees: &[Range<u32>], roots: &Range<usize>) -> Range<u32> {
    subtrees[roots.start].start..subtrees[roots.end - 1].end
}
