//! Which implementation runs: on CubeCL runtimes, below Fusion if that is built in, the kernels.

mod support;

use burn::tensor::{DType, Tensor};
use burn_tree_nn::{decay_gate, gated_rms_norm, l2_norm};
use burn_tree_ssm::{CausalConv1dOptions, TreeRecurrence, tree_causal_conv1d};
use support::{Forest, device};
use tree_training_devices::Events;

/// The one test of this binary: its subscriber is that of the process, because Fusion may run
/// operations on another thread.
#[test]
fn kernels_run_on_cubecl_runtimes() {
    let events = Events::of(burn_tree_kit::implementation::TARGET);
    tracing::subscriber::set_global_default(events.clone()).unwrap();
    let device = device().autodiff();
    let layout = Forest(vec![(None, 9), (Some(0), 4), (Some(0), 3)]).layout();
    let recurrence = TreeRecurrence::from_layouts(&[layout], 20);
    let vector = |size: usize| Tensor::<1>::ones([size], (&device, DType::F32)).require_grad();
    let convolve = |x: Tensor<3>, kernel_size: usize| {
        let weight = Tensor::<2>::ones([16, kernel_size], (&device, DType::F32));
        let options = CausalConv1dOptions { silu: true };
        tree_causal_conv1d(x, weight, &recurrence, None, options).output
    };
    type Operation<'a> = &'a dyn Fn(Tensor<3>) -> Tensor<3>;
    let operations: [(&str, &str, Operation<'_>); 6] = [
        ("causal_conv1d", "portable", &|x| convolve(x, 4)),
        // More taps than the kernels take: told once.
        ("causal_conv1d", "generic", &|x| convolve(x, 9)),
        ("causal_conv1d", "generic", &|x| convolve(x, 9)),
        ("decay_gate", "portable", &|x| {
            decay_gate(x, vector(16), vector(16))
        }),
        ("l2_norm", "portable", &|x| l2_norm(x, 1e-6)),
        ("gated_rms_norm", "portable", &|x| {
            gated_rms_norm(x.clone(), x, vector(16), 1e-6)
        }),
    ];
    let mut reasons = Vec::new();
    for (op, implementation, operation) in operations {
        let x = Tensor::<3>::ones([1, 20, 16], (&device, DType::F32)).require_grad();
        let output = operation(x.clone());
        let gradients = output.clone().sum().backward();
        output.inner().into_data();
        x.grad(&gradients).unwrap().into_data();
        let expected = match tree_training_devices::is_cubecl() {
            true => ["forward", "backward"]
                .map(|pass| format!("{op} {pass} {implementation}"))
                .to_vec(),
            false => Vec::new(),
        };
        let (told, found): (Vec<_>, Vec<_>) = events
            .take()
            .into_iter()
            .partition(|text| text.contains(": "));
        assert_eq!(found, expected);
        reasons.extend(told);
    }
    let expected = match tree_training_devices::is_cubecl() {
        true => vec!["causal_conv1d runs Burn's operations: 9 taps; at most 8 are unrolled"],
        false => Vec::new(),
    };
    assert_eq!(reasons, expected);
    // A software Vulkan device must not be compiling what nobody has read when the process ends.
    device.sync().unwrap();
}
