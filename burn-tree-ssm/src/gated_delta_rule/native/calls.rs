//! Which functions ran on this thread, for tests.

use std::cell::RefCell;

thread_local!(static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) });

pub(super) fn record(function: &'static str) {
    CALLS.with_borrow_mut(|calls| calls.push(function));
}

/// The calls since the last time this was asked.
pub(crate) fn take() -> Vec<&'static str> {
    CALLS.take()
}
