//! CubeCL runtimes: kernels where the device runs them, the generic bodies otherwise.

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;
use burn_tree_kit::cube::{probe, probed};

use crate::TreeAttentionOps;
use crate::generic;
use crate::kernels;
use burn_tree_kit::implementation::{
    Implementation, Kernels, Unavailable, announce, announce_fallback,
};

use crate::kernels::attention::{self, Dims, OP};
use crate::ops::{AttentionSettings, RopeSettings};
use crate::visibility::Visibility;

impl TreeAttentionOps for CubeBackend {
    fn tree_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        key_start: IntTensor<Self>,
        key_end: IntTensor<Self>,
        key_position: IntTensor<Self>,
        query_position: IntTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        if let Some(implementation) = implementation(&query, &key, &value, settings) {
            let inputs = [query.clone(), key.clone(), value.clone()];
            match attention::forward(implementation, inputs, &visibility, settings) {
                Ok(results) => return probed(results),
                Err(reason) => fall_back(reason, settings),
            }
        }
        announce(OP, "forward", "generic");
        generic::attention_forward::<Self>(
            query,
            key,
            value,
            key_start,
            key_end,
            key_position,
            query_position,
            &visibility,
            settings,
        )
    }

    fn tree_attention_backward(
        grad_output: FloatTensor<Self>,
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        output: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        key_start: IntTensor<Self>,
        key_end: IntTensor<Self>,
        key_position: IntTensor<Self>,
        query_position: IntTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        if let Some(implementation) = implementation(&query, &key, &value, settings) {
            let gradients = attention::backward(
                implementation,
                grad_output.clone(),
                [query.clone(), key.clone(), value.clone()],
                output.clone(),
                log_sum_exp.clone(),
                &visibility,
                settings,
            );
            match gradients {
                Ok(gradients) => {
                    // The kernel of queries' gradients is another.
                    probe(&gradients.1);
                    return probed(gradients);
                }
                Err(reason) => fall_back(reason, settings),
            }
        }
        announce(OP, "backward", "generic");
        generic::attention_backward::<Self>(
            grad_output,
            query,
            key,
            value,
            output,
            log_sum_exp,
            key_start,
            key_end,
            key_position,
            query_position,
            &visibility,
            settings,
        )
    }

    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        settings: RopeSettings,
    ) -> FloatTensor<Self> {
        kernels::rope::rope(x, position_ids, settings)
    }
}

/// What runs on the tensors' device; `None` for the generic bodies, with a warning unless they are
/// asked for.
fn implementation(
    query: &FloatTensor<CubeBackend>,
    key: &FloatTensor<CubeBackend>,
    value: &FloatTensor<CubeBackend>,
    settings: AttentionSettings,
) -> Option<Kernels> {
    let selected = attention::select(
        settings.implementation,
        &query.device,
        query.dtype(),
        &Dims::new(query, key, value),
    );
    selected.unwrap_or_else(|reason| {
        fall_back(reason, settings);
        None
    })
}

/// Warns that the generic bodies run.
///
/// # Panics
/// If something else was asked for, which [`try_tree_attention`](crate::try_tree_attention) refuses
/// before dispatch.
fn fall_back(reason: Unavailable, settings: AttentionSettings) {
    let requested = settings.implementation;
    assert!(
        requested == Implementation::Automatic,
        "tree_attention: the {requested:?} implementation is not available: {reason}"
    );
    announce_fallback(OP, &reason);
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use burn::backend::StreamId;
    use burn::backend::ops::FloatTensorOps;
    use burn::tensor::{DType, Shape};
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::prelude::AddressType;
    use cubecl::server::Handle;
    use tree_training_devices::Events;

    use super::*;
    use crate::ops::{RopeDirection, RopePairing};
    use crate::support::direct::{Call, device, integers, random, values};
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
        // Matrix instructions take 16-bit numbers.
        let accelerated = Implementation::Accelerated;
        let call = Call::new(&case(), DType::F32, accelerated, &device);
        let call = AssertUnwindSafe(|| call.run());
        let panic = catch_unwind(call).map(|_| ()).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        let expected = "the Accelerated implementation is not available: F32 tensors";
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn rope_is_in_place_if_nobody_else_holds_the_tensor() {
        let Some(device) = device() else { return };
        let rope = |x: CubeTensor, rows: u32, pairing| {
            let positions = integers(&(0..rows).collect::<Vec<_>>(), 1, &device);
            // The device has taken note of the tensor.
            cubecl::future::block_on(x.client.sync()).unwrap();
            let settings = RopeSettings {
                theta: 1e4,
                rotary_dim: 8,
                pairing,
                direction: RopeDirection::Forward,
            };
            CubeBackend::rope(x, positions, settings)
        };
        let memory = |tensor: &CubeTensor| tensor.handle.memory.descriptor().id;
        // More heads than a unit turns, and dimensions that stay as they are.
        let new = || random([1, 9, 3, 12], 1, DType::F32, &device);

        for pairing in [RopePairing::Halves, RopePairing::Interleaved] {
            let held = new();
            let before = values(held.clone()).unwrap();
            let turned = rope(held.clone(), 3, pairing);
            assert_ne!(memory(&turned), memory(&held));
            assert_eq!(values(held).unwrap(), before);
            let expected = values(turned).unwrap();
            assert_ne!(expected, before);

            let alone = new();
            let of_input = memory(&alone);
            let turned = rope(alone, 3, pairing);
            assert_eq!(memory(&turned), of_input);
            assert_eq!(values(turned).unwrap(), expected);

            // The result has its rows one after another, which these are not.
            let transposed = CubeBackend::float_swap_dims(new(), 1, 2);
            let of_input = memory(&transposed);
            assert_ne!(memory(&rope(transposed, 9, pairing)), of_input);
        }
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
