//! Whether layouts and the states that their trees start from fit together.

use tree_pack::TreeLayout;

use super::error::RecurrenceError;
use super::limits::MAX_ROWS;
use super::tree::Tree;

/// The rows of layouts that are checked, every root starting from zero.
pub(super) fn tree_of(layouts: &[TreeLayout], row_length: usize) -> Result<Tree, RecurrenceError> {
    if layouts.is_empty() || row_length == 0 {
        return Err(RecurrenceError::EmptyBatch);
    }
    let rows = layouts.len().checked_mul(row_length);
    if rows.is_none_or(|rows| rows > MAX_ROWS) {
        return Err(RecurrenceError::TooManyRows {
            batch_size: layouts.len(),
            row_length,
        });
    }
    let mut tree = Tree::default();
    for (batch, layout) in layouts.iter().enumerate() {
        if layout.len() > row_length {
            return Err(RecurrenceError::RowLength {
                batch,
                length: layout.len(),
                row_length,
            });
        }
        layout
            .validate()
            .map_err(|source| RecurrenceError::Layout { batch, source })?;
        tree.push(layout, row_length);
    }
    tree.root_states = vec![None; tree.roots.len()];
    Ok(tree)
}

pub(super) fn check_root_states(
    root_states: &[Option<u32>],
    roots: usize,
) -> Result<(), RecurrenceError> {
    if root_states.len() != roots {
        return Err(RecurrenceError::RootStates {
            found: root_states.len(),
            expected: roots,
        });
    }
    for (root, state) in root_states.iter().enumerate() {
        if let &Some(state) = state
            && state as usize >= roots
        {
            return Err(RecurrenceError::InitialState { root, state, roots });
        }
    }
    Ok(())
}

/// Refuses roots below the first token of their path that have no state to start from.
pub(super) fn check_depths(
    layouts: &[TreeLayout],
    root_states: &[Option<u32>],
) -> Result<(), RecurrenceError> {
    let mut root = 0;
    for (batch, layout) in layouts.iter().enumerate() {
        for (row, &parent) in layout.parents.iter().enumerate() {
            if parent >= 0 {
                continue;
            }
            let depth = layout.position_ids[row];
            if depth > 0 && root_states.get(root).copied().flatten().is_none() {
                return Err(RecurrenceError::Continues { batch, row, depth });
            }
            root += 1;
        }
    }
    Ok(())
}
