//! Shared code of the implementations for CPU tensors: loops over rows, compiled for the vector
//! instructions of the processor (`vectorised_fn!`), and matrix products.
//!
//! Tensors store f64, f32, f16 or bf16 ([`Storage`]); arithmetic is in f64 or f32 ([`Real`]).

mod disjoint;
mod matrix;
mod rows;
mod scalar;

use burn::tensor::Element;

pub use disjoint::DisjointMut;
pub use matrix::{Matrix, multiply};
pub use rows::{dot, fold};
pub use scalar::{Real, Storage};

/// f32 or f64, the types that are both storage and arithmetic types.
pub trait Number: Real + Element + bytemuck::Pod {}

impl<T: Real + Element + bytemuck::Pod> Number for T {}
