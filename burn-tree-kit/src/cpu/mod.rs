//! What the implementations for CPU tensors in memory share: loops over rows that are compiled for
//! the vector instructions of the processor (`vectorised_fn!`), and matrix products.
//!
//! Tensors store f64, f32, f16 or bf16 ([`Storage`]); all is computed in f64 or f32 ([`Real`]).

mod disjoint;
mod matrix;
mod rows;
mod scalar;

use burn::tensor::Element;

pub use disjoint::DisjointMut;
pub use matrix::{Matrix, multiply};
pub use rows::{dot, fold};
pub use scalar::{Real, Storage};

/// f32 or f64, which tensors store in the type that is computed in.
pub trait Number: Real + Element + bytemuck::Pod {}

impl<T: Real + Element + bytemuck::Pod> Number for T {}
