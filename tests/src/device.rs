//! The device under test.

use burn::tensor::{DType, Device};

/// Name of the environment variable that chooses the device: `flex` (the default), `libtorch`,
/// `ndarray`, `wgpu`, `vulkan`, `metal`, `cuda`, `rocm` or `cpu`, each behind its feature.
pub const DEVICE_VARIABLE: &str = "BURN_DEVICE";

/// The name in `BURN_DEVICE`, or `flex`.
pub fn device_name() -> String {
    std::env::var(DEVICE_VARIABLE).unwrap_or_else(|_| "flex".to_owned())
}

/// The device named by `BURN_DEVICE`, without autodiff.
///
/// # Panics
/// If the name is unknown or its backend is not compiled in: tests must not run elsewhere
/// unnoticed.
// Burn is about to drop LibTorch and NdArray.
#[cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]
pub fn device() -> Device {
    match device_name().as_str() {
        #[cfg(feature = "flex")]
        "flex" => Device::flex(),
        #[cfg(feature = "tch")]
        "libtorch" => Device::libtorch(),
        #[cfg(feature = "tch")]
        "libtorch-cuda" => Device::libtorch_cuda(0),
        #[cfg(feature = "ndarray")]
        "ndarray" => Device::ndarray(),
        #[cfg(feature = "wgpu")]
        "wgpu" => Device::wgpu(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "vulkan")]
        "vulkan" => Device::vulkan(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "metal")]
        "metal" => Device::metal(burn::tensor::DeviceKind::DefaultDevice),
        #[cfg(feature = "cuda")]
        "cuda" => Device::cuda(0),
        #[cfg(feature = "rocm")]
        "rocm" => Device::rocm(0),
        #[cfg(feature = "cpu")]
        "cpu" => Device::cpu(),
        name => panic!("{DEVICE_VARIABLE}={name}: unknown, or its feature is not compiled in"),
    }
}

/// [`device`] with autodiff.
pub fn autodiff_device() -> Device {
    device().autodiff()
}

/// The float types that tests of equality run in: f64 where the backend computes in it, and f32.
pub fn test_dtypes() -> Vec<DType> {
    let mut dtypes = vec![DType::F32];
    if supports_f64() {
        dtypes.push(DType::F64);
    }
    dtypes
}

/// Whether the backend computes in f64.
pub fn supports_f64() -> bool {
    device().supports_dtype(DType::F64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests in f64 are left out where a backend lacks it: not on those that have it.
    #[test]
    fn backends_on_the_cpu_compute_in_f64() {
        let has_f64 = ["flex", "libtorch", "ndarray", "cpu"].contains(&device_name().as_str());
        assert!(supports_f64() || !has_f64, "{}", device_name());
    }
}
