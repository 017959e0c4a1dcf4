//! Detects device failures that CubeCL would lose.
//!
//! When a device fails, usually for lack of memory, CubeCL marks the buffers that were not written
//! and skips kernels that would read them; reading such a buffer returns an error. On CUDA (CubeCL
//! 0.11.3) a model loses this mark, probably in matrix products, and later kernels read undefined
//! memory. The operations of these crates therefore record failures themselves, in one number per
//! device, the sentinel.

use std::sync::{Mutex, PoisonError};

use burn::backend::ExecutionError;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::TensorData;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeDevice};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::{address_type, elem};

/// The sentinel of each device. Reading it fails if a probed tensor could not be computed.
static SENTINELS: Mutex<Vec<(CubeDevice, CubeTensor)>> = Mutex::new(Vec::new());

/// Reads the first number of the tensor and the sentinel, and writes the sentinel, whose value has
/// no meaning. Runs one unit.
#[cube(launch_unchecked, address_type = "dynamic")]
fn probe_kernel<E: Numeric>(tensor: &[E], sentinel: &mut [f32], #[define(E)] _dtype: ElemType) {
    if ABSOLUTE_POS == 0 {
        let is_zero = tensor[0] == E::from_int(0);
        sentinel[0] = f32::cast_from(is_zero) + f32::min(sentinel[0], 1.0f32);
    }
}

/// Records for [`take_failure`] whether `tensor` was computed. Launches one unit asynchronously.
pub fn probe(tensor: &CubeTensor) {
    if tensor.meta.num_elements() == 0 {
        return;
    }
    let sentinel = sentinel(&tensor.device);
    // SAFETY: both tensors have a first element.
    unsafe {
        probe_kernel::launch_unchecked(
            &tensor.client,
            CubeCount::new_single(),
            CubeDim::new_single(),
            address_type(&[tensor]),
            tensor.clone().into_buffer_arg(),
            sentinel.into_buffer_arg(),
            elem(tensor.dtype),
        );
    }
}

/// The results of an operation: one tensor or a tuple of them. A probe of the first tensor
/// suffices, because the same kernels write all of them.
pub trait Outputs {
    /// The first tensor.
    fn first(&self) -> &CubeTensor;
}

impl Outputs for CubeTensor {
    fn first(&self) -> &CubeTensor {
        self
    }
}

macro_rules! outputs {
    ($($other:ident),+) => {
        impl<$($other),+> Outputs for (CubeTensor, $($other),+) {
            fn first(&self) -> &CubeTensor {
                &self.0
            }
        }
    };
}
outputs!(B);
outputs!(B, C);
outputs!(B, C, D);
outputs!(B, C, D, E, F);

/// Probes `results` and returns them.
pub fn probed<T: Outputs>(results: T) -> T {
    probe(results.first());
    results
}

/// Waits for the device and reports whether all tensors that were probed since the last call were
/// computed.
///
/// # Errors
/// The failure of the device. The call resets the record.
pub fn take_failure(device: &CubeDevice) -> Result<(), ExecutionError> {
    let read = CubeBackend::float_into_data(sentinel(device));
    let result = cubecl::future::block_on(read);
    if result.is_err() {
        let mut sentinels = SENTINELS.lock().unwrap_or_else(PoisonError::into_inner);
        sentinels.retain(|(of, _)| of != device);
    }
    result.map(drop)
}

fn sentinel(device: &CubeDevice) -> CubeTensor {
    let mut sentinels = SENTINELS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, sentinel)) = sentinels.iter().find(|(of, _)| of == device) {
        return sentinel.clone();
    }
    let sentinel = CubeBackend::float_from_data(TensorData::from([0f32]), device);
    sentinels.push((device.clone(), sentinel.clone()));
    sentinel
}
