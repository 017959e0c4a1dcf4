//! Tree attention on CubeCL devices: which kernels run, and with what.

// Forms that the language of kernels lacks, or in which it says something else than Rust does.
#![allow(
    clippy::assign_op_pattern,
    clippy::collapsible_if,
    clippy::extra_unused_type_parameters,
    clippy::if_same_then_else,
    clippy::manual_is_multiple_of,
    clippy::manual_swap
)]

mod accelerated;
pub(crate) mod call;
mod device_plan;
mod plan;
mod portable;

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{probe, probed};
use burn_tree_kit::implementation::{
    Implementation, Kernels, Unavailable, announce, announce_fallback,
};

use crate::mask::Visibility;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;
use call::{Call, Gradients, Inputs, Results};

/// The operation, as events name it.
const OP: &str = "tree_attention";

/// Refuses a requested implementation that cannot run a call: the device lacks something, or the
/// plans or launches cannot be made. The mask keeps the plans for the call itself.
pub(crate) fn check(call: &Call<'_>, with_backward: bool) -> Result<(), Unavailable> {
    match select(
        call.settings.implementation,
        call.device,
        call.dtype,
        &call.dims,
    )? {
        None => Ok(()),
        Some(Kernels::Portable) => portable::check_launches(call),
        Some(Kernels::Accelerated) => accelerated::check_plans(call, with_backward),
    }
}

/// The kernels that run a call on a device; `None` for the generic bodies, if they are asked for.
///
/// # Errors
/// If what is asked for cannot run.
fn select(
    requested: Implementation,
    device: &CubeDevice,
    dtype: DType,
    dims: &Dims,
) -> Result<Option<Kernels>, Unavailable> {
    requested.select(|kernels| check_kernels(kernels, device, dtype, dims))
}

/// Whether kernels run a call on a device.
fn check_kernels(
    kernels: Kernels,
    device: &CubeDevice,
    dtype: DType,
    dims: &Dims,
) -> Result<(), Unavailable> {
    let (head_dim, value_dim) = (dims.head_dim, dims.value_dim);
    let client = device.client();
    let properties = client.properties();
    match kernels {
        Kernels::Portable if dtype == DType::F64 && matches!(device, CubeDevice::Wgpu(_)) => Err(
            Unavailable("WGSL and SPIR-V have no exponential function for f64".into()),
        ),
        Kernels::Portable => portable::check_available(properties, dtype, head_dim, value_dim),
        Kernels::Accelerated => {
            accelerated::check_sizes(properties, dims)?;
            accelerated::check_available(properties, dtype, head_dim, value_dim)
        }
    }
}

/// Output and log-sum-exp, as [`TreeAttentionOps::tree_attention`](crate::TreeAttentionOps);
/// `None` if the generic body is to run.
///
/// # Panics
/// If a requested implementation cannot run, which
/// [`try_tree_attention`](crate::try_tree_attention) refuses before dispatch.
pub(crate) fn forward(
    tensors: [&CubeTensor; 3],
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Option<(CubeTensor, CubeTensor)> {
    let results = run("forward", tensors, settings, |kernels| {
        let run = match kernels {
            Kernels::Portable => portable::forward,
            Kernels::Accelerated => accelerated::forward,
        };
        run(Inputs::contiguous(tensors), visibility, settings)
    });
    results.map(probed)
}

/// Gradients of query, key and value (`tensors`), given output, log-sum-exp and the gradient of the
/// output (`results`); `None` if the generic body is to run.
///
/// # Panics
/// As [`forward`].
pub(crate) fn backward(
    tensors: [&CubeTensor; 3],
    results: [&CubeTensor; 3],
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Option<Gradients> {
    let gradients = run("backward", tensors, settings, |kernels| {
        let run = match kernels {
            Kernels::Portable => portable::backward,
            Kernels::Accelerated => accelerated::backward,
        };
        let [output, log_sum_exp, grad_output] = results.map(|it| into_contiguous(it.clone()));
        let results = Results {
            output,
            log_sum_exp,
            grad_output,
        };
        run(Inputs::contiguous(tensors), results, visibility, settings)
    });
    // One kernel computes the gradient of the query, others those of key and value.
    gradients.map(|gradients| {
        probe(&gradients.1);
        probed(gradients)
    })
}

/// Runs a pass with the kernels for a call, and announces which. `None` if the generic body is to
/// run: it was asked for, or no kernels can run and subscribers have been warned.
fn run<T>(
    pass: &'static str,
    [query, key, value]: [&CubeTensor; 3],
    settings: AttentionSettings,
    launch: impl FnOnce(Kernels) -> Result<T, Unavailable>,
) -> Option<T> {
    let requested = settings.implementation;
    let dims = Dims::new(query, key, value);
    let results = select(requested, &query.device, query.dtype(), &dims).and_then(|kernels| {
        let Some(kernels) = kernels else {
            return Ok(None);
        };
        let results = launch(kernels)?;
        announce(OP, pass, kernels.name());
        Ok(Some(results))
    });
    let results = results.unwrap_or_else(|reason| {
        assert!(
            requested == Implementation::Automatic,
            "tree_attention: the {requested:?} implementation is not available: {reason}"
        );
        announce_fallback(OP, &reason);
        None
    });
    if results.is_none() {
        announce(OP, pass, "generic");
    }
    results
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use burn::backend::StreamId;
    use burn::tensor::{DType, Shape};
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::prelude::AddressType;
    use cubecl::server::Handle;
    use tree_training_devices::Events;

    use super::*;
    use crate::support::direct::{Call, device};
    use crate::support::{Case, Forest, Row};

    fn case() -> Case {
        Case {
            rows: vec![Row {
                forest: Forest(vec![(None, 5), (Some(0), 2)]),
                past: Vec::new(),
            }],
            padding: 0,
            kv_heads: 1,
            group: 2,
            head_dim: 16,
            value_dim: 16,
            softcap: None,
            sliding_window: None,
            seed: 1,
        }
    }

    #[test]
    fn direct_calls_run_the_requested_implementation() {
        let Some(device) = device() else { return };
        for (implementation, name) in [
            (Implementation::Generic, "generic"),
            (Implementation::Portable, "portable"),
        ] {
            let events = Events::of(burn_tree_kit::implementation::TARGET);
            tracing::subscriber::with_default(events.clone(), || {
                Call::new(&case(), DType::F32, implementation, &device).run();
            });
            let expected =
                ["forward", "backward"].map(|pass| format!("tree_attention {pass} {name}"));
            assert_eq!(events.take(), expected);
        }
    }

    /// The public functions refuse it before.
    #[test]
    fn a_direct_call_runs_what_is_asked_for_or_nothing() {
        let Some(device) = device() else { return };
        // Tensor cores take 16-bit numbers.
        let accelerated = Implementation::Accelerated;
        let call = Call::new(&case(), DType::F32, accelerated, &device);
        let call = AssertUnwindSafe(|| call.run());
        let panic = catch_unwind(call).map(|_| ()).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        let expected = "the Accelerated implementation is not available: F32 tensors";
        assert!(text.contains(expected), "{text}");
    }

    /// Indices are as wide as the largest tensor asks for.
    #[test]
    fn tensors_of_more_than_2_32_elements_get_wide_indices() {
        let Some(device) = device() else { return };
        let client = device.client();
        let tensor = |elements: usize| {
            // Not allocated before it is used.
            let size = 2 * elements as u64;
            let handle = Handle::new(client.service_id(), StreamId::current(), size);
            let (client, shape) = (client.clone(), Shape::from([elements]));
            CubeTensor::new_contiguous(client, device.clone(), shape, handle, DType::F16)
        };
        let width = |elements| burn_tree_kit::cube::address_type(&[&tensor(1), &tensor(elements)]);
        // Offsets are unsigned: nothing special happens at 2^31.
        assert_eq!(width(1 << 31), AddressType::U32);
        assert_eq!(width((1 << 32) + 2), AddressType::U64);
    }
}
