//! What a pack of a partitioned tree continues from.

use std::ops::Range;

use crate::layout::TreeLayout;
use crate::pack::Pack;

/// What the roots of a pack continue from: rows that earlier packs of the same step compute.
///
/// A tree larger than a pack is spread over several ([`crate::Partitioning`]). Where a path goes
/// on in another pack, that pack has a root whose position is not 0, and its rows see, before
/// each other, the **past keys**: the rows of ancestor packs on the paths of its roots, and no
/// others. Past key `k` is the `k`-th row over all [`Gateway::runs`]. Like the keys of the pack
/// itself, each is visible to one interval of rows: those that descend from it.
///
/// ```text
/// pack 0:  0 1 2 3 4        rows 1 and 3 are children of row 0
///            └─┘ └─┘
/// pack 1:  0 1 2            row 0 continues row 4 of pack 0
///
/// runs of pack 1:  rows 0..1 of pack 0 at position 0, rows 3..5 at position 1, visible to 0..3
/// root_parents:    [2], the past key that is row 4 of pack 0
/// ```
///
/// The row before a root is predicted from by its own pack: an occurrence is in the pack that
/// owns its row, even where the target is in the next one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Index in [`crate::PackedStep::packs`] of the pack that owns the row before every root. It
    /// is an earlier one.
    pub parent: u32,
    /// The past keys: those of the outermost ancestor pack first, then by row. Runs are as long
    /// as they can be.
    pub runs: Vec<PastRun>,
    /// For each root of the layout, in row order, the past key before it on its path. It is a row
    /// of `parent` that ends a segment.
    pub root_parents: Vec<u32>,
}

/// Consecutive rows of one ancestor pack that are consecutive on a path, too, and are seen by the
/// same rows of the pack whose [`Gateway`] this is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRun {
    /// Index in [`crate::PackedStep::packs`] of the pack that computes the rows.
    pub pack: u32,
    /// Rows of that pack.
    pub rows: Range<u32>,
    /// Depth on the path of the first of them.
    pub position: u32,
    /// Rows of the continuing pack that see them.
    pub visible_to: Range<u32>,
}

/// What is wrong with a gateway.
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

impl GatewayError {
    /// Checks the layout of a pack without a gateway.
    pub(crate) fn unless_roots_begin_paths(layout: &TreeLayout) -> Result<(), Self> {
        for (index, root) in layout.roots().enumerate() {
            let position = layout.position_ids[root.start as usize];
            if position != 0 {
                return Err(Self {
                    what: "position of root",
                    index,
                    value: position.to_string(),
                    expected: "0, or a gateway".into(),
                });
            }
        }
        Ok(())
    }
}

impl Gateway {
    /// Number of past keys.
    pub fn past_keys(&self) -> usize {
        self.runs.iter().map(|run| run.rows.len()).sum()
    }

    /// Sum over the past keys of the number of rows that see them.
    pub fn visible_pairs(&self) -> u64 {
        let runs = self.runs.iter();
        runs.map(|run| run.rows.len() as u64 * run.visible_to.len() as u64)
            .sum()
    }

    /// The gateway of a pack with this layout whose roots continue the given rows of the pack
    /// `parent`, one for each root.
    ///
    /// `packs` are packs of the step from number `first_pack` on; they include `parent` and its
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

    /// Appends a run, to the last one if it goes on there.
    fn push_run(&mut self, run: PastRun) {
        if let Some(last) = self.runs.last_mut() {
            // Two rows seen by the same rows are on one path.
            let goes_on = last.pack == run.pack
                && last.rows.end == run.rows.start
                && last.position + last.rows.len() as u32 == run.position
                && last.visible_to == run.visible_to;
            if goes_on {
                last.rows.end = run.rows.end;
                return;
            }
        }
        self.runs.push(run);
    }

    /// Checks the gateway of the pack `number` with this layout, all packs before which are valid.
    pub(crate) fn validate(
        &self,
        packs: &[Pack],
        number: usize,
        layout: &TreeLayout,
    ) -> Result<(), GatewayError> {
        let error = |what, index, value: String, expected: String| {
            Err(GatewayError {
                what,
                index,
                value,
                expected,
            })
        };
        if self.parent as usize >= number {
            let expected = format!("a pack before {number}");
            return error("parent of pack", number, self.parent.to_string(), expected);
        }
        let mut past_keys = 0u64;
        let mut first_keys = Vec::with_capacity(self.runs.len());
        for (index, run) in self.runs.iter().enumerate() {
            first_keys.push(past_keys);
            let rows = packs[..number]
                .get(run.pack as usize)
                .map_or(0, |pack| pack.layout.len());
            if run.rows.is_empty() || run.rows.end as usize > rows {
                let found = format!("rows {:?} of pack {}", run.rows, run.pack);
                return error("run", index, found, "rows of an earlier pack".into());
            }
            past_keys += run.rows.len() as u64;
        }
        let mut continued = Vec::with_capacity(self.root_parents.len());
        for (root, &key) in self.root_parents.iter().enumerate() {
            if u64::from(key) >= past_keys {
                let expected = format!("a past key below {past_keys}");
                return error("root_parents", root, key.to_string(), expected);
            }
            let index = first_keys.partition_point(|&first| first <= u64::from(key)) - 1;
            let run = &self.runs[index];
            if run.pack != self.parent {
                let found = format!("a row of pack {}", run.pack);
                let expected = format!("a row of pack {}", self.parent);
                return error("root_parents", root, found, expected);
            }
            continued.push(run.rows.start + (key - first_keys[index] as u32));
        }
        let expected = Self::derive(packs, 0, self.parent, &continued, layout)?;
        let parent_layout = &packs[self.parent as usize].layout;
        for (index, (root, &row)) in layout.roots().zip(&continued).enumerate() {
            let position = layout.position_ids[root.start as usize];
            let before = parent_layout.position_ids[row as usize];
            if position != before + 1 {
                let expected = (before + 1).to_string();
                return error("position of root", index, position.to_string(), expected);
            }
        }
        let runs = self.runs.len().max(expected.runs.len());
        let differing = (0..runs).find(|&run| self.runs.get(run) != expected.runs.get(run));
        if let Some(index) = differing {
            let text = |runs: &[PastRun]| {
                runs.get(index)
                    .map_or("nothing".into(), |run| format!("{run:?}"))
            };
            return error("run", index, text(&self.runs), text(&expected.runs));
        }
        Ok(())
    }
}

/// A segment on the path of some roots.
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
            // Depth-first order: what is above the root before was met there.
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

/// The past keys of the parent that are past keys of a pack whose roots continue these rows.
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
