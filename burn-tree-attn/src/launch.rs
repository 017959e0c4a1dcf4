//! Launches of kernels in which every unit works for itself.

use cubecl::calculate_cube_count_elemwise;
use cubecl::client::Client;
use cubecl::prelude::{CubeCount, CubeDim};

/// A launch of at least `units` units. Cubes are those for large tensors, because kernels are
/// compiled for their size.
pub(crate) fn elementwise(client: &Client, units: usize) -> (CubeCount, CubeDim) {
    let dim = CubeDim::new(client, 1 << 16);
    (calculate_cube_count_elemwise(client, units, dim), dim)
}
