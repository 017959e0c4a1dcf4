//! The device under test and what it has of the kernels.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeDevice;
use burn_tree_ssm::Implementation::{self, Accelerated, Portable};
use burn_tree_ssm::{
    ArgumentError, GatedDeltaRuleOptions, TreeRecurrence, try_tree_gated_delta_rule,
};
use tree_training_devices::computes_in;

use crate::delta_rule::Heads;
use crate::support::{Batch, Forest, device};

/// Tests run one after another, because one of them counts the kernels of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static KERNELS: Mutex<()> = Mutex::new(());
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of `BURN_DEVICE`, if it is one of CubeCL.
pub fn cube_device() -> Option<CubeDevice> {
    match device().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        #[allow(unreachable_patterns, reason = "there may be no other backend")]
        _ => None,
    }
}

pub const fn heads(key_heads: usize, group: usize, key_dim: usize, value_dim: usize) -> Heads {
    Heads {
        key_heads,
        group,
        key_dim,
        value_dim,
    }
}

/// What runs these heads in `dtype` on the device, of the kernels.
pub fn available(dtype: DType, heads: Heads) -> Vec<Implementation> {
    let runs = |&implementation: &Implementation| match call(heads, dtype, implementation) {
        Ok(()) => true,
        Err(ArgumentError::Implementation { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    [Portable, Accelerated].into_iter().filter(runs).collect()
}

/// The kernels that the device has, each with a dtype and heads that it runs.
pub fn kernels() -> Vec<(Implementation, DType, Heads)> {
    let accelerated = (Accelerated, DType::F16, heads(1, 2, 64, 64));
    let mut kernels = Vec::new();
    if cube_device().is_some() {
        kernels.push((Portable, DType::F32, heads(1, 2, 8, 8)));
        if computes_in(accelerated.1)
            && available(accelerated.1, accelerated.2).contains(&Accelerated)
        {
            kernels.push(accelerated);
        }
    }
    kernels
}

/// A call with one row of zeros.
pub fn call(
    heads: Heads,
    dtype: DType,
    implementation: Implementation,
) -> Result<(), ArgumentError> {
    let (device, value_heads) = (device(), heads.key_heads * heads.group);
    let recurrence = Batch::of(Forest(vec![(None, 1)]), 64).recurrence();
    let zeros = |heads, width| Tensor::<4>::zeros([1, 1, heads, width], (&device, dtype));
    let gates = || Tensor::<3>::zeros([1, 1, value_heads], (&device, DType::F32));
    let result = try_tree_gated_delta_rule(
        zeros(heads.key_heads, heads.key_dim),
        zeros(heads.key_heads, heads.key_dim),
        zeros(value_heads, heads.value_dim),
        gates(),
        gates(),
        &recurrence,
        None,
        GatedDeltaRuleOptions {
            implementation,
            ..Default::default()
        },
    )?;
    assert!(result.output.into_data().iter::<f32>().all(|it| it == 0.0));
    Ok(())
}

/// Two trees, the first from an initial state: a fork, a bundle of short leaves, nodes of one
/// token and of more than one and two windows, a tree of one token; two requested rows, padding.
pub fn forked() -> TreeRecurrence {
    let nodes = vec![
        (None, 70),
        (Some(0), 1),
        (Some(1), 65),
        (Some(1), 3),
        (Some(1), 4),
        (Some(0), 17),
        (None, 1),
    ];
    let layout = Forest(nodes).layout();
    let rows = layout.len();
    TreeRecurrence::from_layouts(&[layout], rows + 3)
        .with_initial_states(&[Some(0), None])
        .with_requested_rows(&[80, 20])
}
