//! CubeCL runtimes: kernels for f32, f16 and bf16; other dtypes, and the grouped product, take the
//! bodies from primitives.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn_cubecl::CubeBackend;

use crate::cube::{announce, has_kernels};
use crate::gather_rows::{self, GatherPlan};
use crate::lm_head::{self, LmHeadPlan};
use crate::{TreeTrainOps, rms_norm, swiglu};

/// Runs the kernel if there is one for these arguments, or else the body from primitives.
macro_rules! kernel_if {
    ($has_kernel:expr, $op:literal, $module:ident :: $function:ident ($($kernel:expr),*), generic($($generic:expr),*)) => {
        if $has_kernel {
            announce($op, "kernel");
            $module::kernel::$function($($kernel),*)
        } else {
            announce($op, "primitives");
            $module::generic::$function::<Self>($($generic),*)
        }
    };
}

impl TreeTrainOps for CubeBackend {
    fn lm_head_log_probs(
        hidden: FloatTensor<Self>,
        head_weight: FloatTensor<Self>,
        targets: IntTensor<Self>,
        plan: Arc<LmHeadPlan>,
        entropy: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            lm_head::kernel::supports(&hidden, &head_weight, &plan),
            "lm_head_log_probs",
            lm_head::forward(hidden, head_weight, targets, &plan, entropy),
            generic(hidden, head_weight, targets, &plan, entropy)
        )
    }

    fn lm_head_log_probs_backward(
        hidden: FloatTensor<Self>,
        head_weight: FloatTensor<Self>,
        targets: IntTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        plan: Arc<LmHeadPlan>,
        head_gradient: bool,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            lm_head::kernel::supports(&hidden, &head_weight, &plan),
            "lm_head_log_probs_backward",
            lm_head::backward(
                hidden,
                head_weight,
                targets,
                log_sum_exp,
                grad,
                &plan,
                head_gradient
            ),
            generic(
                hidden,
                head_weight,
                targets,
                log_sum_exp,
                grad,
                &plan,
                head_gradient
            )
        )
    }

    fn gather_rows(x: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        kernel_if!(
            has_kernels(&[&x]),
            "gather_rows",
            gather_rows::forward(x, &plan),
            generic(x, &plan)
        )
    }

    fn gather_rows_backward(grad: FloatTensor<Self>, plan: Arc<GatherPlan>) -> FloatTensor<Self> {
        let dtype = grad.dtype;
        kernel_if!(
            has_kernels(&[&grad]),
            "gather_rows_backward",
            gather_rows::backward(grad, &plan, dtype),
            generic(grad, &plan)
        )
    }

    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f64,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            has_kernels(&[&x, &weight]) && rms_norm::kernel::fits(&x, &weight),
            "rms_norm",
            rms_norm::forward(x, weight, epsilon),
            generic(x, weight, epsilon)
        )
    }

    fn rms_norm_backward(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        inverse_rms: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            has_kernels(&[&x, &weight, &grad]) && rms_norm::kernel::fits(&x, &weight),
            "rms_norm_backward",
            rms_norm::backward(x, weight, inverse_rms, grad),
            generic(x, weight, inverse_rms, grad)
        )
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        kernel_if!(
            has_kernels(&[&gate, &up]),
            "swiglu",
            swiglu::forward(gate, up),
            generic(gate, up)
        )
    }

    fn swiglu_backward(
        gate: FloatTensor<Self>,
        up: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        kernel_if!(
            has_kernels(&[&gate, &up, &grad]),
            "swiglu_backward",
            swiglu::backward(gate, up, grad),
            generic(gate, up, grad)
        )
    }
}

/// Without Fusion: kernels against the bodies from primitives, on the device of `BURN_DEVICE` if
/// it is one of CubeCL.
#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use burn::backend::{DispatchDevice, ops::FloatTensorOps};
    use burn::tensor::{DType, TensorData};
    use burn_cubecl::{CubeDevice, tensor::CubeTensor};
    use cubecl::launched::LaunchedKernels;
    use tree_training_devices::device_from_environment;

    use super::*;
    use crate::cube::contiguous;

    /// Kernels are counted for the whole process.
    static KERNELS: Mutex<()> = Mutex::new(());

    fn device() -> Option<CubeDevice> {
        match device_from_environment().as_dispatch() {
            DispatchDevice::Cube(device) => Some(device.clone()),
            #[allow(unreachable_patterns, reason = "there may be no other backend")]
            _ => None,
        }
    }

    /// Numbers in -1..1.
    fn numbers<const D: usize>(shape: [usize; D], seed: usize, device: &CubeDevice) -> CubeTensor {
        let values: Vec<f32> = (0..shape.iter().product())
            .map(|index: usize| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0)
            .collect();
        CubeBackend::float_from_data(TensorData::new(values, shape), device)
    }

    fn values(tensor: CubeTensor) -> Vec<f32> {
        let [tensor] = contiguous([tensor]);
        let data = cubecl::future::block_on(CubeBackend::float_into_data(tensor)).unwrap();
        data.try_into_vec().unwrap()
    }

    /// Sums of some thousand products in another order.
    fn assert_close(found: CubeTensor, expected: CubeTensor) {
        assert_eq!(found.meta.shape(), expected.meta.shape());
        for (found, expected) in values(found).into_iter().zip(values(expected)) {
            let close = (found - expected).abs() <= 1e-4 * (1.0 + expected.abs());
            assert!(close, "{found} instead of {expected}");
        }
    }

    fn compare(rows: usize, width: usize, device: &CubeDevice) {
        let x = numbers([rows, width], 1, device);
        let grad = numbers([rows, width], 2, device);
        let weight = numbers([width], 3, device);

        let (y, inverse_rms) = CubeBackend::rms_norm(x.clone(), weight.clone(), 1e-6);
        let expected = rms_norm::generic::forward::<CubeBackend>(x.clone(), weight.clone(), 1e-6);
        assert_close(y, expected.0);
        assert_close(inverse_rms.clone(), expected.1);
        let inputs = || (x.clone(), weight.clone(), inverse_rms.clone(), grad.clone());
        let (a, b, c, d) = inputs();
        let found = CubeBackend::rms_norm_backward(a, b, c, d);
        let (a, b, c, d) = inputs();
        let expected = rms_norm::generic::backward::<CubeBackend>(a, b, c, d);
        assert_close(found.0, expected.0);
        assert_close(found.1, expected.1);

        let up = numbers([rows, width], 4, device);
        assert_close(
            CubeBackend::swiglu(x.clone(), up.clone()),
            swiglu::generic::forward::<CubeBackend>(x.clone(), up.clone()),
        );
        let found = CubeBackend::swiglu_backward(x.clone(), up.clone(), grad.clone());
        let expected =
            swiglu::generic::backward::<CubeBackend>(x.clone(), up.clone(), grad.clone());
        assert_close(found.0, expected.0);
        assert_close(found.1, expected.1);

        let indices: Vec<u32> = (0..rows).map(|i| (i * i % rows.min(3)) as u32).collect();
        let plan = Arc::new(GatherPlan::new(indices, rows).unwrap());
        assert_close(
            CubeBackend::gather_rows(x.clone(), plan.clone()),
            gather_rows::generic::forward::<CubeBackend>(x, &plan),
        );
        assert_close(
            CubeBackend::gather_rows_backward(grad.clone(), plan.clone()),
            gather_rows::generic::backward::<CubeBackend>(grad, &plan),
        );
    }

    #[test]
    fn kernels_equal_the_primitives() {
        let Some(device) = device() else { return };
        let _alone = KERNELS.lock();
        for (rows, width) in [(1, 1), (7, 30), (600, 128), (40, 1024)] {
            compare(rows, width, &device);
        }
    }

    /// Numbers of rows are run-time arguments.
    #[test]
    fn other_numbers_of_rows_compile_nothing() {
        let Some(device) = device() else { return };
        let _alone = KERNELS.lock();
        let run = |rows: usize| {
            let x = numbers([rows, 64], 1, &device);
            let weight = numbers([64], 3, &device);
            let (y, inverse_rms) = CubeBackend::rms_norm(x.clone(), weight.clone(), 1e-6);
            CubeBackend::rms_norm_backward(x.clone(), weight, inverse_rms, y.clone());
            CubeBackend::swiglu_backward(x.clone(), y.clone(), CubeBackend::swiglu(x.clone(), y));
            // One row is read often enough for a sum in parts.
            let indices = (0..rows).map(|row| (row % 40 / 39) as u32).collect();
            let plan = Arc::new(GatherPlan::new(indices, rows).unwrap());
            let y = CubeBackend::gather_rows(x, plan.clone());
            CubeBackend::gather_rows_backward(y, plan)
        };
        let collection = LaunchedKernels::new();
        values(run(100));
        let first = collection.finish();
        let collection = LaunchedKernels::new();
        for rows in (60..1500).step_by(29) {
            values(run(rows));
        }
        let others = collection.finish();
        assert!(!first.is_empty());
        assert_eq!(others.difference(&first).count(), 0);
    }

    /// What has no kernel is computed all the same: numbers in f64 where the device has them,
    /// rows that the units of a cube cannot hold.
    #[test]
    fn other_dtypes_and_wide_rows_take_the_primitives() {
        let Some(device) = device() else { return };
        let _alone = KERNELS.lock();
        let x = numbers([2, 16_383], 1, &device);
        let weight = numbers([16_383], 2, &device);
        assert!(!rms_norm::kernel::fits(&x, &weight));
        let (y, _) = CubeBackend::rms_norm(x.clone(), weight.clone(), 1e-6);
        let expected = rms_norm::generic::forward::<CubeBackend>(x, weight, 1e-6);
        assert_close(y, expected.0);
        if tree_training_devices::computes_in(DType::F64) {
            let wide =
                |seed| CubeBackend::float_cast(numbers([3, 5], seed, &device), DType::F64.into());
            let y = CubeBackend::swiglu(wide(1), wide(2));
            assert_eq!(y.dtype, DType::F64);
        }
    }
}
