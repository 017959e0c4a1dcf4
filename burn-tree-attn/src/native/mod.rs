//! Tree attention and rope for CPU tensors in memory: tiles of query rows in parallel, matrix
//! products by the `gemm` crate, vectorised softmax.

mod attention;
mod backward;
mod blocks;
mod forward;
mod rope;
mod softmax;

pub(crate) use attention::{Problem, Shapes};
pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(crate) use rope::rope;

/// Which of these functions ran on this thread, for tests.
#[cfg(test)]
pub(crate) mod calls {
    use std::cell::RefCell;

    thread_local!(static CALLS: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) });

    pub(super) fn record(function: &'static str) {
        CALLS.with_borrow_mut(|calls| calls.push(function));
    }

    /// The calls since the last time this was asked.
    pub(crate) fn take() -> Vec<&'static str> {
        CALLS.take()
    }
}
