//! The recurrence of a batch, and replacements for it.

use burn_tree_ssm::{RecurrenceError, TreeRecurrence};
use burn_tree_train::{BlockContext, RecurrenceMismatch};
use tree_pack::{Pack, Segment, TreeBatch, TreeLayout};

use crate::support::device;

/// A root of one token and two children of one token each.
fn fork() -> TreeLayout {
    let segment = |start, parent| Segment {
        start,
        end: start + 1,
        parent,
    };
    TreeLayout {
        tokens: vec![5, 6, 7],
        position_ids: vec![0, 1, 1],
        parents: vec![-1, 0, 0],
        subtree_ends: vec![3, 2, 3],
        segments: vec![segment(0, None), segment(1, Some(0)), segment(2, Some(0))],
    }
}

/// The first `length` rows of one sequence.
fn chain(length: u32) -> TreeLayout {
    TreeLayout {
        tokens: (0..length).collect(),
        position_ids: (0..length).collect(),
        parents: (-1..length as i32 - 1).collect(),
        subtree_ends: vec![length; length as usize],
        segments: vec![Segment {
            start: 0,
            end: length,
            parent: None,
        }],
    }
}

/// Two batch rows of four rows, of which the second has a fork.
fn context() -> BlockContext {
    let packs = [chain(4), fork()].map(|layout| Pack {
        layout,
        padded_len: 4,
        ..Pack::default()
    });
    BlockContext::new(&TreeBatch::new(&packs, &device()))
}

#[test]
fn recurrence_of_the_same_trees() {
    let recurrence = TreeRecurrence::from_layouts(&[chain(4), fork()], 4)
        .with_initial_states(&[Some(0), None])
        .with_requested_rows(&[2, 5])
        .with_window_rows(2);
    let context = context().with_recurrence(recurrence);
    assert_eq!(context.recurrence().requested_rows(), [2, 5]);
}

#[test]
fn recurrence_of_other_trees_is_refused() {
    let refused = |layouts: &[TreeLayout], row_length| {
        context()
            .try_with_recurrence(TreeRecurrence::from_layouts(layouts, row_length))
            .expect_err("another tree")
    };
    let parent = |batch, row, found, expected| RecurrenceMismatch::Parent {
        batch,
        row,
        found,
        expected,
    };
    // A sibling that continues its sibling.
    let error = refused(&[chain(4), chain(3)], 4);
    assert_eq!(error, parent(1, 2, Some(1), Some(0)));
    assert_eq!(
        error.to_string(),
        "row 2 of batch row 1 has parent Some(1) in the recurrence, expected Some(0) as in the \
         layout (-1 at roots, None in padding)"
    );
    // Exchanged batch rows, rows in place of padding, and padding in place of rows.
    assert_eq!(
        refused(&[fork(), chain(4)], 4),
        parent(0, 2, Some(0), Some(1))
    );
    assert_eq!(refused(&[chain(3), fork()], 4), parent(0, 3, None, Some(2)));
    let mut longer = fork();
    longer.tokens.push(8);
    longer.position_ids.push(0);
    longer.parents.push(-1);
    longer.subtree_ends.push(4);
    longer.segments.push(Segment {
        start: 3,
        end: 4,
        parent: None,
    });
    assert_eq!(
        refused(&[chain(4), longer], 4),
        parent(1, 3, Some(-1), None)
    );
    // Another number of rows.
    assert_eq!(
        refused(&[chain(4), fork()], 5),
        RecurrenceMismatch::Shape {
            found: [2, 5],
            expected: [2, 4],
        }
    );
}

#[test]
#[should_panic(expected = "row 2 of batch row 1 has parent Some(1) in the recurrence")]
fn refusal_panics_with_its_text() {
    context().with_recurrence(TreeRecurrence::from_layouts(&[chain(4), chain(3)], 4));
}

#[test]
fn recurrence_of_a_layout_that_contradicts_itself() {
    let mut layout = fork();
    layout.subtree_ends[1] = 3;
    let pack = Pack {
        layout,
        padded_len: 3,
        ..Pack::default()
    };
    let context = BlockContext::new(&TreeBatch::new(&[pack], &device()));
    let error = context.try_recurrence().expect_err("no tree");
    assert!(
        matches!(error, RecurrenceError::Layout { batch: 0, .. }),
        "{error}"
    );
}
