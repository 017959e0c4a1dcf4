//! One matrix product: its tensors, its result against f64, its rate.

use std::time::{Duration, Instant};

use anyhow::Result;
use burn::backend::Dispatch;
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_tree_nn::TreeNnOps;
use burn_tree_nn::linear::InputGradientTerm;
use burn_tree_trainer::report::timing::wait;
use tree_training_benchmarks::repeated::{Repetition, differ};

use crate::args::{Args, Form, Implementation};

/// Rows and columns of the result that are compared with f64.
const SAMPLED: usize = 48;

/// How long a product is timed.
#[derive(Clone, Copy)]
pub struct Window {
    warm_up: Duration,
    timed: Duration,
}

impl Window {
    /// `milliseconds` after a warm-up of a third of that.
    pub fn new(milliseconds: f64) -> Self {
        let timed = Duration::from_secs_f64(milliseconds / 1e3);
        Self {
            warm_up: timed / 3,
            timed,
        }
    }
}

/// A product `left right`, with operands as they are stored.
pub struct Product {
    form: Form,
    sizes: [usize; 3],
    left: Tensor<2>,
    right: Tensor<2>,
    device: Device,
}

impl Product {
    /// Normally distributed operands of a layer with `[R, K, N]`; products have a variance of
    /// about 1.
    pub fn random(sizes: [usize; 3], form: Form, args: &Args, device: &Device) -> Self {
        let [rows, input, output] = sizes;
        let random = |shape: [usize; 2], scale: f64| {
            let values = Tensor::<2>::random(shape, Distribution::Normal(0.0, scale), device);
            values.cast(args.dtype.dtype())
        };
        let (x, weight, grad) = ([rows, input], [input, output], [rows, output]);
        let scale = |summed: usize| (summed as f64).powf(-0.5);
        let (left, right) = match form {
            Form::Output => (random(x, 1.0), random(weight, scale(input))),
            Form::GradInput => (random(grad, 1.0), random(weight, scale(output))),
            Form::GradWeight => (random(x, 1.0), random(grad, scale(rows))),
        };
        Self {
            form,
            sizes,
            left,
            right,
            device: device.clone(),
        }
    }

    pub fn rows(&self) -> usize {
        self.sizes[0]
    }

    pub fn form(&self) -> Form {
        self.form
    }

    fn run(&self, implementation: Implementation) -> Tensor<2> {
        let (left, right) = (self.left.clone(), self.right.clone());
        match implementation {
            Implementation::Burn => match self.form {
                Form::Output => left.matmul(right),
                Form::GradInput => left.matmul(right.transpose()),
                Form::GradWeight => left.transpose().matmul(right),
            },
            Implementation::Linear => {
                let (left, right) = (left.into_dispatch(), right.into_dispatch());
                Tensor::from_dispatch(match self.form {
                    Form::Output => Dispatch::linear_output(left, right),
                    Form::GradInput => Dispatch::linear_grad_input(InputGradientTerm {
                        grad: left,
                        weight: right,
                    }),
                    Form::GradWeight => Dispatch::linear_grad_weight(left, right),
                })
            }
        }
    }

    /// FLOP/s.
    pub fn rate(&self, implementation: Implementation, window: Window) -> f64 {
        let run = |count: usize| {
            let start = Instant::now();
            for _ in 0..count {
                drop(self.run(implementation));
            }
            wait(&self.device);
            start.elapsed()
        };
        wait(&self.device);
        let one = run(2) / 2;
        let fitting = |time: Duration| (time.as_secs_f64() / one.as_secs_f64()).ceil() as usize;
        run(fitting(window.warm_up));
        let count = fitting(window.timed).max(3);
        let seconds = run(count).as_secs_f64() / count as f64;
        2.0 * self.sizes.iter().product::<usize>() as f64 / seconds
    }

    /// The relative error of sampled numbers against sums in f64, and whether two runs give the same
    /// bits.
    pub fn check(&self, implementation: Implementation) -> Result<(f64, bool)> {
        let result = self.run(implementation);
        let mut repetition = Repetition::new(&self.device);
        repetition.add(differ(&result, self.run(implementation)));
        let [rows, columns] = result.dims();
        let (rows, columns) = (self.sample(rows), self.sample(columns));
        let (left_dim, right_dim) = match self.form {
            Form::Output => (0, 1),
            Form::GradInput => (0, 0),
            Form::GradWeight => (1, 1),
        };
        let left = self.left.clone().select(left_dim, rows.clone());
        let right = self.right.clone().select(right_dim, columns.clone());
        let left = numbers(if left_dim == 0 {
            left
        } else {
            left.transpose()
        })?;
        let right = numbers(if right_dim == 0 {
            right
        } else {
            right.transpose()
        })?;
        let found = numbers(result.select(0, rows).select(1, columns))?;
        let length = left.len() / SAMPLED;
        let (mut error, mut norm) = (0.0, 0.0);
        for (row, left) in left.chunks(length).enumerate() {
            for (column, right) in right.chunks(length).enumerate() {
                let expected: f64 = left.iter().zip(right).map(|(l, r)| l * r).sum();
                error += (found[row * SAMPLED + column] - expected).powi(2);
                norm += expected * expected;
            }
        }
        Ok(((error / norm).sqrt(), repetition.result().different == 0))
    }

    /// Indices below `count`, the first and the last among them.
    fn sample(&self, count: usize) -> Tensor<1, Int> {
        let index = |sample: usize| (sample * (count - 1) / (SAMPLED - 1)) as i32;
        let indices: Vec<i32> = (0..SAMPLED).map(index).collect();
        Tensor::from_data(TensorData::from(indices.as_slice()), &self.device)
    }
}

/// Row by row.
fn numbers(tensor: Tensor<2>) -> Result<Vec<f64>> {
    Ok(tensor.try_into_data()?.iter::<f64>().collect())
}
