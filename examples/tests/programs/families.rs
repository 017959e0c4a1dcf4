//! Model folders of every family in the same programs.

use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, FloatDType};
use burn_tree_models::CausalLm;
use burn_tree_models::weights::hf_parameters;

use crate::support::{DPO, FINE_TUNE, GRPO, setup};

const MODELS: [&str; 2] = ["llama3", "qwen2"];

fn fixture(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(model)
}

/// Key and shape of every tensor, and whether it differs from that of `other`.
fn compare(folder: &Path, other: &Path) -> Vec<(String, Vec<usize>, bool)> {
    let [mine, others] = [folder, other].map(|folder| {
        let (model, _) = CausalLm::load(folder, FloatDType::F32, &Device::flex()).unwrap();
        hf_parameters(&model).unwrap()
    });
    assert_eq!(mine.len(), others.len());
    let pairs = mine.iter().zip(&others);
    pairs
        .map(|(mine, other)| {
            assert_eq!(mine.key(), other.key());
            let [a, b] = [mine, other].map(|tensor| tensor.to_data(FloatDType::F32));
            (mine.key().to_owned(), mine.shape().to_vec(), a != b)
        })
        .collect()
}

/// A few steps on trees and on separate trajectories, then export: a folder of the same family in
/// which every parameter has changed, biases included.
#[test]
fn fine_tuning_from_a_folder_and_back() {
    let folder = setup();
    for model in MODELS {
        let source = fixture(model);
        let source = source.to_str().unwrap();
        let export = format!("{model}-out");
        let options = ["--model", source, "--export", &export];
        let records = FINE_TUNE.compare(folder.path(), model, &options);
        assert_eq!(records.len(), 3);
        let exported = folder.path().join(&export);
        for (key, shape, changed) in compare(&exported, Path::new(source)) {
            assert!(changed, "{model}: {key} {shape:?}");
        }
        let config = fs::read_to_string(exported.join("config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&config).unwrap();
        let expected = model.trim_end_matches('3');
        assert_eq!(config["model_type"], expected);
    }
}

#[test]
fn rewards_preferences_and_adapters() {
    let folder = setup();
    for model in MODELS {
        let source = fixture(model);
        let source = source.to_str().unwrap();
        for (name, program, options) in [
            ("grpo", GRPO, &[][..]),
            ("dpo", DPO, &[]),
            ("adapters", FINE_TUNE, &["--lora-rank", "2"]),
            ("narrow", FINE_TUNE, &["--compute-dtype", "bf16"]),
            (
                "parts",
                FINE_TUNE,
                &["--token-budget", "12", "--recompute", "--offload"],
            ),
        ] {
            let output = format!("{model}-{name}");
            let export = format!("{output}-out");
            let own = ["--model", source, "--output", &output, "--export", &export];
            program.succeed(folder.path(), &[&own, options].concat());
            let weights = match name {
                "adapters" => "adapter_model.safetensors",
                _ => "model.safetensors",
            };
            assert!(folder.path().join(&export).join(weights).is_file());
        }
    }
}

#[test]
fn a_folder_of_no_known_family_is_explained() {
    let folder = setup();
    fs::write(
        folder.path().join("other.json"),
        r#"{"model_type": "mamba"}"#,
    )
    .unwrap();
    let arguments = ["--model", "other.json"];
    let cases: [(&[&str], &str); 2] = [
        (&arguments, "supported are qwen3, "),
        (&["--model", "huge"], "no built-in model `huge`; there are"),
    ];
    FINE_TUNE.explains(folder.path(), &cases);
}
