//! The lists of convolutions.

use std::collections::HashMap;

use burn_tree_ssm::{ConvolutionPlan, TreeRecurrence};
use proptest::prelude::*;

use super::{initial_state, path};
use crate::support::{Forest, batches, cases};

/// A row, the tokens before it on its path and, before those, the incoming tail.
fn taps(recurrence: &TreeRecurrence, kernel_size: usize, row: usize) -> Vec<usize> {
    let (rows, above) = (recurrence.rows(), kernel_size - 1);
    let state = initial_state(recurrence, row);
    let tail = (0..above).rev().map(|position| match state {
        Some(state) => rows + state as usize * above + position,
        None => rows + recurrence.n_initial_states() * above,
    });
    path(recurrence, row)
        .chain(tail)
        .take(kernel_size)
        .collect()
}

/// A list of readers with what is in its parts in place of those.
fn all_readers(plan: &ConvolutionPlan, list: &[u32]) -> Vec<usize> {
    let kinds = plan.kernel_size() + 2;
    let parts = plan.parts();
    let mut readers = Vec::new();
    for &reader in list {
        let reader = reader as usize;
        if reader % kinds <= plan.kernel_size() {
            readers.push(reader);
        } else {
            let part = reader / kinds;
            let list = parts.offsets[part] as usize..parts.offsets[part + 1] as usize;
            readers.extend(parts.readers[list].iter().map(|&reader| reader as usize));
        }
    }
    readers
}

/// Checks the runs of rows that read the rows above them, the first of which has no list.
fn check_plain_runs(
    recurrence: &TreeRecurrence,
    plan: &ConvolutionPlan,
    readers: &HashMap<usize, Vec<usize>>,
) {
    let (rows, kernel_size) = (recurrence.rows(), plan.kernel_size());
    let is_plain = |row: usize| {
        let window: Vec<_> = (0..kernel_size)
            .filter_map(|tap| row.checked_sub(tap))
            .collect();
        window.len() == kernel_size
            && !recurrence.is_padding(row)
            && taps(recurrence, kernel_size, row) == window
            && !readers.contains_key(&window[kernel_size - 1])
    };
    for row in 0..rows {
        let run = (row..rows).take_while(|&row| is_plain(row)).count();
        assert_eq!(plan.plain_runs()[row] as usize, run, "run from row {row}");
    }
    assert_eq!(plan.plain_runs()[rows], 0);
}

proptest! {
    #![proptest_config(cases(256))]

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
        let taps = |row: usize| taps(&recurrence, kernel_size, row);
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
                let found = all_readers(&plan, &lists.readers[list]);
                let expected = readers.get(&(first + index)).cloned().unwrap_or_default();
                prop_assert_eq!(found, expected, "readers of source {}", first + index);
            }
        }
        check_plain_runs(&recurrence, &plan, &readers);
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
