//! LibTorch: the generic bodies.

use burn::backend::LibTorch;

use crate::TreeAttentionOps;

impl TreeAttentionOps for LibTorch {}
