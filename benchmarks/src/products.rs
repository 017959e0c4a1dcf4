//! The matrix products of a training step, timed one by one in the layout that autodiff uses.

use std::collections::BTreeMap;

use burn::backend::Dispatch;
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use burn_tree_nn::TreeNnOps;
use burn_tree_nn::linear::InputGradientTerm;
use burn_tree_train::StepCounts;

use burn_tree_models::ModelConfig;
use burn_tree_models::size::projections;
use burn_tree_trainer::report::timing::{Repetitions, seconds};

/// Seconds per row of the matrix products of a dense model: output, gradient of the input, and
/// gradient of the matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductTimes {
    /// The products of all blocks.
    pub blocks: Rate,
    /// The products of the head.
    pub head: Rate,
    /// FLOP/s by the shape `[input, output]` of the matrix: output, gradient of the input, and
    /// gradient of the matrix.
    pub by_shape: Vec<([usize; 2], [f64; 3])>,
}

/// FLOPs and seconds per row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// FLOPs per row.
    pub flops: f64,
    /// Seconds per row.
    pub seconds: f64,
}

impl ProductTimes {
    /// Times the products of the blocks with `rows` rows in `dtype`, and those of the head with
    /// `head_rows` in `head_dtype`.
    ///
    /// # Panics
    /// If the model is a mixture of experts.
    pub fn measure(
        config: &ModelConfig,
        [rows, head_rows]: [usize; 2],
        [dtype, head_dtype]: [FloatDType; 2],
        device: &Device,
        repetitions: Repetitions,
    ) -> Self {
        assert!(config.moe.is_none(), "a dense model");
        let mut by_shape = Vec::new();
        let mut measure = |shape, rows, dtype| {
            let times = three_products(shape, rows, dtype, device, repetitions);
            let flops = 2.0 * (rows * shape[0] * shape[1]) as f64;
            by_shape.push((shape, times.map(|seconds| flops / seconds)));
            Rate {
                flops: 3.0 * flops / rows as f64,
                seconds: times.iter().sum::<f64>() / rows as f64,
            }
        };
        let mut blocks = Rate::default();
        for (shape, count) in block_matrices(config) {
            let one = measure(shape, rows, dtype);
            blocks.flops += count as f64 * one.flops;
            blocks.seconds += count as f64 * one.seconds;
        }
        let head = measure(
            [config.hidden_size, config.vocab_size],
            head_rows,
            head_dtype,
        );
        Self {
            blocks,
            head,
            by_shape,
        }
    }

    /// Seconds of the products of a step at these rates.
    pub fn seconds(&self, counts: &StepCounts) -> f64 {
        counts.tokens as f64 * self.blocks.seconds
            + counts.projected_rows as f64 * self.head.seconds
    }

    /// FLOPs of the products of a step.
    pub fn flops(&self, counts: &StepCounts) -> f64 {
        counts.tokens as f64 * self.blocks.flops + counts.projected_rows as f64 * self.head.flops
    }
}

/// Number of matrices of each shape `[input, output]` in the blocks.
fn block_matrices(config: &ModelConfig) -> BTreeMap<[usize; 2], usize> {
    let mut matrices = BTreeMap::new();
    for shape in (0..config.num_hidden_layers).flat_map(|layer| projections(config, layer)) {
        *matrices.entry(shape).or_default() += 1;
    }
    matrices
}

/// Seconds of `x w`, `g w^T` and `x^T g`.
fn three_products(
    [input, output]: [usize; 2],
    rows: usize,
    dtype: FloatDType,
    device: &Device,
    repetitions: Repetitions,
) -> [f64; 3] {
    let random = |shape: [usize; 2]| {
        Tensor::<2>::random(shape, Distribution::Normal(0.0, 1.0), device).cast(dtype)
    };
    let x = random([rows, input]);
    let weight = random([input, output]);
    let gradient = random([rows, output]);
    let [x, weight, gradient] = [x, weight, gradient].map(Tensor::into_dispatch);
    [
        seconds(device, repetitions, || {
            Dispatch::linear_output(x.clone(), weight.clone())
        }),
        seconds(device, repetitions, || {
            Dispatch::linear_grad_input(InputGradientTerm {
                grad: gradient.clone(),
                weight: weight.clone(),
            })
        }),
        seconds(device, repetitions, || {
            Dispatch::linear_grad_weight(x.clone(), gradient.clone())
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_tree_models::ModelSize;

    #[test]
    fn products_are_all_flops_but_those_of_attention() {
        let config = ModelConfig::named("tiny", 1000).unwrap();
        let repetitions = Repetitions {
            warm_up: 0,
            samples: 1,
            runs: 1,
        };
        let dtypes = [FloatDType::F32; 2];
        let times = ProductTimes::measure(&config, [8, 4], dtypes, &Device::flex(), repetitions);
        let counts = StepCounts {
            tokens: 100,
            visible_pairs: 0,
            projected_rows: 30,
            predictions: 40,
        };
        let expected = ModelSize::new(&config, None).cost.step_flops(&counts);
        assert!((times.flops(&counts) - expected).abs() < 1e-9 * expected);
        assert!(times.seconds(&counts) > 0.0);
        assert!(
            times
                .by_shape
                .iter()
                .flat_map(|(_, rates)| rates)
                .all(|rate| rate.is_finite())
        );
    }
}
