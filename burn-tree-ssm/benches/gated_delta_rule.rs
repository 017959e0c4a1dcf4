//! Tokens per second of the gated delta rule, forward and with its backward pass.
//!
//! `BURN_DEVICE=flex cargo bench -p burn-tree-ssm --bench gated_delta_rule [-- ROWS HK HV D
//! IMPLEMENTATION DTYPE]` (default 4096 8 16 128 automatic f32), on one path and on a prompt of a
//! quarter of the rows with 16 answers.

use std::time::Instant;

use burn::tensor::{DType, Device, Distribution, Tensor, activation::sigmoid};
use burn_tree_nn::l2_norm;
use burn_tree_ssm::{GatedDeltaRuleOptions, Implementation, TreeRecurrence, tree_gated_delta_rule};
use tree_pack::{PrefixForest, Trajectory, TreeLayout};
use tree_training_devices::device_from_environment;

const REPETITIONS: usize = 3;

fn main() {
    let arguments: Vec<_> = std::env::args()
        .skip(1)
        .filter(|it| it != "--bench")
        .collect();
    let number = |index: usize, default| match arguments.get(index) {
        Some(text) => text.parse().expect("a number"),
        None => default,
    };
    let rows = number(0, 4096);
    let sizes = [number(1, 8), number(2, 16), number(3, 128)];
    let implementation = match arguments.get(4).map_or("automatic", String::as_str) {
        "automatic" => Implementation::Automatic,
        "generic" => Implementation::Generic,
        "portable" => Implementation::Portable,
        "accelerated" => Implementation::Accelerated,
        other => panic!("no implementation {other}"),
    };
    let dtype = match arguments.get(5).map_or("f32", String::as_str) {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        other => panic!("no dtype {other}"),
    };
    let device = device_from_environment();
    println!(
        "{rows} rows, {sizes:?} key heads, value heads, head size, {implementation:?}, {dtype:?}"
    );
    let token = |path: usize, position: usize| (path * rows + position) as u32;
    let prompt = rows / 4;
    let answer = (rows - prompt) / 16;
    let one_path = vec![(0..rows).map(|position| token(0, position)).collect()];
    let answers = (1..=16)
        .map(|path| {
            let shared = (0..prompt).map(|position| token(0, position));
            shared
                .chain((0..answer).map(|position| token(path, position)))
                .collect()
        })
        .collect();
    for (name, paths) in [("one path", one_path), ("16 answers", answers)] {
        let recurrence = recurrence(paths);
        measure(name, &recurrence, sizes, implementation, dtype, &device);
    }
}

fn recurrence(paths: Vec<Vec<u32>>) -> TreeRecurrence {
    let trajectories: Vec<_> = paths
        .into_iter()
        .map(|tokens| {
            let mask = vec![true; tokens.len()];
            Trajectory::new("task", "rollout", tokens, mask)
        })
        .collect();
    let forest = PrefixForest::build(&trajectories).expect("distinct tokens");
    let layout = TreeLayout::from_forest(&forest);
    let rows = layout.len();
    TreeRecurrence::from_layouts(&[layout], rows)
}

fn measure(
    name: &str,
    recurrence: &TreeRecurrence,
    [key_heads, heads, dim]: [usize; 3],
    implementation: Implementation,
    dtype: DType,
    device: &Device,
) {
    let rows = recurrence.rows();
    let device = device.clone().autodiff();
    let random = |heads| {
        let shape = [1, rows, heads, dim];
        Tensor::<4>::random(shape, Distribution::Default, &device) - 0.5
    };
    let leaf = |x: Tensor<4>| x.cast(dtype).detach().require_grad();
    let query = leaf(l2_norm(random(key_heads), 1e-6));
    let key = leaf(l2_norm(random(key_heads), 1e-6));
    let value = leaf(random(heads));
    let gate = || Tensor::<3>::random([1, rows, heads], Distribution::Default, &device);
    let log_decay = (gate() * -0.1).detach().require_grad();
    let beta = sigmoid(gate()).detach().require_grad();
    let options = GatedDeltaRuleOptions {
        implementation,
        ..Default::default()
    };
    let run = |backward: bool| {
        let start = Instant::now();
        let result = tree_gated_delta_rule(
            query.clone(),
            key.clone(),
            value.clone(),
            log_decay.clone(),
            beta.clone(),
            recurrence,
            None,
            options,
        );
        if backward {
            let gradients = result.output.sum().backward();
            query.grad(&gradients).expect("a gradient").into_data();
        } else {
            result.output.inner().into_data();
        }
        start.elapsed().as_secs_f64()
    };
    for (pass, backward) in [("forward", false), ("forward and backward", true)] {
        let times = (0..=REPETITIONS).map(|_| run(backward)).skip(1);
        let best = times.fold(f64::INFINITY, f64::min);
        println!(
            "{name}, {pass}: {:.1} ms, {:.0} rows/s",
            1e3 * best,
            rows as f64 / best
        );
    }
}
