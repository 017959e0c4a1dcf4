//! Which implementation runs, and which kernels it compiles.

use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::{CubeBackend, CubeDevice, tensor::CubeTensor};
use burn_tree_ssm::Implementation::{self, Accelerated, Automatic, Generic, Portable};
use burn_tree_ssm::{
    ArgumentError, GatedDeltaRuleInputs, GatedDeltaRuleSettings, TreeRecurrence, TreeSsmOps,
};
use cubecl::launched::LaunchedKernels;
use tree_training_devices::Events;

use crate::delta_rule::Heads;
use crate::kernels::{alone, call, cube_device, forked, heads, kernels};
use crate::support::{Forest, random};

#[test]
fn an_implementation_that_cannot_run_is_refused() {
    let _alone = alone();
    // More than the kernels have registers for.
    let wide = heads(1, 1, 1000, 2);
    for implementation in [Automatic, Generic] {
        call(wide, DType::F32, implementation).unwrap();
    }
    for implementation in [Portable, Accelerated] {
        let error = call(wide, DType::F32, implementation).unwrap_err();
        assert!(
            matches!(&error, ArgumentError::Implementation { requested, .. } if *requested == implementation),
            "{error}"
        );
    }
}

/// Forward and backward pass without Fusion and autodiff.
fn below_fusion(
    recurrence: &TreeRecurrence,
    heads: Heads,
    implementation: Implementation,
    dtype: DType,
    device: &CubeDevice,
) {
    let value_heads = heads.key_heads * heads.group;
    let rows = recurrence.rows();
    let tensor = |shape: [usize; 4], seed| -> CubeTensor {
        let data = random(shape, seed).into_data().convert_dtype(DType::F32);
        CubeBackend::float_from_data(data, device)
    };
    let rows_of = |heads, width, seed| {
        let data = random([1, rows, heads, width], seed).into_data();
        let tensor = CubeBackend::float_from_data(data.convert_dtype(dtype), device);
        CubeBackend::float_reshape(tensor, [rows, heads, width].into())
    };
    let gate = |seed| {
        CubeBackend::float_reshape(
            tensor([1, 1, rows, value_heads], seed),
            [rows, value_heads].into(),
        )
    };
    let state_shape = |count: usize| [count.max(1), value_heads, heads.key_dim, heads.value_dim];
    let inputs = GatedDeltaRuleInputs::<CubeBackend> {
        query: rows_of(heads.key_heads, heads.key_dim, 1),
        key: rows_of(heads.key_heads, heads.key_dim, 2),
        value: rows_of(value_heads, heads.value_dim, 3),
        log_decay: gate(4),
        beta: gate(5),
        initial_states: tensor(state_shape(recurrence.n_initial_states()), 6),
    };
    let settings = GatedDeltaRuleSettings {
        scale: 0.25,
        implementation,
    };
    let (output, saved) =
        CubeBackend::gated_delta_rule(inputs.clone(), recurrence.clone(), settings);
    CubeBackend::gated_delta_rule_backward(
        inputs,
        saved,
        output,
        tensor(state_shape(recurrence.requested_rows().len()), 7),
        recurrence.clone(),
        settings,
    );
}

#[test]
fn the_implementation_asked_for_runs() {
    let Some(device) = cube_device() else { return };
    let _alone = alone();
    let generic = (Generic, DType::F32, heads(1, 2, 8, 8));
    for (implementation, dtype, heads) in std::iter::once(generic).chain(kernels()) {
        let name = format!("{implementation:?}").to_lowercase();
        let events = Events::of(burn_tree_kit::implementation::TARGET);
        tracing::subscriber::with_default(events.clone(), || {
            below_fusion(&forked(), heads, implementation, dtype, &device);
        });
        let expected =
            ["forward", "backward"].map(|pass| format!("gated_delta_rule {pass} {name}"));
        assert_eq!(events.take(), expected);
    }
}

/// Heads that are too wide for the kernels take the generic form, and that is told once.
#[test]
fn kernels_that_are_missing_are_told_once() {
    let Some(device) = cube_device() else { return };
    let _alone = alone();
    let events = Events::of(burn_tree_kit::implementation::TARGET);
    tracing::subscriber::with_default(events.clone(), || {
        for _ in 0..2 {
            below_fusion(
                &forked(),
                heads(1, 1, 257, 2),
                Automatic,
                DType::F32,
                &device,
            );
        }
    });
    let passes = ["forward", "backward"].map(|pass| format!("gated_delta_rule {pass} generic"));
    let reason = "gated_delta_rule runs Burn's operations: the head dimension of the key is 257, at most 256 \
                  fit in registers";
    let mut expected = vec![reason.to_owned()];
    expected.extend(passes.iter().cycle().take(4).cloned());
    assert_eq!(events.take(), expected);
}

/// Trees, windows, numbers of heads and, up to a tile of the key, head dimensions are run-time
/// arguments.
#[test]
fn other_shapes_compile_no_other_kernels() {
    let Some(device) = cube_device() else { return };
    let _alone = alone();
    let run = |recurrence: &TreeRecurrence, heads| {
        below_fusion(recurrence, heads, Portable, DType::F32, &device);
    };
    let collection = LaunchedKernels::new();
    run(&forked(), heads(1, 2, 8, 8));
    let first = collection.finish();
    let collection = LaunchedKernels::new();
    for shape in 1..=30usize {
        let nodes = (0..shape).map(|node| (node.checked_sub(1 + node % 2), 1 + node % 7));
        let layout = Forest(nodes.collect()).layout();
        let rows = layout.len() + shape % 2;
        let recurrence = TreeRecurrence::from_layouts(&[layout], rows)
            .with_window_rows(1 + shape * 7 % 64)
            .with_requested_rows(&[0][..shape % 2]);
        run(
            &recurrence,
            heads(1 + shape % 2, 1 + shape % 3, 1 + shape, 2 * shape),
        );
    }
    let others = collection.finish();
    assert!(!first.is_empty());
    assert_eq!(
        others.difference(&first).count(),
        0,
        "of {} kernels",
        first.len()
    );
}
