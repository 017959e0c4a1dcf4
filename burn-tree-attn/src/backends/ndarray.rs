//! NdArray: the generic bodies.

use burn::backend::NdArray;

use crate::ops::TreeAttentionOps;

impl TreeAttentionOps for NdArray {}
