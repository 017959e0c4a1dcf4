//! Expert dispatch and the load-balancing loss.

use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Tensor};
use burn_tree_models::CausalLm;
use burn_tree_models::weights::hf_gradients;
use burn_tree_train::{BlockContext, RouterLoad, RouterOutput, TreeModel, load_balancing_loss};
use tree_pack::{PackOptions, Trajectory, TreeBatch, build_forests, flat_forests, pack_step};

use crate::{floats, load, trajectories, tree_batch};

fn routers(model: &CausalLm, batch: &TreeBatch) -> Vec<RouterOutput> {
    let context = BlockContext::new(batch);
    let (_, blocks) = model.forward(batch.tokens.clone(), &context).unwrap();
    blocks
        .into_iter()
        .filter_map(|block| block.router)
        .collect()
}

/// Number of trajectories that contain each row of the only tree, zeros in padding.
fn multiplicity(trajectories: &[Trajectory], rows: usize) -> Vec<f32> {
    let forest = &build_forests(trajectories).unwrap()[0];
    assert_eq!(forest.trees().len(), 1);
    let mut counts: Vec<f32> = Vec::new();
    for (node, &through) in forest.nodes().iter().zip(&forest.trajectories_by_node()) {
        counts.extend(std::iter::repeat_n(through as f32, node.token_count()));
    }
    counts.resize(rows, 0.0);
    counts
}

/// The formula of Hugging Face's `load_balancing_loss_func` on separate trajectories: every
/// token of every trajectory counts once.
fn flat_oracle(model: &CausalLm, trajectories: &[Trajectory], device: &Device) -> Tensor<1> {
    let forests = flat_forests(trajectories).unwrap();
    let mut probabilities = Vec::new();
    let mut chosen = Vec::new();
    for forest in &forests {
        let step = pack_step(trajectories, &[forest], &PackOptions::new(64)).unwrap();
        for pack in &step.packs {
            let packs = std::slice::from_ref(pack);
            let batch = TreeBatch::with_dtype(packs, device, FloatDType::F64);
            for router in routers(model, &batch) {
                probabilities.push(router.probabilities);
                chosen.extend(router.experts.into_data().iter::<i64>());
            }
        }
    }
    let probabilities = Tensor::cat(probabilities, 0);
    let [tokens, experts] = probabilities.dims();
    let mut fractions = vec![0.0; experts];
    for expert in chosen {
        fractions[expert as usize] += 1.0 / tokens as f64;
    }
    let fractions = Tensor::<1>::from_data(
        burn::tensor::TensorData::new(fractions, [experts]),
        (device, burn::tensor::DType::F64),
    );
    let mean = probabilities.mean_dim(0).squeeze_dim::<1>(0);
    (mean * fractions).sum() * experts as f64
}

fn gradients(model: &CausalLm, loss: Tensor<1>) -> Vec<(String, Vec<f64>)> {
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    hf_gradients(model, &gradients)
        .unwrap()
        .iter()
        .map(|tensor| {
            let values = floats(tensor.to_data(FloatDType::F64));
            (tensor.key().to_owned(), values)
        })
        .collect()
}

#[test]
fn load_balancing_on_a_tree_is_that_of_its_trajectories() {
    let device = Device::flex().autodiff();
    let model = load("qwen3_moe", FloatDType::F64, &device);
    let trajectories = trajectories();
    let batch = tree_batch(&trajectories, FloatDType::F64, &device);
    let multiplicity = multiplicity(&trajectories, batch.dims()[1]);
    let routers = routers(&model, &batch);
    let mut load = RouterLoad::default();
    load.add(&routers, &multiplicity);
    assert!((load.fractions().iter().sum::<f64>() - 2.0).abs() < 1e-12);
    let tree = load_balancing_loss(&routers, &multiplicity, &load);
    let flat = flat_oracle(&model, &trajectories, &device);
    let difference = (tree.clone() - flat.clone()).into_scalar::<f64>();
    assert!(difference.abs() < 1e-12, "{difference:e}");

    let (tree, flat) = (gradients(&model, tree), gradients(&model, flat));
    let mut norm = 0.0;
    for ((key, tree), (_, flat)) in tree.iter().zip(&flat) {
        for (tree, flat) in tree.iter().zip(flat) {
            assert!((tree - flat).abs() < 1e-12, "{key}: {tree} {flat}");
            norm += flat * flat;
        }
    }
    assert!(norm > 1e-6);
}

/// With the load of the whole step, the losses of its packs sum to the loss of the step; the sum of
/// the packs' separate losses differs.
#[test]
fn packs_of_a_step_add_up() {
    let device = Device::flex();
    let model = load("qwen3_moe", FloatDType::F64, &device);
    let all = trajectories();
    let other = vec![Trajectory::new(
        "other",
        "rollout",
        vec![3, 5, 9],
        vec![true; 3],
    )];
    let parts: Vec<(Vec<RouterOutput>, Vec<f32>)> = [&all, &other]
        .map(|part| {
            let batch = tree_batch(part, FloatDType::F64, &device);
            let counts = multiplicity(part, batch.dims()[1]);
            (routers(&model, &batch), counts)
        })
        .into();
    let mut step = RouterLoad::default();
    let mut own = 0.0;
    for (routers, counts) in &parts {
        step.add(routers, counts);
        let mut load = RouterLoad::default();
        load.add(routers, counts);
        own += load_balancing_loss(routers, counts, &load).into_scalar::<f64>();
    }
    let sum: f64 = parts
        .iter()
        .map(|(routers, counts)| load_balancing_loss(routers, counts, &step).into_scalar::<f64>())
        .sum();
    let together: Vec<Trajectory> = all.into_iter().chain(other).collect();
    let expected = flat_oracle(&model, &together, &device).into_scalar::<f64>();
    assert!((sum - expected).abs() < 1e-12, "{sum} {expected}");
    assert!((own - expected).abs() > 1e-3, "{own} {expected}");
}

/// The output of each row is that of its own experts, whatever experts other rows chose.
#[test]
fn rows_do_not_depend_on_each_other() {
    let device = Device::flex();
    let model = load("qwen3_moe", FloatDType::F64, &device).valid();
    let trajectories = trajectories();
    let together = tree_batch(&trajectories, FloatDType::F64, &device);
    let hidden = |batch: &TreeBatch| {
        let hidden = model.hidden_states(batch.tokens.clone(), &BlockContext::new(batch));
        hidden.unwrap()
    };
    let alone = tree_batch(&trajectories[..1], FloatDType::F64, &device);
    let (hidden, single) = (hidden(&together), hidden(&alone));
    let row =
        |hidden: Tensor<3>, row: usize| floats(hidden.slice([0..1, row..row + 1]).into_data());
    // The first trajectory is the first branch of the tree, or the second.
    let tokens = together.layouts[0].tokens.clone();
    for (index, token) in trajectories[0].tokens.iter().enumerate() {
        let place = tokens.iter().position(|other| other == token).unwrap();
        let (found, expected) = (row(hidden.clone(), place), row(single.clone(), index));
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12);
        }
    }
}
