//! Cuts the rows of a batch into windows.

use std::ops::Range;

use super::tree::Tree;

/// Rows that are computed together: all of them hang off one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) rows: Range<usize>,
    /// Index of the window that ends with the parent of the first row; `None` at roots.
    pub(super) parent: Option<usize>,
}

/// The windows in order of their rows.
///
/// If what is left of a subtree has at most `window_rows` rows, one window takes it whole, and with
/// it the complete sibling subtrees that follow, as long as they fit: short leaves then pay no
/// padding, and siblings never wait for each other. Otherwise the window is a piece of one node.
///
/// A window ends with a requested row, and no other row of it is one.
pub(super) fn cut(tree: &Tree, requested_rows: &[u32], window_rows: usize) -> Vec<Window> {
    let mut requested = vec![false; tree.rows()];
    for &row in requested_rows {
        requested[row as usize] = true;
    }
    // Requested rows before each row.
    let mut requested_before = Vec::with_capacity(tree.rows() + 1);
    requested_before.push(0u32);
    for (row, &requested) in requested.iter().enumerate() {
        requested_before.push(requested_before[row] + u32::from(requested));
    }

    let mut windows: Vec<Window> = Vec::new();
    // The window that ends with each row.
    let mut window_of_end = vec![usize::MAX; tree.rows()];
    for layout in &tree.layouts {
        let fits = |rows: Range<usize>, first: usize| {
            rows.end - first <= window_rows
                && requested_before[rows.end] == requested_before[rows.start]
        };
        let subtree = |row: usize| row..tree.subtree_ends[row] as usize;
        let mut row = layout.start;
        while row < layout.end {
            let parent = tree.parents[row];
            let mut end = row;
            if fits(subtree(row), row) {
                let is_sibling = |other: usize| {
                    tree.parents[other] == parent
                        && tree.initial_state(other) == tree.initial_state(row)
                };
                while end < layout.end && is_sibling(end) && fits(subtree(end), row) {
                    end = tree.subtree_ends[end] as usize;
                }
            } else {
                let has_one_child = |row: usize| {
                    row + 1 < layout.end && tree.subtree_ends[row + 1] == tree.subtree_ends[row]
                };
                end += 1;
                while end - row < window_rows && !requested[end - 1] && has_one_child(end - 1) {
                    end += 1;
                }
                window_of_end[end - 1] = windows.len();
            }
            windows.push(Window {
                rows: row..end,
                parent: usize::try_from(parent)
                    .ok()
                    .map(|parent| window_of_end[parent]),
            });
            row = end;
        }
    }
    windows
}
