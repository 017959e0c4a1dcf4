//! The reader of the token form: what it accepts, and what it says of what it does not.

mod reference;

use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use serde_json::{Value, json};
use tree_pack::{Advantage, ReadError, Trajectory, TrajectoryReader, load_trajectories};

fn read(bytes: impl Into<Vec<u8>>) -> Vec<Result<Trajectory, ReadError>> {
    TrajectoryReader::new("runs.jsonl", Cursor::new(bytes.into()))
        .unwrap()
        .collect()
}

fn line() -> Value {
    json!({"task_id": "t", "rollout_id": "r", "tokens": [5, 6, 7], "loss_mask": [0, 1, 1]})
}

fn with(field: &str, value: Value) -> String {
    let mut object = line();
    object[field] = value;
    object.to_string()
}

fn message(bytes: impl Into<Vec<u8>>) -> String {
    let mut results = read(bytes);
    results.pop().unwrap().unwrap_err().to_string()
}

#[test]
fn all_fields_are_read() {
    let json = json!({
        "task_id": "t", "rollout_id": 7, "segment": 1, "segments": 3, "reward": -1,
        "tokens": [5, 6, 7], "loss_mask": [true, false, 1], "advantages": [0.5, -2],
        "old_logps": [-0.1, -0.2], "ref_logps": [-0.3, -0.4], "sampling_logps": [-0.15, -0.25], "weight": 2.5,
        "anything": {"else": [1, "two", null]},
    });
    let expected = Trajectory {
        task_id: "t".to_owned(),
        rollout_id: "7".to_owned(),
        segment: 1,
        segments: 3,
        reward: Some(-1.0),
        tokens: vec![5, 6, 7],
        loss_mask: vec![true, false, true],
        advantage: Some(Advantage::Token(vec![0.5, -2.0])),
        old_log_probs: Some(vec![-0.1, -0.2]),
        ref_log_probs: Some(vec![-0.3, -0.4]),
        sampling_log_probs: Some(vec![-0.15, -0.25]),
        weight: 2.5,
    };
    assert_eq!(read(json.to_string()).pop().unwrap().unwrap(), expected);
}

#[test]
fn optional_fields_may_be_absent_or_null() {
    let expected = Trajectory::new("t", "r", vec![5, 6, 7], vec![false, true, true]);
    assert_eq!(read(line().to_string()).pop().unwrap().unwrap(), expected);
    let mut json = line();
    for field in [
        "segment",
        "segments",
        "reward",
        "advantage",
        "old_logps",
        "ref_logps",
        "sampling_logps",
        "weight",
    ] {
        json[field] = Value::Null;
    }
    assert_eq!(read(json.to_string()).pop().unwrap().unwrap(), expected);
    let one = with("advantage", json!(0.25));
    let read = read(one).pop().unwrap().unwrap();
    assert_eq!(read.advantage, Some(Advantage::Trajectory(0.25)));
}

#[test]
fn rows_of_log_probs_belong_to_the_next_token() {
    let read = read(with("old_logp", json!([-0.25, -0.5])))
        .pop()
        .unwrap()
        .unwrap();
    assert_eq!(read.old_log_prob_of(1), Some(-0.25));
    assert_eq!(read.old_log_prob_of(2), Some(-0.5));
}

/// Byte-order mark, CRLF, blank lines and a missing last line end change nothing but line numbers.
#[test]
fn byte_order_mark_crlf_and_blank_lines() {
    let line = line();
    let results = read(format!(
        "\u{feff}{line}\r\n\r\n   \n{line}\n\nnonsense\n{line}"
    ));
    assert_eq!(results.len(), 4);
    let errors: Vec<_> = results
        .iter()
        .filter_map(|result| result.as_ref().err())
        .collect();
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].to_string().starts_with("runs.jsonl:6:"),
        "{}",
        errors[0]
    );
    assert_eq!(results[0].as_ref().unwrap(), results[3].as_ref().unwrap());
    assert!(read("").is_empty());
    assert!(read("\u{feff}\r\n\n").is_empty());
}

#[test]
fn the_same_ids_may_occur_again() {
    let results = read(format!("{0}\n{0}\n", line()));
    assert_eq!(results.into_iter().filter(Result::is_ok).count(), 2);
}

#[test]
fn wrong_values_are_named_with_what_was_expected() {
    let list_of_ids = "a list, each entry a token id from 0 to 2147483647";
    for (field, value, expected) in [
        (
            "tokens",
            json!([5, -1, 7]),
            "tokens[1]: got -1, expected a token id from 0 to 2147483647".to_owned(),
        ),
        (
            "tokens",
            json!([2_147_483_648_u64]),
            "tokens[0]: got 2147483648, expected a token id from 0 to 2147483647".into(),
        ),
        (
            "tokens",
            json!([1e30]),
            "tokens[0]: got 1e30, expected a token id from 0 to 2147483647".into(),
        ),
        (
            "tokens",
            json!([1.0]),
            "tokens[0]: got 1.0, expected a token id from 0 to 2147483647".into(),
        ),
        (
            "tokens",
            json!([null]),
            "tokens[0]: got null, expected a token id from 0 to 2147483647".into(),
        ),
        (
            "tokens",
            json!([[5]]),
            "tokens[0]: got a list, expected a token id from 0 to 2147483647".into(),
        ),
        (
            "tokens",
            json!("abc"),
            format!("tokens: got \"abc\", expected {list_of_ids}"),
        ),
        (
            "tokens",
            json!({"a": 1}),
            format!("tokens: got an object, expected {list_of_ids}"),
        ),
        (
            "tokens",
            json!(5),
            format!("tokens: got 5, expected {list_of_ids}"),
        ),
        (
            "tokens",
            json!([]),
            "tokens: got 0 tokens, expected at least one token".into(),
        ),
        (
            "tokens",
            json!(null),
            "tokens: got nothing, expected the field to be present".into(),
        ),
        (
            "loss_mask",
            json!([0, 2, 1]),
            "loss_mask[1]: got 2, expected 0, 1, true or false".into(),
        ),
        (
            "loss_mask",
            json!([0, 1]),
            "loss_mask: got 2 entries, expected 3 (one for each token)".into(),
        ),
        (
            "loss_mask",
            json!([0, 1, 1, 1]),
            "loss_mask: got 4 entries, expected 3 (one for each token)".into(),
        ),
        (
            "old_logps",
            json!([0, 0, 0]),
            "old_logps: got 3 entries, expected 2 (one for each token but the first)".into(),
        ),
        (
            "ref_logps",
            json!([0]),
            "ref_logps: got 1 entries, expected 2 (one for each token but the first)".into(),
        ),
        (
            "advantages",
            json!([0, "x"]),
            "advantages[1]: got \"x\", expected a finite number".into(),
        ),
        (
            "advantages",
            json!([0, 1e300]),
            "advantages[1]: got 1e300, expected a finite number".into(),
        ),
        (
            "advantage",
            json!([0, 1]),
            "advantage: got a list, expected a finite number".into(),
        ),
        (
            "weight",
            json!(-1),
            "weight: got -1, expected a finite number of at least 0".into(),
        ),
        (
            "reward",
            json!("good"),
            "reward: got \"good\", expected a finite number".into(),
        ),
        (
            "segment",
            json!(-1),
            "segment: got -1, expected an integer from 0 to 4294967295".into(),
        ),
        (
            "task_id",
            json!(null),
            "task_id: got null, expected a string or an integer".into(),
        ),
    ] {
        assert_eq!(
            message(with(field, value)),
            format!("runs.jsonl:1: {expected}")
        );
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

#[test]
fn message_form_is_recognised() {
    let json = json!({"task_id": "t", "rollout_id": "r", "messages": []});
    assert_eq!(
        message(json.to_string()),
        "runs.jsonl:1: tokens: got nothing, expected the token form (this line holds messages, \
         which must be tokenised first)"
    );
}

#[test]
fn truncated_json_is_an_error_at_its_place() {
    let whole = line().to_string();
    for end in 1..whole.len() {
        let results = read(&whole[..end]);
        assert_eq!(results.len(), 1);
        assert!(
            matches!(&results[0], Err(ReadError::Json { line: 1, .. })),
            "{}: {:?}",
            &whole[..end],
            results[0]
        );
    }
    assert_eq!(
        message(r#"{"task_id": "t", "tokens": [1, 2"#),
        "runs.jsonl:1:32: tokens[2]: EOF while parsing a list"
    );
    assert!(message(format!("{whole} {whole}")).contains("trailing characters"));
}

#[test]
fn a_line_of_ten_megabytes_is_read_and_a_limit_is_kept() {
    let count = 2_000_000;
    let mut json = line();
    json["tokens"] = json!(vec![1234; count]);
    json["loss_mask"] = json!(vec![1; count]);
    let json = json.to_string();
    assert!(json.len() > 10 << 20);
    let text = format!("{}\n{json}\n{}\n", line(), line());
    let results = read(text.clone());
    assert_eq!(results.len(), 3);
    assert_eq!(results[1].as_ref().unwrap().tokens, vec![1234; count]);

    let reader = TrajectoryReader::new("runs.jsonl", Cursor::new(text)).unwrap();
    let results: Vec<_> = reader.with_max_line_bytes(10 << 20).collect();
    assert_eq!(
        results.len(),
        2,
        "nothing is read after a line that is too long"
    );
    assert_eq!(
        results[1].as_ref().unwrap_err().to_string(),
        "runs.jsonl:2: the line is longer than 10485760 bytes"
    );
}

#[test]
fn gzip_is_recognised_by_its_content() {
    let text = format!("{0}\n{0}\n", line());
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    let bytes = encoder.finish().unwrap();
    assert_eq!(
        read(bytes.clone())
            .into_iter()
            .filter(Result::is_ok)
            .count(),
        2
    );

    // Several members after one another, as `cat a.gz b.gz` makes.
    assert_eq!(read([bytes.clone(), bytes.clone()].concat()).len(), 4);

    let cut_off = read(&bytes[..bytes.len() - 9]);
    let last = cut_off.last().unwrap().as_ref().unwrap_err();
    assert!(matches!(last, ReadError::Io { .. }), "{last}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.jsonl");
    std::fs::write(&path, &bytes).unwrap();
    assert_eq!(load_trajectories([&path, &path]).unwrap().len(), 4);
}

#[test]
fn a_missing_file_is_named() {
    let error = load_trajectories(["no/such/file.jsonl"]).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no/such/file.jsonl: cannot open: "),
        "{error}"
    );
}

fn to_json(trajectory: &Trajectory) -> Value {
    let mut json = json!({
        "task_id": trajectory.task_id, "rollout_id": trajectory.rollout_id,
        "tokens": trajectory.tokens, "loss_mask": trajectory.loss_mask,
        "old_logps": trajectory.old_log_probs, "ref_logps": trajectory.ref_log_probs,
        "sampling_logps": trajectory.sampling_log_probs, "weight": trajectory.weight,
    });
    match &trajectory.advantage {
        Some(Advantage::Trajectory(value)) => json["advantage"] = json!(value),
        Some(Advantage::Token(values)) => json["advantages"] = json!(values),
        None => {}
    }
    json
}

proptest! {
    #[test]
    fn what_is_written_is_read(trajectories in reference::trajectories(4)) {
        let lines: Vec<String> =
            trajectories.iter().map(|trajectory| to_json(trajectory).to_string()).collect();
        let read: Result<Vec<_>, _> = read(lines.join("\n")).into_iter().collect();
        prop_assert_eq!(read.unwrap(), trajectories);
    }

    #[test]
    fn any_bytes_give_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        for trajectory in read(bytes).into_iter().flatten() {
            prop_assert_eq!(trajectory.validate(), Ok(()));
        }
    }

    /// Damaged lines are read as valid trajectories or refused with file and line.
    #[test]
    fn damaged_lines_give_an_answer(
        trajectories in reference::trajectories(3),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..3), 1..6),
    ) {
        let lines: Vec<String> =
            trajectories.iter().map(|trajectory| to_json(trajectory).to_string()).collect();
        let mut bytes = lines.join("\r\n").into_bytes();
        for (index, byte, kind) in damage {
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                _ if bytes.len() > 1 => { bytes.remove(at); }
                _ => {}
            }
        }
        for result in read(bytes) {
            match result {
                Ok(trajectory) => prop_assert_eq!(trajectory.validate(), Ok(())),
                Err(error) => prop_assert!(error.to_string().starts_with("runs.jsonl:")),
            }
        }
    }
}
