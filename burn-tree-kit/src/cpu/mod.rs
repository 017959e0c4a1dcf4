//! Loops over rows of numbers, vectorised for the processor at hand, and matrix products: what the
//! native implementations of the operation crates share for tensors in CPU memory.

mod disjoint;
mod matrix;
mod rows;
mod scalar;

use burn::tensor::Element;

pub use disjoint::DisjointMut;
pub use matrix::{Matrix, multiply};
pub use rows::{dot, fold};
pub use scalar::{Real, Storage};

/// f32 or f64, which are stored as they are computed with.
pub trait Number: Real + Element + bytemuck::Pod {}

impl<T: Real + Element + bytemuck::Pod> Number for T {}
