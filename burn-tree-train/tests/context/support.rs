//! The device under test.

use burn::tensor::Device;
use tree_training_devices::device_from_environment;

/// The device named by `BURN_DEVICE`, with autodiff.
pub fn device() -> Device {
    device_from_environment().autodiff()
}
