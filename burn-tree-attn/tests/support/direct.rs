//! Operations of a CubeCL device called without Fusion and autodiff.

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{DispatchDevice, ExecutionError};
use burn::tensor::{DType, Device, TensorData};
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_tree_attn::{AttentionImplementation, AttentionSettings, TreeAttentionOps};

use super::Case;

/// The device of `BURN_DEVICE`, if it is one of CubeCL.
pub fn device() -> Option<CubeDevice> {
    match super::device().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        #[allow(unreachable_patterns, reason = "there may be no other backend")]
        _ => None,
    }
}

pub fn random(shape: [usize; 4], seed: u64, dtype: DType, device: &CubeDevice) -> CubeTensor {
    let data = super::random(shape, seed, dtype, &super::reference_device());
    CubeBackend::float_from_data(data.into_data(), device)
}

pub fn integers(values: &[u32], rows: usize, device: &CubeDevice) -> CubeTensor {
    let shape = [rows, values.len() / rows];
    let values: Vec<i32> = values.iter().map(|&it| it as i32).collect();
    let data = TensorData::new(values, shape);
    <CubeBackend as IntTensorOps<CubeBackend>>::int_from_data(data, device)
}

pub fn values(tensor: CubeTensor) -> Result<Vec<f64>, ExecutionError> {
    let data = cubecl::future::block_on(CubeBackend::float_into_data(tensor))?;
    Ok(data.iter::<f64>().collect())
}

/// Output, log-sum-exp, and gradients of query, key and value.
pub fn attend(
    case: &Case,
    dtype: DType,
    implementation: AttentionImplementation,
    device: &CubeDevice,
) -> [CubeTensor; 5] {
    let mask = case.mask(&Device::new(device.clone()));
    let [b, n, m] = [mask.batch_size(), mask.n_queries(), mask.n_keys()];
    let (heads, d, dv) = (case.kv_heads * case.group, case.head_dim, case.value_dim);
    let visibility = mask.visibility();
    let key_start = integers(visibility.key_start(), b, device);
    let key_end = integers(visibility.key_end(), b, device);
    let key_position = integers(visibility.key_position(), b, device);
    let query_position = integers(visibility.query_position(), b, device);
    let settings = AttentionSettings {
        scale: 0.25,
        softcap: case.softcap,
        sliding_window: case.sliding_window,
        implementation,
    };
    let random = |shape, seed| random(shape, case.seed ^ seed, dtype, device);
    let query = random([b, heads, n, d], 1);
    let key = random([b, case.kv_heads, m, d], 2);
    let value = random([b, case.kv_heads, m, dv], 3);
    let (output, log_sum_exp) = CubeBackend::tree_attention(
        query.clone(),
        key.clone(),
        value.clone(),
        key_start.clone(),
        key_end.clone(),
        key_position.clone(),
        query_position.clone(),
        visibility.clone(),
        settings,
    );
    let gradients = CubeBackend::tree_attention_backward(
        random([b, heads, n, dv], 4),
        query,
        key,
        value,
        output.clone(),
        log_sum_exp.clone(),
        key_start,
        key_end,
        key_position,
        query_position,
        visibility.clone(),
        settings,
    );
    [output, log_sum_exp, gradients.0, gradients.1, gradients.2]
}
