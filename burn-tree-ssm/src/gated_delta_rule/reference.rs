//! The definition, token by token, written to be read: slow, and differentiable by Burn.

use burn::tensor::{DType, Tensor};
use burn_tree_kit::dtype::at_least_f32;

use super::check::check_initial_states;
use super::settings::{GatedDeltaRuleOptions, GatedDeltaRuleOutput};
use crate::recurrence::TreeRecurrence;

/// See [`super::tree_gated_delta_rule`].
///
/// # Panics
/// If the roots of the recurrence name other initial states than are given. Other arguments are not
/// checked.
pub fn tree_gated_delta_rule(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    log_decay: Tensor<3>,
    beta: Tensor<3>,
    recurrence: &TreeRecurrence,
    initial_states: Option<Tensor<4>>,
    options: GatedDeltaRuleOptions,
) -> GatedDeltaRuleOutput {
    let [batch, length, key_heads, key_dim] = query.dims();
    let [_, _, heads, value_dim] = value.dims();
    let state = [heads, key_dim, value_dim];
    check_initial_states(recurrence, initial_states.as_ref(), state)
        .unwrap_or_else(|error| panic!("{error}"));
    let (dtype, device) = (value.dtype(), value.device());
    let wide = DType::from(at_least_f32(dtype));
    let scale = options.scale.unwrap_or((key_dim as f64).powf(-0.5));

    let rows = recurrence.rows();
    // Column vectors [rows, HV, D, 1]; value head h has the key head h / (HV / HK).
    let columns = |tensor: Tensor<4>, width: usize| {
        let group = heads / tensor.dims()[2];
        let tensor = tensor.cast(wide).reshape([rows, heads / group, 1, width]);
        tensor.repeat_dim(2, group).reshape([rows, heads, width, 1])
    };
    debug_assert_eq!(heads % key_heads, 0);
    let query = columns(query, key_dim) * scale;
    let key = columns(key, key_dim);
    let value = columns(value, value_dim);
    // An exponential that underflows, or that of -inf, is 0: the row forgets its parent's state.
    let decay = log_decay.cast(wide).exp().reshape([rows, heads, 1, 1]);
    let beta = beta.cast(wide).reshape([rows, heads, 1, 1]);

    let zero_state = Tensor::<4>::zeros([1, heads, key_dim, value_dim], (&device, wide));
    let zero_output = Tensor::<4>::zeros([1, heads, value_dim, 1], (&device, wide));
    let mut states: Vec<Tensor<4>> = Vec::with_capacity(rows);
    let mut outputs = Vec::with_capacity(rows);
    for row in 0..rows {
        if recurrence.is_padding(row) {
            states.push(zero_state.clone());
            outputs.push(zero_output.clone());
            continue;
        }
        let of_row = |tensor: &Tensor<4>| tensor.clone().slice_dim(0, row..row + 1);
        let (q, k, v) = (of_row(&query), of_row(&key), of_row(&value));
        let (decay, beta) = (of_row(&decay), of_row(&beta));
        let parent = match usize::try_from(recurrence.parents()[row]) {
            Ok(parent) => states[parent].clone(),
            Err(_) => root_state(recurrence, row, &initial_states).unwrap_or(zero_state.clone()),
        };

        let decayed = parent * decay;
        let u = beta * (v - decayed.clone().swap_dims(2, 3).matmul(k.clone()));
        let state = decayed + k.matmul(u.swap_dims(2, 3));
        let output = state.clone().swap_dims(2, 3).matmul(q);

        states.push(state);
        outputs.push(output);
    }

    let requested = recurrence.requested_rows().iter();
    let requested: Vec<_> = requested.map(|&row| states[row as usize].clone()).collect();
    GatedDeltaRuleOutput {
        output: Tensor::cat(outputs, 0)
            .reshape([batch, length, heads, value_dim])
            .cast(dtype),
        states: (!requested.is_empty()).then(|| Tensor::cat(requested, 0)),
    }
}

/// The state from which the tree that begins with `row` starts, if it is given.
fn root_state(
    recurrence: &TreeRecurrence,
    row: usize,
    initial_states: &Option<Tensor<4>>,
) -> Option<Tensor<4>> {
    let root = recurrence.roots().binary_search(&(row as u32)).ok()?;
    let state = recurrence.root_states()[root]? as usize;
    let states = initial_states.as_ref()?;
    Some(states.clone().slice_dim(0, state..state + 1))
}
