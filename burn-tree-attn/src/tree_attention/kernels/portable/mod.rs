//! Kernels for any CubeCL runtime: tiles in shared memory (at most 32 KiB in f32), at most eight
//! buffers, no plane operations, no atomics.

mod arguments;
mod backward_key_value;
mod backward_query;
mod forward;
mod layout;
mod scores;
mod tile;

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::{DType, Shape};
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{address_type, empty};
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::implementation::Unavailable;
use cubecl::client::Client;
use cubecl::prelude::*;

use super::call::{Call, Gradients, Inputs, Results};
use super::device_plan::DevicePlan;
use crate::launch::elementwise;
use crate::mask::Visibility;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;
use arguments::{BackwardTensorsLaunch, KernelShape, ResultsLaunch, TensorsLaunch};
use layout::{Launch, Layout, Side, elem_types};

/// Whether these kernels run on a device.
pub(super) fn check_available(
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
    value_dim: usize,
) -> Result<(), Unavailable> {
    Layout::new(properties, dtype, head_dim, value_dim, None).map(|_| ())
}

/// The kernels of a call, and the plan for their tiles.
fn lay_out(call: &Call<'_>) -> Result<(Layout, Arc<DevicePlan>), Unavailable> {
    let client = call.device.client();
    let (head_dim, value_dim) = (call.dims.head_dim, call.dims.value_dim);
    let settings = Some(call.settings);
    let properties = client.properties();
    let layout = Layout::new(properties, call.dtype, head_dim, value_dim, settings)?;
    let plan = call.plan(layout.tiles)?;
    Ok((layout, plan))
}

/// Refuses a call whose plan or launches cannot be made.
pub(super) fn check_launches(call: &Call<'_>) -> Result<(), Unavailable> {
    let (layout, plan) = lay_out(call)?;
    Launch::new(call, &plan, Side::Query, &layout.by_query)?;
    Launch::new(call, &plan, Side::Key, &layout.by_key)?;
    Ok(())
}

/// Output and log-sum-exp.
pub(super) fn forward(
    inputs: Inputs,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor), Unavailable> {
    let call = inputs.call(visibility, settings);
    let (layout, plan) = lay_out(&call)?;
    let launch = Launch::new(&call, &plan, Side::Query, &layout.by_query)?;
    Ok(run_forward(inputs, launch, layout.by_query, &plan))
}

/// The forward pass in given tiles, which the plan is for.
fn run_forward(
    Inputs { query, key, value }: Inputs,
    launch: Launch,
    shape: KernelShape,
    plan: &DevicePlan,
) -> (CubeTensor, CubeTensor) {
    let dims = Dims::new(&query, &key, &value);
    let dtype = query.dtype;
    let log_sum_exp = empty(&query, dims.rows_shape(), at_least_f32(dtype).into());
    let output = empty(&query, dims.output_shape(), dtype);
    let address = address_type(&[&query, &key, &value, &output, &log_sum_exp]);
    // SAFETY: indices stay below the lengths of the tensors, whose shapes the mask has.
    unsafe {
        forward::attention_forward::launch_unchecked(
            &query.client.clone(),
            launch.count,
            launch.dim,
            address,
            shape.blocking.vector,
            TensorsLaunch::new(
                query.into_buffer_arg(),
                key.into_buffer_arg(),
                value.into_buffer_arg(),
            ),
            plan.buffer(),
            ResultsLaunch::new(
                output.clone().into_buffer_arg(),
                log_sum_exp.clone().into_buffer_arg(),
            ),
            launch.problem,
            shape,
            elem_types(dtype),
        );
    }
    (output, log_sum_exp)
}

/// Gradients of query, key and value.
pub(super) fn backward(
    inputs: Inputs,
    results: Results,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<Gradients, Unavailable> {
    let call = inputs.call(visibility, settings);
    let (layout, plan) = lay_out(&call)?;
    let by_query = Launch::new(&call, &plan, Side::Query, &layout.by_query)?;
    let by_key = Launch::new(&call, &plan, Side::Key, &layout.by_key)?;
    let types = elem_types(call.dtype);
    let vector = layout.by_query.blocking.vector;

    let Inputs { query, key, value } = inputs;
    let (client, grad_output) = (query.client.clone(), results.grad_output);
    let statistics = row_statistics(&grad_output, results.output, results.log_sum_exp, vector);
    let grad_query = empty(&query, query.shape(), query.dtype);
    let (gradients, grad_key, grad_value, values_at) = key_value_gradients(&client, &key, &value);
    let address = address_type(&[&query, &key, &value, &grad_output, &statistics, &gradients]);
    // Both kernels are given the same tensors, as types of their own.
    macro_rules! tensors {
        () => {
            BackwardTensorsLaunch::new(
                query.clone().into_buffer_arg(),
                key.clone().into_buffer_arg(),
                value.clone().into_buffer_arg(),
                grad_output.clone().into_buffer_arg(),
                statistics.clone().into_buffer_arg(),
            )
        };
    }
    // SAFETY: indices stay below the lengths of the tensors, whose shapes the mask has.
    unsafe {
        backward_query::attention_backward_query::launch_unchecked(
            &client,
            by_query.count,
            by_query.dim,
            address,
            vector,
            tensors!(),
            plan.buffer(),
            grad_query.clone().into_buffer_arg(),
            by_query.problem,
            layout.by_query,
            types,
        );
        backward_key_value::attention_backward_key_value::launch_unchecked(
            &client,
            by_key.count,
            by_key.dim,
            address,
            vector,
            tensors!(),
            plan.buffer(),
            gradients.into_buffer_arg(),
            values_at / vector,
            by_key.problem,
            layout.by_key,
            types,
        );
    }
    Ok((grad_query, grad_key, grad_value))
}

/// `[B, Hq, N, 2]`: log-sum-exp and `sum(grad_output * output)`.
fn row_statistics(
    grad_output: &CubeTensor,
    output: CubeTensor,
    log_sum_exp: CubeTensor,
    vector: usize,
) -> CubeTensor {
    let (client, shape) = (output.client.clone(), output.shape());
    let rows = shape[0] * shape[1] * shape[2];
    let statistics = [shape[0], shape[1], shape[2], 2];
    let statistics = empty(&output, statistics, log_sum_exp.dtype);
    let types = elem_types(output.dtype);
    let (count, dim) = elementwise(&client, rows);
    let address = address_type(&[grad_output, &output, &log_sum_exp, &statistics]);
    // SAFETY: all have `rows` rows.
    unsafe {
        backward_query::row_statistics::launch_unchecked(
            &client,
            count,
            dim,
            address,
            vector,
            grad_output.clone().into_buffer_arg(),
            output.into_buffer_arg(),
            log_sum_exp.into_buffer_arg(),
            statistics.clone().into_buffer_arg(),
            rows,
            shape[3] / vector,
            types,
        );
    }
    statistics
}

/// One buffer with the gradients of keys and values, both of them, and the element at which the
/// latter start.
fn key_value_gradients(
    client: &Client,
    key: &CubeTensor,
    value: &CubeTensor,
) -> (CubeTensor, CubeTensor, CubeTensor, usize) {
    let (dtype, device) = (key.dtype, key.device.clone());
    let [keys, values] = [key, value].map(|tensor| tensor.shape().num_elements());
    let alignment = (client.properties().memory.alignment as usize).div_ceil(dtype.size());
    let values_at = keys.next_multiple_of(alignment.max(4));
    let all = empty(key, [values_at + values], dtype);
    let bytes = |elements: usize| (elements * dtype.size()) as u64;
    // Offsets add to those that the handle has already.
    let size = all.handle.size_in_used();
    let part = |start: usize, shape: Shape| {
        let end = start + shape.num_elements();
        let handle = all.handle.clone();
        let handle = handle
            .offset_start(bytes(start))
            .offset_end(size - bytes(end));
        CubeTensor::new_contiguous(client.clone(), device.clone(), shape, handle, dtype)
    };
    let grad_key = part(0, key.shape());
    let grad_value = part(values_at, value.shape());
    (all, grad_key, grad_value, values_at)
}

#[cfg(test)]
mod tests {
    use burn::backend::ops::FloatTensorOps;
    use burn::tensor::Device;
    use burn_cubecl::CubeBackend;

    use super::*;
    use crate::mask::TreeMask;
    use crate::ops::TreeAttentionOps;
    use crate::rope::settings::{RopeDirection, RopePairing, RopeSettings};
    use crate::support::Forest;
    use crate::support::direct::{device, integers, random, values};
    use burn_tree_kit::implementation::Implementation;

    /// A launch that the device refuses leaves an error where its results would be, which goes on
    /// to all that is computed from them, to whoever reads it.
    #[test]
    fn a_refused_launch_is_an_error_of_every_result() {
        let Some(device) = device() else { return };
        let settings = AttentionSettings {
            scale: 1.0,
            softcap: None,
            sliding_window: None,
            implementation: Implementation::Portable,
        };
        // Twice the largest tiles, which need more shared memory than WebGPU promises.
        let layout = Layout::with_block(8, 4, 16, 16, Some(settings));
        let (needed, hardware) = (
            layout.by_query.shared_bytes(4),
            device.client().properties().hardware.clone(),
        );
        if hardware.num_cpu_cores.is_some() || hardware.max_shared_memory_size >= needed {
            println!("skipped: the device has {needed} bytes of shared memory");
            return;
        }
        let layouts = [Forest(vec![(None, 3)]).layout()];
        let mask = TreeMask::from_layouts(&layouts, 3, &Device::new(device.clone()));
        let visibility = mask.visibility();
        let plan = DevicePlan::of(visibility, &device, layout.tiles, None).unwrap();
        let random = |seed| random([1, 1, 3, 16], seed, DType::F32, &device);
        let (query, key) = (random(1), random(2));
        let inputs = Inputs::contiguous([&query, &key, &key]);
        let call = inputs.call(visibility, settings);
        let launch = Launch::new(&call, &plan, Side::Query, &layout.by_query).unwrap();
        let (output, log_sum_exp) = run_forward(inputs, launch, layout.by_query, &plan);
        let positions = integers(&[0, 1, 2], 1, &device);
        let rope = RopeSettings {
            theta: 1e4,
            rotary_dim: 16,
            pairing: RopePairing::Halves,
            direction: RopeDirection::Forward,
            scaling: crate::rope::RopeScaling::None,
        };
        let rotated = CubeBackend::rope(output.clone(), positions, rope);
        let sum = CubeBackend::float_sum(output.clone());
        let inputs = Inputs::contiguous([&key, &rotated, &key]);
        let (next, _) = forward(inputs, visibility, settings).unwrap();
        for result in [output, log_sum_exp, rotated, sum, next] {
            let error = values(result).unwrap_err().to_string();
            let expected = format!("Requested {needed} bytes");
            assert!(error.contains(&expected), "{error}");
        }
        // What does not depend on it is there.
        assert_eq!(values(query).unwrap().len(), 48);
    }
}
