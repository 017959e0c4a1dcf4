//! Checks of the arguments, before dispatch.

use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::{GatedDeltaRuleError, GatedDeltaRuleOptions, GatedDeltaRuleSettings};
use crate::TreeRecurrence;
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::implementation::Implementation;

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
) -> Result<GatedDeltaRuleSettings, GatedDeltaRuleError> {
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
) -> Result<(), GatedDeltaRuleError> {
    let expect = |tensor, dimension, found, expected, reason| {
        if found == expected {
            Ok(())
        } else {
            Err(GatedDeltaRuleError::Shape {
                tensor,
                dimension,
                found,
                expected,
                reason,
            })
        }
    };
    let (query, key) = (arguments.query.dims(), arguments.key.dims());
    let value = arguments.value.dims();
    let (log_decay, beta) = (arguments.log_decay.dims(), arguments.beta.dims());
    let of_recurrence = "of the recurrence";
    for (tensor, batch, length) in [
        ("query", query[0], query[1]),
        ("key", key[0], key[1]),
        ("value", value[0], value[1]),
        ("log_decay", log_decay[0], log_decay[1]),
        ("beta", beta[0], beta[1]),
    ] {
        let (batches, rows) = (recurrence.batch_size(), recurrence.row_length());
        expect(tensor, "batch size", batch, batches, of_recurrence)?;
        expect(tensor, "row count", length, rows, of_recurrence)?;
    }
    expect("key", "head count", key[2], query[2], "of the query")?;
    expect("key", "head dimension", key[3], query[3], "of the query")?;
    expect(
        "log_decay",
        "head count",
        log_decay[2],
        value[2],
        "of the value",
    )?;
    expect("beta", "head count", beta[2], value[2], "of the value")?;
    if query[2] == 0 || value[2] == 0 || !value[2].is_multiple_of(query[2]) {
        return Err(GatedDeltaRuleError::Heads {
            value_heads: value[2],
            key_heads: query[2],
        });
    }
    for (tensor, dim) in [("query", query[3]), ("value", value[3])] {
        if dim == 0 {
            return Err(GatedDeltaRuleError::EmptyHead { tensor });
        }
    }
    check_sizes(recurrence, value[2], [query[3], value[3]])?;
    check_initial_states(recurrence, arguments.initial_states)?;
    if let Some(states) = arguments.initial_states {
        let [_, heads, key_dim, value_dim] = states.dims();
        let tensor = "initial_states";
        expect(tensor, "head count", heads, value[2], "of the value")?;
        expect(tensor, "key dimension", key_dim, query[3], "of the query")?;
        expect(
            tensor,
            "value dimension",
            value_dim,
            value[3],
            "of the value",
        )?;
    }
    Ok(())
}

/// Refuses calls of which a tensor, in any implementation, has more numbers than there are addresses
/// for at 8 bytes each.
fn check_sizes(
    recurrence: &TreeRecurrence,
    heads: usize,
    [key_dim, value_dim]: [usize; 2],
) -> Result<(), GatedDeltaRuleError> {
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
            return Err(GatedDeltaRuleError::TooLarge { what, shape });
        }
    }
    Ok(())
}

/// As many initial states as the roots of the recurrence name.
pub(super) fn check_initial_states(
    recurrence: &TreeRecurrence,
    initial_states: Option<&Tensor<4>>,
) -> Result<(), GatedDeltaRuleError> {
    let found = initial_states.map_or(0, |states| states.dims()[0]);
    let expected = recurrence.n_initial_states();
    // A tensor without states is not none.
    match found == expected && (found > 0 || initial_states.is_none()) {
        true => Ok(()),
        false => Err(GatedDeltaRuleError::InitialStates { found, expected }),
    }
}

fn check_dtypes(arguments: &Arguments<'_>) -> Result<(), GatedDeltaRuleError> {
    let dtype = arguments.value.dtype();
    for (tensor, found) in [("value", dtype), ("beta", arguments.beta.dtype())] {
        if !matches!(found, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
            return Err(GatedDeltaRuleError::UnsupportedDType { tensor, found });
        }
    }
    let wide = DType::from(at_least_f32(dtype));
    let (of_value, gates) = ("the value's dtype", "gates and states are at least f32");
    let states = arguments.initial_states.map(|states| states.dtype());
    for (tensor, found, expected, reason) in [
        ("query", arguments.query.dtype(), dtype, of_value),
        ("key", arguments.key.dtype(), dtype, of_value),
        ("log_decay", arguments.log_decay.dtype(), wide, gates),
        ("initial_states", states.unwrap_or(wide), wide, gates),
    ] {
        if found != expected {
            return Err(GatedDeltaRuleError::DType {
                tensor,
                found,
                expected,
                reason,
            });
        }
    }
    Ok(())
}

fn check_devices(arguments: &Arguments<'_>) -> Result<(), GatedDeltaRuleError> {
    let device = arguments.value.device();
    let states = arguments.initial_states.map(|states| states.device());
    for (tensor, other) in [
        ("query", arguments.query.device()),
        ("key", arguments.key.device()),
        ("log_decay", arguments.log_decay.device()),
        ("beta", arguments.beta.device()),
        ("initial_states", states.unwrap_or_else(|| device.clone())),
    ] {
        if !same_device(&other, &device) {
            return Err(GatedDeltaRuleError::Device {
                tensor,
                found: format!("{other:?}"),
                expected: format!("{device:?}"),
            });
        }
    }
    Ok(())
}

/// Whether tensors on both devices can be combined: the same device, with or without autodiff.
fn same_device(a: &Device, b: &Device) -> bool {
    a.clone().inner() == b.clone().inner()
}

fn resolve(
    options: GatedDeltaRuleOptions,
    arguments: &Arguments<'_>,
) -> Result<GatedDeltaRuleSettings, GatedDeltaRuleError> {
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
        return Err(GatedDeltaRuleError::Option {
            option: "scale",
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
) -> Result<(), GatedDeltaRuleError> {
    use Implementation::{Automatic, Generic};
    if matches!(requested, Automatic | Generic) {
        return Ok(());
    }
    let value = arguments.value;
    let device = value.device().inner();
    let reason = match device.as_dispatch() {
        #[cfg(feature = "cubecl-backend")]
        burn::backend::DispatchDevice::Cube(device) => {
            use super::kernels::{Dims, select};
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
    Err(GatedDeltaRuleError::Implementation { requested, reason })
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
        let error = |recurrence: &TreeRecurrence, heads, dims| {
            check_sizes(recurrence, heads, dims)
                .expect_err("too large")
                .to_string()
        };
        check_sizes(&recurrence, 1 << 19, [1 << 20; 2]).unwrap();
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
