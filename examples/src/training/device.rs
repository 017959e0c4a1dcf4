//! Devices by name. Which names exist depends on the backends the program was built with.

use burn::tensor::Device;
use thiserror::Error;

/// A device that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// No backend of this name is built in.
    #[error(
        "device {name:?}: this program was built with {}; others come with a feature of the same \
         name (cargo run --features ...)",
        built_in().join(", ")
    )]
    Unknown {
        /// The name asked for.
        name: String,
    },
    /// What follows the colon is not an index.
    #[error("device {device:?}: expected a number after the colon, as in cuda:0")]
    Index {
        /// The device as given.
        device: String,
    },
    /// The backend has one device only.
    #[error("device {device:?}: {name} has one device and takes no index")]
    NoIndex {
        /// The device as given.
        device: String,
        /// Its backend.
        name: String,
    },
}

/// Names of the backends that are built in.
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

/// The device called `name` or `name:index`, without automatic differentiation.
///
/// # Errors
/// [`DeviceError`] if no such backend is built in, or the index is not one.
#[allow(deprecated)] // Burn keeps the NdArray and LibTorch constructors until 0.23.
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
