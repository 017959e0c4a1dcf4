//! Kernels with a unit for each number.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

/// Sets the rows of padding of a tensor `[R, ..]` of `width` numbers a row to zero. One unit for
/// each number.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn clear_padding<E: Float>(
    schedule: &[u32],
    target: &mut [E],
    subtree_ends: u32,
    width: usize,
    total: usize,
    #[define(E)] _stored: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    if schedule[subtree_ends as usize + ABSOLUTE_POS / width] == 0 {
        target[ABSOLUTE_POS] = E::new(0.0);
    }
}

/// Copies the first `total` numbers. One unit for each.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn copy(source: &[f32], target: &mut [f32], total: usize) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    target[ABSOLUTE_POS] = source[ABSOLUTE_POS];
}

/// Sums over the value heads of each key head: `[R, HV, DK]` to `[R, HK, DK]`. One unit for each
/// number.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn sum_heads<E: Float>(
    per_head: &[f32],
    sums: &mut [E],
    group: usize,
    key_dim: usize,
    total: usize,
    #[define(E)] _stored: ElemType,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let first = ABSOLUTE_POS / key_dim * group * key_dim + ABSOLUTE_POS % key_dim;
    let mut sum = 0.0f32;
    for head in 0..group {
        sum += per_head[first + head * key_dim];
    }
    sums[ABSOLUTE_POS] = E::cast_from(sum);
}

/// The paths that start from initial states.
#[derive(CubeType, CubeLaunch)]
pub(super) struct InitialChildren {
    /// All lists of the recurrence.
    pub schedule: Box<[u32]>,
    /// Where the lists of offsets and of paths are in it.
    pub offsets: u32,
    pub children: u32,
    /// Initial states.
    pub states: u32,
    /// Number of requested rows.
    pub requested: u32,
}

/// Gradients of the initial states, `[max(G, 1), HV, DK, DV]`, of `width` numbers each: sums over
/// the paths that start from each of the states that there are. One unit for each number.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn initial_gradients(
    state_grads: &[f32],
    lists: &InitialChildren,
    grad_initial: &mut [f32],
    width: usize,
    total: usize,
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let state = ABSOLUTE_POS / width;
    let mut sum = 0.0f32;
    if state < lists.states as usize {
        let list = lists.offsets as usize + state;
        for child in lists.schedule[list]..lists.schedule[list + 1] {
            let path = lists.requested + lists.schedule[(lists.children + child) as usize];
            sum += state_grads[path as usize * width + ABSOLUTE_POS % width];
        }
    }
    grad_initial[ABSOLUTE_POS] = sum;
}
