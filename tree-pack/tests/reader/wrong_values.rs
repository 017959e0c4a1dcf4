//! Errors name the field, its value and the expected value.

use std::io::Cursor;

use serde_json::{Value, json};
use tree_pack::TrajectoryReader;

use super::{line, message, with};

fn check(field: &str, value: Value, expected: &str) {
    assert_eq!(
        message(with(field, value)),
        format!("runs.jsonl:1: {expected}")
    );
}

#[test]
fn wrong_tokens_are_named_with_what_was_expected() {
    let list_of_ids = "a list, each entry a token id from 0 to 2147483647";
    for (value, expected) in [
        (
            json!([5, -1, 7]),
            "tokens[1]: got -1, expected a token id from 0 to 2147483647".to_owned(),
        ),
        (
            json!([2_147_483_648_u64]),
            "tokens[0]: got 2147483648, expected a token id from 0 to 2147483647".into(),
        ),
        (
            json!([1e30]),
            "tokens[0]: got 1e30, expected a token id from 0 to 2147483647".into(),
        ),
        (
            json!([1.0]),
            "tokens[0]: got 1.0, expected a token id from 0 to 2147483647".into(),
        ),
        (
            json!([null]),
            "tokens[0]: got null, expected a token id from 0 to 2147483647".into(),
        ),
        (
            json!([[5]]),
            "tokens[0]: got a list, expected a token id from 0 to 2147483647".into(),
        ),
        (
            json!("abc"),
            format!("tokens: got \"abc\", expected {list_of_ids}"),
        ),
        (
            json!({"a": 1}),
            format!("tokens: got an object, expected {list_of_ids}"),
        ),
        (json!(5), format!("tokens: got 5, expected {list_of_ids}")),
        (
            json!([]),
            "tokens: got 0 tokens, expected at least one token".into(),
        ),
        (
            json!(null),
            "tokens: got nothing, expected the field to be present".into(),
        ),
    ] {
        check("tokens", value, &expected);
    }
}

#[test]
fn wrong_values_are_named_with_what_was_expected() {
    for (field, value, expected) in [
        (
            "loss_mask",
            json!([0, 2, 1]),
            "loss_mask[1]: got 2, expected 0, 1, true or false",
        ),
        (
            "loss_mask",
            json!([0, 1]),
            "loss_mask: got 2 entries, expected 3 (one for each token)",
        ),
        (
            "loss_mask",
            json!([0, 1, 1, 1]),
            "loss_mask: got 4 entries, expected 3 (one for each token)",
        ),
        (
            "old_logps",
            json!([0, 0, 0]),
            "old_logps: got 3 entries, expected 2 (one for each token but the first)",
        ),
        (
            "ref_logps",
            json!([0]),
            "ref_logps: got 1 entries, expected 2 (one for each token but the first)",
        ),
        (
            "advantages",
            json!([0, "x"]),
            "advantages[1]: got \"x\", expected a finite number",
        ),
        (
            "advantages",
            json!([0, 1e300]),
            "advantages[1]: got 1e300, expected a finite number",
        ),
        (
            "advantage",
            json!([0, 1]),
            "advantage: got a list, expected a finite number",
        ),
        (
            "weight",
            json!(-1),
            "weight: got -1, expected a finite number of at least 0",
        ),
        (
            "reward",
            json!("good"),
            "reward: got \"good\", expected a finite number",
        ),
        (
            "segment",
            json!(-1),
            "segment: got -1, expected an integer from 0 to 4294967295",
        ),
        (
            "task_id",
            json!(null),
            "task_id: got null, expected a string or an integer",
        ),
    ] {
        check(field, value, expected);
    }
    let segments = json!({"task_id": "t", "rollout_id": "r", "segment": 2, "segments": 2,
        "tokens": [1], "loss_mask": [0]});
    assert_eq!(
        message(segments.to_string()),
        "runs.jsonl:1: segment: got 2, expected less than segments = 2"
    );
}

#[test]
fn not_a_number_is_named() {
    for word in ["NaN", "Infinity", "-Infinity", "nan"] {
        let json = with("advantages", json!(["HERE", 1])).replace("\"HERE\"", word);
        assert_eq!(
            message(json),
            format!("runs.jsonl:1: advantages[0]: got {word}, expected a finite number")
        );
        let json = with("advantage", json!("HERE")).replace("\"HERE\"", word);
        assert_eq!(
            message(json),
            format!("runs.jsonl:1: advantage: got {word}, expected a finite number")
        );
    }
}

#[test]
fn ids_beyond_the_vocabulary_are_named() {
    let reader = TrajectoryReader::new("runs.jsonl", Cursor::new(line().to_string())).unwrap();
    let error = reader.with_vocab_size(7).next().unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "runs.jsonl:1: tokens[2]: got 7, expected a token id from 0 to 6"
    );
}

#[test]
fn fields_given_twice_or_at_odds_are_named() {
    let twice = line().to_string().replace("{", r#"{"tokens": [1], "#);
    assert_eq!(
        message(twice),
        "runs.jsonl:1: tokens: got the field a second time, expected one value of this name"
    );
    let mut both = line();
    both["advantage"] = json!(1);
    both["advantages"] = json!([1, 2]);
    assert_eq!(
        message(both.to_string()),
        "runs.jsonl:1: advantages: got both advantage and advantages, expected one of the two"
    );
}
