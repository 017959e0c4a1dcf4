//! The device under test.

use burn::tensor::{DType, Device};

pub use tree_training_devices::{
    device_from_environment as device, name_from_environment as device_name,
};

/// [`device`] with autodiff.
pub fn autodiff_device() -> Device {
    device().autodiff()
}

/// The float types of equality tests: f32, and f64 if the backend supports it.
pub fn test_dtypes() -> Vec<DType> {
    let mut dtypes = vec![DType::F32];
    if supports_f64() {
        dtypes.push(DType::F64);
    }
    dtypes
}

/// Whether the backend supports f64.
pub fn supports_f64() -> bool {
    tree_training_devices::computes_in(DType::F64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests in f64 may be skipped only on backends without f64.
    #[test]
    fn backends_on_the_cpu_compute_in_f64() {
        let has_f64 = ["flex", "libtorch", "ndarray", "cpu"].contains(&device_name().as_str());
        assert!(supports_f64() || !has_f64, "{}", device_name());
    }
}
