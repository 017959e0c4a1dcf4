//! Checkpoints: round trips, layouts, and files that do not fit.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, FloatDType};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use tempfile::TempDir;
use tree_training_examples::qwen3::weights::{SaveOptions, hf_parameters};
use tree_training_examples::qwen3::{Qwen3, Qwen3Config, WeightsError};

use crate::{config, fixtures, floats, load};

const MODELS: [&str; 2] = ["qwen3_dense", "qwen3_moe"];

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f64>)>;

fn parameters(model: &Qwen3) -> Tensors {
    hf_parameters(model)
        .unwrap()
        .into_iter()
        .map(|tensor| {
            let values = floats(tensor.to_data(FloatDType::F64));
            (tensor.key().to_owned(), (tensor.shape().to_vec(), values))
        })
        .collect()
}

/// The f32 tensors of a fixture, read without any of our code.
fn file(model: &str) -> Tensors {
    let bytes = std::fs::read(fixtures().join(model).join("model.safetensors")).unwrap();
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

/// Writes tensors as `f32` beside a copy of the fixture's configuration.
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
    Qwen3::load(folder, FloatDType::F32, &Device::flex()).unwrap_err()
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
        let (again, config_again) = Qwen3::load(&path, FloatDType::F32, &Device::flex()).unwrap();
        assert_eq!(parameters(&again), parameters(&loaded));
        assert_eq!(config_again.moe, config(model).moe);
        // Nothing else is left beside it.
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
            // A tensor that is larger by itself has a file of its own.
            assert!(stored <= 20_000 || tensors.len() == 1, "{stored} bytes");
            shards += 1;
        }
        assert!(shards > 2);
        let (again, _) = Qwen3::load(&path, FloatDType::F64, &device).unwrap();
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

#[test]
fn fused_experts_are_read_like_single_ones() {
    let mut tensors = file("qwen3_moe");
    let settings = config("qwen3_moe");
    let (experts, hidden) = (8, settings.hidden_size);
    let inner = settings.moe.unwrap().moe_intermediate_size;
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
    let folder = folder("qwen3_moe", &tensors);
    let (model, _) = Qwen3::load(folder.path(), FloatDType::F32, &Device::flex()).unwrap();
    assert_eq!(parameters(&model), file("qwen3_moe"));
}

/// A tied head may be stored a second time.
#[test]
fn a_stored_copy_of_a_tied_head_is_accepted() {
    let mut tensors = file("qwen3_moe");
    let head = tensors["model.embed_tokens.weight"].clone();
    tensors.insert("lm_head.weight".to_owned(), head);
    let folder = folder("qwen3_moe", &tensors);
    assert!(Qwen3::load(folder.path(), FloatDType::F32, &Device::flex()).is_ok());
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
    let config = Qwen3Config {
        num_hidden_layers: 1,
        ..Qwen3Config::named("tiny", 50).unwrap()
    };
    let random = |seed| {
        let model = Qwen3::random(&config, seed, FloatDType::F32, &Device::flex());
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
    let message = Qwen3Config::named("huge", 50).unwrap_err().to_string();
    assert_eq!(
        message,
        "no built-in model `huge`; there are tiny, tiny-moe, small, 0.6b"
    );
}
