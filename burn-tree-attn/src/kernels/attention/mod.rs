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
use thiserror::Error;

use crate::ops::{AttentionImplementation, AttentionSettings};
use crate::visibility::Visibility;

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

/// Why an implementation cannot run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub(crate) struct Unavailable(pub String);

/// What is written in CubeCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    Portable,
    Accelerated,
}

impl Implementation {
    fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Accelerated => "accelerated",
        }
    }

    fn check(self, device: &CubeDevice, dtype: DType, dims: &Dims) -> Result<(), Unavailable> {
        let (head_dim, value_dim) = (dims.head_dim, dims.value_dim);
        let client = device.client();
        let properties = client.properties();
        match self {
            Self::Portable if dtype == DType::F64 && matches!(device, CubeDevice::Wgpu(_)) => Err(
                Unavailable("WGSL and SPIR-V have no exponential function for f64".into()),
            ),
            Self::Portable => portable::check_available(properties, dtype, head_dim, value_dim),
            Self::Accelerated => {
                accelerated::check_sizes(properties, dims)?;
                accelerated::check_available(properties, dtype, head_dim, value_dim)
            }
        }
    }
}

/// The implementation that runs a call on a device; `None` for the generic bodies, if they are asked for.
/// Automatic choice takes the accelerated one before the portable one.
///
/// # Errors
/// If what is asked for cannot run.
pub(crate) fn select(
    requested: AttentionImplementation,
    device: &CubeDevice,
    dtype: DType,
    dims: &Dims,
) -> Result<Option<Implementation>, Unavailable> {
    use Implementation::{Accelerated, Portable};
    let check = |it: Implementation| it.check(device, dtype, dims).map(|()| Some(it));
    match requested {
        AttentionImplementation::Generic => Ok(None),
        AttentionImplementation::Portable => check(Portable),
        AttentionImplementation::Accelerated => check(Accelerated),
        AttentionImplementation::Automatic => check(Accelerated).or_else(|_| check(Portable)),
    }
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
        Some(Implementation::Portable) => {
            portable::check_launches(device, dtype, dims, visibility, settings)
        }
        Some(Implementation::Accelerated) => {
            accelerated::check_plans(device, dims, visibility, settings, with_backward)
        }
    }
}

/// Output and log-sum-exp, as [`TreeAttentionOps::tree_attention`](crate::TreeAttentionOps).
pub(crate) fn forward(
    implementation: Implementation,
    [query, key, value]: [CubeTensor; 3],
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor), Unavailable> {
    let [query, key, value] = [query, key, value].map(into_contiguous);
    let run = match implementation {
        Implementation::Portable => portable::forward,
        Implementation::Accelerated => accelerated::forward,
    };
    run(query, key, value, visibility, settings)
        .inspect(|_| launched(implementation.name(), "forward"))
}

/// Gradients of query, key and value.
pub(crate) fn backward(
    implementation: Implementation,
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
    let run = match implementation {
        Implementation::Portable => portable::backward,
        Implementation::Accelerated => accelerated::backward,
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
    .inspect(|_| launched(implementation.name(), "backward"))
}

/// Tells subscribers which implementation runs.
pub(crate) fn launched(implementation: &'static str, pass: &'static str) {
    tracing::debug!(target: "burn_tree_attn", implementation, pass, "tree attention");
}
