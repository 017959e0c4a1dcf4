//! The rows of earlier packs that the roots of a pack continue.

use std::ops::Range;

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

    /// Appends a run, to the last one if it goes on there.
    pub(super) fn push_run(&mut self, run: PastRun) {
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
}
