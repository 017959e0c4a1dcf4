//! Checks of the arguments, before dispatch.

use burn::tensor::{DType, FloatDType, Tensor};
use burn_tree_kit::check::{ArgumentError, Check};
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::implementation::Implementation;

use super::settings::{GatedDeltaRuleOptions, GatedDeltaRuleSettings};
use crate::recurrence::TreeRecurrence;

const CHECK: Check = Check {
    op: "tree_gated_delta_rule",
};

/// The tensors of a call.
pub(super) struct Arguments<'a> {
    pub(super) query: &'a Tensor<4>,
    pub(super) key: &'a Tensor<4>,
    pub(super) value: &'a Tensor<4>,
    pub(super) log_decay: &'a Tensor<3>,
    pub(super) beta: &'a Tensor<3>,
    pub(super) initial_states: Option<&'a Tensor<4>>,
}

pub(super) fn check(
    arguments: &Arguments<'_>,
    recurrence: &TreeRecurrence,
    options: GatedDeltaRuleOptions,
) -> Result<GatedDeltaRuleSettings, ArgumentError> {
    check_shapes(arguments, recurrence)?;
    check_dtypes(arguments)?;
    check_devices(arguments)?;
    let settings = resolve(options, arguments)?;
    check_implementation(settings.implementation, arguments, recurrence)?;
    Ok(settings)
}

fn check_shapes(
    arguments: &Arguments<'_>,
    recurrence: &TreeRecurrence,
) -> Result<(), ArgumentError> {
    let (query, value) = (arguments.query.dims(), arguments.value.dims());
    let (batch, rows) = (recurrence.batch_size(), recurrence.row_length());
    let [_, _, key_heads, key_dim] = query;
    let [_, _, value_heads, value_dim] = value;
    let of_recurrence = "batch and rows of the recurrence";
    let expected = [batch, rows, key_heads, key_dim];
    CHECK.shape("query", &query, &expected, of_recurrence)?;
    let reason = "batch and rows of the recurrence, heads of the query";
    CHECK.shape("key", &arguments.key.dims(), &expected, reason)?;
    let expected = [batch, rows, value_heads, value_dim];
    CHECK.shape("value", &value, &expected, of_recurrence)?;
    let reason = "batch and rows of the recurrence, heads of the value";
    let expected = [batch, rows, value_heads];
    CHECK.shape("log_decay", &arguments.log_decay.dims(), &expected, reason)?;
    CHECK.shape("beta", &arguments.beta.dims(), &expected, reason)?;
    CHECK.not_empty("query", &query)?;
    CHECK.not_empty("value", &value)?;
    if !value_heads.is_multiple_of(key_heads) {
        return Err(ArgumentError::Shape {
            op: CHECK.op,
            tensor: "value",
            found: value.to_vec(),
            expected: format!("as many heads as a multiple of the {key_heads} of query and key"),
        });
    }
    let state = [value_heads, key_dim, value_dim];
    check_sizes(recurrence, state)?;
    check_initial_states(recurrence, arguments.initial_states, state)
}

/// Refuses calls of which a tensor, in any implementation, has more numbers than there are
/// addresses for at 8 bytes each.
fn check_sizes(
    recurrence: &TreeRecurrence,
    [heads, key_dim, value_dim]: [usize; 3],
) -> Result<(), ArgumentError> {
    let (rows, windows) = (recurrence.rows(), recurrence.n_windows());
    let columns = recurrence.window_rows().next_power_of_two();
    let grads = recurrence.requested_rows().len() + recurrence.n_paths();
    let state = |count: usize| [count.max(1), heads, key_dim, value_dim];
    for (what, shape) in [
        ("the states", state(recurrence.n_slots())),
        ("the states of all windows", state(windows)),
        ("the gradients of the states", state(grads)),
        ("the keys of all heads", [1, rows, heads, key_dim]),
        ("the inverses", [1, rows, heads, columns]),
        ("the pairs of rows", [windows, heads, columns, columns]),
    ] {
        let bytes = shape
            .iter()
            .try_fold(size_of::<f64>(), |bytes, &size| bytes.checked_mul(size));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(ArgumentError::TooLarge {
                op: CHECK.op,
                what,
                shape: shape.to_vec(),
            });
        }
    }
    Ok(())
}

/// As many initial states as the roots of the recurrence name, each of shape `[HV, DK, DV]`.
pub(super) fn check_initial_states(
    recurrence: &TreeRecurrence,
    initial_states: Option<&Tensor<4>>,
    [heads, key_dim, value_dim]: [usize; 3],
) -> Result<(), ArgumentError> {
    let (op, tensor) = (CHECK.op, "initial_states");
    let states = recurrence.n_initial_states();
    let expected = [states, heads, key_dim, value_dim];
    match initial_states {
        None if states == 0 => Ok(()),
        None => Err(ArgumentError::Missing {
            op,
            tensor,
            expected: format!("{expected:?}: roots of the recurrence have initial states"),
        }),
        // Not even a tensor without states.
        Some(found) if states == 0 => Err(ArgumentError::Shape {
            op,
            tensor,
            found: found.dims().to_vec(),
            expected: "none: no root of the recurrence has an initial state".to_owned(),
        }),
        Some(found) => {
            let reason = "initial states of the recurrence, heads of the value, \
                          dimensions of query and value";
            CHECK.shape(tensor, &found.dims(), &expected, reason)
        }
    }
}

fn check_dtypes(arguments: &Arguments<'_>) -> Result<(), ArgumentError> {
    let dtype = arguments.value.dtype();
    CHECK.float("value", dtype)?;
    CHECK.float("beta", arguments.beta.dtype())?;
    CHECK.same_dtype("query", arguments.query.dtype(), "value", dtype)?;
    CHECK.same_dtype("key", arguments.key.dtype(), "value", dtype)?;
    let wide = DType::from(at_least_f32(dtype));
    let states = arguments.initial_states.map(|states| states.dtype());
    for (tensor, found) in [
        ("log_decay", arguments.log_decay.dtype()),
        ("initial_states", states.unwrap_or(wide)),
    ] {
        if found != wide {
            return Err(ArgumentError::DType {
                op: CHECK.op,
                tensor,
                found,
                expected: format!("{wide:?} (gates and states are at least f32)"),
            });
        }
    }
    Ok(())
}

fn check_devices(arguments: &Arguments<'_>) -> Result<(), ArgumentError> {
    let device = arguments.value.device();
    let states = arguments.initial_states.map(|states| states.device());
    for (tensor, found) in [
        ("query", arguments.query.device()),
        ("key", arguments.key.device()),
        ("log_decay", arguments.log_decay.device()),
        ("beta", arguments.beta.device()),
        ("initial_states", states.unwrap_or_else(|| device.clone())),
    ] {
        CHECK.same_device(tensor, found, "value", device.clone())?;
    }
    Ok(())
}

fn resolve(
    options: GatedDeltaRuleOptions,
    arguments: &Arguments<'_>,
) -> Result<GatedDeltaRuleSettings, ArgumentError> {
    let key_dim = arguments.query.dims()[3];
    let scale = options
        .scale
        .unwrap_or_else(|| (key_dim as f64).sqrt().recip());
    // As it is computed with.
    let (rounded, expected) = match at_least_f32(arguments.value.dtype()) {
        FloatDType::F64 => (scale, "a finite number"),
        _ => (f64::from(scale as f32), "0 or a number in the range of f32"),
    };
    if !rounded.is_finite() || (rounded == 0.0 && scale != 0.0) {
        return Err(ArgumentError::Number {
            op: CHECK.op,
            argument: "option `scale`",
            value: scale,
            expected,
        });
    }
    Ok(GatedDeltaRuleSettings {
        scale,
        implementation: options.implementation,
    })
}

/// Refuses a requested implementation that the device does not run.
#[allow(unused_variables, reason = "there may be no kernels")]
fn check_implementation(
    requested: Implementation,
    arguments: &Arguments<'_>,
    recurrence: &TreeRecurrence,
) -> Result<(), ArgumentError> {
    use Implementation::{Automatic, Generic};
    if matches!(requested, Automatic | Generic) {
        return Ok(());
    }
    let value = arguments.value;
    let device = value.device().inner();
    let reason = match device.as_dispatch() {
        #[cfg(feature = "cubecl-backend")]
        burn::backend::DispatchDevice::Cube(device) => {
            use super::kernels::{call::Dims, select};
            let dims = Dims::of_shapes(arguments.query.dims(), value.dims());
            let window_rows = recurrence.window_rows();
            match select(requested, device, value.dtype(), &dims, window_rows) {
                Ok(_) => return Ok(()),
                Err(reason) => reason.to_string(),
            }
        }
        #[allow(unreachable_patterns, reason = "there may be no other backend")]
        _ => format!("there are no kernels for {device:?}"),
    };
    Err(ArgumentError::Implementation {
        op: CHECK.op,
        requested,
        reason,
    })
}

#[cfg(test)]
mod tests {
    use tree_pack::{Segment, TreeLayout};

    use super::*;

    /// Any tensor may be the first that is too large.
    #[test]
    fn sizes_that_overflow_are_refused() {
        let layout = TreeLayout {
            tokens: vec![1, 2],
            position_ids: vec![0, 1],
            parents: vec![-1, 0],
            subtree_ends: vec![2, 2],
            segments: vec![Segment {
                start: 0,
                end: 2,
                parent: None,
            }],
        };
        let recurrence = TreeRecurrence::from_layouts(&[layout], 2);
        let error = |recurrence: &TreeRecurrence, heads, [key_dim, value_dim]: [usize; 2]| {
            check_sizes(recurrence, [heads, key_dim, value_dim])
                .expect_err("too large")
                .to_string()
        };
        check_sizes(&recurrence, [1 << 19, 1 << 20, 1 << 20]).unwrap();
        assert_eq!(
            error(&recurrence, 4, [1 << 29; 2]),
            "tree_gated_delta_rule: the states of shape [1, 4, 536870912, 536870912] exceed 2^63 - 1 \
             bytes"
        );
        let both = recurrence.clone().with_requested_rows(&[0]);
        assert_eq!(both.n_windows(), 2);
        assert!(
            error(&both, 2, [1 << 29; 2])
                .contains("the states of all windows of shape [2, 2, 536870912, 536870912]")
        );
        assert!(error(&recurrence, 1 << 58, [2, 1]).contains("the keys of all heads"));
        assert!(error(&recurrence, 1 << 53, [2, 1]).contains("the inverses"));
        assert!(error(&recurrence, 1 << 52, [2, 1]).contains("the pairs of rows"));
        assert!(error(&recurrence, usize::MAX, [usize::MAX; 2]).contains("the states"));
    }
}
