//! The gradients of the initial states.

use cubecl::prelude::*;

/// For each initial state, the sum of the gradients of the runs that start from it, in their order.
///
/// * `run_gradients` `[Q, HV, DK, DV]`, `grad_initial_states` `[G, HV, DK, DV]`, as vectors
/// * `children`: runs, of each initial state from its `child_offsets` on
/// * `state`: vectors of one state of all heads, `total`: of all initial states
///
/// Cubes: enough for a unit per vector.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(crate) fn gated_delta_rule_backward_initial(
    run_gradients: &[Vector<f32, Const<4>>],
    child_offsets: &[u32],
    children: &[u32],
    grad_initial_states: &mut [Vector<f32, Const<4>>],
    state: usize,
    total: usize,
) {
    let at = ABSOLUTE_POS;
    if at < total {
        let number = at / state;
        let mut sum = Vector::<f32, Const<4>>::new(0.0f32);
        for child in child_offsets[number]..child_offsets[number + 1] {
            sum += run_gradients[children[child as usize] as usize * state + at % state];
        }
        grad_initial_states[at] = sum;
    }
}
