//! Time and memory throughput of what a Gated DeltaNet layer consists of besides the delta rule, at
//! the shapes of Qwen3.5-0.8B (16 key and 16 value heads) and Qwen3-Next (16 and 32), heads of 128.
//!
//! `BURN_DEVICE=cuda cargo bench -p burn-tree-ssm --bench layer_parts --features cuda [-- DTYPE ROWS...
//! OPERATION...]` (default bf16, 16384, and all of convolution, norm, gated, gate). Throughput counts
//! each input once, each output once: the least that must be moved. The first line is a sum of two
//! tensors, for comparison.

use std::time::Instant;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_tree_nn::{TreeNnOps, decay_gate, gated_rms_norm, l2_norm};
use burn_tree_ssm::{
    CausalConv1dOptions, ConvolutionInputs, ConvolutionOutputs, ConvolutionSettings,
    TreeRecurrence, TreeSsmOps, tree_causal_conv1d_split,
};
use tree_pack::{Segment, TreeLayout};
use tree_training_devices::device_from_environment;

const KEY_HEADS: usize = 16;
const HEAD_DIM: usize = 128;
const KERNEL_SIZE: usize = 4;
const EPSILON: f64 = 1e-6;
const REPETITIONS: u32 = 30;

fn main() {
    let mut dtype = DType::BF16;
    let mut sizes = Vec::new();
    let mut operations = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "f32" => dtype = DType::F32,
            "f16" => dtype = DType::F16,
            "bf16" => dtype = DType::BF16,
            "convolution" | "norm" | "gated" | "gate" => operations.push(argument),
            "--bench" => {}
            rows => sizes.push(
                rows.parse()
                    .expect("a dtype, a number of rows or an operation"),
            ),
        }
    }
    if sizes.is_empty() {
        sizes.push(16_384);
    }
    let device = device_from_environment();
    for rows in sizes {
        let bench = Bench {
            device: &device,
            dtype,
            rows,
        };
        println!("{dtype:?}, {rows} rows");
        let x = bench.random([rows, 2048]);
        bench.moved("sum of two tensors", 3 * rows * 2048, || {
            drop(x.clone() + x.clone());
        });
        let is_chosen =
            |name: &str| operations.is_empty() || operations.iter().any(|chosen| chosen == name);
        for value_heads in [16, 32] {
            println!(" {value_heads} value heads");
            if is_chosen("convolution") {
                bench.convolution(value_heads);
            }
            if is_chosen("gated") {
                bench.gated(value_heads);
            }
            if is_chosen("gate") {
                bench.gate(value_heads);
            }
        }
        if is_chosen("norm") {
            bench.norm();
        }
    }
}

/// A prompt and answers of so many tokens each, as many as fit; one path without answers.
fn star(rows: usize, prompt: usize, answer: usize) -> TreeLayout {
    let prompt = if answer == 0 { rows } else { prompt };
    let mut layout = TreeLayout::default();
    let mut push = |start: usize, end: usize, parent: Option<u32>, subtree_end: usize| {
        for row in start..end {
            let above = match (row == start, parent) {
                (false, _) => row as i32 - 1,
                (true, Some(_)) => prompt as i32 - 1,
                (true, None) => -1,
            };
            let depth = parent.map_or(0, |_| prompt) + row - start;
            layout.tokens.push(0);
            layout.parents.push(above);
            layout.position_ids.push(depth as u32);
            layout.subtree_ends.push(subtree_end as u32);
        }
        layout.segments.push(Segment {
            start: start as u32,
            end: end as u32,
            parent,
        });
    };
    push(0, prompt, None, rows);
    for start in (prompt..rows).step_by(answer.max(1)) {
        let end = (start + answer).min(rows);
        push(start, end, Some(0), end);
    }
    layout
}

struct Bench<'a> {
    device: &'a Device,
    dtype: DType,
    rows: usize,
}

impl Bench<'_> {
    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let options = (self.device, self.dtype);
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), options)
    }

    /// Runs `f` often and prints the time of one run, and what moving so many numbers in it is.
    fn moved(&self, name: &str, numbers: usize, f: impl Fn()) {
        // Compiles.
        for _ in 0..3 {
            f();
        }
        self.device.sync().unwrap();
        let start = Instant::now();
        for _ in 0..REPETITIONS {
            f();
        }
        self.device.sync().unwrap();
        let seconds = start.elapsed().as_secs_f64() / f64::from(REPETITIONS);
        let gigabytes = (numbers * self.dtype.size()) as f64 / 1e9;
        println!(
            "  {name:<46} {:9.1} us {:8.1} GB/s",
            seconds * 1e6,
            gigabytes / seconds
        );
    }

    fn convolution(&self, value_heads: usize) {
        let parts = [KEY_HEADS, KEY_HEADS, value_heads].map(|heads| heads * HEAD_DIM);
        let channels: usize = parts.iter().sum();
        let x = self.random([1, self.rows, channels]);
        let weight = self.random([channels, KERNEL_SIZE]);
        let grads = parts.map(|part| self.random([self.rows, part]));
        let none = self.random([1, channels]);
        let options = CausalConv1dOptions { silu: true };
        let settings = ConvolutionSettings { silu: true, parts };
        let size = self.rows * channels;
        for (name, prompt, answer) in [
            ("one path", 0, 0),
            ("16 answers", self.rows / 8, self.rows * 7 / 128),
            ("answers of 40", 2048.min(self.rows / 2), 40),
            ("answers of 3", 2048.min(self.rows / 2), 3),
        ] {
            let layout = star(self.rows, prompt, answer);
            let recurrence = TreeRecurrence::from_layouts(&[layout], self.rows);
            self.moved(&format!("convolution, forward, {name}"), 2 * size, || {
                tree_causal_conv1d_split(
                    x.clone(),
                    weight.clone(),
                    &recurrence,
                    None,
                    parts,
                    options,
                );
            });
            let plan = recurrence.convolution(KERNEL_SIZE).unwrap();
            self.moved(&format!("convolution, backward, {name}"), 3 * size, || {
                let [first, second, third] = grads.each_ref().map(|grad| grad.clone());
                let inputs = ConvolutionInputs {
                    x: x.clone().reshape([self.rows, channels]).into_dispatch(),
                    weight: weight.clone().into_dispatch(),
                    initial_tails: none.clone().into_dispatch(),
                };
                let grads = ConvolutionOutputs {
                    first: first.into_dispatch(),
                    second: second.into_dispatch(),
                    third: third.into_dispatch(),
                    tails: none.clone().into_dispatch(),
                };
                <Dispatch as TreeSsmOps>::causal_conv1d_backward(
                    inputs,
                    grads,
                    plan.clone(),
                    settings,
                );
            });
        }
    }

    fn norm(&self) {
        let shape = [self.rows * KEY_HEADS, HEAD_DIM];
        let (x, grad) = (self.random(shape), self.random(shape));
        let size = shape[0] * shape[1];
        self.moved("l2_norm of the queries, forward", 2 * size, || {
            l2_norm(x.clone(), EPSILON);
        });
        self.moved("l2_norm of the queries, backward", 3 * size, || {
            <Dispatch as TreeNnOps>::l2_norm_backward(
                x.clone().into_dispatch(),
                grad.clone().into_dispatch(),
                EPSILON,
            );
        });
    }

    fn gated(&self, value_heads: usize) {
        let shape = [self.rows * value_heads, HEAD_DIM];
        let [x, gate, grad] = [0; 3].map(|_| self.random(shape));
        let weight = Tensor::<1>::ones([HEAD_DIM], (self.device, DType::F32));
        let size = shape[0] * shape[1];
        self.moved("gated_rms_norm, forward", 3 * size, || {
            gated_rms_norm(x.clone(), gate.clone(), weight.clone(), EPSILON);
        });
        self.moved("gated_rms_norm, backward", 5 * size, || {
            <Dispatch as TreeNnOps>::gated_rms_norm_backward(
                x.clone().into_dispatch(),
                gate.clone().into_dispatch(),
                weight.clone().into_dispatch(),
                grad.clone().into_dispatch(),
                EPSILON,
            );
        });
    }

    fn gate(&self, value_heads: usize) {
        let a = self.random([1, self.rows, value_heads]);
        let parameters = || Tensor::<1>::ones([value_heads], (self.device, DType::F32));
        let (a_log, dt_bias) = (parameters(), parameters());
        let grad = a.clone().cast(DType::F32).reshape([self.rows, value_heads]);
        let wide = DType::F32.size() / self.dtype.size();
        let size = self.rows * value_heads;
        self.moved("decay_gate, forward", (1 + wide) * size, || {
            decay_gate(a.clone(), a_log.clone(), dt_bias.clone());
        });
        self.moved("decay_gate, backward", (2 + wide) * size, || {
            <Dispatch as TreeNnOps>::decay_gate_backward(
                a.clone().reshape([self.rows, value_heads]).into_dispatch(),
                a_log.clone().into_dispatch(),
                dt_bias.clone().into_dispatch(),
                grad.clone().into_dispatch(),
            );
        });
    }
}
