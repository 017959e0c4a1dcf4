//! Windows, paths and levels.

use std::collections::HashMap;

use burn_tree_ssm::{ENTRY_ZERO, TreeRecurrence};
use proptest::prelude::*;
use tree_pack::TreeLayout;

use super::{initial_state, path, path_windows, real_rows, windows};
use crate::support::{Batch, Forest, batches, cases};

/// The row after which a window's first state is taken, if that is a row; checks that it is the
/// same for the whole window.
fn check_one_entry(recurrence: &TreeRecurrence, window: &std::ops::Range<usize>) -> Option<usize> {
    let mut entries = window.clone().map(|row| {
        let outside = path(recurrence, row).find(|row| !window.contains(row));
        (outside, initial_state(recurrence, row))
    });
    let first = entries.next().unwrap();
    for (row, entry) in window.clone().skip(1).zip(entries) {
        assert_eq!(entry, first, "entry of row {row} in window {window:?}");
    }
    first.0
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn windows_tile_the_rows_and_hang_off_one_entry_each(batch in batches(14)) {
        let recurrence = batch.recurrence();
        let windows = windows(&recurrence);
        let mut covered: Vec<usize> = windows.iter().cloned().flatten().collect();
        covered.sort_unstable();
        prop_assert_eq!(covered, real_rows(&recurrence));
        for window in &windows {
            prop_assert!((1..=batch.window_rows).contains(&window.len()));
            check_one_entry(&recurrence, window);
            // The rule by which kernels mask: row j is row i or an ancestor of it.
            for i in window.clone() {
                let ancestors: Vec<_> = path(&recurrence, i).collect();
                for j in window.clone() {
                    let rule = j <= i && i < recurrence.subtree_ends()[j] as usize;
                    prop_assert_eq!(rule, ancestors.contains(&j), "rows {} and {}", i, j);
                }
            }
        }
    }

    /// A path continues, or starts with, the state after the parent of its rows: siblings are
    /// never chained.
    #[test]
    fn paths_start_where_their_rows_hang(batch in batches(14)) {
        let recurrence = batch.recurrence();
        let windows = windows(&recurrence);
        // The row whose state each slot holds.
        let mut slot_rows = HashMap::new();
        for (window, &slot) in windows.iter().zip(recurrence.window_slots()) {
            if slot >= 0 {
                prop_assert!(slot_rows.insert(slot as usize, window.end - 1).is_none());
            }
        }
        prop_assert_eq!(slot_rows.len(), recurrence.n_slots());
        for (slot, &row) in recurrence.requested_rows().iter().enumerate() {
            prop_assert_eq!(slot_rows[&slot], row as usize);
        }
        for number in 0..recurrence.n_paths() {
            let of_path = path_windows(&recurrence, number);
            prop_assert!(!of_path.is_empty());
            let first = &windows[of_path.start];
            let entry = recurrence.path_entries()[number];
            match check_one_entry(&recurrence, first) {
                Some(row) => prop_assert_eq!(slot_rows[&(entry as usize)], row),
                None => match initial_state(&recurrence, first.start) {
                    Some(state) => prop_assert_eq!(entry, -2 - state as i32),
                    None => prop_assert_eq!(entry, ENTRY_ZERO),
                },
            }
            for window in of_path.start + 1..of_path.end {
                let entry = check_one_entry(&recurrence, &windows[window]);
                prop_assert_eq!(entry, Some(windows[window - 1].end - 1));
            }
        }
    }

    #[test]
    fn levels_order_paths_after_their_entries(batch in batches(14)) {
        let recurrence = batch.recurrence();
        let length = |path: usize| path_windows(&recurrence, path).len();
        let mut next = 0;
        let mut written = vec![false; recurrence.n_slots()];
        for level in recurrence.levels() {
            prop_assert_eq!(level.start, next);
            next = level.end;
            prop_assert!(!level.is_empty());
            for path in level.clone() {
                if let Ok(slot) = usize::try_from(recurrence.path_entries()[path]) {
                    prop_assert!(written[slot], "path {} starts from slot {}", path, slot);
                }
                prop_assert!(path == level.start || length(path - 1) >= length(path));
            }
            for window in level.clone().flat_map(|path| path_windows(&recurrence, path)) {
                if let Ok(slot) = usize::try_from(recurrence.window_slots()[window]) {
                    written[slot] = true;
                }
            }
        }
        prop_assert_eq!(next, recurrence.n_paths());
    }

    #[test]
    fn children_are_the_paths_that_start_from_a_state(batch in batches(14)) {
        let recurrence = batch.recurrence();
        let entries = recurrence.path_entries();
        let paths_with = |entry: i32| -> Vec<u32> {
            (0..entries.len() as u32).filter(|&path| entries[path as usize] == entry).collect()
        };
        let (offsets, children) = (recurrence.slot_child_offsets(), recurrence.slot_children());
        prop_assert_eq!(offsets.len(), recurrence.n_slots() + 1);
        for slot in 0..recurrence.n_slots() {
            let list = &children[offsets[slot] as usize..offsets[slot + 1] as usize];
            prop_assert_eq!(list, paths_with(slot as i32));
        }
        let offsets = recurrence.initial_child_offsets();
        let children = recurrence.initial_children();
        prop_assert_eq!(offsets.len(), recurrence.n_initial_states() + 1);
        for state in 0..recurrence.n_initial_states() {
            let list = &children[offsets[state] as usize..offsets[state + 1] as usize];
            prop_assert_eq!(list, paths_with(-2 - state as i32));
        }
    }
}

/// A forest by name, the windows that it is cut into in order of rows (as lengths), and the lengths
/// of the paths of each level.
type Cut = (
    &'static str,
    Forest,
    &'static [usize],
    &'static [&'static [usize]],
);

#[test]
fn windows_of_small_trees() {
    let cases: [Cut; 7] = [
        (
            "one node of 130",
            Forest::comb(&[130], &[]),
            &[64, 64, 2],
            &[&[3]],
        ),
        (
            "two answers of 65 to 10",
            Forest::comb(&[10], &[65, 65]),
            &[10, 64, 1, 64, 1],
            &[&[1], &[2, 2]],
        ),
        (
            "many answers of 20 share windows",
            Forest::comb(&[70], &[20; 7]),
            &[64, 6, 60, 60, 20],
            &[&[2], &[1, 1, 1]],
        ),
        (
            "leaves beside a long one share a window",
            Forest(vec![
                (None, 64),
                (Some(0), 10),
                (Some(0), 100),
                (Some(0), 30),
                (Some(0), 30),
            ]),
            &[64, 10, 64, 36, 60],
            &[&[1], &[2, 1, 1]],
        ),
        (
            "a whole tree in one window",
            Forest::comb(&[10], &[5, 6, 7]),
            &[28],
            &[&[1]],
        ),
        (
            "a conversation with an aside at every turn is one path",
            Forest(vec![
                (None, 64),
                (Some(0), 64),
                (Some(0), 80),
                (Some(1), 64),
                (Some(1), 80),
                (Some(3), 128),
                (Some(3), 80),
            ]),
            &[64, 64, 64, 64, 64, 64, 16, 64, 16, 64, 16],
            &[&[3], &[2, 2, 2, 2]],
        ),
        (
            "trees share windows",
            Forest(vec![(None, 20), (None, 30), (None, 40)]),
            &[50, 40],
            &[&[1, 1]],
        ),
    ];
    for (name, forest, lengths, levels) in cases {
        let recurrence = Batch::of(forest, 64).recurrence();
        let mut by_row = windows(&recurrence);
        by_row.sort_by_key(|window| window.start);
        let found: Vec<_> = by_row.iter().map(|window| window.len()).collect();
        assert_eq!(found, lengths, "{name}");
        let found: Vec<Vec<_>> = recurrence
            .levels()
            .iter()
            .map(|level| {
                level
                    .clone()
                    .map(|path| path_windows(&recurrence, path).len())
                    .collect()
            })
            .collect();
        assert_eq!(found, levels, "{name}");
    }
}

/// A tree as deep as it has nodes must not recurse.
#[test]
fn deep_trees() {
    let nodes = 30_000;
    // A trunk of nodes of two tokens, each with a leaf of one beside the continuation.
    let mut layout = TreeLayout::default();
    let rows = 3 * nodes;
    for node in 0..nodes as u32 {
        let (first, depth) = (3 * node, 2 * node);
        let above = if node == 0 { -1 } else { first as i32 - 2 };
        let end = rows as u32;
        layout
            .parents
            .extend([above, first as i32, first as i32 + 1]);
        layout.position_ids.extend([depth, depth + 1, depth + 2]);
        layout.subtree_ends.extend([end, end, first + 3]);
    }
    layout.tokens = vec![0; rows];
    for node in 0..nodes as u32 {
        let parent = node.checked_sub(1).map(|parent| 2 * parent);
        for (start, end, parent) in [
            (3 * node, 3 * node + 2, parent),
            (3 * node + 2, 3 * node + 3, Some(2 * node)),
        ] {
            layout
                .segments
                .push(tree_pack::Segment { start, end, parent });
        }
    }
    let recurrence = TreeRecurrence::from_layouts(&[layout], rows);
    assert_eq!(recurrence.levels().len(), 2);
    assert!(path_windows(&recurrence, 0).len() > 29_000);
}
