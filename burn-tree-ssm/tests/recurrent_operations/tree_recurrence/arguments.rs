//! Arguments that do not fit.

use burn_tree_ssm::{RecurrenceError, TreeRecurrence};

use crate::support::Forest;

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
