//! The reader of token form: accepted input, and errors for all other input.

mod properties;
#[path = "../reference/mod.rs"]
mod reference;
mod wrong_values;

use std::io::{Cursor, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
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
        "old_logps": [-0.1, -0.2], "ref_logps": [-0.3, -0.4],
        "sampling_logps": [-0.15, -0.25], "weight": 2.5,
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

/// Byte-order mark, CRLF, blank lines and a missing last line end only change line numbers.
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

    // Several consecutive members, as `cat a.gz b.gz` writes them.
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
