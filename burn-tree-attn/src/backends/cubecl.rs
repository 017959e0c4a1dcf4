//! CubeCL runtimes: the generic bodies.

use burn_cubecl::CubeBackend;

use crate::TreeAttentionOps;

impl TreeAttentionOps for CubeBackend {}
