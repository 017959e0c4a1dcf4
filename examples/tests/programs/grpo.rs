//! The program `grpo`.

use std::fs;

use serde_json::{Value, json};

use crate::support::{GRPO, records, setup};

/// Two batches per epoch, of two steps and of one, with two passes each.
const BATCHES: [&str; 4] = ["--tasks-per-batch", "3", "--passes-per-batch", "2"];

/// Trees and separate rollouts have the same losses, for every variant of the loss. Before the
/// first update of a batch every ratio is exactly 1, later some are not.
#[test]
fn comparing_shows_the_same_losses_for_fewer_tokens() {
    let folder = setup();
    for (index, options) in [
        &[][..],
        &[
            "--advantages",
            "centered",
            "--aggregation",
            "trajectory-mean",
        ],
        &[
            "--kl-coefficient",
            "0.1",
            "--kl-estimator",
            "k2",
            "--dual-clip",
            "3",
        ],
        &[
            "--ratio",
            "sequence",
            "--clip-low",
            "0.1",
            "--clip-high",
            "0.1",
        ],
        &["--model", "hybrid.json", "--advantages", "leave-one-out"],
        &["--lora-rank", "4", "--entropy-coefficient", "0.01"],
        &["--token-budget", "12"],
        &["--token-budget", "12", "--ratio", "sequence", "--recompute"],
    ]
    .into_iter()
    .enumerate()
    {
        let options = [&BATCHES, options].concat();
        let name = format!("run{index}");
        let records = GRPO.compare(folder.path(), &name, &options);
        // Of 3 tasks in steps of 2: 2 steps twice; of the remaining 2 tasks: 1 step twice.
        assert_eq!(records.len(), 6);
        for record in &records {
            let tree = record.tree.as_ref().unwrap();
            let metric = |name: &str| tree.metrics[name];
            let first_of_batch = [1, 5].contains(&record.step);
            assert_eq!(tree.log_prob_seconds.is_some(), first_of_batch);
            if first_of_batch {
                assert_eq!(metric("ratio_max"), 1.0, "{options:?} {record:?}");
                assert_eq!(metric("old_kl"), 0.0);
                assert_eq!(metric("clip_fraction"), 0.0);
            }
            assert!(metric("entropy") > 0.0);
            assert!((0.0..=1.0).contains(&metric("reward")));
        }
        let second_pass = records[2].tree.as_ref().unwrap();
        assert!(second_pass.metrics["old_kl"] > 0.0);
        assert!(folder.path().join(name).join("metrics.png").is_file());
    }
}

/// Old log-probabilities are not in a checkpoint, so checkpoints are written after a batch only.
#[test]
fn a_resumed_run_is_bit_identical() {
    let options = ["--epochs", "2", "--kl-coefficient", "0.1"];
    let options = [&BATCHES[..], &options].concat();
    let whole = GRPO.resumes(&options, 4, "model.safetensors");
    assert_eq!(whole.len(), 12);
}

/// Better rollouts become more likely: training works.
#[test]
fn better_rollouts_become_more_likely() {
    let folder = setup();
    let options = [
        "--passes-per-batch",
        "4",
        "--tasks-per-step",
        "5",
        "--learning-rate",
        "0.003",
        "--decay",
        "constant",
        "--output",
        "run",
    ];
    GRPO.succeed(folder.path(), &options);
    let losses: Vec<f64> = records(folder.path(), "run")
        .iter()
        .map(|record| record.tree.as_ref().unwrap().loss)
        .collect();
    assert!(
        losses.windows(2).all(|pair| pair[1] < pair[0]),
        "{losses:?}"
    );
}

/// Log-probabilities in the data are used; those of an inference engine weigh tokens.
#[test]
fn log_probs_of_the_data_are_used() {
    let folder = setup();
    let lines = fs::read_to_string(folder.path().join("data.jsonl")).unwrap();
    let mut with = String::new();
    for line in lines.lines() {
        let mut rollout: Value = serde_json::from_str(line).unwrap();
        let entries = rollout["tokens"].as_array().unwrap().len() - 1;
        rollout["old_logps"] = json!(vec![-4.0; entries]);
        rollout["sampling_logps"] = json!(vec![-4.5; entries]);
        with += &format!("{rollout}\n");
    }
    fs::write(folder.path().join("with.jsonl"), &with).unwrap();
    // Columns that are computed or not read may be incomplete.
    let some = with
        .replacen("old_logps", "other", 1)
        .replacen("sampling_logps", "other", 3);
    fs::write(folder.path().join("some.jsonl"), some).unwrap();
    let options = [
        "--data",
        "with.jsonl",
        "--sampling-cap",
        "1.5",
        "--max-steps",
        "1",
    ];
    let records = GRPO.compare(folder.path(), "given", &options);
    let metrics = &records[0].tree.as_ref().unwrap().metrics;
    assert_ne!(metrics["ratio"], 1.0);
    // e^0.5 exceeds the cap.
    assert_eq!(metrics["sampling_weight"], 1.5);
    assert_eq!(metrics["sampling_truncated"], 1.0);
    let options = [&options[..], &["--old-log-probs", "model"]].concat();
    let records = GRPO.compare(folder.path(), "computed", &options);
    assert_eq!(records[0].tree.as_ref().unwrap().metrics["ratio"], 1.0);
    let options = [
        "--data",
        "some.jsonl",
        "--old-log-probs",
        "model",
        "--max-steps",
        "1",
    ];
    GRPO.compare(folder.path(), "incomplete", &options);
}

#[test]
fn mistakes_are_explained() {
    let folder = setup();
    let base = folder.path();
    let lines = fs::read_to_string(base.join("data.jsonl")).unwrap();
    let without = lines.replacen("\"reward\":0.5", "\"reward\":null", 1);
    fs::write(base.join("without.jsonl"), without).unwrap();
    let alone = lines.lines().next().unwrap();
    fs::write(base.join("alone.jsonl"), format!("{alone}\n")).unwrap();
    let mut one: Value = serde_json::from_str(alone).unwrap();
    one["rollout_id"] = json!("other");
    one["old_logps"] = json!(vec![-1.0; one["tokens"].as_array().unwrap().len() - 1]);
    fs::write(base.join("some.jsonl"), format!("{alone}\n{one}\n")).unwrap();
    GRPO.explains(
        base,
        &[
            (&["--data", "without.jsonl"], "has the reward None"),
            (&["--data", "alone.jsonl"], "expected at least two"),
            (&["--data", "some.jsonl"], "has no old_logps"),
            (&["--advantages", "data"], "has no advantage"),
            (&["--advantages", "guessed"], "leave-one-out"),
            (&["--clip-low", "2"], "clip.low is 2"),
            (&["--ratio", "sequence", "--dual-clip", "3"], "--dual-clip"),
            (&["--sampling-cap", "2"], "has no sampling_logps"),
            (&["--old-log-probs", "data"], "has no old_logps"),
            (&["--compare", "--checkpoint-every", "1"], "no checkpoints"),
            (&["--data", "missing.jsonl"], "missing.jsonl"),
        ],
    );
    // No run was started.
    assert!(!base.join("runs").exists());
}
