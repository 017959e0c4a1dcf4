//! Parts of kernels for compute capability 9.0: barriers that count bytes, bulk copies by tensor
//! maps (TMA; feature `cuda`), and products of a warpgroup (`wgmma`) with both operands in shared memory.
//!
//! As in [`matrix`](super::matrix), each function is one or two PTX instructions, and shared memory
//! is addressed by its 32-bit address.

mod barrier;
#[cfg(feature = "cuda")]
mod bulk;
mod product;

pub use barrier::*;
#[cfg(feature = "cuda")]
pub use bulk::*;
pub use product::*;
