//! The two formats of RoPE in `config.json`.

use burn_tree_models::ModelConfig;
use burn_tree_models::config::{Llama3Scaling, RopeScaling, YarnScaling};
use serde_json::{Value, json};

use crate::config;
use crate::configuration::{minimal, read};

const LLAMA3: Llama3Scaling = Llama3Scaling {
    factor: 32.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 64.0,
};

fn yarn(fields: Value) -> Result<YarnScaling, String> {
    let mut rope = json!({ "rope_type": "yarn", "factor": 4.0 });
    for (field, value) in fields.as_object().unwrap() {
        rope[field] = value.clone();
    }
    let fields = json!({ "rope_scaling": rope, "max_position_embeddings": 128 });
    match read("qwen2", fields) {
        Ok(config) => match config.rope_scaling {
            RopeScaling::Yarn(scaling) => Ok(scaling),
            other => panic!("{other:?}"),
        },
        Err(error) => Err(error.to_string()),
    }
}

/// Published files of both formats with the same content.
#[test]
fn both_spellings_mean_the_same() {
    let old = json!({
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64, "rope_type": "llama3",
        },
    });
    let new = json!({
        "rope_parameters": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 64, "rope_type": "llama3",
            "rope_theta": 500000.0,
        },
    });
    for fields in [old, new] {
        for family in ["llama", "qwen2", "qwen3"] {
            let config = read(family, fields.clone()).unwrap();
            assert_eq!(config.rope_theta, 5e5);
            assert_eq!(config.rope_scaling, RopeScaling::Llama3(LLAMA3));
            // Written in both formats and read again.
            let written = config.to_json();
            assert_eq!(written["rope_theta"], json!(5e5));
            assert_eq!(written["rope_scaling"]["rope_type"], json!("llama3"));
            assert_eq!(written["rope_parameters"]["rope_theta"], json!(5e5));
            assert_eq!(ModelConfig::from_json(written.clone()).unwrap(), config);
            for spelling in ["rope_scaling", "rope_parameters"] {
                let mut one = written.clone();
                one.as_object_mut().unwrap().remove(spelling);
                assert_eq!(ModelConfig::from_json(one).unwrap(), config);
            }
        }
    }
    let linear = RopeScaling::Linear { factor: 4.0 };
    let fields = json!({ "rope_scaling": { "factor": 4.0, "type": "linear" } });
    assert_eq!(read("llama", fields).unwrap().rope_scaling, linear);
    assert_eq!(
        config("llama3_tied").rope_scaling,
        RopeScaling::Llama3(LLAMA3)
    );
}

#[test]
fn which_of_several_places_counts() {
    let linear = |factor: f64| RopeScaling::Linear { factor };
    for (fields, theta, scaling) in [
        // The older format takes precedence, unless it is empty or null.
        (
            json!({
                "rope_scaling": { "type": "linear", "factor": 2.0 },
                "rope_parameters": { "rope_type": "linear", "factor": 3.0, "rope_theta": 5.0 },
            }),
            1e4,
            linear(2.0),
        ),
        (
            json!({
                "rope_scaling": {},
                "rope_parameters": { "rope_type": "linear", "factor": 3.0, "rope_theta": 5.0 },
            }),
            5.0,
            linear(3.0),
        ),
        // The newer name of the field `rope_type`.
        (
            json!({ "rope_scaling": { "type": "linear", "rope_type": "default" } }),
            1e4,
            RopeScaling::None,
        ),
        (json!({ "rope_scaling": null }), 1e4, RopeScaling::None),
        (
            json!({ "rope_parameters": { "rope_theta": 7.0 } }),
            7.0,
            RopeScaling::None,
        ),
        (json!({ "rope_theta": null }), 1e4, RopeScaling::None),
    ] {
        let config = read("llama", fields.clone()).unwrap();
        assert_eq!(config.rope_theta, theta, "{fields}");
        assert_eq!(config.rope_scaling, scaling, "{fields}");
    }
    // Qwen3 requires the base.
    let mut json = minimal("qwen3");
    json.as_object_mut().unwrap().remove("rope_theta");
    let message = ModelConfig::from_json(json).unwrap_err().to_string();
    assert_eq!(message, "field `rope_theta` is missing");
}

/// The original context length: from the model, else from the scaling, else the context length of
/// the model.
#[test]
fn the_original_length() {
    for (model, object, expected) in [
        (Some(16), Some(32), 16.0),
        (None, Some(32), 32.0),
        (None, None, 128.0),
    ] {
        let fields = json!({
            "max_position_embeddings": 128,
            "original_max_position_embeddings": model,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": object,
            },
        });
        let config = read("llama", fields).unwrap();
        let scaling = Llama3Scaling {
            original_max_position_embeddings: expected,
            ..LLAMA3
        };
        assert_eq!(config.rope_scaling, RopeScaling::Llama3(scaling));
        assert_eq!(ModelConfig::from_json(config.to_json()).unwrap(), config);
    }
}

#[test]
fn the_numbers_of_yarn() {
    let plain = yarn(json!({})).unwrap();
    let factor = YarnScaling::default_attention_factor(4.0);
    assert_eq!(
        plain,
        YarnScaling {
            factor: 4.0,
            original_max_position_embeddings: 128.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: factor,
        }
    );
    // Absent, null and 0 are equivalent, except for whole pairs.
    let zeros = json!({ "beta_fast": 0, "beta_slow": null, "mscale": 0.0, "mscale_all_dim": 1.0 });
    assert_eq!(yarn(zeros).unwrap(), plain);
    assert!(!yarn(json!({ "truncate": null })).unwrap().truncate);
    assert!(!yarn(json!({ "truncate": false })).unwrap().truncate);
    let of = |fields| yarn(fields).unwrap().attention_factor;
    assert_eq!(of(json!({ "attention_factor": 1.5, "mscale": 2.0 })), 1.5);
    assert_eq!(of(json!({ "mscale": 0.707 })), factor);
    let both = of(json!({ "mscale": 0.707, "mscale_all_dim": 1.0 }));
    assert!((both - 0.964326914892074).abs() < 1e-12, "{both}");
    // A null factor is computed from the lengths.
    let lengths = json!({ "factor": null, "original_max_position_embeddings": 16 });
    assert_eq!(yarn(lengths).unwrap().factor, 8.0);
    // Fields without effect are kept.
    let config = read(
        "qwen2",
        json!({
            "max_position_embeddings": 128,
            "rope_scaling": { "type": "yarn", "factor": 4.0, "finetuned": true },
        }),
    )
    .unwrap();
    assert_eq!(config.rope_scaling, RopeScaling::Yarn(plain));
    assert_eq!(config.to_json()["rope_scaling"]["finetuned"], json!(true));
}

#[test]
fn numbers_that_are_missing_or_unknown_are_named() {
    for (rope, expected) in [
        (
            json!({ "rope_type": "dynamic", "factor": 2.0 }),
            "field `rope_scaling.rope_type` is dynamic, which is not supported",
        ),
        (
            json!({ "rope_type": "linear" }),
            "field `rope_scaling.factor` is missing",
        ),
        (
            json!({ "type": "linear", "factor": -1.0 }),
            "field `rope_scaling.factor` is -1, expected a positive number",
        ),
        (
            json!({ "type": "linear", "factor": 2.0, "long_factor": [1.0] }),
            "field `rope_scaling.long_factor` is [1.0], which is not supported",
        ),
        (
            json!({ "type": "llama3", "factor": 2.0, "low_freq_factor": 1.0 }),
            "field `rope_scaling.high_freq_factor` is missing",
        ),
        (
            json!({
                "type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
            }),
            "field `rope_scaling.high_freq_factor` is 4, expected more than low_freq_factor",
        ),
        (
            json!({ "type": "yarn", "factor": 4.0, "attention_factor": 0.0 }),
            "field `rope_scaling.attention_factor` is 0, expected a positive number",
        ),
        (
            json!({ "type": "yarn", "factor": 4.0, "truncate": 1 }),
            "field `rope_scaling.truncate` is 1, expected true or false",
        ),
    ] {
        let fields = json!({ "rope_scaling": rope, "max_position_embeddings": 128 });
        let message = read("llama", fields).unwrap_err().to_string();
        assert!(message.starts_with(expected), "{message}");
    }
    let fields = json!({ "rope_parameters": { "rope_type": "yarn", "factor": 4.0 } });
    let message = read("llama", fields).unwrap_err().to_string();
    assert_eq!(
        message,
        "field `rope_parameters.original_max_position_embeddings` is missing"
    );
    let fields = json!({ "rope_scaling": 3 });
    let message = read("llama", fields).unwrap_err().to_string();
    assert_eq!(message, "field `rope_scaling` is 3, expected an object");
}
