//! Who continues whom.

use std::ops::Range;

use tree_pack::TreeLayout;

/// The rows of a flattened batch.
#[derive(Clone, Default)]
pub(super) struct Tree {
    /// `[R]` previous row of the path, -1 at roots and in padding.
    pub(super) parents: Vec<i32>,
    /// `[R]` one past the last row of the subtree, 0 in padding.
    pub(super) subtree_ends: Vec<u32>,
    /// `[R]` number of rows before on the path, 0 in padding.
    pub(super) depths: Vec<u32>,
    /// Rows of the layouts, without padding.
    pub(super) layouts: Vec<Range<usize>>,
    /// First rows of trees, ascending.
    pub(super) roots: Vec<u32>,
    /// The initial state of every root, if it has one.
    pub(super) root_states: Vec<Option<u32>>,
}

impl Tree {
    pub(super) fn push(&mut self, layout: &TreeLayout, row_length: usize) {
        let first = self.rows();
        let end = first + row_length;
        let rows = first..first + layout.len();
        for (row, &parent) in rows.clone().zip(&layout.parents) {
            if parent < 0 {
                self.roots.push(row as u32);
            }
        }
        let flat = |parent: &i32| {
            if *parent < 0 {
                -1
            } else {
                parent + first as i32
            }
        };
        self.parents.extend(layout.parents.iter().map(flat));
        self.parents.resize(end, -1);
        let ends = layout.subtree_ends.iter().map(|end| end + first as u32);
        self.subtree_ends.extend(ends);
        self.subtree_ends.resize(end, 0);
        self.depths.extend(&layout.position_ids);
        self.depths.resize(end, 0);
        self.layouts.push(rows);
    }

    pub(super) fn rows(&self) -> usize {
        self.parents.len()
    }

    pub(super) fn is_padding(&self, row: usize) -> bool {
        self.subtree_ends[row] == 0
    }

    pub(super) fn n_initial_states(&self) -> usize {
        let states = self.root_states.iter().flatten();
        states.max().map_or(0, |&state| state as usize + 1)
    }

    /// The initial state of the tree that `row` begins; `None` as well where it begins none.
    pub(super) fn initial_state(&self, row: usize) -> Option<u32> {
        let root = self.roots.binary_search(&(row as u32)).ok()?;
        self.root_states[root]
    }
}
