//! Flex: the generic bodies.

use burn::backend::Flex;

use crate::TreeAttentionOps;

impl TreeAttentionOps for Flex {}
