//! Kernels from matrix instructions.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::DeviceProperties;

use super::Unavailable;
use crate::ops::AttentionSettings;
use crate::visibility::Visibility;

/// Whether these kernels run on a device.
pub(crate) fn check_available(
    _properties: &DeviceProperties,
    _dtype: DType,
    _head_dim: usize,
    _value_dim: usize,
) -> Result<(), Unavailable> {
    Err(Unavailable(
        "there are no kernels from matrix instructions yet".into(),
    ))
}

/// Output and log-sum-exp, from contiguous tensors.
pub(crate) fn forward(
    _query: CubeTensor,
    _key: CubeTensor,
    _value: CubeTensor,
    _visibility: &Visibility,
    _settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor), Unavailable> {
    unreachable!("refused by check_available")
}

/// Gradients of query, key and value, from contiguous tensors.
pub(crate) fn backward(
    _grad_output: CubeTensor,
    _query: CubeTensor,
    _key: CubeTensor,
    _value: CubeTensor,
    _output: CubeTensor,
    _log_sum_exp: CubeTensor,
    _visibility: &Visibility,
    _settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor, CubeTensor), Unavailable> {
    unreachable!("refused by check_available")
}
