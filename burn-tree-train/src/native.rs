//! What the implementations for CPU tensors in memory share.

use burn::tensor::Element;
use burn_tree_attn::vector::Real;

/// f32 or f64, which are stored as they are computed with.
pub(crate) trait Number: Real + Element + bytemuck::Pod {}

impl<T: Real + Element + bytemuck::Pod> Number for T {}
