//! NdArray: the generic bodies.

use burn::backend::NdArray;

use crate::TreeAttentionOps;

impl TreeAttentionOps for NdArray {}
