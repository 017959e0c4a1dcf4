//! Device failures that do not show in the results.
//!
//! When a CubeCL device cannot compute something, most often for lack of memory, CubeCL marks the
//! unwritten buffers, skips kernels that would read them, and marks the outputs of these kernels.
//! Reading a marked tensor is an error. But a kernel that writes **part** of a buffer clears the
//! mark of the whole buffer (CubeCL 0.11.3), and later kernels read uninitialised memory. The marks
//! are therefore checked early: those of the parameters at the start of a step, and those of the
//! results of these crates' operations at its end.

#[cfg(feature = "cubecl-backend")]
use burn::backend::DispatchDevice;
use burn::backend::ExecutionError;
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Device, Tensor};
use thiserror::Error;

/// A parameter that the device could not compute.
#[derive(Debug, Error)]
#[error("the device could not compute the parameter {name}: {source}")]
pub struct ParameterFailure {
    /// Module path of the parameter.
    pub name: String,
    /// The error of the device.
    pub source: ExecutionError,
}

/// Checks that the device could compute every float parameter of a module. [`step_gradients`] and
/// [`step_forward`] call it at the start; a training loop calls it after an update. It copies
/// nothing and does not wait for the GPU. On devices other than CubeCL's, where a failure is a
/// panic, it does nothing.
///
/// [`step_gradients`]: crate::step_gradients
/// [`step_forward`]: crate::step_forward
///
/// # Errors
/// [`ParameterFailure`] for the first such parameter.
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
            // This call checks the mark; the data would be copied only when its bytes are read.
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

/// Waits for a device and checks that it computed all inputs and results of these crates'
/// operations since the last call. Call it after each step before using the result, and
/// [`check_parameters`] after the update.
///
/// It also fails if the work of another thread on the device failed. On devices other than CubeCL's
/// it only waits.
///
/// # Errors
/// [`ExecutionError`] of the first failure.
pub fn check_device(device: &Device) -> Result<(), ExecutionError> {
    device.sync()?;
    #[cfg(feature = "cubecl-backend")]
    if let DispatchDevice::Cube(device) = device.clone().inner().as_dispatch() {
        burn_tree_kit::cube::take_failure(device)?;
    }
    Ok(())
}
