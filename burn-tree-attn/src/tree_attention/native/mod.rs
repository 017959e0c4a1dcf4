//! For CPU tensors in memory: tiles of query rows in parallel, matrix products by the `gemm` crate,
//! vectorised softmax.

mod backward;
mod blocks;
mod forward;
mod problem;
mod softmax;

pub(crate) use backward::backward;
pub(crate) use forward::forward;
pub(crate) use problem::Problem;
