//! The rows of earlier packs that the roots of a pack continue.

use std::ops::Range;

/// The rows of earlier packs of the same step that the roots of a pack continue.
///
/// A tree larger than a pack is split over several packs ([`crate::Partitioning`]). If a path
/// continues in another pack, that pack has a root whose position is not 0. Besides each other, its
/// rows see the **past keys**: the rows of ancestor packs on the paths of its roots. Past key `k`
/// is the `k`-th row over all [`Gateway::runs`]. Like the keys of the pack itself, each past key is
/// visible to one interval of rows: its descendants.
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
/// An occurrence is in the pack that contains its row, even if its target is in the next pack. The
/// pack of the row before a root therefore predicts the root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Index in [`crate::PackedStep::packs`] of the earlier pack that contains the row before every
    /// root.
    pub parent: u32,
    /// The past keys in maximal runs, from the outermost ancestor pack inwards and by row.
    pub runs: Vec<PastRun>,
    /// For each root of the layout, in row order, the past key before it on its path: a row of
    /// `parent` that ends a segment.
    pub root_parents: Vec<u32>,
}

/// Consecutive rows of one ancestor pack that are also consecutive on a path and visible to the
/// same rows of the pack with this [`Gateway`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastRun {
    /// Index in [`crate::PackedStep::packs`] of the pack that computes the rows.
    pub pack: u32,
    /// Rows of that pack.
    pub rows: Range<u32>,
    /// Depth of the first of these rows on the path.
    pub position: u32,
    /// Rows of the continuing pack that see these rows.
    pub visible_to: Range<u32>,
}

impl Gateway {
    /// Number of past keys.
    pub fn past_keys(&self) -> usize {
        self.runs.iter().map(|run| run.rows.len()).sum()
    }

    /// Number of pairs of a past key and a row that sees it.
    pub fn visible_pairs(&self) -> u64 {
        let runs = self.runs.iter();
        runs.map(|run| run.rows.len() as u64 * run.visible_to.len() as u64)
            .sum()
    }

    /// Appends a run, and merges it with the last one if it continues it.
    pub(super) fn push_run(&mut self, run: PastRun) {
        if let Some(last) = self.runs.last_mut() {
            // Two rows that the same rows see are on one path.
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
