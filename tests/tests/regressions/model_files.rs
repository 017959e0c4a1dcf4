//! Damaged model folders, and token ids outside the vocabulary: errors that name the place, never
//! panics. The tests of `burn-tree-models` cover single mistakes.

use std::fs;

use burn::tensor::{DType, FloatDType};
use burn_tree_models::weights::SaveOptions;
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_train::BlockContext;
use proptest::prelude::*;
use proptest::sample::Index;
use serde_json::{Map, Value, json};
use tree_pack::{Aggregation, LossForm, Objective, Trajectory, TreeBatch};
use tree_training_tests::device::device;
use tree_training_tests::forest::cases;
use tree_training_tests::models::{dense_config, moe_config, random_model};
use tree_training_tests::packing::Packing;
use tree_training_tests::step::hidden_states;

const VOCABULARY: usize = 17;
const WEIGHTS: &str = "model.safetensors";

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
        // A tree of random names is no valid configuration.
        prop_assert!(ModelConfig::from_json(value).is_err());
    }

    /// An accepted configuration is written back unchanged.
    #[test]
    fn changed_configurations_are_read_or_refused(value in changed_configs()) {
        if let Ok(config) = ModelConfig::from_json(value) {
            let again = ModelConfig::from_json(config.to_json());
            prop_assert_eq!(again.expect("its own output"), config);
        }
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// A changed byte or a truncated file: an error, or a model if only values changed.
    #[test]
    fn damaged_weights_give_an_answer(
        position in any::<Index>(),
        byte in any::<u8>(),
        cut in prop::option::of(any::<Index>()),
        in_header in prop::bool::weighted(0.8),
    ) {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("model");
        let config = dense_config(VOCABULARY);
        let model = random_model(&config, 1, DType::F32, &device());
        model.save(&config, &folder, SaveOptions::default()).expect("a new folder");
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
        match CausalLm::load(&folder, FloatDType::F32, &device()) {
            Ok(_) => prop_assert!(cut.is_none(), "a file without its end was accepted"),
            Err(error) => {
                prop_assert!(changed || cut.is_some());
                let error = error.to_string();
                prop_assert!(error.contains(&*folder.to_string_lossy()), "{error}");
            }
        }
    }
}

/// An id outside the embedding is reported and not read from other memory.
#[test]
#[should_panic(expected = "token ids outside the vocabulary")]
fn token_ids_outside_the_vocabulary_are_refused() {
    let tokens = vec![1, VOCABULARY as u32, 2];
    let trajectories = [Trajectory::new("task", "rollout", tokens, vec![true; 3])];
    let (objective, form) = (Objective::PerPath, LossForm::LogLikelihood);
    let step = Packing::ONE_PACK.pack_for(&trajectories, objective, Aggregation::Sum, form);
    let device = device();
    let model = random_model(&dense_config(VOCABULARY), 1, DType::F32, &device);
    let batch = TreeBatch::new(&step.packs, &device);
    let context = BlockContext::new(&batch);
    hidden_states(&model, batch.tokens, &context);
}
