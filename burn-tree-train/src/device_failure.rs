//! Failures of a device that the results do not show.

use burn::backend::ExecutionError;
use burn::tensor::Device;

/// Waits for a device and tells whether it failed to compute anything that the operations of these crates
/// gave or got since the last call, for want of memory above all.
///
/// To read a tensor that could not be computed is an error, and so is to read what was computed from it.
/// But on CUDA (Burn 0.22.1) the loss of a step that did not fit could be read like any other. Call this
/// after each step, before its result is used, and read a number of each parameter: these may be inputs
/// of products only.
///
/// It also fails if another thread's work on the device did. On other backends it only waits.
///
/// # Errors
/// [`ExecutionError`] of what failed first.
pub fn check_device(device: &Device) -> Result<(), ExecutionError> {
    device.sync()?;
    #[cfg(feature = "cubecl-backend")]
    if let burn::backend::DispatchDevice::Cube(device) = device.clone().inner().as_dispatch() {
        burn_tree_kit::cube::take_failure(device)?;
    }
    Ok(())
}
