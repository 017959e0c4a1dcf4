//! CubeCL runtimes: kernels where the device runs them, the generic bodies otherwise.

use std::fmt::Display;
use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

use crate::TreeAttentionOps;
use crate::generic::{self, ForwardTensors, MaskPrimitives};
use crate::kernels;
use crate::kernels::attention::{self, Dims, Implementation};
use crate::ops::{AttentionSettings, RopeDirection};
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
                Ok(results) => return results,
                Err(reason) => fall_back(reason),
            }
        }
        attention::launched("generic", "forward");
        let mask = MaskPrimitives {
            key_start,
            key_end,
            key_position,
            query_position,
        };
        generic::attention_forward::<Self>(query, key, value, &mask, &visibility, settings)
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
                Ok(gradients) => return gradients,
                Err(reason) => fall_back(reason),
            }
        }
        attention::launched("generic", "backward");
        let mask = MaskPrimitives {
            key_start,
            key_end,
            key_position,
            query_position,
        };
        let forward = ForwardTensors {
            query,
            key,
            value,
            output,
            log_sum_exp,
        };
        generic::attention_backward::<Self>(grad_output, forward, &mask, &visibility, settings)
    }

    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        theta: f64,
        rotary_dim: usize,
        direction: RopeDirection,
    ) -> FloatTensor<Self> {
        kernels::rope::rope(x, position_ids, theta, rotary_dim, direction)
    }
}

/// What runs on the tensors' device; `None` for the generic bodies, with a warning unless they are
/// asked for. ([`try_tree_attention`](crate::try_tree_attention) refused what cannot run.)
fn implementation(
    query: &FloatTensor<CubeBackend>,
    key: &FloatTensor<CubeBackend>,
    value: &FloatTensor<CubeBackend>,
    settings: AttentionSettings,
) -> Option<Implementation> {
    let selected = attention::select(
        settings.implementation,
        &query.device,
        query.dtype(),
        &Dims::new(query, key, value),
    );
    selected.unwrap_or_else(|reason| {
        fall_back(reason);
        None
    })
}

fn fall_back(reason: impl Display) {
    tracing::warn!(target: "burn_tree_attn", "tree attention from generic operations: {reason}");
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use burn::backend::ops::{FloatTensorOps, IntTensorOps};
    use burn::backend::{DispatchDevice, StreamId};
    use burn::tensor::{DType, Device, Shape, TensorData};
    use burn_cubecl::CubeDevice;
    use burn_cubecl::tensor::CubeTensor;
    use cubecl::launched::LaunchedKernels;
    use cubecl::prelude::AddressType;
    use cubecl::server::Handle;

    use super::*;
    use crate::support::events::Events;
    use crate::support::{self, Forest};
    use crate::{AttentionImplementation, TreeMask};

    /// The device of `BURN_DEVICE`, if it is one of CubeCL.
    fn device() -> Option<CubeDevice> {
        match support::device().as_dispatch() {
            DispatchDevice::Cube(device) => Some(device.clone()),
            #[allow(unreachable_patterns, reason = "there may be no other backend")]
            _ => None,
        }
    }

    fn random(shape: [usize; 4], seed: u64, device: &CubeDevice) -> CubeTensor {
        let data = support::random(shape, seed, DType::F32, &support::reference_device());
        CubeBackend::float_from_data(data.into_data(), device)
    }

    fn values(tensor: CubeTensor) -> Vec<f32> {
        let data = CubeBackend::float_into_data(tensor);
        cubecl::future::block_on(data)
            .unwrap()
            .try_to_vec()
            .unwrap()
    }

    /// Forward and backward without Fusion and autodiff; all results.
    fn attend(
        forest: Forest,
        heads: [usize; 2],
        implementation: AttentionImplementation,
        device: &CubeDevice,
    ) -> Vec<Vec<f32>> {
        let layout = forest.layout();
        let rows = layout.len();
        let mask = TreeMask::from_layouts(&[layout], rows, &Device::new(device.clone()));
        let visibility = mask.visibility();
        // Kernels read the intervals from the plan, the generic bodies from tensors.
        let int = |values: &[u32]| {
            let values: Vec<i32> = values.iter().map(|&it| it as i32).collect();
            let data = TensorData::new(values, [1, rows]);
            <CubeBackend as IntTensorOps<CubeBackend>>::int_from_data(data, device)
        };
        let (key_start, key_end) = (int(visibility.key_start()), int(visibility.key_end()));
        let position = int(visibility.query_position());
        let settings = AttentionSettings {
            scale: 0.25,
            softcap: None,
            sliding_window: None,
            implementation,
        };
        let query = random([1, heads[0], rows, 16], 1, device);
        let key = random([1, heads[1], rows, 16], 2, device);
        let value = random([1, heads[1], rows, 16], 3, device);
        let (output, log_sum_exp) = CubeBackend::tree_attention(
            query.clone(),
            key.clone(),
            value.clone(),
            key_start.clone(),
            key_end.clone(),
            position.clone(),
            position.clone(),
            visibility.clone(),
            settings,
        );
        let gradients = CubeBackend::tree_attention_backward(
            random([1, heads[0], rows, 16], 4, device),
            query,
            key,
            value,
            output.clone(),
            log_sum_exp.clone(),
            key_start,
            key_end,
            position.clone(),
            position,
            visibility.clone(),
            settings,
        );
        let (query, key, value) = gradients;
        [output, log_sum_exp, query, key, value]
            .map(values)
            .to_vec()
    }

    /// Tests that run kernels do so one after another, since one of them counts kernels.
    static KERNELS: Mutex<()> = Mutex::new(());

    #[test]
    fn direct_calls_run_the_requested_implementation() {
        let Some(device) = device() else { return };
        let _alone = KERNELS.lock();
        for (implementation, name) in [
            (AttentionImplementation::Generic, "generic"),
            (AttentionImplementation::Portable, "portable"),
        ] {
            let events = Events::default();
            tracing::subscriber::with_default(events.clone(), || {
                let forest = Forest(vec![(None, 5), (Some(0), 2)]);
                attend(forest, [2, 1], implementation, &device);
            });
            let expected = ["forward", "backward"].map(|pass| format!("{name} {pass}"));
            assert_eq!(events.take(), expected);
        }
    }

    #[test]
    fn other_shapes_compile_no_other_kernels() {
        let Some(device) = device() else { return };
        let _alone = KERNELS.lock();
        let run =
            |forest, heads| attend(forest, heads, AttentionImplementation::Automatic, &device);
        let collection = LaunchedKernels::new();
        run(Forest(vec![(None, 70), (Some(0), 9)]), [2, 1]);
        let first = collection.finish();
        let collection = LaunchedKernels::new();
        for shape in 1..=50usize {
            let nodes = (0..shape).map(|node| (node.checked_sub(1 + node % 2), 1 + node % 7));
            run(Forest(nodes.collect()), [[2, 1], [2, 2], [4, 1]][shape % 3]);
        }
        let others = collection.finish();
        assert!(!first.is_empty());
        assert_eq!(
            others.difference(&first).count(),
            0,
            "of {} kernels",
            first.len()
        );
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
        let width = |elements| tree_training_cube::address_type(&[&tensor(1), &tensor(elements)]);
        // Offsets are unsigned: nothing special happens at 2^31.
        assert_eq!(width(1 << 31), AddressType::U32);
        assert_eq!(width((1 << 32) + 2), AddressType::U64);
    }
}
