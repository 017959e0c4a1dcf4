//! One depth-first row of tokens: the layout of all tree operations.

use std::ops::Range;

use crate::forest::{MAX_ROWS, PrefixForest};

/// Consecutive rows that are also consecutive on their root-to-leaf paths: one node of the
/// compressed prefix tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// First row.
    pub start: u32,
    /// One past the last row.
    pub end: u32,
    /// Index of the segment that holds the previous token of the path; `None` at a root.
    pub parent: Option<u32>,
}

/// `N` tokens of one or more prefix trees in depth-first order, each tree token once.
///
/// Row `j` is visible to row `i` exactly when `j <= i < subtree_ends[j]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TreeLayout {
    /// `[N]` token ids.
    pub tokens: Vec<u32>,
    /// `[N]` depth of the token on its path: 0 at a root, unless the layout is that of a
    /// [`crate::Pack`] with a [`crate::Gateway`].
    pub position_ids: Vec<u32>,
    /// `[N]` row of the previous token on the path, -1 at a root.
    pub parents: Vec<i32>,
    /// `[N]` one past the last row of the token's subtree.
    pub subtree_ends: Vec<u32>,
    /// Nodes in row order; they tile `0..N`.
    pub segments: Vec<Segment>,
}

/// An inconsistency of a layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layout: {what} at {index}: got {value}, expected {expected}")]
pub struct LayoutError {
    /// The column.
    pub what: &'static str,
    /// The row or segment.
    pub index: usize,
    /// What was found.
    pub value: i64,
    /// What was expected.
    pub expected: String,
}

impl TreeLayout {
    /// Number of rows, `N`.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Bytes of all columns except `tokens`.
    #[cfg(feature = "burn")]
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(self.position_ids.as_slice())
            + size_of_val(self.parents.as_slice())
            + size_of_val(self.subtree_ends.as_slice())
            + size_of_val(self.segments.as_slice())
    }

    /// Whether the layout has no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Rows of each root's subtree, in order.
    pub fn roots(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let range = |start: u32| {
            let end = *self.subtree_ends.get(start as usize)?;
            (end > start).then_some(start..end)
        };
        std::iter::successors(range(0), move |last| range(last.end))
    }

    /// Number of (query, key) pairs in which the key is visible to the query: the sum of
    /// `position_id + 1` over the rows. It includes past keys of a [`crate::Gateway`].
    pub fn visible_pairs(&self) -> u64 {
        self.position_ids
            .iter()
            .map(|&depth| u64::from(depth) + 1)
            .sum()
    }

    /// All trees of a forest, one after another.
    pub fn from_forest(forest: &PrefixForest) -> Self {
        Self::from_trees((0..forest.trees().len()).map(|tree| (forest, tree)))
    }

    /// Trees, one after another, each given as a forest and an index in its
    /// [`PrefixForest::trees`].
    ///
    /// # Panics
    /// If an index is out of range or the rows exceed [`crate::MAX_ROWS`].
    pub fn from_trees<'a>(
        trees: impl IntoIterator<Item = (&'a PrefixForest, usize)> + Clone,
    ) -> Self {
        let sizes = trees.clone().into_iter();
        let rows: usize = sizes
            .map(|(forest, tree)| forest.trees()[tree].rows.len())
            .sum();
        assert!(
            rows <= MAX_ROWS,
            "a layout of {rows} rows exceeds the limit of {MAX_ROWS}"
        );
        let mut layout = Self {
            tokens: Vec::with_capacity(rows),
            position_ids: Vec::with_capacity(rows),
            parents: Vec::with_capacity(rows),
            subtree_ends: Vec::with_capacity(rows),
            segments: Vec::new(),
        };
        for (forest, tree) in trees {
            layout.push_tree(forest, tree);
        }
        layout
    }

    fn push_tree(&mut self, forest: &PrefixForest, tree: usize) {
        let tree = &forest.trees()[tree];
        // Shifts from rows and nodes of the forest to those of this layout.
        let row_shift = self.len() as i64 - i64::from(tree.rows.start);
        let node_shift = self.segments.len() as i64 - i64::from(tree.nodes.start);
        let row = |row: u32| (i64::from(row) + row_shift) as u32;
        self.tokens
            .extend_from_slice(&forest.tokens()[tree.rows.start as usize..tree.rows.end as usize]);
        for node in &forest.nodes()[tree.nodes.start as usize..tree.nodes.end as usize] {
            let (start, end) = (row(node.start), row(node.end));
            let parent = node
                .parent
                .map(|parent| (i64::from(parent) + node_shift) as u32);
            let before = match parent {
                Some(parent) => self.segments[parent as usize].end as i32 - 1,
                None => -1,
            };
            self.parents.push(before);
            self.parents.extend(start as i32..end as i32 - 1);
            self.position_ids
                .extend(node.position..node.position + (end - start));
            self.subtree_ends.extend(std::iter::repeat_n(
                row(node.subtree_end),
                node.token_count(),
            ));
            self.segments.push(Segment { start, end, parent });
        }
    }

    /// Checks that the columns describe one forest in depth-first order. Its roots may be at any
    /// depth.
    ///
    /// # Errors
    /// [`LayoutError`] for the first inconsistent row or segment.
    pub fn validate(&self) -> Result<(), LayoutError> {
        let rows = self.len();
        for (what, length) in [
            ("length of position_ids", self.position_ids.len()),
            ("length of parents", self.parents.len()),
            ("length of subtree_ends", self.subtree_ends.len()),
        ] {
            expect(length == rows, what, 0, length as i64, || format!("{rows}"))?;
        }
        // Rows of the path from the root to the previous row.
        let mut path: Vec<u32> = Vec::new();
        for row in 0..rows {
            let parent = self.parents[row];
            let is_earlier = (-1..row as i64).contains(&i64::from(parent));
            expect(is_earlier, "parents", row, parent.into(), || {
                format!("-1, or a row before {row}")
            })?;
            while path
                .last()
                .is_some_and(|&last| i64::from(last) != i64::from(parent))
            {
                let closed = path.pop().unwrap_or_default() as usize;
                let end = self.subtree_ends[closed];
                expect(
                    end as usize == row,
                    "subtree_ends",
                    closed,
                    end.into(),
                    || format!("{row}"),
                )?;
            }
            let on_path = parent == -1 || !path.is_empty();
            expect(on_path, "parents", row, parent.into(), || {
                "a row of the open path".into()
            })?;
            let position = self.position_ids[row];
            match path.last() {
                Some(&last) => {
                    let next = self.position_ids[last as usize] + 1;
                    expect(
                        position == next,
                        "position_ids",
                        row,
                        position.into(),
                        || format!("{next}"),
                    )?;
                }
                None => expect(
                    position as usize <= MAX_ROWS.saturating_sub(rows),
                    "position_ids",
                    row,
                    position.into(),
                    || format!("at most {MAX_ROWS} less {rows} rows"),
                )?,
            }
            path.push(row as u32);
        }
        for closed in path {
            let end = self.subtree_ends[closed as usize];
            expect(
                end as usize == rows,
                "subtree_ends",
                closed as usize,
                end.into(),
                || format!("{rows}"),
            )?;
        }
        self.validate_segments()
    }

    fn validate_segments(&self) -> Result<(), LayoutError> {
        let mut next = 0;
        for (index, segment) in self.segments.iter().enumerate() {
            let Segment { start, end, parent } = *segment;
            expect(
                start == next,
                "start of segment",
                index,
                start.into(),
                || format!("{next}"),
            )?;
            let inside = end > start && end as usize <= self.len();
            expect(inside, "end of segment", index, end.into(), || {
                format!("{} to {}", start + 1, self.len())
            })?;
            let known = parent.is_none_or(|parent| (parent as usize) < index);
            let parent_value = parent.map_or(-1, i64::from);
            expect(known, "parent of segment", index, parent_value, || {
                format!("an index below {index}")
            })?;
            let before = parent.map_or(-1, |parent| {
                i64::from(self.segments[parent as usize].end) - 1
            });
            let parent_row = i64::from(self.parents[start as usize]);
            expect(
                parent_row == before,
                "parent of segment",
                index,
                parent_value,
                || format!("the segment that ends with row {parent_row}"),
            )?;
            for row in start + 1..end {
                let parent = self.parents[row as usize];
                expect(
                    parent == row as i32 - 1,
                    "parents",
                    row as usize,
                    parent.into(),
                    || format!("{}, inside segment {index}", row - 1),
                )?;
            }
            next = end;
        }
        expect(
            next as usize == self.len(),
            "rows in segments",
            0,
            next.into(),
            || format!("{}", self.len()),
        )
    }
}

fn expect(
    holds: bool,
    what: &'static str,
    index: usize,
    value: i64,
    expected: impl FnOnce() -> String,
) -> Result<(), LayoutError> {
    if holds {
        return Ok(());
    }
    Err(LayoutError {
        what,
        index,
        value,
        expected: expected(),
    })
}
