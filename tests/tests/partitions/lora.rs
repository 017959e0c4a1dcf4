//! Adapters on a frozen model.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use burn_tree_models::lora::LoraSettings;
use tree_pack::{Aggregation, Objective, Partitioning, Trajectory};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::equality::bars;
use tree_training_tests::models::{dense_config, hybrid_config, hybrid_moe_config, random_model};
use tree_training_tests::numbers::Numbers;
use tree_training_tests::partition::{Cut, all_step_options, compare, parts_step, whole_step};
use tree_training_tests::tensors::NamedTensors;

/// Fills trained parameters with random values, because one factor of each adapter is initially
/// zero.
struct Fill(Numbers);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.val().is_require_grad() {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let (dims, device, dtype) = (value.dims(), value.device(), value.dtype());
        let count = dims.iter().product();
        let data = burn::tensor::TensorData::new(self.0.take(count), dims);
        let value = Tensor::from_data(data, (&device, dtype)) * 0.2;
        Param::from_mapped_value(id, value.require_grad(), mapper)
    }
}

#[test]
fn adapters_get_the_gradients_of_whole_trees() {
    let device = autodiff_device();
    let trajectories: Vec<Trajectory> = (0..4)
        .map(|branch| {
            let tokens: Vec<u32> = (1..9)
                .chain([10 + branch % 2, 3, 12 + branch, 4, 5])
                .collect();
            let mask = vec![true; tokens.len()];
            Trajectory::new("task", "rollout", tokens, mask)
        })
        .collect();
    let (objective, aggregation) = (Objective::PerOccurrence, Aggregation::TokenMean);
    let packed = Cut::new(4, Partitioning::Connected).pack(&trajectories, objective, aggregation);
    for dtype in test_dtypes() {
        for config in [dense_config, hybrid_config, hybrid_moe_config] {
            let model = random_model(&config(20), 2, dtype, &device);
            let model = LoraSettings::new(3, 6.0).apply(model).expect("projections");
            let model = model.map(&mut Fill(Numbers::new(4, dtype)));
            let expected = whole_step(
                &model,
                &trajectories,
                objective,
                aggregation,
                dtype,
                &device,
            );
            let norm = NamedTensors::gradients(&model, &expected.gradients).norm();
            assert!(norm > 1e-3, "the adapters get gradients: {norm}");
            for options in all_step_options() {
                let found = parts_step(&model, &packed, &options, &device);
                assert_eq!(found.gradients.len(), expected.gradients.len());
                compare(&model, &found, &expected, dtype, bars(dtype).1)
                    .unwrap_or_else(|error| panic!("{dtype:?}, {options:?}: {error}"));
            }
        }
    }
}
