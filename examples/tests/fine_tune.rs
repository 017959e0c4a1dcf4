//! The program `fine-tune` as a user runs it, on a tiny model and a few generated tasks.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::json;
use tree_training_examples::training::metrics::{StepRecord, read_records};

/// A folder with `config.json` of a tiny model and `data.jsonl` of five tasks, each with three
/// trajectories that fork twice and a strict prefix of one of them.
///
/// `hybrid.json` is a tiny Qwen3.5: a recurrent block and one with attention.
fn setup() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let mut config = json!({
        "model_type": "qwen3", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 24,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "rope_theta": 10000.0, "tie_word_embeddings": true, "initializer_range": 0.2,
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    config["model_type"] = json!("qwen3_5_text");
    for (field, value) in [
        ("full_attention_interval", 2),
        ("linear_num_key_heads", 1),
        ("linear_num_value_heads", 2),
        ("linear_key_head_dim", 8),
        ("linear_value_head_dim", 8),
        ("linear_conv_kernel_dim", 4),
    ] {
        config[field] = json!(value);
    }
    fs::write(folder.path().join("hybrid.json"), config.to_string()).unwrap();
    let mut lines = String::new();
    for task in 0..5u32 {
        // A fixed scramble of small numbers; forks at 8 and 14.
        let token = |index: u32, branch: u32| (7 * index + 11 * task + 13 * branch) % 50;
        for (branch, length) in [(0, 20), (1, 20), (2, 20), (0, 11)] {
            let fork = [u32::MAX, 8, 14][branch as usize];
            let tokens: Vec<u32> = (0..length)
                .map(|i| token(i, if i < fork { 0 } else { branch }))
                .collect();
            let mask: Vec<u32> = (0..length).map(|i| u32::from(i >= 5)).collect();
            let line = json!({
                "task_id": format!("t{task}"), "rollout_id": format!("{branch}-{length}"),
                "tokens": tokens, "loss_mask": mask,
            });
            lines += &format!("{line}\n");
        }
    }
    fs::write(folder.path().join("data.jsonl"), lines).unwrap();
    folder
}

/// Runs the program in `folder` with the model and data there.
fn fine_tune(folder: &Path, arguments: &[&str]) -> Output {
    let given = |name: &str| arguments.contains(&name);
    let mut command = Command::new(env!("CARGO_BIN_EXE_fine-tune"));
    command.current_dir(folder);
    for (name, value) in [
        ("--model", "config.json"),
        ("--data", "data.jsonl"),
        ("--tasks-per-step", "2"),
    ] {
        if !given(name) {
            command.args([name, value]);
        }
    }
    command.args(arguments).output().unwrap()
}

fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = fine_tune(folder, arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{text}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn error(folder: &Path, arguments: &[&str]) -> String {
    let output = fine_tune(folder, arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn records(folder: &Path, run: &str) -> Vec<StepRecord> {
    read_records(&folder.join(run).join("metrics.jsonl")).unwrap()
}

/// What of a record does not depend on the clock.
fn numbers(record: &StepRecord) -> (usize, u64, u64, u64, Option<u64>) {
    let tree = record.tree.as_ref().unwrap();
    let bits = |value: f64| value.to_bits();
    (
        record.step,
        bits(record.learning_rate),
        bits(tree.loss),
        bits(tree.gradient_norm),
        record.validation_loss.map(bits),
    )
}

/// Makes `cut` from the finished run `whole` as if it had been interrupted in its third step:
/// with checkpoints of two steps, and a line of metrics written after the last one.
fn interrupt(base: &Path) {
    let checkpoints = base.join("cut/checkpoints");
    fs::create_dir_all(&checkpoints).unwrap();
    for step in 1..=2 {
        let name = format!("step-{step:08}");
        let (from, to) = (
            base.join("whole/checkpoints").join(&name),
            checkpoints.join(&name),
        );
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    let metrics = fs::read_to_string(base.join("whole/metrics.jsonl")).unwrap();
    let three_lines: String = metrics.split_inclusive('\n').take(3).collect();
    fs::write(base.join("cut/metrics.jsonl"), three_lines).unwrap();
}

/// A run that was interrupted goes on as if it had not been: same losses and same weights, to the
/// last bit.
fn resume_is_bit_identical(options: &[&str], exported: &str) {
    let folder = setup();
    let base = folder.path();
    let options = [
        &[
            "--epochs",
            "3",
            "--warmup-steps",
            "2",
            "--learning-rate",
            "0.01",
            "--weight-decay",
            "0.1",
            "--validation-fraction",
            "0.2",
            "--validate-every",
            "2",
            "--checkpoint-every",
            "1",
            "--keep-checkpoints",
            "9",
            "--token-budget",
            "64",
        ][..],
        options,
    ]
    .concat();
    succeed(
        base,
        &[
            &options[..],
            &["--output", "whole", "--export", "whole-model"],
        ]
        .concat(),
    );
    let whole = records(base, "whole");
    assert_eq!(whole.len(), 6);
    // A budget that splits steps, so that accumulation is exercised, too.
    assert!(
        whole
            .iter()
            .any(|record| record.tree.as_ref().unwrap().packs > 1)
    );

    interrupt(base);
    succeed(
        base,
        &[&options[..], &["--resume", "cut", "--export", "cut-model"]].concat(),
    );
    let resumed = records(base, "cut");
    let all = |records: &[StepRecord]| records.iter().map(numbers).collect::<Vec<_>>();
    assert_eq!(all(&resumed), all(&whole));
    let weights = |model: &str| fs::read(base.join(model).join(exported)).unwrap();
    assert!(
        weights("cut-model") == weights("whole-model"),
        "the exported weights differ"
    );

    // With another setting there is nothing to continue.
    let message = error(
        base,
        &[&options[..], &["--seed", "1", "--resume", "cut"]].concat(),
    );
    assert!(message.contains("was started with"), "{message}");
}

#[test]
fn a_resumed_run_is_bit_identical() {
    resume_is_bit_identical(&[], "model.safetensors");
}

#[test]
fn a_resumed_run_with_adapters_is_bit_identical() {
    resume_is_bit_identical(&["--lora-rank", "2"], "adapter_model.safetensors");
}

#[test]
fn a_resumed_run_of_a_hybrid_model_is_bit_identical() {
    resume_is_bit_identical(&["--model", "hybrid.json"], "model.safetensors");
}

/// Trees and separate trajectories have the same losses over many steps, for every way of
/// averaging, and trees compute fewer tokens.
#[test]
fn comparing_shows_the_same_losses_for_fewer_tokens() {
    let folder = setup();
    for (index, options) in [
        ["--aggregation", "token-mean"],
        ["--aggregation", "sep-avg"],
        ["--aggregation", "constant:7"],
        ["--objective", "unique"],
        ["--lora-rank", "4"],
        ["--model", "hybrid.json"],
    ]
    .iter()
    .enumerate()
    {
        let run = format!("run{index}");
        let arguments = [
            "--compare",
            "--epochs",
            "3",
            "--learning-rate",
            "0.01",
            "--output",
            &run,
        ];
        let mut arguments = arguments.to_vec();
        arguments.extend(options);
        if options[1] == "unique" {
            arguments.extend(["--aggregation", "unique-mean"]);
        }
        let text = succeed(folder.path(), &arguments);
        assert!(
            text.contains("step bound") && text.contains("POR"),
            "{text}"
        );
        let records = records(folder.path(), &run);
        assert_eq!(records.len(), 9);
        for record in &records {
            let (tree, flat) = (record.tree.as_ref().unwrap(), record.flat.as_ref().unwrap());
            let comparison = record.comparison.unwrap();
            // f32 sums in another order, through nine AdamW steps.
            assert!(
                comparison.relative_loss_deviation < 1e-4,
                "{options:?} {record:?}"
            );
            assert!(
                (tree.gradient_norm / flat.gradient_norm - 1.0).abs() < 1e-3,
                "{record:?}"
            );
            assert!(tree.tokens < flat.tokens && comparison.token_bound > 1.5);
        }
        assert!(
            records[8].tree.as_ref().unwrap().loss < records[0].tree.as_ref().unwrap().loss,
            "{options:?}"
        );
        for picture in ["loss.png", "speedup.png"] {
            assert!(folder.path().join(&run).join(picture).is_file());
        }
    }
}

/// The flat baseline alone makes the very steps that it makes in a comparison.
#[test]
fn the_baseline_alone_is_that_of_the_comparison() {
    let folder = setup();
    succeed(folder.path(), &["--compare", "--output", "both"]);
    succeed(folder.path(), &["--sharing", "flat", "--output", "flat"]);
    let losses = |run: &str| -> Vec<f64> {
        records(folder.path(), run)
            .iter()
            .map(|record| record.flat.as_ref().unwrap().loss)
            .collect()
    };
    assert_eq!(losses("both"), losses("flat"));
}

/// An exported model, loaded again, has the validation loss that the run ended with; so has one
/// into which adapters were merged.
#[test]
fn exported_models_are_the_trained_ones() {
    let folder = setup();
    let options = ["--validation-fraction", "0.4", "--epochs", "3"];
    let last_loss = |run: &str, own: &[&str]| {
        succeed(
            folder.path(),
            &[&options[..], &["--output", run], own].concat(),
        );
        records(folder.path(), run)
            .last()
            .unwrap()
            .validation_loss
            .unwrap()
    };
    for (index, lora) in [
        &[][..],
        &["--lora-rank", "4", "--lora-export", "merged"][..],
    ]
    .into_iter()
    .enumerate()
    {
        let model = format!("model{index}");
        let (run, again) = (format!("run{index}"), format!("again{index}"));
        let train = ["--learning-rate", "0.05", "--export", &model];
        let trained = last_loss(&run, &[&train[..], lora].concat());
        // Too small a rate to change anything.
        let loaded = last_loss(&again, &["--model", &model, "--learning-rate", "1e-12"]);
        let untrained = last_loss(&format!("untrained{index}"), &["--learning-rate", "1e-12"]);
        assert!(
            (loaded - trained).abs() < 1e-5 * trained,
            "{loaded} is not {trained}"
        );
        assert!(
            (untrained - trained).abs() > 1e-2 * trained,
            "nothing was learnt"
        );
    }
}

/// bfloat16 products with f32 parameters stay near the f32 run.
#[test]
fn half_precision_follows_single_precision() {
    let folder = setup();
    let options = ["--epochs", "3", "--learning-rate", "0.01"];
    for (dtype, run) in [("f32", "single"), ("bf16", "half")] {
        let own = ["--compute-dtype", dtype, "--output", run];
        succeed(folder.path(), &[&options[..], &own].concat());
    }
    let (single, half) = (
        records(folder.path(), "single"),
        records(folder.path(), "half"),
    );
    for (single, half) in single.iter().zip(&half) {
        let (single, half) = (
            single.tree.as_ref().unwrap().loss,
            half.tree.as_ref().unwrap().loss,
        );
        assert_ne!(single, half, "nothing was computed in bfloat16");
        // bfloat16 has 8 bits of precision: 0.4 % a rounding, averaged over the tokens.
        assert!(
            (half / single - 1.0).abs() < 0.02,
            "{half} against {single}"
        );
    }
}

/// The program on Burn's learner trains and writes its metrics.
#[test]
fn the_learner_trains() {
    let folder = setup();
    let output = Command::new(env!("CARGO_BIN_EXE_learner"))
        .current_dir(folder.path())
        .args([
            "--data",
            "data.jsonl",
            "--tasks",
            "t0,t1,t2,t3",
            "--epochs",
            "2",
        ])
        .args(["--output", "run"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let losses: Vec<f64> = (1..=2)
        .map(|epoch| {
            let log = folder
                .path()
                .join(format!("run/valid/epoch-{epoch}/Loss.log"));
            let text = fs::read_to_string(&log).unwrap();
            text.split(',').next().unwrap().trim().parse().unwrap()
        })
        .collect();
    assert!(losses[1] < losses[0], "{losses:?}");
}

#[test]
fn mistakes_are_explained() {
    let folder = setup();
    let base = folder.path();
    succeed(base, &["--output", "run", "--max-steps", "1"]);
    let config = fs::read_to_string(base.join("config.json")).unwrap();
    let dropout = config.replace("{\"", "{\"attention_dropout\":0.1,\"");
    fs::write(base.join("dropout.json"), dropout).unwrap();
    let cases: [(&[&str], &str); 11] = [
        (
            &["--compare", "--model", "dropout.json"],
            "dropout would make packed",
        ),
        (
            &["--compare", "--checkpoint-every", "1"],
            "writes no checkpoints",
        ),
        (&["--output", "run"], "holds another run"),
        (&["--device", "abacus"], "built in are flex"),
        (&["--tasks", "t0,t9"], "\"t9\""),
        (&["--token-budget", "10"], "over the budget of 10"),
        (&["--max-length", "12"], "--too-long"),
        (&["--warmup-steps", "100"], "100 warm-up steps"),
        (&["--learning-rate=-1"], "learning rate"),
        (&["--resume", "nowhere"], "nowhere"),
        (&["--data", "missing.jsonl"], "missing.jsonl"),
    ];
    for (arguments, expected) in cases {
        let message = error(base, arguments);
        assert!(message.contains(expected), "{arguments:?}: {message}");
        assert!(!message.contains("panicked"), "{arguments:?}: {message}");
    }
    // None of them began anything.
    assert!(!base.join("runs").exists());
}
