//! The gated delta rule for CPU tensors in memory: paths and key heads in parallel, windows of
//! their exact length, matrix products by the `gemm` crate. Equations and names are those of
//! [`super::generic`].

mod backward;
mod buffers;
#[cfg(test)]
pub(crate) mod calls;
mod forward;
mod problem;
mod window;

pub(crate) use backward::{Results, backward};
pub(crate) use forward::forward;
pub(crate) use problem::{Problem, Shapes};
