//! Checkpoints: round trips, layouts and invalid files.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{DType, Device, FloatDType};
use burn_tree_models::qwen3::QWEN3_5;
use burn_tree_models::weights::{SaveOptions, hf_parameters};
use burn_tree_models::{CausalLm, LayerType, LinearAttentionConfig, ModelConfig, WeightsError};
use burn_tree_train::{BlockContext, TreeModel};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;

use crate::{MODELS, config, fixtures, floats, load, trajectories, tree_batch};

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

fn parameters(model: &CausalLm) -> Tensors {
    hf_parameters(model)
        .unwrap()
        .into_iter()
        .map(|tensor| {
            let values = floats(tensor.to_data(FloatDType::F64));
            (tensor.key().to_owned(), (tensor.shape().to_vec(), values))
        })
        .collect()
}

/// The f32 tensors of a fixture.
fn file(model: &str) -> Tensors {
    read(&fixtures().join(model).join("model.safetensors"))
}

/// The f32 tensors of a file, read independently of the crate.
fn read(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter()
        .map(|(key, view)| {
            assert_eq!(view.dtype(), Dtype::F32);
            let values = view
                .data()
                .chunks_exact(4)
                .map(|bytes| f64::from(f32::from_le_bytes(bytes.try_into().unwrap())))
                .collect();
            (key.to_owned(), (view.shape().to_vec(), values))
        })
        .collect()
}

/// Writes f32 tensors next to a copy of the fixture's configuration.
fn folder(model: &str, tensors: &Tensors) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(
        fixtures().join(model).join("config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    write(&folder.path().join("model.safetensors"), tensors);
    folder
}

fn write(path: &Path, tensors: &Tensors) {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(key, (shape, values))| {
            let bytes = values
                .iter()
                .flat_map(|&value| (value as f32).to_le_bytes());
            (key.clone(), shape.clone(), bytes.collect())
        })
        .collect();
    let views = bytes.iter().map(|(key, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        (key.clone(), view)
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn error(folder: &Path) -> WeightsError {
    CausalLm::load(folder, FloatDType::F32, &Device::flex()).unwrap_err()
}

#[test]
fn parameters_have_the_keys_and_values_of_the_file() {
    for model in MODELS {
        let loaded = load(model, FloatDType::F32, &Device::flex());
        assert_eq!(parameters(&loaded), file(model), "{model}");
    }
}

#[test]
fn saving_and_loading_changes_nothing() {
    for model in MODELS {
        let loaded = load(model, FloatDType::F32, &Device::flex());
        let target = tempfile::tempdir().unwrap();
        let path = target.path().join("nested/model");
        loaded
            .save(&config(model), &path, SaveOptions::default())
            .unwrap();
        let (again, config_again) =
            CausalLm::load(&path, FloatDType::F32, &Device::flex()).unwrap();
        assert_eq!(parameters(&again), parameters(&loaded));
        // The same bits and layout as in the file that was loaded.
        assert_eq!(read(&path.join("model.safetensors")), file(model));
        assert_eq!(config_again.moe, config(model).moe);
        assert_eq!(config_again.layer_types, config(model).layer_types);
        assert_eq!(
            config_again,
            ModelConfig {
                other: config_again.other.clone(),
                ..config(model)
            }
        );
        // No temporary files are left.
        let beside = std::fs::read_dir(path.parent().unwrap()).unwrap().count();
        assert_eq!(beside, 1);
    }
}

#[test]
fn shards_and_narrow_dtypes() {
    let device = Device::flex();
    for dtype in [FloatDType::BF16, FloatDType::F16, FloatDType::F64] {
        let loaded = load("qwen3_moe", FloatDType::F32, &device);
        let target = tempfile::tempdir().unwrap();
        let path = target.path().join("model");
        let options = SaveOptions {
            dtype: Some(dtype),
            max_shard_bytes: 20_000,
        };
        loaded.save(&config("qwen3_moe"), &path, options).unwrap();
        let index = std::fs::read_to_string(path.join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_str(&index).unwrap();
        let values: usize = file("qwen3_moe")
            .values()
            .map(|(_, values)| values.len())
            .sum();
        let size = values * if dtype == FloatDType::F64 { 8 } else { 2 };
        assert_eq!(index["metadata"]["total_size"], size);
        let mut shards = 0;
        for entry in std::fs::read_dir(&path).unwrap() {
            let shard = entry.unwrap().path();
            if shard
                .extension()
                .is_none_or(|extension| extension != "safetensors")
            {
                continue;
            }
            let bytes = std::fs::read(&shard).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            let stored: usize = tensors.iter().map(|(_, view)| view.data().len()).sum();
            // A tensor larger than the limit gets its own file.
            assert!(stored <= 20_000 || tensors.len() == 1, "{stored} bytes");
            shards += 1;
        }
        assert!(shards > 2);
        let (again, _) = CausalLm::load(&path, FloatDType::F64, &device).unwrap();
        for (key, (shape, expected)) in parameters(&loaded) {
            let (found_shape, found) = &parameters(&again)[&key];
            assert_eq!(*found_shape, shape);
            // Half a unit in the last place of 8 or 11 significant bits; values below 2^-14
            // have fewer of them in f16.
            let (relative, absolute) = match dtype {
                FloatDType::BF16 => (f64::exp2(-8.0), 0.0),
                FloatDType::F16 => (f64::exp2(-11.0), f64::exp2(-25.0)),
                _ => (0.0, 0.0),
            };
            for (found, expected) in found.iter().zip(expected) {
                let bound = relative * expected.abs() + absolute;
                assert!(
                    (found - expected).abs() <= bound,
                    "{key}: {found} {expected}"
                );
            }
        }
    }
}

/// The tensors of a model with fused experts.
fn with_fused_experts(mut tensors: Tensors, settings: &ModelConfig) -> Tensors {
    let moe = settings.moe.as_ref().unwrap();
    let (experts, hidden) = (moe.num_experts, settings.hidden_size);
    let inner = moe.moe_intermediate_size;
    for layer in 0..settings.num_hidden_layers {
        let prefix = format!("model.layers.{layer}.mlp.experts");
        let (mut gate_up, mut down) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            let mut take = |name: &str| {
                let key = format!("{prefix}.{expert}.{name}.weight");
                tensors.remove(&key).unwrap().1
            };
            gate_up.extend(take("gate_proj"));
            gate_up.extend(take("up_proj"));
            down.extend(take("down_proj"));
        }
        let fused = [
            ("gate_up_proj", vec![experts, 2 * inner, hidden], gate_up),
            ("down_proj", vec![experts, hidden, inner], down),
        ];
        for (name, shape, values) in fused {
            tensors.insert(format!("{prefix}.{name}"), (shape, values));
        }
    }
    tensors
}

#[test]
fn fused_experts_are_read_like_single_ones() {
    for name in ["qwen3_moe", "qwen3_next"] {
        let tensors = with_fused_experts(file(name), &config(name));
        let folder = folder(name, &tensors);
        let (model, _) = CausalLm::load(folder.path(), FloatDType::F32, &Device::flex()).unwrap();
        assert_eq!(parameters(&model), file(name));
    }
}

/// The keys of a multimodal checkpoint, with parts that are ignored.
fn multimodal(tensors: Tensors) -> Tensors {
    let renamed = tensors.into_iter().map(|(key, tensor)| {
        let key = match key.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => key,
        };
        (key, tensor)
    });
    let others = ["model.visual.blocks.0.attn.qkv.bias", "mtp.fc.weight"]
        .map(|key| (key.to_owned(), (vec![2], vec![1.0, 2.0])));
    renamed.chain(others).collect()
}

/// The `config.json` of a multimodal model that contains a language model.
fn write_multimodal_config(folder: &Path, model_type: &str, text: &ModelConfig) {
    let json = serde_json::json!({
        "model_type": model_type,
        "text_config": text.to_json(),
        "vision_config": {},
    });
    std::fs::write(folder.join("config.json"), json.to_string()).unwrap();
}

#[test]
fn the_language_model_of_a_multimodal_checkpoint() {
    let tensors = multimodal(file("qwen3_5_text"));
    let folder = folder("qwen3_5_text", &tensors);
    let config = config("qwen3_5_text");
    write_multimodal_config(folder.path(), "qwen3_5", &config);
    let (model, loaded) = CausalLm::load(folder.path(), FloatDType::F32, &Device::flex()).unwrap();
    assert_eq!(parameters(&model), file("qwen3_5_text"));
    assert_eq!(loaded.layer_types, config.layer_types);
    // Saved as a language model.
    let path = folder.path().join("saved");
    model.save(&loaded, &path, SaveOptions::default()).unwrap();
    assert_eq!(read(&path.join("model.safetensors")), file("qwen3_5_text"));

    // Qwen3 refuses the additional tensors.
    let mut tensors = file("qwen3_dense");
    tensors.insert("mtp.fc.weight".to_owned(), (vec![1], vec![0.0]));
    let message = error(self::folder("qwen3_dense", &tensors).path()).to_string();
    assert!(message.contains("mtp.fc.weight"), "{message}");
}

/// Qwen3.5-MoE: fused experts, a shared expert, separate projections of recurrent layers. There are
/// no reference values: it must equal a Qwen3-Next with the same weights.
#[test]
fn a_mixture_of_experts_of_qwen3_5() {
    let device = Device::flex();
    let next_config = config("qwen3_next");
    let next = file("qwen3_next");
    let LayerType::LinearAttention(sizes) = next_config.layer_types[0] else {
        panic!("the first block is recurrent");
    };
    let mut tensors = with_fused_experts(next, &next_config);
    for layer in 0..next_config.num_hidden_layers {
        split_projections(&mut tensors, layer, &sizes, next_config.hidden_size);
    }
    let config = ModelConfig {
        family: &QWEN3_5,
        ..next_config
    };
    let folder = folder("qwen3_next", &multimodal(tensors.clone()));
    write_multimodal_config(folder.path(), "qwen3_5_moe", &config);
    let (model, loaded) = CausalLm::load(folder.path(), FloatDType::F32, &device).unwrap();
    assert_eq!(loaded.family, &QWEN3_5);
    assert_eq!(parameters(&model), tensors);
    let path = folder.path().join("saved");
    model.save(&loaded, &path, SaveOptions::default()).unwrap();
    assert_eq!(read(&path.join("model.safetensors")), tensors);
    assert!(CausalLm::load(&path, FloatDType::F32, &device).is_ok());

    let next = load("qwen3_next", FloatDType::F32, &device);
    let batch = tree_batch(&trajectories(), FloatDType::F32, &device);
    let hidden = |model: &CausalLm| {
        let context = BlockContext::new(&batch);
        let hidden = model.hidden_states(batch.tokens.clone(), &context);
        floats(hidden.unwrap().into_data())
    };
    for (found, expected) in hidden(&model).iter().zip(hidden(&next)) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

/// Splits the projections of a recurrent layer of Qwen3-Next as Qwen3.5 stores them.
fn split_projections(
    tensors: &mut Tensors,
    layer: usize,
    sizes: &LinearAttentionConfig,
    hidden: usize,
) {
    let prefix = format!("model.layers.{layer}.linear_attn");
    let Some((_, qkvz)) = tensors.remove(&format!("{prefix}.in_proj_qkvz.weight")) else {
        return;
    };
    let (_, ba) = tensors
        .remove(&format!("{prefix}.in_proj_ba.weight"))
        .unwrap();
    let share = sizes.num_value_heads / sizes.num_key_heads;
    let (key, value) = (sizes.key_head_dim, share * sizes.value_head_dim);
    // Rows `start..start + count` of each key head's group.
    let rows = |matrix: &[f64], start: usize, count: usize| -> Vec<f64> {
        let group = matrix.len() / sizes.num_key_heads;
        let groups = matrix.chunks(group);
        groups
            .flat_map(|group| group[start * hidden..(start + count) * hidden].to_vec())
            .collect()
    };
    let qkv = [(0, key), (key, key), (2 * key, value)]
        .iter()
        .flat_map(|&(start, count)| rows(&qkvz, start, count))
        .collect();
    for (name, values) in [
        ("in_proj_qkv", qkv),
        ("in_proj_z", rows(&qkvz, 2 * key + value, value)),
        ("in_proj_b", rows(&ba, 0, share)),
        ("in_proj_a", rows(&ba, share, share)),
    ] {
        let shape = vec![values.len() / hidden, hidden];
        tensors.insert(format!("{prefix}.{name}.weight"), (shape, values));
    }
}

/// Decay rates and the norm of recurrent layers are f32 in a narrower model and in its file.
#[test]
fn decay_and_its_norm_stay_f32() {
    let device = Device::flex();
    let narrow = load("qwen3_next", FloatDType::BF16, &device);
    let target = tempfile::tempdir().unwrap();
    let path = target.path().join("model");
    let options = SaveOptions {
        dtype: Some(FloatDType::F16),
        ..SaveOptions::default()
    };
    narrow.save(&config("qwen3_next"), &path, options).unwrap();
    let bytes = std::fs::read(path.join("model.safetensors")).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let original = file("qwen3_next");
    let mut wide = 0;
    for tensor in hf_parameters(&narrow).unwrap() {
        let key = tensor.key();
        let stays = key.ends_with("linear_attn.A_log") || key.ends_with("linear_attn.norm.weight");
        let (in_model, in_file) = match stays {
            true => (DType::F32, Dtype::F32),
            false => (DType::BF16, Dtype::F16),
        };
        assert_eq!(tensor.dtype(), in_model, "{key}");
        assert_eq!(stored.tensor(key).unwrap().dtype(), in_file, "{key}");
        if stays {
            assert_eq!(floats(tensor.to_data(FloatDType::F64)), original[key].1);
            wide += 1;
        }
    }
    assert_eq!(wide, 6);
}

/// A tied head may be stored a second time.
#[test]
fn a_stored_copy_of_a_tied_head_is_accepted() {
    let mut tensors = file("qwen3_moe");
    let head = tensors["model.embed_tokens.weight"].clone();
    tensors.insert("lm_head.weight".to_owned(), head);
    let folder = folder("qwen3_moe", &tensors);
    assert!(CausalLm::load(folder.path(), FloatDType::F32, &Device::flex()).is_ok());
}

#[test]
fn missing_unexpected_and_misshaped_tensors_are_named() {
    let key = "model.layers.1.self_attn.q_proj.weight";

    let mut tensors = file("qwen3_dense");
    tensors.remove(key);
    let message = error(folder("qwen3_dense", &tensors).path()).to_string();
    assert!(
        message.ends_with(&format!("tensor `{key}` is missing")),
        "{message}"
    );

    let mut tensors = file("qwen3_dense");
    tensors.insert("model.layers.9.extra".to_owned(), (vec![1], vec![0.0]));
    let message = error(folder("qwen3_dense", &tensors).path()).to_string();
    assert!(
        message.contains("1 tensors do not belong to the model"),
        "{message}"
    );
    assert!(message.contains("model.layers.9.extra"), "{message}");

    let mut tensors = file("qwen3_dense");
    let shape = &mut tensors.get_mut(key).unwrap().0;
    shape.swap(0, 1);
    let message = error(folder("qwen3_dense", &tensors).path()).to_string();
    assert!(
        message.contains("has shape [32, 128], expected [128, 32]"),
        "{message}"
    );
}

#[test]
fn files_that_are_no_checkpoints() {
    let empty = tempfile::tempdir().unwrap();
    assert!(matches!(error(empty.path()), WeightsError::Config(_)));

    let folder = folder("qwen3_dense", &file("qwen3_dense"));
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 7, 100, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert!(matches!(error(folder.path()), WeightsError::Format { .. }));
    }
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        error(folder.path()),
        WeightsError::NoWeights { .. }
    ));

    let index = folder.path().join("model.safetensors.index.json");
    for (text, expected) in [
        ("{", "not valid JSON"),
        ("{}", "`weight_map` must be an object"),
        (
            r#"{"weight_map": {"a": 3}}"#,
            "the file of `a` is 3, not a string",
        ),
        (
            r#"{"weight_map": {"a": "../a.safetensors"}}"#,
            "not a file of this folder",
        ),
    ] {
        std::fs::write(&index, text).unwrap();
        let message = error(folder.path()).to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn nothing_is_replaced() {
    let target = tempfile::tempdir().unwrap();
    std::fs::write(target.path().join("precious"), "kept").unwrap();
    let model = load("qwen3_dense", FloatDType::F32, &Device::flex());
    let error = model
        .save(
            &config("qwen3_dense"),
            target.path(),
            SaveOptions::default(),
        )
        .unwrap_err();
    assert!(matches!(error, WeightsError::Exists { .. }));
    assert_eq!(std::fs::read_dir(target.path()).unwrap().count(), 1);
}

#[test]
fn random_weights_depend_on_the_seed_alone() {
    let config = ModelConfig {
        num_hidden_layers: 1,
        ..ModelConfig::named("tiny", 50).unwrap()
    };
    let random = |seed| {
        let model = CausalLm::random(&config, seed, FloatDType::F32, &Device::flex());
        parameters(&model)
    };
    assert_eq!(random(3), random(3));
    assert_ne!(random(3), random(4));
    let values = &random(3)["model.layers.0.mlp.up_proj.weight"].1;
    let count = values.len() as f64;
    let variance = values.iter().map(|value| value * value).sum::<f64>() / count;
    // Six standard errors of the variance of 196,608 normal numbers.
    let expected = config.initializer_range.powi(2);
    assert!((variance / expected - 1.0).abs() < 6.0 * (2.0 / count).sqrt());
    let message = ModelConfig::named("huge", 50).unwrap_err().to_string();
    assert_eq!(
        message,
        "no built-in model `huge`; there are tiny, tiny-moe, small, 0.6b, 4b, tiny-hybrid, hybrid, \
         tiny-llama, llama-1b, tiny-qwen2, qwen2.5-0.5b"
    );
}
