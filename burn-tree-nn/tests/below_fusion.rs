//! Compares the kernels without Fusion with the implementation on Flex, on the device of
//! `BURN_DEVICE` if it is a CubeCL device.
#![cfg(all(feature = "cubecl-backend", feature = "flex"))]

use std::sync::{Arc, Mutex};

use burn::backend::{Backend, DispatchDevice, Flex, tensor::FloatTensor};
use burn::tensor::TensorData;
use burn_cubecl::{CubeBackend, CubeDevice, kernel::into_contiguous, tensor::CubeTensor};
use burn_tree_nn::{GatherPlan, NormScale, TreeNnOps};
use cubecl::launched::LaunchedKernels;
use tree_training_devices::{Events, device_from_environment};

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
fn numbers<B: Backend, const D: usize>(
    shape: [usize; D],
    seed: usize,
    device: &B::Device,
) -> FloatTensor<B> {
    let values: Vec<f32> = (0..shape.iter().product())
        .map(|index: usize| ((index * 7919 + seed * 104_729) % 2003) as f32 / 1001.5 - 1.0)
        .collect();
    B::float_from_data(TensorData::new(values, shape), device)
}

fn values<B: Backend>(tensor: FloatTensor<B>) -> Vec<f32> {
    let data = cubecl::future::block_on(B::float_into_data(tensor)).unwrap();
    data.try_into_vec().unwrap()
}

/// All results of the operations on `rows` rows.
fn results<B: TreeNnOps>(rows: usize, width: usize, device: &B::Device) -> Vec<Vec<f32>> {
    let x = numbers::<B, 2>([rows, width], 1, device);
    let grad = numbers::<B, 2>([rows, width], 2, device);
    let weight = numbers::<B, 1>([width], 3, device);
    let up = numbers::<B, 2>([rows, width], 4, device);
    let norms = [NormScale::Weight, NormScale::OnePlusWeight].map(|scale| {
        let (y, inverse_rms) = B::rms_norm(x.clone(), weight.clone(), 1e-6, scale);
        let (norm_x, norm_weight) = B::rms_norm_backward(
            x.clone(),
            weight.clone(),
            inverse_rms.clone(),
            grad.clone(),
            scale,
        );
        [y, inverse_rms, norm_x, norm_weight]
    });
    let (gate_grad, up_grad) = B::swiglu_backward(x.clone(), up.clone(), grad.clone());
    // One row is read often enough for a sum in parts.
    let indices = (0..rows).map(|row| (row % 40 / 39) as u32).collect();
    let plan = Arc::new(GatherPlan::new(indices, rows.max(2)).unwrap());
    let table = numbers::<B, 2>([rows.max(2), width], 5, device);
    let others = [
        B::swiglu(x, up),
        gate_grad,
        up_grad,
        B::gather_rows(table, plan.clone()),
        B::gather_rows_backward(grad, plan),
    ];
    norms
        .into_iter()
        .flatten()
        .chain(others)
        .map(values::<B>)
        .collect()
}

#[test]
fn kernels_equal_flex() {
    let Some(device) = device() else { return };
    let _alone = KERNELS.lock();
    for (rows, width) in [(1, 1), (7, 30), (600, 128), (40, 1024)] {
        let events = Events::of(burn_tree_kit::implementation::TARGET);
        let found = tracing::subscriber::with_default(events.clone(), || {
            results::<CubeBackend>(rows, width, &device)
        });
        let events = events.take();
        // Both norms, the activation and the gather, each forward and backward.
        assert_eq!(events.len(), 8, "{events:?}");
        assert!(
            events.iter().all(|it| it.ends_with(" portable")),
            "{events:?}"
        );
        let expected = results::<Flex>(rows, width, &Default::default());
        for (result, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            assert_eq!(found.len(), expected.len());
            for (found, expected) in found.into_iter().zip(expected) {
                // Sums of at most 1,024 products in another order.
                let close = (found - expected).abs() <= 1e-4 * (1.0 + expected.abs());
                assert!(close, "result {result}: {found} instead of {expected}");
            }
        }
    }
}

/// Numbers of rows are run-time arguments.
#[test]
fn other_numbers_of_rows_compile_nothing() {
    let Some(device) = device() else { return };
    let _alone = KERNELS.lock();
    let collection = LaunchedKernels::new();
    results::<CubeBackend>(100, 64, &device);
    let first = collection.finish();
    let collection = LaunchedKernels::new();
    for rows in (60..1500).step_by(29) {
        results::<CubeBackend>(rows, 64, &device);
    }
    let others = collection.finish();
    assert!(!first.is_empty());
    assert_eq!(others.difference(&first).count(), 0);
}

/// Rows that exceed the registers of a cube use Burn's primitives, with an event.
#[test]
fn wide_rows_are_computed() {
    let Some(device) = device() else { return };
    let _alone = KERNELS.lock();
    let width = 16_383;
    let events = Events::of(burn_tree_kit::implementation::TARGET);
    let y: CubeTensor = tracing::subscriber::with_default(events.clone(), || {
        let x = numbers::<CubeBackend, 2>([2, width], 1, &device);
        let weight = numbers::<CubeBackend, 1>([width], 2, &device);
        CubeBackend::rms_norm(x, weight, 1e-6, NormScale::Weight).0
    });
    let reason = "rms_norm runs Burn's operations: rows of 16383 numbers are too wide";
    assert_eq!(events.take(), [reason, "rms_norm forward generic"]);
    let flex = Default::default();
    let expected = Flex::rms_norm(
        numbers::<Flex, 2>([2, width], 1, &flex),
        numbers::<Flex, 1>([width], 2, &flex),
        1e-6,
        NormScale::Weight,
    );
    let found = values::<CubeBackend>(into_contiguous(y));
    for (found, expected) in found.into_iter().zip(values::<Flex>(expected.0)) {
        assert!(
            (found - expected).abs() <= 1e-5,
            "{found} instead of {expected}"
        );
    }
}
