//! Windows, paths, levels and convolution lists of a recurrence, against definitions that walk
//! from row to parent.

use std::collections::HashMap;
use std::path::PathBuf;

use burn_tree_ssm::{ENTRY_ZERO, RecurrenceError, TreeRecurrence};
use proptest::prelude::*;
use tree_pack::{TreeLayout, build_forests, load_trajectories};

use crate::support::{Batch, Forest, batches, cases};

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

    #[test]
    fn convolutions_read_the_path_and_the_incoming_tail(
        batch in batches(10),
        kernel_size in 1usize..=6,
    ) {
        let recurrence = batch.recurrence();
        let plan = recurrence.convolution(kernel_size).unwrap();
        let above = kernel_size - 1;
        let rows = recurrence.rows();
        let tail_rows = recurrence.n_initial_states() * above;
        prop_assert_eq!((plan.rows(), plan.tail_rows()), (rows, tail_rows));
        // A row, the tokens before it on its path and, before those, the incoming tail.
        let taps = |row: usize| -> Vec<usize> {
            let state = initial_state(&recurrence, row);
            let tail = (0..above).rev().map(|position| match state {
                Some(state) => rows + state as usize * above + position,
                None => rows + tail_rows,
            });
            path(&recurrence, row).chain(tail).take(kernel_size).collect()
        };
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        for row in 0..rows {
            let expected = match recurrence.is_padding(row) {
                true => vec![rows + tail_rows; kernel_size],
                false => taps(row),
            };
            let found = &plan.sources()[row * kernel_size..(row + 1) * kernel_size];
            let found: Vec<_> = found.iter().map(|&source| source as usize).collect();
            prop_assert_eq!(found, &expected[..], "row {}", row);
            for (tap, source) in expected.into_iter().enumerate() {
                // That rows are read by those right below them is in no list.
                if source + tap != row {
                    readers.entry(source).or_default().push(row * (kernel_size + 2) + tap);
                }
            }
        }
        let mut tails = plan.requested_sources().iter().map(|&source| source as usize);
        let mut position = 0;
        for &row in recurrence.requested_rows() {
            for expected in taps(row as usize).into_iter().take(above).rev() {
                prop_assert_eq!(tails.next(), Some(expected), "tail after row {}", row);
                let reader = position * (kernel_size + 2) + kernel_size;
                readers.entry(expected).or_default().push(reader);
                position += 1;
            }
        }
        prop_assert_eq!(tails.next(), None);
        for (lists, first, count) in
            [(plan.row_readers(), 0, rows), (plan.tail_readers(), rows, tail_rows)]
        {
            prop_assert_eq!(lists.offsets.len(), count + 1);
            for index in 0..count {
                let list = lists.offsets[index] as usize..lists.offsets[index + 1] as usize;
                // Parts stand for what is in them.
                let mut found = Vec::new();
                for reader in &lists.readers[list] {
                    let reader = *reader as usize;
                    let part = reader / (kernel_size + 2);
                    if reader % (kernel_size + 2) <= kernel_size {
                        found.push(reader);
                    } else {
                        let list =
                            plan.parts().offsets[part] as usize..plan.parts().offsets[part + 1] as usize;
                        found.extend(plan.parts().readers[list].iter().map(|&reader| reader as usize));
                    }
                }
                let expected = readers.get(&(first + index)).cloned().unwrap_or_default();
                prop_assert_eq!(found, expected, "readers of source {}", first + index);
            }
        }
        // Runs of rows that read the rows above them, the first of which has no list.
        let is_plain = |row: usize| {
            let window: Vec<_> = (0..kernel_size).filter_map(|tap| row.checked_sub(tap)).collect();
            window.len() == kernel_size
                && !recurrence.is_padding(row)
                && taps(row) == window
                && !readers.contains_key(&window[above])
        };
        for row in 0..rows {
            let run = (row..rows).take_while(|&row| is_plain(row)).count();
            prop_assert_eq!(plan.plain_runs()[row] as usize, run, "run from row {}", row);
        }
        prop_assert_eq!(plan.plain_runs()[rows], 0);
    }
}

/// Two trees and a row of padding: rows 0 and 1 with children 2 and 3-4; row 5, a root that
/// continues from initial state 1.
#[test]
fn taps_and_readers_of_small_trees() {
    let forest = Forest(vec![(None, 2), (Some(0), 1), (Some(0), 2), (None, 1)]);
    let recurrence = TreeRecurrence::from_layouts(&[forest.layout()], 7)
        .with_initial_states(&[None, Some(1)])
        .with_requested_rows(&[4, 5]);
    let plan = recurrence.convolution(4).unwrap();
    // Rows 0..7, tails 7..13, zero 13.
    let expected = [
        [0, 13, 13, 13],
        [1, 0, 13, 13],
        [2, 1, 0, 13],
        [3, 1, 0, 13],
        [4, 3, 1, 0],
        [5, 12, 11, 10],
        [13, 13, 13, 13],
    ];
    assert_eq!(plan.sources(), expected.as_flattened());
    assert_eq!(plan.requested_sources(), [1, 3, 4, 11, 12, 5]);
    let tap = |row: u32, tap: u32| row * 6 + tap;
    let outgoing = |position: u32| position * 6 + 4;
    let readers = plan.row_readers();
    assert_eq!(readers.offsets, [0, 2, 5, 5, 6, 7, 8, 8]);
    let of_0 = [tap(3, 2), tap(4, 3)];
    let of_1 = [tap(3, 1), tap(4, 2), outgoing(0)];
    let others = [outgoing(1), outgoing(2), outgoing(5)];
    assert_eq!(readers.readers, [&of_0[..], &of_1, &others].concat());
    let readers = plan.tail_readers();
    assert_eq!(readers.offsets, [0, 0, 0, 0, 1, 3, 5]);
    let expected = [tap(5, 3), tap(5, 2), outgoing(3), tap(5, 1), outgoing(4)];
    assert_eq!(readers.readers, expected);
    assert_eq!(plan.plain_runs(), [0; 8]);
    // Row 2 follows row 1, which row 3 reads as well.
    let plan = recurrence.convolution(2).unwrap();
    assert_eq!(plan.plain_runs(), [0, 1, 0, 0, 1, 0, 0, 0]);
}

/// A row with many children is read by all of them.
#[test]
fn long_lists_of_readers_are_cut_into_parts() {
    let forest = Forest::comb(&[3], &[1; 400]);
    let recurrence = TreeRecurrence::from_layouts(&[forest.layout()], 403);
    let plan = recurrence.convolution(2).unwrap();
    // The first child reads row 2 directly; 399 others in parts of 19.
    let readers = plan.row_readers();
    assert_eq!(readers.offsets[2..5], [0, 21, 21]);
    let parts: Vec<_> = (0..21).map(|part| part * 4 + 3).collect();
    assert_eq!(readers.readers, parts);
    assert_eq!(plan.parts().offsets.last(), Some(&399));
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

/// What tiles compute in vain on recorded runs, all trees of a file after one another: rows of
/// tiles per row, with tiles of 64 and of 16 rows. Where the nodes are short (those of the last
/// two have 13 and 41 rows on average), pieces of nodes alone would need 4.8 and 1.9 with 64.
#[test]
fn padding_factors_of_recorded_runs() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data/tokens");
    for (name, of_64, of_16) in [
        ("tau_airline", 1.017, 1.003),
        ("toolbench_dfsdt", 1.110, 1.027),
        ("sweagent_think", 1.069, 1.016),
        ("sweagent_think_marshmallow", 1.039, 1.011),
        ("tot_game24_bfs", 2.558, 1.349),
        ("tot_game24_cot16", 1.541, 1.138),
    ] {
        let file = folder.join(format!("{name}.jsonl.gz"));
        let trajectories = load_trajectories([file]).unwrap();
        let forests = build_forests(&trajectories).unwrap();
        let trees = forests
            .iter()
            .flat_map(|forest| (0..forest.trees().len()).map(move |tree| (forest, tree)));
        let layout = TreeLayout::from_trees(trees);
        let rows = layout.len();
        let recurrence = TreeRecurrence::from_layouts(&[layout], rows);
        for (tile, expected) in [(64, of_64), (16, of_16)] {
            let factor = recurrence.padding_factor(tile);
            assert!(
                (factor - expected).abs() < 5.1e-4,
                "{name}, {tile}: {factor:.4}"
            );
        }
    }
}

#[test]
fn padding_factor_without_rows() {
    let recurrence = TreeRecurrence::from_layouts(&[TreeLayout::default()], 3);
    assert_eq!(recurrence.padding_factor(16), 1.0);
}

#[test]
fn arguments_that_do_not_fit_are_named() {
    let layout = Forest::comb(&[3], &[2, 2]).layout();
    let text = |result: Result<TreeRecurrence, RecurrenceError>| result.unwrap_err().to_string();
    let new = |rows| TreeRecurrence::try_from_layouts(std::slice::from_ref(&layout), rows);
    let fine = || new(8).unwrap();
    assert_eq!(
        text(TreeRecurrence::try_from_layouts(&[], 8)),
        "a tree recurrence needs at least one batch row and one row in it, got none"
    );
    assert_eq!(
        text(new(6)),
        "batch row 0: the layout has 7 rows, expected at most 6"
    );
    assert_eq!(
        text(new(1 << 29)),
        "a batch of 1 x 536870912 rows, expected at most 268435456 in all"
    );
    let mut wrong = layout.clone();
    wrong.parents[2] = 5;
    assert_eq!(
        text(TreeRecurrence::try_from_layouts(&[wrong], 8)),
        "batch row 0: layout: parents at 2: got 5, expected -1, or a row before 2"
    );
    assert_eq!(
        text(fine().try_with_initial_states(&[None, Some(0)])),
        "initial states are given for 2 roots, expected 1 (one per root)"
    );
    assert_eq!(
        text(fine().try_with_initial_states(&[Some(1)])),
        "root 0 starts from initial state 1, expected an index below 1"
    );
    assert_eq!(
        text(fine().try_with_requested_rows(&[2, 7])),
        "requested row 7 (at 1) is padding or not one of the 8 rows"
    );
    assert_eq!(
        text(fine().try_with_requested_rows(&[2, 3, 2])),
        "requested row 2 (at 2) was already named"
    );
    assert_eq!(
        text(fine().try_with_window_rows(65)),
        "windows of 65 rows, expected 1 to 64"
    );
    assert_eq!(
        fine().convolution(0).unwrap_err().to_string(),
        "a convolution kernel of size 0 over 8 rows, expected a size of at least 1 and lists of at most 2^31 - 1 numbers"
    );
    assert!(fine().convolution(usize::MAX).is_err());
}
