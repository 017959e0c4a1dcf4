//! LoRA adapters: training, merging and export.

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_tree_models::lora::{LoraError, LoraSettings, merged};
use burn_tree_models::weights::{SaveOptions, hf_parameters};
use burn_tree_models::{CausalLm, WeightsError};
use burn_tree_train::{BlockContext, TreeModel, sft_loss};
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::reference::log_probs;
use crate::{MODELS, config, floats, load, trajectories, tree_batch};

/// A model after two training steps of its adapters.
fn trained(model: &str, settings: &LoraSettings, device: &Device) -> CausalLm {
    let mut model = settings
        .apply(load(model, FloatDType::F32, device))
        .unwrap();
    let batch = tree_batch(&trajectories(), FloatDType::F32, device);
    let mut optimizer = SgdConfig::new().init();
    for _ in 0..2 {
        let loss = sft_loss(log_probs(&model, &batch), &batch.occurrences);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.5, model, gradients);
    }
    model
}

fn hidden(model: &CausalLm, device: &Device) -> Vec<f64> {
    let batch = tree_batch(&trajectories(), FloatDType::F32, device);
    let hidden = model.hidden_states(batch.tokens.clone(), &BlockContext::new(&batch));
    floats(hidden.unwrap().into_data())
}

#[test]
fn a_new_adapter_changes_nothing_and_only_factors_are_trained() {
    let device = Device::flex().autodiff();
    for name in MODELS {
        let base = load(name, FloatDType::F32, &device);
        let adapted = LoraSettings::new(4, 8.0).apply(base.clone()).unwrap();
        assert_eq!(hidden(&adapted, &device), hidden(&base, &device));
        let batch = tree_batch(&trajectories(), FloatDType::F32, &device);
        let loss = sft_loss(log_probs(&adapted, &batch), &batch.occurrences);
        let gradients = GradientsParams::from_grads(loss.backward(), &adapted);
        let projections = match name {
            // In each block 4 layers of attention, and 3 of a dense feed-forward layer.
            "qwen3_dense" => 3 * (4 + 3),
            "qwen3_moe" => 3 * 4,
            // 3 and 5 layers of the recurrent blocks, and 3 of the shared expert or the dense
            // layer.
            "qwen3_next" => 3 * (3 + 3) + 4 + 3,
            "qwen3_5_text" => 3 * (5 + 3) + 4 + 3,
            "llama3" | "llama_linear" | "qwen2_yarn" => 2 * (4 + 3),
            "llama3_tied" | "qwen2" => 3 * (4 + 3),
            other => panic!("{other}"),
        };
        // Two factors each.
        assert_eq!(gradients.len(), projections * 2);
    }
}

#[test]
fn merging_keeps_the_function() {
    for name in ["qwen3_dense", "qwen3_next", "llama3_tied", "qwen2"] {
        assert_merging_keeps_the_function(name);
    }
}

fn assert_merging_keeps_the_function(name: &str) {
    let device = Device::flex().autodiff();
    let settings = LoraSettings::new(4, 8.0);
    let model = trained(name, &settings, &device);
    let base = load(name, FloatDType::F32, &device);
    let difference = |left: &[f64], right: &[f64]| {
        left.iter()
            .zip(right)
            .map(|(left, right)| (left - right).abs())
            .fold(0.0, f64::max)
    };
    let expected = hidden(&model, &device);
    assert!(difference(&expected, &hidden(&base, &device)) > 1e-3);

    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("merged");
    let refused = model.save(&config(name), &folder, SaveOptions::default());
    assert!(matches!(refused.unwrap_err(), WeightsError::Adapter { .. }));
    merged(&model)
        .save(&config(name), &folder, SaveOptions::default())
        .unwrap();
    let (loaded, _) = CausalLm::load(&folder, FloatDType::F32, &device).unwrap();
    // The merged matrix is computed by the same sums in the same order as in the adapted model.
    assert!(difference(&hidden(&loaded, &device), &expected) < 1e-6);
}

/// Base weights plus `alpha / r * B A` from the adapter files are the merged weights.
#[test]
fn the_exported_adapter_reproduces_the_merged_weights() {
    for (model, targets, count) in [
        ("qwen3_dense", ["down_proj", "q_proj"], 3 * 2),
        // The routed experts have no linear layers.
        ("qwen3_next", ["in_proj_ba", "out_proj"], 3 * 2),
        ("qwen3_5_text", ["in_proj_qkv", "q_proj"], 3 + 1),
        ("llama3", ["gate_proj", "o_proj"], 2 * 2),
        // Layers with biases, which have no adapters.
        ("qwen2", ["k_proj", "v_proj"], 3 * 2),
    ] {
        assert_adapter_reproduces_the_merged_weights(model, targets, count);
    }
}

fn assert_adapter_reproduces_the_merged_weights(name: &str, targets: [&str; 2], count: usize) {
    let device = Device::flex().autodiff();
    let settings = LoraSettings {
        target_modules: Some(targets.map(str::to_owned).to_vec()),
        ..LoraSettings::new(3, 6.0)
    };
    let model = trained(name, &settings, &device);
    let target = tempfile::tempdir().unwrap();
    let folder = target.path().join("adapter");
    settings.save_adapter(&model, "base", &folder).unwrap();

    let text = std::fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["peft_type"], json!("LORA"));
    assert_eq!(json["r"], json!(3));
    assert_eq!(json["lora_alpha"], json!(6.0));
    assert_eq!(json["target_modules"], json!(targets));

    let bytes = std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    let adapter = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(adapter.len(), 2 * count);
    let base = hf_parameters(&load(name, FloatDType::F32, &device)).unwrap();
    let merged = hf_parameters(&merged(&model)).unwrap();
    let mut adapted = 0;
    for (base, merged) in base.iter().zip(&merged) {
        let module = base.key().strip_suffix(".weight").unwrap_or(base.key());
        let factor = |name: &str| {
            let key = format!("base_model.model.{module}.{name}.weight");
            let view = adapter.tensor(&key).ok()?;
            let values: Vec<f32> = view
                .data()
                .chunks_exact(4)
                .map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()))
                .collect();
            let shape = [view.shape()[0], view.shape()[1]];
            Some(Tensor::<1>::from_floats(values.as_slice(), &device).reshape(shape))
        };
        let mut expected = floats(base.to_data(FloatDType::F64));
        if let (Some(a), Some(b)) = (factor("lora_A"), factor("lora_B")) {
            let delta: Tensor<2> = b.matmul(a) * 2.0;
            assert_eq!(delta.dims(), [base.shape()[0], base.shape()[1]]);
            let delta = floats(delta.into_data());
            assert!(delta.iter().any(|value| value.abs() > 1e-5));
            expected
                .iter_mut()
                .zip(delta)
                .for_each(|(value, delta)| *value += delta);
            adapted += 1;
        }
        for (found, expected) in floats(merged.to_data(FloatDType::F64)).iter().zip(expected) {
            // Products of random factors, summed in f32 in another order.
            let bar = 1e-5 * (1.0 + expected.abs());
            assert!(
                (found - expected).abs() < bar,
                "{module}: {found} {expected}"
            );
        }
    }
    assert_eq!(adapted, count);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let device = Device::flex();
    let model = || load("qwen3_moe", FloatDType::F32, &device);
    assert_eq!(
        LoraSettings::new(0, 1.0).apply(model()).unwrap_err(),
        LoraError::Rank
    );
    let settings = LoraSettings {
        target_modules: Some(vec!["gate_proj".to_owned()]),
        ..LoraSettings::new(2, 1.0)
    };
    let message = settings.apply(model()).unwrap_err().to_string();
    assert_eq!(
        message,
        "the model has no linear layer `gate_proj`; LoRA can adapt gate, k_proj, o_proj, q_proj, \
         v_proj"
    );
}
