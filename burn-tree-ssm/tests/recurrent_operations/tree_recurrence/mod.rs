//! Windows, paths, levels and convolution lists of a recurrence, against definitions that walk
//! from row to parent.

mod arguments;
mod convolution;
mod padding;
mod windows;

use burn_tree_ssm::TreeRecurrence;

fn parent(recurrence: &TreeRecurrence, row: usize) -> Option<usize> {
    usize::try_from(recurrence.parents()[row]).ok()
}

/// `row` and its ancestors, from the row on.
fn path(recurrence: &TreeRecurrence, row: usize) -> impl Iterator<Item = usize> + '_ {
    std::iter::successors(Some(row), |&row| parent(recurrence, row))
}

fn real_rows(recurrence: &TreeRecurrence) -> Vec<usize> {
    let rows = 0..recurrence.rows();
    rows.filter(|&row| !recurrence.is_padding(row)).collect()
}

/// The initial state of the tree that holds `row`.
fn initial_state(recurrence: &TreeRecurrence, row: usize) -> Option<u32> {
    let root = path(recurrence, row).last().unwrap() as u32;
    let root = recurrence.roots().iter().position(|&other| other == root);
    recurrence.root_states()[root.unwrap()]
}

fn windows(recurrence: &TreeRecurrence) -> Vec<std::ops::Range<usize>> {
    let lengths = recurrence.window_lengths();
    let starts = recurrence.window_starts().iter().zip(lengths);
    let range = |(&start, &length): (&u32, &u32)| start as usize..(start + length) as usize;
    starts.map(range).collect()
}

fn path_windows(recurrence: &TreeRecurrence, path: usize) -> std::ops::Range<usize> {
    let offsets = recurrence.path_offsets();
    offsets[path] as usize..offsets[path + 1] as usize
}
