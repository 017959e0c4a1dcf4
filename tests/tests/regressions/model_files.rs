//! Model folders that are damaged or mean something else, and token ids that a model does not have:
//! an error that names the file and the place, never a panic or a wrong model.

use std::fs;
use std::path::Path;

use burn::tensor::FloatDType;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};
use tree_pack::{Aggregation, LossForm, Objective, Trajectory, TreeBatch};
use tree_training_examples::qwen3::weights::SaveOptions;
use tree_training_examples::qwen3::{ConfigError, Qwen3, Qwen3Config, WeightsError};
use tree_training_tests::device::device;
use tree_training_tests::forest::cases;
use tree_training_tests::models::{dense_config, moe_config, random_model};
use tree_training_tests::packing::Packing;
use tree_training_tests::step::{block_context, hidden_states};

const VOCABULARY: usize = 17;
const WEIGHTS: &str = "model.safetensors";

/// A small model in a folder.
fn saved(config: &Qwen3Config, folder: &Path, max_shard_bytes: u64) {
    let model = random_model(config, 1, FloatDType::F32.into(), &device());
    let options = SaveOptions {
        max_shard_bytes,
        ..SaveOptions::default()
    };
    model.save(config, folder, options).expect("a new folder");
}

fn load(folder: &Path) -> Result<(Qwen3, Qwen3Config), WeightsError> {
    Qwen3::load(folder, FloatDType::F32, &device())
}

fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-2_i64..100).prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        "[a-z_]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{1,12}", inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A valid configuration in which some fields are replaced or removed.
fn changed_configs() -> impl Strategy<Value = Value> {
    let change = (any::<Index>(), prop::option::weighted(0.8, json_values()));
    (any::<bool>(), prop::collection::vec(change, 0..4)).prop_map(|(moe, changes)| {
        let config = if moe {
            moe_config(VOCABULARY)
        } else {
            dense_config(VOCABULARY)
        };
        let mut json = config.to_json();
        let object = json.as_object_mut().expect("an object");
        for (index, value) in changes {
            let key = object
                .keys()
                .nth(index.index(object.len()))
                .expect("a key")
                .clone();
            match value {
                Some(value) => object.insert(key, value),
                None => object.shift_remove(&key),
            };
        }
        json
    })
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn any_json_is_a_configuration_or_an_error(value in json_values()) {
        // A tree of random names is none.
        prop_assert!(Qwen3Config::from_json(value).is_err());
    }

    /// What is accepted is written back as the same configuration.
    #[test]
    fn changed_configurations_are_read_or_refused(value in changed_configs()) {
        if let Ok(config) = Qwen3Config::from_json(value) {
            let again = Qwen3Config::from_json(config.to_json());
            prop_assert_eq!(again.expect("its own output"), config);
        }
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// A byte changed or the end cut off: an error, or, where only numbers changed, a model.
    #[test]
    fn damaged_weights_give_an_answer(
        position in any::<Index>(),
        byte in any::<u8>(),
        cut in prop::option::of(any::<Index>()),
        in_header in prop::bool::weighted(0.8),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("model");
        saved(&dense_config(VOCABULARY), &folder, u64::MAX);
        let path = folder.join(WEIGHTS);
        let mut bytes = fs::read(&path).expect("the weights");
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let end = if in_header { header } else { bytes.len() };
        let position = position.index(end);
        let changed = bytes[position] != byte;
        bytes[position] = byte;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).expect("written");
        match load(&folder) {
            Ok(_) => prop_assert!(cut.is_none(), "a file without its end was accepted"),
            Err(error) => {
                prop_assert!(changed || cut.is_some());
                let error = error.to_string();
                prop_assert!(error.contains(&*folder.to_string_lossy()), "{error}");
            }
        }
    }
}

#[test]
fn saved_models_are_read_back_bit_for_bit() {
    for config in [dense_config(VOCABULARY), moe_config(VOCABULARY)] {
        for max_shard_bytes in [u64::MAX, 4096] {
            let folder = tempfile::tempdir().expect("a folder");
            let folder = folder.path().join("model");
            saved(&config, &folder, max_shard_bytes);
            assert_eq!(folder.join(WEIGHTS).exists(), max_shard_bytes == u64::MAX);
            let (model, read) = load(&folder).expect("its own output");
            assert_eq!(read.hidden_size, config.hidden_size);
            let expected = random_model(&config, 1, FloatDType::F32.into(), &device());
            let parameters = tree_training_tests::tensors::NamedTensors::parameters;
            assert_eq!(parameters(&model), parameters(&expected));
        }
    }
}

#[test]
fn mistakes_in_model_folders_are_named() {
    let config = dense_config(VOCABULARY);
    let damaged = |damage: &dyn Fn(&Path)| -> String {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("model");
        // Several files and their index.
        saved(&config, &folder, 4096);
        damage(&folder);
        load(&folder).expect_err("damaged").to_string()
    };
    let edit = |folder: &Path, name: &str, change: &dyn Fn(&mut Value)| {
        let path = folder.join(name);
        let mut json = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        change(&mut json);
        fs::write(path, json.to_string()).expect("written");
    };
    const INDEX: &str = "model.safetensors.index.json";
    let first_shard = |folder: &Path| -> String {
        let index: Value =
            serde_json::from_slice(&fs::read(folder.join(INDEX)).expect("read")).expect("JSON");
        index["weight_map"]["model.norm.weight"]
            .as_str()
            .expect("a file")
            .to_owned()
    };

    let message = damaged(&|folder| fs::remove_file(folder.join(INDEX)).expect("removed"));
    assert!(
        message.contains(INDEX) && message.contains(WEIGHTS),
        "{message}"
    );

    let message = damaged(&|folder| {
        fs::remove_file(folder.join(first_shard(folder))).expect("removed");
    });
    assert!(message.contains(".safetensors"), "{message}");

    let message = damaged(&|folder| {
        edit(folder, INDEX, &|index| {
            index["weight_map"]["model.norm.weight"] = json!(3)
        });
    });
    assert!(message.contains(INDEX), "{message}");

    // Not a file beside it: a path out of the folder must not be followed.
    let message = damaged(&|folder| {
        let outside = json!("../outside.safetensors");
        edit(folder, INDEX, &|index| {
            index["weight_map"]["model.norm.weight"] = outside.clone()
        });
    });
    assert!(
        message.contains(INDEX) && message.contains("../outside"),
        "{message}"
    );

    let message = damaged(&|folder| {
        edit(folder, INDEX, &|index| {
            let map = index["weight_map"].as_object_mut().expect("an object");
            map.shift_remove("model.norm.weight");
        });
    });
    assert!(
        message.contains("`model.norm.weight` is missing"),
        "{message}"
    );

    let message = damaged(&|folder| {
        edit(folder, "config.json", &|config| {
            config["intermediate_size"] = json!(19)
        });
    });
    assert!(
        message.contains("gate_proj") || message.contains("mlp."),
        "{message}"
    );
    assert!(
        message.contains("expected") && message.contains("19"),
        "{message}"
    );

    let message = damaged(&|folder| {
        edit(folder, "config.json", &|config| {
            config["tie_word_embeddings"] = json!("no")
        });
    });
    assert!(
        message.contains("tie_word_embeddings") && message.contains("no"),
        "{message}"
    );

    let message = damaged(&|folder| {
        fs::write(folder.join("config.json"), r#"{"model_type": "qwen3", "#).expect("written");
    });
    assert!(
        message.contains("config.json") && message.contains("line 1"),
        "{message}"
    );
}

#[test]
fn other_architectures_and_options_are_refused_by_name() {
    let refused = |change: (&str, Value)| {
        let mut json = dense_config(VOCABULARY).to_json();
        json[change.0] = change.1;
        match Qwen3Config::from_json(json) {
            Err(error @ ConfigError::Unsupported { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    };
    for (field, value) in [
        ("model_type", json!("qwen3_next")),
        ("attention_bias", json!(true)),
        ("attention_dropout", json!(0.1)),
        ("hidden_act", json!("gelu")),
        ("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0})),
    ] {
        let message = refused((field, value));
        assert!(message.contains(field), "{message}");
    }
}

/// An id beyond the embedding is named, not read from elsewhere in memory.
#[test]
#[should_panic(expected = "token ids outside the vocabulary")]
fn token_ids_outside_the_vocabulary_are_refused() {
    let tokens = vec![1, VOCABULARY as u32, 2];
    let trajectories = [Trajectory::new("task", "rollout", tokens, vec![true; 3])];
    let (objective, form) = (Objective::PerPath, LossForm::LogLikelihood);
    let step = Packing::ONE_PACK.pack_for(&trajectories, objective, Aggregation::Sum, form);
    let device = device();
    let model = random_model(
        &dense_config(VOCABULARY),
        1,
        FloatDType::F32.into(),
        &device,
    );
    let batch = TreeBatch::new(&step.packs, &device);
    let context = block_context(&batch, &device);
    hidden_states(&model, batch.tokens, &context);
}
