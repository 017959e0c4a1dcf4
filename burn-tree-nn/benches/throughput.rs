//! Time and memory throughput of each operation, at the shapes of Qwen3-0.6B.
//!
//! `BURN_DEVICE=cuda cargo bench -p burn-tree-nn --features cuda [-- DTYPE ROWS... OPERATION...]`
//! (default bf16, 16384, and all of norm, swiglu, gather, head). Throughput counts each input and
//! each output once, the minimum memory traffic; for the head it counts the floating-point
//! operations of its matrix products instead. The first line is a sum of two tensors, for
//! comparison.

use std::sync::Arc;
use std::time::Instant;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Int, Tensor, TensorData};
use burn_tree_nn::{
    GatherPlan, LmHeadOptions, NormScale, TreeNnOps, gather_rows, rms_norm, swiglu, token_log_probs,
};
use tree_pack::{LossForm, OccurrenceBatch};
use tree_training_devices::device_from_environment;

const HIDDEN: usize = 1024;
const INTERMEDIATE: usize = 3072;
const HEADS: usize = 16;
const HEAD_DIM: usize = 128;
const VOCAB: usize = 151_936;
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
            "norm" | "swiglu" | "gather" | "head" => operations.push(argument),
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
        println!("{dtype:?}, {rows} rows");
        let bench = Bench {
            device: &device,
            dtype,
            rows,
        };
        bench.run(|name| operations.is_empty() || operations.iter().any(|chosen| chosen == name));
    }
}

struct Bench<'a> {
    device: &'a Device,
    dtype: DType,
    rows: usize,
}

impl Bench<'_> {
    fn run(&self, is_chosen: impl Fn(&str) -> bool) {
        let x = self.random([self.rows, HIDDEN]);
        let y = self.random([self.rows, HIDDEN]);
        let size = self.rows * HIDDEN;
        self.moved("sum of two tensors", 3 * size, || {
            drop(x.clone() + y.clone())
        });
        if is_chosen("norm") {
            self.norm("rms_norm of the model", self.rows, HIDDEN);
            self.norm("rms_norm of the heads", self.rows * HEADS, HEAD_DIM);
        }
        if is_chosen("swiglu") {
            self.activation();
        }
        if is_chosen("gather") {
            self.gather();
        }
        if is_chosen("head") {
            self.head();
        }
    }

    fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::random(
            shape,
            Distribution::Normal(0.0, 1.0),
            (self.device, self.dtype),
        )
    }

    /// Runs `f` repeatedly and prints the time of one run and `amount` per time.
    fn time(&self, name: &str, amount: f64, unit: &str, f: impl Fn()) {
        // The first run compiles and tunes.
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
        println!(
            "  {name:<42} {:9.1} us {:8.1} {unit}",
            seconds * 1e6,
            amount / seconds
        );
    }

    /// [`Bench::time`] of an operation that moves this number of elements.
    fn moved(&self, name: &str, numbers: usize, f: impl Fn()) {
        let gigabytes = (numbers * self.dtype.size()) as f64 / 1e9;
        self.time(name, gigabytes, "GB/s", f);
    }

    fn norm(&self, name: &str, rows: usize, width: usize) {
        let x = self.random([rows, width]);
        let grad = self.random([rows, width]);
        // Norms keep f32 weights when the model computes in less.
        let weight = Tensor::<1>::ones([width], (self.device, DType::F32));
        let size = rows * width;
        self.moved(&format!("{name}, forward"), 2 * size, || {
            rms_norm(x.clone(), weight.clone(), 1e-6);
        });
        let (_, inverse_rms) = <Dispatch as TreeNnOps>::rms_norm(
            x.clone().into_dispatch(),
            weight.clone().into_dispatch(),
            1e-6,
            NormScale::Weight,
        );
        let inverse_rms = Tensor::<2>::from_dispatch(inverse_rms);
        self.moved(&format!("{name}, backward"), 3 * size, || {
            <Dispatch as TreeNnOps>::rms_norm_backward(
                x.clone().into_dispatch(),
                weight.clone().into_dispatch(),
                inverse_rms.clone().into_dispatch(),
                grad.clone().into_dispatch(),
                NormScale::Weight,
            );
        });
    }

    fn activation(&self) {
        let [gate, up, grad] = [0; 3].map(|_| self.random([self.rows, INTERMEDIATE]));
        let size = self.rows * INTERMEDIATE;
        self.moved("swiglu, forward", 3 * size, || {
            swiglu(gate.clone(), up.clone());
        });
        self.moved("swiglu, backward", 5 * size, || {
            <Dispatch as TreeNnOps>::swiglu_backward(
                gate.clone().into_dispatch(),
                up.clone().into_dispatch(),
                grad.clone().into_dispatch(),
            );
        });
    }

    /// An embedding: one token in ten is the same token, one in two is one of a few hundred.
    fn gather(&self) {
        let indices = (0..self.rows)
            .map(|row| match row % 10 {
                0 => 198,
                1..6 => (row * 7919 % 331) as u32,
                _ => (row * 104_729 % VOCAB) as u32,
            })
            .collect();
        let plan = Arc::new(GatherPlan::new(indices, VOCAB).unwrap());
        let table = self.random([VOCAB, HIDDEN]);
        let grad = self.random([self.rows, HIDDEN]);
        self.moved("gather_rows, forward", 2 * self.rows * HIDDEN, || {
            gather_rows(table.clone(), &plan);
        });
        let moved = (self.rows + VOCAB) * HIDDEN;
        self.moved("gather_rows, backward", moved, || {
            <Dispatch as TreeNnOps>::gather_rows_backward(
                grad.clone().into_dispatch(),
                plan.clone(),
            );
        });
    }

    fn head(&self) {
        let rows = self.rows;
        let integers = |values: Vec<i32>| -> Tensor<1, Int> {
            Tensor::from_data(TensorData::new(values, [rows]), self.device)
        };
        let occurrences = OccurrenceBatch {
            batch: None,
            loss_form: LossForm::default(),
            rows: integers((0..rows as i32).collect()),
            targets: integers((0..rows).map(|row| (row * 7919 % VOCAB) as i32).collect()),
            weights: Tensor::ones([rows], self.device),
            multiplicities: Tensor::ones([rows], self.device),
            trajectories: integers(vec![0; rows]),
            token_indices: integers(vec![0; rows]),
            advantages: None,
            old_log_probs: None,
            ref_log_probs: None,
            sampling_log_probs: None,
            host_rows: Arc::new((0..rows as u32).collect()),
            host_targets: Arc::new((0..rows).map(|row| (row * 7919 % VOCAB) as u32).collect()),
            host_trajectories: Arc::new(vec![0; rows]),
        };
        let head = self.random([VOCAB, HIDDEN]) * 0.02;
        let hidden = self.random([1, rows, HIDDEN]);
        let product = 2e-12 * (rows * HIDDEN) as f64 * VOCAB as f64;
        let part = rows.min(1024);
        let states = hidden
            .clone()
            .slice([0..1, 0..part])
            .reshape([part, HIDDEN]);
        let plain = product * part as f64 / rows as f64;
        self.time(
            "Burn's product of 1024 rows with the head",
            plain,
            "TFLOP/s",
            || {
                drop(states.clone().matmul(head.clone().transpose()));
            },
        );
        self.time("head, forward", product, "TFLOP/s", || {
            token_log_probs(
                hidden.clone(),
                head.clone(),
                &occurrences,
                LmHeadOptions::default(),
            );
        });
        let (hidden, head) = (
            hidden.autodiff().require_grad(),
            head.autodiff().require_grad(),
        );
        self.time(
            "head, forward and backward",
            4.0 * product,
            "TFLOP/s",
            || {
                let output = token_log_probs(
                    hidden.clone(),
                    head.clone(),
                    &occurrences,
                    LmHeadOptions::default(),
                );
                output.log_probs.sum().backward();
            },
        );
    }
}
