//! Operations of a CubeCL device called without Fusion and autodiff.

use std::sync::Arc;

use burn::backend::ops::{FloatTensorOps, IntTensorOps};
use burn::backend::{DispatchDevice, ExecutionError};
use burn::tensor::{DType, Device, TensorData};
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use burn_tree_attn::{AttentionSettings, Implementation, TreeAttentionOps, Visibility};

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

/// A call and its inputs, on the device and contiguous: what lays them out so (CUDA pads the rows of
/// some uploads) is no part of the operation.
pub struct Call {
    query: CubeTensor,
    key: CubeTensor,
    value: CubeTensor,
    output_gradient: CubeTensor,
    visibility: Arc<Visibility>,
    settings: AttentionSettings,
}

impl Call {
    pub fn new(
        case: &Case,
        dtype: DType,
        implementation: Implementation,
        device: &CubeDevice,
    ) -> Self {
        let mask = case.mask(&Device::new(device.clone()));
        let [b, n, m] = [mask.batch_size(), mask.n_queries(), mask.n_keys()];
        let (heads, d, dv) = (case.kv_heads * case.group, case.head_dim, case.value_dim);
        let random = |shape, seed| into_contiguous(random(shape, case.seed ^ seed, dtype, device));
        Self {
            query: random([b, heads, n, d], 1),
            key: random([b, case.kv_heads, m, d], 2),
            value: random([b, case.kv_heads, m, dv], 3),
            output_gradient: random([b, heads, n, dv], 4),
            visibility: mask.visibility().clone(),
            settings: AttentionSettings {
                scale: 0.25,
                softcap: case.softcap,
                sliding_window: case.sliding_window,
                implementation,
            },
        }
    }

    /// Output, log-sum-exp, and gradients of query, key and value.
    pub fn run(self) -> [CubeTensor; 5] {
        let (output, log_sum_exp) = CubeBackend::tree_attention(
            self.query.clone(),
            self.key.clone(),
            self.value.clone(),
            self.visibility.clone(),
            self.settings,
        );
        let gradients = CubeBackend::tree_attention_backward(
            self.output_gradient,
            self.query,
            self.key,
            self.value,
            output.clone(),
            log_sum_exp.clone(),
            self.visibility,
            self.settings,
        );
        [output, log_sum_exp, gradients.0, gradients.1, gradients.2]
    }
}
