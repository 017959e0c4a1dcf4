//! Device failures during a step, as from lack of memory: results that depend on a failure cannot
//! be read, so the parameters are not updated.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{DType, Tensor};
use burn_tree_models::Precision;
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_train::{StepOptions, check_device};
use burn_tree_trainer::loss::Supervised;
use burn_tree_trainer::optim::adamw::{AdamWOptions, adamw};
use burn_tree_trainer::optim::optimizer_step::Trainer;
use tree_pack::{Aggregation, Objective, Partitioning, Trajectory};
use tree_training_tests::device::autodiff_device;
use tree_training_tests::models::random_model;
use tree_training_tests::partition::Cut;

const VOCABULARY: usize = 40;

const ADAMW: AdamWOptions = AdamWOptions {
    beta1: 0.9,
    beta2: 0.95,
    epsilon: 1e-8,
    weight_decay: 0.1,
};

/// Replaces one parameter by a tensor that its device cannot compute: a slice of a tensor of 16
/// TiB.
struct Fail {
    /// Index of the parameter.
    index: usize,
    seen: usize,
    /// Its shape.
    failed: Option<Vec<usize>>,
}

impl ModuleMapper for Fail {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.seen += 1;
        if self.seen != self.index + 1 {
            return param;
        }
        let (id, tensor, mapper) = param.consume();
        self.failed = Some(tensor.dims().to_vec());
        let (device, dtype) = (tensor.device().inner(), tensor.dtype());
        let elements = tensor.shape().num_elements();
        let whole = Tensor::<1>::empty([(1 << 44) / dtype.size()], (&device, dtype));
        // Not aligned, so that a kernel copies it.
        let failed = whole.slice_dim(0, 7..7 + elements).reshape(tensor.dims());
        let read = failed.clone().try_into_data();
        assert!(read.is_err(), "the device has more than 16 TiB");
        let tensor = Tensor::from_inner(failed).require_grad();
        Param::from_mapped_value(id, tensor, mapper)
    }
}

fn config(name: &str) -> ModelConfig {
    let small = ModelConfig::named(name, VOCABULARY).unwrap();
    ModelConfig {
        // Sizes for tensor-core kernels.
        head_dim: 64,
        rotary_dim: 64,
        // A hybrid model has attention in every fourth block.
        num_hidden_layers: if name == "tiny-hybrid" { 4 } else { 2 },
        ..small
    }
}

#[test]
fn no_step_is_made_of_what_a_device_could_not_compute() {
    let device = autodiff_device();
    if !tree_training_devices::is_cubecl() {
        println!("skipped: a process that has no memory left ends");
        return;
    }
    let trunk: Vec<u32> = (1..20).collect();
    let branches = [[21, 22, 23, 24], [31, 32, 33, 34]];
    let trajectories = branches.map(|branch| {
        let tokens = [&trunk[..], &branch].concat();
        let trained = vec![true; tokens.len()];
        Trajectory::new("task", "rollout", tokens, trained)
    });
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::SepAvg);
    let cut = Cut::new(19, Partitioning::Connected);
    let packed = cut.pack(&trajectories, objective, aggregation);
    let mut silent = Vec::new();
    for name in ["tiny", "tiny-hybrid"] {
        for dtype in [DType::F32, DType::BF16] {
            if !tree_training_devices::computes_in(dtype) {
                continue;
            }
            let healthy: CausalLm = random_model(&config(name), 5, DType::F32, &device);
            for index in 0.. {
                let mut fail = Fail {
                    index,
                    seen: 0,
                    failed: None,
                };
                let model = healthy.clone().map(&mut fail);
                let Some(shape) = fail.failed else { break };
                let mut trainer = Trainer {
                    optimizer: adamw(&model, &ADAMW, &device),
                    model,
                    max_gradient_norm: Some(1.0),
                    precision: Precision {
                        blocks: dtype.into(),
                        head: dtype.into(),
                    },
                    options: StepOptions {
                        recompute: index % 2 == 1,
                        ..StepOptions::default()
                    },
                    device: device.clone(),
                };
                if let Ok(outcome) = trainer.step(&packed, &Supervised, 1e-3.into()) {
                    let loss = outcome.loss;
                    silent.push(format!(
                        "{name} {dtype:?} parameter {index} {shape:?}: {loss}"
                    ));
                }
            }
        }
    }
    assert!(silent.is_empty(), "{}", silent.join("\n"));
    check_device(&device).expect("a failure is told once");
}
