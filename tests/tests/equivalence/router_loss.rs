//! The load-balancing loss of mixtures of experts: equal on trees, over all packs of a step, and on
//! separate sequences.

use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_train::{BlockContext, RouterLoad, RouterOutput, TreeModel, load_balancing_loss};
use proptest::prelude::*;
use tree_pack::{Aggregation, Objective, Pack, Trajectory, TreeBatch};
use tree_training_tests::device::{autodiff_device, test_dtypes};
use tree_training_tests::forest::{ForestShape, cases, forests};
use tree_training_tests::models::{moe_config, random_model};
use tree_training_tests::oracle::trie::RowsByPath;
use tree_training_tests::packing::Packing;
use tree_training_tests::step::{read, sequence_layout, smallest_router_gap};
use tree_training_tests::tensors::{NamedTensors, Tolerance};

const VOCABULARY: usize = 40;

/// Two layers of experts.
fn config() -> ModelConfig {
    let mut config = moe_config(VOCABULARY);
    config.moe.as_mut().expect("a mixture").decoder_sparse_step = 1;
    config
}

/// Routing of all layers for a pack.
fn routers(model: &CausalLm, pack: &Pack, device: &Device) -> Vec<RouterOutput> {
    let batch = TreeBatch::new(std::slice::from_ref(pack), device);
    let context = BlockContext::new(&batch);
    let mut x = model.embed(batch.tokens, &context);
    let mut routers = Vec::new();
    for index in 0..model.n_blocks() {
        let (y, outputs) = model.block(index, x, &context, None).unwrap();
        x = y;
        routers.push(outputs.router.expect("every layer has experts"));
    }
    routers
}

fn alone(trajectory: &Trajectory) -> Pack {
    Pack {
        layout: sequence_layout(&trajectory.tokens),
        padded_len: trajectory.len(),
        ..Pack::default()
    }
}

/// Loss and gradients.
type Outcome = (f64, NamedTensors);

/// `E * sum_e f_e P_e` with shares `f` and means `P` over all tokens of all sequences and layers,
/// by the definition, in plain loops over separate sequences.
fn separate(
    model: &CausalLm,
    trajectories: &[Trajectory],
    dtype: DType,
    device: &Device,
) -> Outcome {
    let experts = config().moe.expect("a mixture").num_experts;
    let all: Vec<Vec<RouterOutput>> = trajectories
        .iter()
        .map(|t| routers(model, &alone(t), device))
        .collect();
    let mut chosen = vec![0.0; experts];
    let mut probability = vec![0.0; experts];
    let mut tokens = 0.0;
    for router in all.iter().flatten() {
        for expert in router.experts.to_data().iter::<i64>() {
            chosen[expert as usize] += 1.0;
        }
        let values: Vec<f64> = router.probabilities.to_data().iter().collect();
        for row in values.chunks(experts) {
            row.iter()
                .zip(&mut probability)
                .for_each(|(p, sum)| *sum += p);
            tokens += 1.0;
        }
    }
    let pairs = chosen.iter().zip(&probability);
    let loss = experts as f64 * pairs.map(|(f, p)| f / tokens * p / tokens).sum::<f64>();

    // The choices are constants, so the loss is linear in the probabilities.
    let coefficients: Vec<f64> = chosen
        .iter()
        .map(|f| experts as f64 * f / (tokens * tokens))
        .collect();
    let data = TensorData::new(coefficients, [1, experts]);
    let coefficients = Tensor::<2>::from_data(data, (device, dtype));
    let mut accumulator = GradientsAccumulator::new();
    for layers in all {
        let terms = layers
            .into_iter()
            .map(|layer| layer.probabilities * coefficients.clone());
        let part = terms
            .map(|term| term.sum())
            .reduce(|sum, term| sum + term)
            .expect("a layer");
        accumulator.accumulate(model, GradientsParams::from_grads(part.backward(), model));
    }
    (loss, NamedTensors::gradients(model, &accumulator.grads()))
}

fn packed(
    model: &CausalLm,
    trajectories: &[Trajectory],
    packing: Packing,
    device: &Device,
) -> Outcome {
    let packs = packing
        .pack(trajectories, Objective::PerOccurrence, Aggregation::Sum)
        .packs;
    let rows = RowsByPath::new(&packs);
    let mut multiplicity: Vec<Vec<f32>> = packs
        .iter()
        .map(|pack| vec![0.0; pack.padded_len])
        .collect();
    for (pack, row) in trajectories
        .iter()
        .flat_map(|trajectory| rows.of(trajectory))
    {
        multiplicity[pack][row] += 1.0;
    }
    // First the choices of all packs, without gradients.
    let mut load = RouterLoad::default();
    let inner = device.clone().inner();
    for (pack, multiplicity) in packs.iter().zip(&multiplicity) {
        let valid = burn::module::Module::valid(model);
        load.add(&routers(&valid, pack, &inner), multiplicity);
    }
    let mut loss = 0.0;
    let mut accumulator = GradientsAccumulator::new();
    for (pack, multiplicity) in packs.iter().zip(&multiplicity) {
        let part = load_balancing_loss(&routers(model, pack, device), multiplicity, &load);
        loss += read(&part)[0];
        accumulator.accumulate(model, GradientsParams::from_grads(part.backward(), model));
    }
    (loss, NamedTensors::gradients(model, &accumulator.grads()))
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn load_balancing_loss_of_packs_is_that_of_sequences(
        forest in forests(ForestShape::default()),
        packing in Packing::strategy(),
        seed in any::<u64>(),
    ) {
        let device = autodiff_device();
        let trajectories = forest.with_disjoint_tasks(13).trajectories();
        for dtype in test_dtypes() {
            // The tolerances of models, see `equality::bars`.
            let relative = if dtype == DType::F64 { 1e-10 } else { 1e-4 };
            let model = random_model(&config(), seed, dtype, &device);
            if dtype != DType::F64 && smallest_router_gap(&model, &trajectories, &device) < 1e-5 {
                continue;
            }
            let (expected_loss, expected) = separate(&model, &trajectories, dtype, &device);
            let (loss, gradients) = packed(&model, &trajectories, packing, &device);
            let difference = (loss - expected_loss).abs();
            prop_assert!(difference <= 0.1 * relative * expected_loss, "{loss} {expected_loss}");
            let tolerance = Tolerance { relative, floor: 1e-3, exact_zeros: false };
            let checked = gradients.check(&expected, tolerance);
            prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
        }
    }
}
