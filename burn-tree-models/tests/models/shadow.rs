//! bf16 computation with f32 master weights, on the device named by `BURN_DEVICE`; in f16 if the
//! device has no bf16.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_tree_models::CausalLm;
use burn_tree_models::layers::{Attention, InputProjections, Mixer};
use burn_tree_models::lora::LoraSettings;
use burn_tree_train::{sft_loss, shadow, widen_gradients};
use tree_training_devices::device_from_environment;

use crate::reference::log_probs;
use crate::{floats, load, trajectories, tree_batch};

fn device() -> Device {
    device_from_environment().autodiff()
}

fn narrow() -> FloatDType {
    match device().supports_dtype(DType::BF16) {
        true => FloatDType::BF16,
        false => FloatDType::F16,
    }
}

fn attention(model: &CausalLm, layer: usize) -> &Attention {
    match &model.layers[layer].mixer {
        Mixer::Attention(attention) => attention,
        Mixer::GatedDeltaNet(_) => panic!("block {layer} is recurrent"),
    }
}

/// The gradients by parameter, and their dtypes.
fn gradients(
    model: &CausalLm,
    parameters_of: &CausalLm,
    device: &Device,
) -> Vec<(DType, Vec<f64>)> {
    struct Visitor(GradientsParams, Vec<(DType, Vec<f64>)>);
    impl ModuleVisitor for Visitor {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1
                    .push((gradient.dtype(), floats(gradient.into_data())));
            }
        }
    }
    let batch = tree_batch(&trajectories(), FloatDType::F32, device);
    let loss = sft_loss(log_probs(model, &batch), &batch.occurrences);
    let gradients = GradientsParams::from_grads(loss.backward(), model);
    let gradients = widen_gradients(gradients, model);
    let mut visitor = Visitor(gradients, Vec::new());
    parameters_of.visit(&mut visitor);
    visitor.1
}

/// bf16 preserves the direction of every gradient: with about 3 significant digits per product, the
/// cosine to the f32 gradient differs from 1 by the squared relative error.
#[test]
fn gradients_of_a_bf16_shadow_belong_to_the_master() {
    let device = device();
    let master = load("qwen3_dense", FloatDType::F32, &device);
    let copy = shadow(&master, narrow(), CausalLm::stays_wide);
    assert_eq!(
        attention(&copy, 0).q_proj.weight.val().dtype(),
        DType::from(narrow())
    );
    let norm = attention(&copy, 0).q_norm.as_ref().unwrap();
    assert_eq!(norm.weight.val().dtype(), DType::F32);
    assert_same_direction(&master, &copy, &device);
}

/// Biases are added in the dtype of the product. RoPE scaling and windows make no difference.
#[test]
fn models_without_norms_of_queries_compute_in_bf16() {
    let device = device();
    for model in ["llama3", "qwen2", "qwen2_yarn"] {
        let master = load(model, FloatDType::F32, &device);
        let copy = shadow(&master, narrow(), CausalLm::stays_wide);
        if let Some(bias) = &attention(&copy, 0).q_proj.bias {
            assert_eq!(bias.val().dtype(), DType::from(narrow()));
        }
        assert_same_direction(&master, &copy, &device);
    }
}

/// In recurrent layers, norms, decay rates and their bias stay f32, but not the convolution.
#[test]
fn a_hybrid_model_computes_in_bf16() {
    let device = device();
    let master = load("qwen3_5_text", FloatDType::F32, &device);
    let copy = shadow(&master, narrow(), CausalLm::stays_wide);
    let Mixer::GatedDeltaNet(layer) = &copy.layers[0].mixer else {
        panic!("the first block is recurrent");
    };
    let InputProjections::Split(projections) = &layer.projections else {
        panic!("Qwen3.5 stores its projections apart");
    };
    for (dtype, wide) in [
        (projections.in_proj_qkv.weight.val().dtype(), false),
        (projections.in_proj_a.weight.val().dtype(), false),
        (layer.conv1d.weight.val().dtype(), false),
        (layer.a_log.val().dtype(), true),
        (layer.dt_bias.val().dtype(), true),
        (layer.norm.weight.val().dtype(), true),
    ] {
        let expected = if wide { DType::F32 } else { narrow().into() };
        assert_eq!(dtype, expected);
    }
    assert_same_direction(&master, &copy, &device);
}

fn assert_same_direction(master: &CausalLm, copy: &CausalLm, device: &Device) {
    let exact = gradients(master, master, device);
    let rounded = gradients(copy, master, device);
    assert_eq!(rounded.len(), exact.len());
    let (mut product, mut left, mut right) = (0.0, 0.0, 0.0);
    for ((dtype, rounded), (_, exact)) in rounded.iter().zip(&exact) {
        assert_eq!(*dtype, DType::F32);
        for (rounded, exact) in rounded.iter().zip(exact) {
            product += rounded * exact;
            left += rounded * rounded;
            right += exact * exact;
        }
    }
    let cosine = product / (left * right).sqrt();
    assert!(cosine > 0.999 && cosine < 1.0, "{cosine}");
}

/// AdamW updates the f32 master from the gradients of its shadow: the first step changes each
/// parameter by the learning rate in the direction of the sign of its gradient.
#[test]
fn the_optimizer_updates_the_master() {
    let device = device();
    let master = load("qwen3_dense", FloatDType::F32, &device);
    let update = |worker: &CausalLm| {
        let batch = tree_batch(&trajectories(), FloatDType::F32, &device);
        let loss = sft_loss(log_probs(worker, &batch), &batch.occurrences);
        let gradients = GradientsParams::from_grads(loss.backward(), worker);
        let gradients = widen_gradients(gradients, worker);
        let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).init();
        let updated = optimizer.step(1e-3, master.clone(), gradients);
        let [weight, old] =
            [&updated, &master].map(|model| attention(model, 0).o_proj.weight.val());
        assert_eq!(weight.dtype(), DType::F32);
        floats((weight - old).inner().into_data())
    };
    let exact = update(&master);
    let rounded = update(&shadow(&master, narrow(), CausalLm::stays_wide));
    assert!(exact.iter().all(|change| change.abs() < 1.001e-3));
    let same = exact.iter().zip(&rounded).filter(|(a, b)| *a * *b > 0.0);
    // The sign of gradients near zero may differ.
    assert!(same.count() as f64 > 0.9 * exact.len() as f64);
}

/// One shadow can be used for several packs of a step.
#[test]
fn two_passes_through_one_shadow() {
    let device = device();
    let master = load("qwen3_moe", FloatDType::F32, &device);
    let copy = shadow(&master, narrow(), CausalLm::stays_wide);
    let batch = tree_batch(&trajectories(), FloatDType::F32, &device);
    let losses = [(); 2].map(|()| sft_loss(log_probs(&copy, &batch), &batch.occurrences));
    let counts = losses.map(|loss| GradientsParams::from_grads(loss.backward(), &copy).len());
    assert_eq!(counts[0], counts[1]);
    assert!(counts[0] > 0);
}

#[test]
fn frozen_parameters_stay_frozen() {
    let device = device();
    let master = load("qwen3_dense", FloatDType::F32, &device);
    let master = LoraSettings::new(2, 4.0).apply(master).unwrap();
    let copy = shadow(&master, narrow(), CausalLm::stays_wide);
    // Two factors on 7 projections of 3 blocks.
    assert_eq!(gradients(&copy, &master, &device).len(), 42);
}
