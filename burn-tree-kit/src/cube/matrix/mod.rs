//! Parts of tensor-core kernels: padded tiles in shared memory, asynchronous copies into them,
//! fragments out of them, and matrix products.
//!
//! Each function is one or two PTX instructions of NVIDIA GPUs from compute capability 8.0 on.
//! Shared memory is addressed by its 32-bit address plus compile-time offsets in bytes, which
//! become immediates of the instructions: the inner loops contain no address arithmetic.
//!
//! # Layouts
//!
//! A tile contains consecutive rows of `head_dim` 16-bit numbers, each followed by 16 bytes of
//! padding ([`row_stride`]). The stride is an odd number of 16-byte chunks, so the eight rows that
//! one phase of `ldmatrix` reads lie in different banks.
//!
//! With `g = lane / 4` and `t = lane % 4`, a lane of a plane stores
//! * of an accumulator (16 x 8): `(g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)`,
//! * of a left operand (16 x 16): the pairs from `(g, 2t), (g + 8, 2t), (g, 2t + 8),
//!   (g + 8, 2t + 8)`,
//! * of a right operand (16 x 8): the pairs down the columns from `(2t, g), (2t + 8, g)`.
//!
//! Two neighbouring accumulators, converted in place, are therefore one left operand
//! ([`pack_left()`]).

mod address;
mod arithmetic;
mod availability;
mod copies;
mod fragments;
mod memory;
mod tile;

use cubecl::prelude::*;

pub use address::*;
pub use arithmetic::*;
pub use availability::*;
pub use copies::*;
pub use fragments::*;
pub use memory::*;
pub use tile::*;

/// Units of a plane, on which the fragment layouts depend.
pub const PLANE: usize = 32;
/// Bytes of one asynchronous copy, and of the row that one lane of `ldmatrix` addresses.
pub const CHUNK: usize = 16;

/// Four registers of two 16-bit numbers: a left operand, or two right operands.
pub type Fragment = Vector<u32, Const<4>>;
/// Four f32 numbers of a 16 x 8 tile of sums.
pub type Accumulator = Vector<f32, Const<4>>;
