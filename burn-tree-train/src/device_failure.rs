//! Failures of a device that the results do not show.
//!
//! When a device cannot compute something, for want of memory above all, CubeCL marks the buffers
//! that were not written, skips kernels that would read them, and marks what these would have written:
//! to read a marked tensor is an error. But a kernel that writes **part** of a buffer clears the mark
//! of all of it (CubeCL 0.11.3): what follows runs on whatever memory holds. So the marks are asked
//! for where they still are: those of the parameters when a step begins, and those of what the
//! operations of these crates return when it ends.

#[cfg(feature = "cubecl-backend")]
use burn::backend::DispatchDevice;
use burn::backend::ExecutionError;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use thiserror::Error;

/// A parameter that its device could not compute.
#[derive(Debug, Error)]
#[error("the device could not compute the parameter {name}: {source}")]
pub struct ParameterFailure {
    /// Its module path.
    pub name: String,
    /// What the device reports.
    pub source: ExecutionError,
}

/// Tells whether the device could compute every float parameter of a module: [`step_gradients`] and
/// [`step_forward`] ask before they begin, a training loop asks after an update. Copies nothing and
/// does not wait for the GPU. On other than CubeCL devices, where a failure is a panic, it does
/// nothing.
///
/// [`step_gradients`]: crate::step_gradients
/// [`step_forward`]: crate::step_forward
///
/// # Errors
/// [`ParameterFailure`] of the first one.
pub fn check_parameters<M: Module>(module: &M) -> Result<(), ParameterFailure> {
    struct Check {
        path: Vec<String>,
        failure: Option<ParameterFailure>,
    }
    impl ModuleVisitor for Check {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.base().inner();
            if self.failure.is_some() || !is_cubecl(&value.device()) {
                return;
            }
            // The mark is looked at now, and the numbers when somebody looks at the bytes.
            if let Err(source) = value.try_into_data() {
                let name = self.path.join(".");
                self.failure = Some(ParameterFailure { name, source });
            }
        }
    }
    let mut check = Check {
        path: Vec::new(),
        failure: None,
    };
    module.visit(&mut check);
    check.failure.map_or(Ok(()), Err)
}

fn is_cubecl(device: &Device) -> bool {
    #[cfg(feature = "cubecl-backend")]
    return matches!(
        device.clone().inner().as_dispatch(),
        DispatchDevice::Cube(_)
    );
    #[cfg(not(feature = "cubecl-backend"))]
    {
        let _ = device;
        false
    }
}

/// Waits for a device and tells whether it failed to compute anything that the operations of these
/// crates gave or got since the last call. Call it after each step, before its result is used, and
/// [`check_parameters`] after the update.
///
/// It also fails if another thread's work on the device did. On other than CubeCL devices it only
/// waits.
///
/// # Errors
/// [`ExecutionError`] of what failed first.
pub fn check_device(device: &Device) -> Result<(), ExecutionError> {
    device.sync()?;
    #[cfg(feature = "cubecl-backend")]
    if let DispatchDevice::Cube(device) = device.clone().inner().as_dispatch() {
        burn_tree_kit::cube::take_failure(device)?;
    }
    Ok(())
}
