//! Devices by name, for programs and tests. The names depend on the enabled backend features.
//! [`Events`] record which implementations ran.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Burn keeps the NdArray and LibTorch constructors until 0.23.
#![cfg_attr(any(feature = "tch", feature = "ndarray"), allow(deprecated))]

mod events;

use burn::tensor::{DType, Device};
use thiserror::Error;

pub use events::Events;

/// Errors of a device name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// The backend is not built in.
    #[error(
        "device {name:?}: built in are {}; others come with the Cargo feature of the same name, \
         libtorch and libtorch-cuda with tch",
        built_in().join(", ")
    )]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The text after the colon is not an index.
    #[error("device {device:?}: expected a number after the colon, as in cuda:0")]
    Index {
        /// The device as given.
        device: String,
    },
    /// The backend has a single device.
    #[error("device {device:?}: {name} has one device and takes no index")]
    NoIndex {
        /// The device as given.
        device: String,
        /// Its backend.
        name: String,
    },
}

/// Environment variable that selects the device of tests and benchmarks.
pub const DEVICE_VARIABLE: &str = "BURN_DEVICE";

/// The name in `BURN_DEVICE`, or `flex`.
pub fn name_from_environment() -> String {
    std::env::var(DEVICE_VARIABLE).unwrap_or_else(|_| "flex".to_owned())
}

/// The device named by `BURN_DEVICE` (Flex if it is not set), without autodiff.
///
/// # Panics
/// If the device does not exist, so that tests do not run on another one.
pub fn device_from_environment() -> Device {
    device_by_name(&name_from_environment())
        .unwrap_or_else(|error| panic!("{DEVICE_VARIABLE}: {error}"))
}

/// Whether the device supports `dtype`. WGSL runtimes store f64, but WGSL has no f64 exponential,
/// and the results would be wrong.
pub fn computes_in(dtype: DType) -> bool {
    let is_wgsl = ["wgpu", "vulkan", "metal"].contains(&backend_from_environment().as_str());
    device_from_environment().supports_dtype(dtype) && !(is_wgsl && dtype == DType::F64)
}

/// Whether the device belongs to a CubeCL runtime.
pub fn is_cubecl() -> bool {
    !["flex", "ndarray", "libtorch", "libtorch-cuda"].contains(&backend_from_environment().as_str())
}

/// The name in `BURN_DEVICE` without an index.
fn backend_from_environment() -> String {
    let name = name_from_environment();
    match name.split_once(':') {
        Some((backend, _)) => backend.to_owned(),
        None => name,
    }
}

/// Names of the built-in backends.
pub fn built_in() -> Vec<&'static str> {
    let all = [
        (cfg!(feature = "flex"), "flex"),
        (cfg!(feature = "ndarray"), "ndarray"),
        (cfg!(feature = "tch"), "libtorch"),
        (cfg!(feature = "tch"), "libtorch-cuda"),
        (cfg!(feature = "cpu"), "cpu"),
        (cfg!(feature = "cuda"), "cuda"),
        (cfg!(feature = "rocm"), "rocm"),
        (cfg!(feature = "wgpu"), "wgpu"),
        (cfg!(feature = "vulkan"), "vulkan"),
        (cfg!(feature = "metal"), "metal"),
    ];
    all.into_iter()
        .filter(|(is_in, _)| *is_in)
        .map(|(_, name)| name)
        .collect()
}

/// The device `name` or `name:index`, without autodiff.
///
/// # Errors
/// [`DeviceError`] if the backend is not built in, or the index is invalid.
pub fn device_by_name(device: &str) -> Result<Device, DeviceError> {
    let (name, index) = match device.split_once(':') {
        None => (device, None),
        Some((name, index)) => {
            let wrong = |_| DeviceError::Index {
                device: device.into(),
            };
            (name, Some(index.parse::<usize>().map_err(wrong)?))
        }
    };
    let single = |made: Device| match index {
        None => Ok(made),
        Some(_) => Err(DeviceError::NoIndex {
            device: device.into(),
            name: name.into(),
        }),
    };
    #[cfg(any(feature = "wgpu", feature = "vulkan", feature = "metal"))]
    let kind = match index {
        None => burn::tensor::DeviceKind::DefaultDevice,
        Some(index) => burn::tensor::DeviceKind::DiscreteGpu(index),
    };
    match name {
        #[cfg(feature = "flex")]
        "flex" => single(Device::flex()),
        #[cfg(feature = "ndarray")]
        "ndarray" => single(Device::ndarray()),
        #[cfg(feature = "tch")]
        "libtorch" => single(Device::libtorch()),
        #[cfg(feature = "tch")]
        "libtorch-cuda" => Ok(Device::libtorch_cuda(index.unwrap_or(0))),
        #[cfg(feature = "cpu")]
        "cpu" => single(Device::cpu()),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Device::cuda(index.unwrap_or(0))),
        #[cfg(feature = "rocm")]
        "rocm" => Ok(Device::rocm(index.unwrap_or(0))),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Device::wgpu(kind)),
        #[cfg(feature = "vulkan")]
        "vulkan" => Ok(Device::vulkan(kind)),
        #[cfg(feature = "metal")]
        "metal" => Ok(Device::metal(kind)),
        _ => Err(DeviceError::Unknown { name: name.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "flex")]
    fn the_processor_is_found_by_name() {
        assert_eq!(device_by_name("flex"), Ok(Device::flex()));
        let error = device_by_name("flex:1").unwrap_err().to_string();
        assert_eq!(
            error,
            "device \"flex:1\": flex has one device and takes no index"
        );
    }

    #[test]
    fn what_is_not_built_in_is_an_error_that_lists_what_is() {
        let error = device_by_name("abacus:0").unwrap_err().to_string();
        for name in built_in() {
            assert!(error.contains(name), "{error}");
        }
        let error = device_by_name("cuda:x").unwrap_err();
        assert_eq!(
            error,
            DeviceError::Index {
                device: "cuda:x".into()
            }
        );
    }
}
