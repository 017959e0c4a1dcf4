//! Tree attention on CubeCL devices: which implementation runs, and with what.

pub(crate) mod accelerated;
pub(crate) mod device_plan;
pub(crate) mod plan;
pub(crate) mod portable;

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::CubeDevice;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::implementation::{Implementation, Kernels, announce};

use crate::ops::AttentionSettings;
use crate::visibility::Visibility;

pub(crate) use burn_tree_kit::implementation::Unavailable;

/// The operation, as events name it.
pub(crate) const OP: &str = "tree_attention";

/// Sizes of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dims {
    pub batch: usize,
    pub query_heads: usize,
    pub kv_heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub head_dim: usize,
    pub value_dim: usize,
}

impl Dims {
    pub(crate) fn new(query: &CubeTensor, key: &CubeTensor, value: &CubeTensor) -> Self {
        Self::of_shapes(
            query.shape().dims(),
            key.shape().dims(),
            value.shape().dims(),
        )
    }

    pub(crate) fn of_shapes(query: [usize; 4], key: [usize; 4], value: [usize; 4]) -> Self {
        Self {
            batch: query[0],
            query_heads: query[1],
            kv_heads: key[1],
            queries: query[2],
            keys: key[2],
            head_dim: query[3],
            value_dim: value[3],
        }
    }

    /// Query heads per key/value head.
    pub(crate) fn group(&self) -> usize {
        self.query_heads / self.kv_heads
    }
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

/// The kernels that run a call on a device; `None` for the generic bodies, if they are asked for.
///
/// # Errors
/// If what is asked for cannot run.
pub(crate) fn select(
    requested: Implementation,
    device: &CubeDevice,
    dtype: DType,
    dims: &Dims,
) -> Result<Option<Kernels>, Unavailable> {
    requested.select(|kernels| check_kernels(kernels, device, dtype, dims))
}

/// Refuses a call of a requested implementation that cannot run: for want of something on the device,
/// or because its plans or launches cannot be made. Plans stay with the mask for the call itself.
pub(crate) fn check(
    device: &CubeDevice,
    dtype: DType,
    dims: Dims,
    visibility: &Visibility,
    settings: AttentionSettings,
    with_backward: bool,
) -> Result<(), Unavailable> {
    match select(settings.implementation, device, dtype, &dims)? {
        None => Ok(()),
        Some(Kernels::Portable) => {
            portable::check_launches(device, dtype, dims, visibility, settings)
        }
        Some(Kernels::Accelerated) => {
            accelerated::check_plans(device, dims, visibility, settings, with_backward)
        }
    }
}

/// Output and log-sum-exp, as [`TreeAttentionOps::tree_attention`](crate::TreeAttentionOps).
pub(crate) fn forward(
    kernels: Kernels,
    [query, key, value]: [CubeTensor; 3],
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor), Unavailable> {
    let [query, key, value] = [query, key, value].map(into_contiguous);
    let run = match kernels {
        Kernels::Portable => portable::forward,
        Kernels::Accelerated => accelerated::forward,
    };
    run(query, key, value, visibility, settings)
        .inspect(|_| announce(OP, "forward", kernels.name()))
}

/// Gradients of query, key and value.
pub(crate) fn backward(
    kernels: Kernels,
    grad_output: CubeTensor,
    inputs: [CubeTensor; 3],
    output: CubeTensor,
    log_sum_exp: CubeTensor,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor, CubeTensor), Unavailable> {
    let [query, key, value] = inputs.map(into_contiguous);
    let [grad_output, output, log_sum_exp] =
        [grad_output, output, log_sum_exp].map(into_contiguous);
    let run = match kernels {
        Kernels::Portable => portable::backward,
        Kernels::Accelerated => accelerated::backward,
    };
    run(
        grad_output,
        query,
        key,
        value,
        output,
        log_sum_exp,
        visibility,
        settings,
    )
    .inspect(|_| announce(OP, "backward", kernels.name()))
}
