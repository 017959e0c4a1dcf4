//! LibTorch: the generic bodies.

use burn::backend::LibTorch;

use crate::ops::TreeAttentionOps;

impl TreeAttentionOps for LibTorch {}
