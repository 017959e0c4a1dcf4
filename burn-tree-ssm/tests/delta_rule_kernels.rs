//! The kernels of the gated delta rule, asked for one by one, on the device of `BURN_DEVICE` if
//! that is one of CubeCL.
#![cfg(all(feature = "cubecl-backend", feature = "flex"))]

#[path = "support/delta_rule.rs"]
mod delta_rule;
mod support;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::DispatchDevice;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, Tensor};
use burn_cubecl::{CubeBackend, CubeDevice, tensor::CubeTensor};
use burn_tree_ssm::Implementation::{self, Accelerated, Automatic, Generic, Portable};
use burn_tree_ssm::{
    ArgumentError, GatedDeltaRuleInputs, GatedDeltaRuleOptions, GatedDeltaRuleSettings,
    TreeRecurrence, TreeSsmOps, try_tree_gated_delta_rule,
};
use cubecl::launched::LaunchedKernels;
use proptest::prelude::*;
use tree_pack::TreeLayout;
use tree_training_devices::{Events, computes_in};

use delta_rule::{Heads, Inputs, SLOW, STRONG};
use support::{Batch, Forest, batches, cases, device, random, values};

/// Tests run one after another, because one of them counts the kernels of the process.
fn alone() -> MutexGuard<'static, ()> {
    static KERNELS: Mutex<()> = Mutex::new(());
    KERNELS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of `BURN_DEVICE`, if it is one of CubeCL.
fn cube_device() -> Option<CubeDevice> {
    match device().as_dispatch() {
        DispatchDevice::Cube(device) => Some(device.clone()),
        #[allow(unreachable_patterns, reason = "there may be no other backend")]
        _ => None,
    }
}

const fn heads(key_heads: usize, group: usize, key_dim: usize, value_dim: usize) -> Heads {
    Heads {
        key_heads,
        group,
        key_dim,
        value_dim,
    }
}

/// A dtype, and the largest relative errors of outputs and gradients, with their reasons.
const DTYPES: [(DType, f64, f64); 3] = [
    // The project's bar: the order of sums, and exponentials to about 2^-22.
    (DType::F32, 1e-5, 2e-5),
    // Between the kernels, operators, updates and states are rounded to 8 bits; gradients pass
    // through about twice as many of them.
    (DType::BF16, 1.6e-2, 3.2e-2),
    // The same with 11 bits.
    (DType::F16, 2e-3, 4e-3),
];

/// What runs these heads in `dtype` on the device, of the kernels.
fn available(dtype: DType, heads: Heads) -> Vec<Implementation> {
    let runs = |&implementation: &Implementation| match call(heads, dtype, implementation) {
        Ok(()) => true,
        Err(ArgumentError::Implementation { .. }) => false,
        Err(error) => panic!("{error}"),
    };
    [Portable, Accelerated].into_iter().filter(runs).collect()
}

/// The kernels that the device has, each with a dtype and heads that it runs.
fn kernels() -> Vec<(Implementation, DType, Heads)> {
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
fn call(heads: Heads, dtype: DType, implementation: Implementation) -> Result<(), ArgumentError> {
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

/// Fills memory of the sizes of a call's tensors with NaN and gives it back, for the call to get.
fn poison(recurrence: &TreeRecurrence, heads: Heads, dtype: DType) {
    let Heads {
        key_dim, value_dim, ..
    } = heads;
    let value_heads = heads.key_heads * heads.group;
    let states = recurrence.n_windows().max(recurrence.n_slots()) + 2;
    for (rows, width) in [
        (recurrence.rows(), key_dim),
        (recurrence.rows(), value_dim),
        (recurrence.rows(), 64),
        (recurrence.rows(), 5),
        (states, key_dim * value_dim),
    ] {
        for dtype in [dtype, DType::F32] {
            let shape = [rows * value_heads * width];
            let nan = (0..2).map(|_| Tensor::<1>::full(shape, f32::NAN, (&device(), dtype)));
            for tensor in nan.collect::<Vec<_>>() {
                assert!(tensor.into_data().iter::<f32>().all(f32::is_nan));
            }
        }
    }
}

/// Compares what the device has of the kernels with the definition.
fn compare(recurrence: &TreeRecurrence, heads: Heads, decay: f64, dtypes: &[DType]) {
    if cube_device().is_none() {
        return;
    }
    for &dtype in dtypes.iter().filter(|&&dtype| computes_in(dtype)) {
        let implementations = available(dtype, heads);
        assert!(implementations.contains(&Portable), "{dtype:?}, {heads:?}");
        compare_all(recurrence, heads, decay, dtype, &implementations);
    }
}

/// Compares implementations with the definition.
fn compare_all(
    recurrence: &TreeRecurrence,
    heads: Heads,
    decay: f64,
    dtype: DType,
    implementations: &[Implementation],
) {
    let bounds = DTYPES.iter().find(|(of, ..)| *of == dtype);
    let &(_, forward, backward) = bounds.expect("bounds of the dtype");
    let inputs = Inputs::random(recurrence, heads, decay, 7).rounded(dtype);
    let expected = inputs.expected();
    for &implementation in implementations {
        poison(recurrence, heads, dtype);
        let found = inputs.found(&device(), dtype, implementation);
        println!(
            "{implementation:?} {dtype:?} {heads:?}: {}",
            listed(found.errors(&expected))
        );
        found.assert_close(&expected, forward, backward);
        found.assert_zero_padding(recurrence);
        for (name, values) in [
            ("output", values(&found.output)),
            ("log_decay", values(&found.log_decay)),
        ] {
            assert!(values.iter().all(|it| it.is_finite()), "{name}");
        }
    }
}

type NamedErrors = Vec<(&'static str, f64)>;

fn listed((mut outputs, gradients): (NamedErrors, NamedErrors)) -> String {
    outputs.extend(gradients);
    let texts = outputs
        .iter()
        .map(|(name, error)| format!("{name} {error:.1e}"));
    texts.collect::<Vec<_>>().join(", ")
}

const ALL: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

proptest! {
    #![proptest_config(cases(32))]

    #[test]
    fn kernels_equal_the_definition(
        batch in batches(10),
        heads in prop::sample::select(vec![heads(1, 2, 8, 8), heads(2, 1, 9, 7), heads(1, 3, 4, 70)]),
        decay in prop::sample::select(vec![SLOW, STRONG]),
    ) {
        let _alone = alone();
        compare(&batch.recurrence(), heads, decay, &[DType::F32]);
    }
}

/// Two trees, the first from an initial state: a fork, a bundle of short leaves, nodes of one
/// token and of more than one and two windows, a tree of one token; two requested rows, padding.
fn forked() -> TreeRecurrence {
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

/// Key dimensions of one to four tiles, and others than multiples of 16.
#[test]
fn head_dimensions() {
    let _alone = alone();
    for (key_dim, value_dim) in [(1, 1), (80, 80), (128, 33), (200, 20)] {
        compare(
            &forked(),
            heads(1, 2, key_dim, value_dim),
            SLOW,
            &[DType::F32],
        );
    }
}

#[test]
fn narrow_dtypes() {
    let _alone = alone();
    for decay in [SLOW, STRONG] {
        compare(
            &forked(),
            heads(1, 2, 24, 40),
            decay,
            &[DType::F16, DType::BF16],
        );
    }
}

/// Single value heads and groups, keys and values of both sizes of the kernels with matrix
/// instructions; short siblings that share a cube, bundles of them, windows of one to four row
/// tiles.
fn matrix_shapes() -> [(TreeRecurrence, Heads, f64); 4] {
    let leaves = [40, 40, 40, 30, 20, 60, 33, 17, 16, 64, 1, 130, 5];
    let nodes = std::iter::once((None, 70)).chain(leaves.map(|length| (Some(0), length)));
    let bushy = Batch::of(Forest(nodes.collect()), 64).recurrence();
    [
        (forked(), heads(1, 3, 128, 64), SLOW),
        (forked(), heads(1, 1, 64, 128), STRONG),
        (bushy.clone(), heads(2, 2, 64, 64), SLOW),
        (bushy, heads(2, 2, 128, 128), SLOW),
    ]
}

#[test]
fn shapes_of_matrix_instructions() {
    let _alone = alone();
    for (recurrence, heads, decay) in &matrix_shapes()[..3] {
        compare(recurrence, *heads, *decay, &[DType::F16, DType::BF16]);
    }
}

/// On devices that have the instructions: these kernels alone, which compile in seconds.
#[test]
#[ignore = "needs a device with tensor cores"]
fn matrix_instructions() {
    let _alone = alone();
    for (recurrence, heads, decay) in matrix_shapes() {
        for dtype in [DType::F16, DType::BF16] {
            compare_all(&recurrence, heads, decay, dtype, &[Accelerated]);
        }
    }
}

/// What to run first on another device: all dtypes, at the head dimension of models.
#[test]
#[ignore = "takes minutes on a processor"]
fn chosen_few() {
    let _alone = alone();
    let start = std::time::Instant::now();
    for (dtype, ..) in DTYPES {
        compare(&forked(), heads(1, 2, 128, 128), SLOW, &[dtype]);
        println!("{dtype:?}: {:.1} s", start.elapsed().as_secs_f64());
    }
}

/// A node of 130 rows at any number of rows of its windows.
#[test]
fn window_sizes() {
    let _alone = alone();
    for window_rows in [1, 2, 15, 16, 17, 33, 64] {
        let forest = Forest(vec![(None, 130), (Some(0), 65), (Some(0), 2)]);
        let recurrence = Batch::of(forest, window_rows).recurrence();
        compare(&recurrence, heads(1, 1, 8, 8), SLOW, &[DType::F32]);
    }
}

#[test]
fn one_row() {
    let _alone = alone();
    let recurrence = Batch::of(Forest(vec![(None, 1)]), 64).recurrence();
    compare(&recurrence, heads(1, 2, 8, 8), SLOW, &ALL);
    let recurrence = recurrence
        .with_initial_states(&[Some(0)])
        .with_requested_rows(&[0]);
    compare(&recurrence, heads(1, 2, 8, 8), SLOW, &ALL);
}

/// Nothing but padding: zeros, from no window at all.
#[test]
fn no_trees() {
    let _alone = alone();
    if cube_device().is_none() {
        return;
    }
    let recurrence = TreeRecurrence::from_layouts(&[TreeLayout::default()], 3);
    let inputs = Inputs::random(&recurrence, heads(1, 2, 8, 8), SLOW, 3).rounded(DType::F32);
    poison(&recurrence, heads(1, 2, 8, 8), DType::F32);
    let found = inputs.found(&device(), DType::F32, Portable);
    found.assert_zero_padding(&recurrence);
}

/// Without initial states, and with one for every other tree.
#[test]
fn many_tiny_trees() {
    let _alone = alone();
    let trees: Vec<_> = (0..300).map(|tree| (None, 1 + tree % 3)).collect();
    let recurrence = Batch::of(Forest(trees), 64).recurrence();
    compare(&recurrence, heads(1, 1, 8, 8), SLOW, &[DType::F32]);
    let states: Vec<_> = (0..300)
        .map(|tree| (tree % 2 == 0).then_some(tree / 2))
        .collect();
    let recurrence = recurrence.with_initial_states(&states);
    compare(&recurrence, heads(1, 1, 8, 8), SLOW, &[DType::F32]);
}

/// The decay of a state of zeros changes nothing, so its gradient is zero, not a remainder of
/// rounding.
#[test]
fn the_first_decay_of_a_tree_has_no_gradient() {
    let _alone = alone();
    let recurrence = forked();
    let &[first, second] = recurrence.roots() else {
        panic!("two trees");
    };
    for (implementation, dtype, heads) in kernels() {
        let inputs = Inputs::random(&recurrence, heads, SLOW, 3).rounded(dtype);
        let found = inputs.found(&device(), dtype, implementation);
        let gradient = values(&found.log_decay);
        let of_row = |row: u32| &gradient[2 * row as usize..2 * row as usize + 2];
        assert!(of_row(first).iter().all(|&it| it != 0.0), "has a state");
        assert_eq!(of_row(second), [0.0; 2], "{implementation:?}");
    }
}

/// Rows of another branch and of another tree change nothing, not a bit.
#[test]
fn siblings_do_not_matter() {
    let _alone = alone();
    let recurrence = forked();
    for (implementation, dtype, heads) in kernels() {
        let inputs = Inputs::random(&recurrence, heads, SLOW, 3).rounded(dtype);
        let output =
            |inputs: &Inputs| values(&inputs.found(&device(), dtype, implementation).output);
        let before = output(&inputs);
        let row_width = heads.key_heads * heads.group * heads.value_dim;
        for changed in [75usize, 140, 158] {
            let mut other = inputs.clone();
            let row = [0..1, changed..changed + 1];
            other.key = other.key.slice_fill(row.clone(), 0.25);
            other.value = other.value.slice_fill(row, 9.0);
            let after = output(&other);
            let below = changed..recurrence.subtree_ends()[changed] as usize;
            for (at, (before, after)) in before.iter().zip(&after).enumerate() {
                let row = at / row_width;
                if below.contains(&row) {
                    continue;
                }
                assert_eq!(
                    before.to_bits(),
                    after.to_bits(),
                    "{implementation:?}: row {row} with {changed}"
                );
            }
            assert_ne!(before[changed * row_width], after[changed * row_width]);
        }
    }
}

/// The same call gives the same bits.
#[test]
fn results_repeat() {
    let _alone = alone();
    for (implementation, dtype, heads) in kernels() {
        let inputs = Inputs::random(&forked(), heads, SLOW, 5).rounded(dtype);
        let run = || inputs.found(&device(), dtype, implementation);
        let (first, second) = (run(), run());
        let (outputs, gradients) = first.errors(&second);
        for (name, error) in outputs.into_iter().chain(gradients) {
            assert_eq!(error, 0.0, "{implementation:?}: {name}");
        }
    }
}

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
