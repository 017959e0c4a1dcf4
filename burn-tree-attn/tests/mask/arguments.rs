//! Refused arguments.

use burn_tree_attn::{KeyIntervals, PastKeys, TreeMask, TreeMaskError};
use tree_pack::TreeLayout;

use crate::support::{Forest, device, intervals};

/// Four tokens.
fn layout() -> TreeLayout {
    Forest(vec![(None, 2), (Some(0), 1), (Some(0), 1)]).layout()
}

#[test]
fn wrong_layouts_are_refused() {
    let refuse = |layouts: &[TreeLayout], padded_len| {
        TreeMask::try_from_layouts(layouts, padded_len, &device()).unwrap_err()
    };
    assert_eq!(refuse(&[], 0), TreeMaskError::EmptyBatch);

    let error = refuse(&[layout()], 3);
    assert_eq!(
        error,
        TreeMaskError::PaddedLength {
            batch: 0,
            len: 4,
            padded_len: 3
        }
    );
    assert_eq!(
        error.to_string(),
        "batch row 0: the layout has 4 tokens, more than the padded length 3"
    );

    let mut broken = layout();
    broken.subtree_ends.pop();
    assert_eq!(
        refuse(&[layout(), broken], 4),
        TreeMaskError::Length {
            batch: 1,
            field: "subtree_ends",
            found: 3,
            expected: 4
        }
    );
}

#[test]
fn wrong_past_keys_are_refused() {
    let refuse =
        |past: &[PastKeys]| TreeMask::with_past_keys(&[layout()], 4, past, &device()).unwrap_err();
    assert_eq!(
        refuse(&[]),
        TreeMaskError::PastBatch {
            found: 0,
            expected: 1
        }
    );

    let short = PastKeys {
        start: vec![0, 1],
        end: vec![4],
        position: vec![0, 1],
    };
    assert_eq!(
        refuse(&[short]),
        TreeMaskError::Length {
            batch: 0,
            field: "past end",
            found: 1,
            expected: 2
        }
    );

    let late = PastKeys {
        start: vec![0],
        end: vec![5],
        position: vec![0],
    };
    assert_eq!(
        refuse(&[late]),
        TreeMaskError::Interval {
            batch: 0,
            key: 0,
            start: 0,
            end: 5,
            queries: 4
        }
    );
}

#[test]
fn wrong_intervals_are_refused() {
    let refuse = |rows: &[KeyIntervals]| TreeMask::from_intervals(rows, &device()).unwrap_err();
    let right = || intervals(&layout());
    assert_eq!(refuse(&[]), TreeMaskError::EmptyBatch);

    let mut reversed = KeyIntervals {
        key_start: vec![0, 3, 2, 3],
        ..right()
    };
    reversed.key_end[1] = 2;
    assert_eq!(
        refuse(&[reversed]),
        TreeMaskError::Interval {
            batch: 0,
            key: 1,
            start: 3,
            end: 2,
            queries: 4
        }
    );

    let mut far = right();
    far.query_position[2] = u32::MAX;
    assert_eq!(
        refuse(&[far]),
        TreeMaskError::TooLarge {
            batch: 0,
            field: "position",
            value: u64::from(u32::MAX),
            max: i32::MAX as u64
        }
    );

    let few = KeyIntervals {
        query_position: vec![0; 5],
        ..right()
    };
    assert_eq!(
        refuse(&[few]),
        TreeMaskError::FewKeys {
            keys: 4,
            queries: 5
        }
    );

    let mut short = right();
    short.key_start.pop();
    assert_eq!(
        refuse(&[right(), short]),
        TreeMaskError::Length {
            batch: 1,
            field: "key_start",
            found: 3,
            expected: 4
        }
    );
}
