//! A tiny model, a few generated tasks, and the programs.

use std::fs;
use std::path::Path;
use std::process::Command;

use burn_tree_trainer::report::metrics::{StepRecord, read_records};
use serde_json::json;

/// A folder with the `config.json` of a tiny model and a `data.jsonl` of five tasks, each with
/// three trajectories that fork twice and a strict prefix of one of them.
///
/// `hybrid.json` is a tiny Qwen3.5 with a recurrent and an attention block.
pub fn setup() -> tempfile::TempDir {
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
            let reward = [0.0, 1.0, 0.5][branch as usize];
            let line = json!({
                "task_id": format!("t{task}"), "rollout_id": format!("{branch}-{length}"),
                "tokens": tokens, "loss_mask": mask, "reward": reward,
            });
            lines += &format!("{line}\n");
        }
    }
    fs::write(folder.path().join("data.jsonl"), lines).unwrap();
    folder
}

/// A training program.
#[derive(Clone, Copy)]
pub struct Program(&'static str);

pub const FINE_TUNE: Program = Program(env!("CARGO_BIN_EXE_fine-tune"));
pub const GRPO: Program = Program(env!("CARGO_BIN_EXE_grpo"));
pub const DPO: Program = Program(env!("CARGO_BIN_EXE_dpo"));

impl Program {
    /// The program in `folder`, with its model and data unless others are given.
    pub fn command(self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.0);
        command.current_dir(folder);
        for (name, value) in [
            ("--model", "config.json"),
            ("--data", "data.jsonl"),
            ("--tasks-per-step", "2"),
        ] {
            if !arguments.contains(&name) {
                command.args([name, value]);
            }
        }
        command.args(arguments);
        command
    }

    /// Runs the program and returns its output.
    pub fn succeed(self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.command(folder, arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Runs the program and returns its error message.
    pub fn error(self, folder: &Path, arguments: &[&str]) -> String {
        let output = self.command(folder, arguments).output().unwrap();
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Checks the error message of each case, which must not be a panic.
    pub fn explains(self, folder: &Path, cases: &[(&[&str], &str)]) {
        for (arguments, expected) in cases {
            let message = self.error(folder, arguments);
            assert!(message.contains(expected), "{arguments:?}: {message}");
            assert!(!message.contains("panicked"), "{arguments:?}: {message}");
        }
    }

    /// Trains with `--compare` and returns the records of the run.
    ///
    /// Tolerances: f32 sums in another order, through up to a dozen AdamW steps.
    pub fn compare(self, folder: &Path, name: &str, arguments: &[&str]) -> Vec<StepRecord> {
        let own = ["--compare", "--learning-rate", "0.01", "--output", name];
        let text = self.succeed(folder, &[&own[..], arguments].concat());
        assert!(
            text.contains("step bound") && text.contains("POR"),
            "{text}"
        );
        let records = records(folder, name);
        for record in &records {
            let (tree, flat) = (record.tree.as_ref().unwrap(), record.flat.as_ref().unwrap());
            let comparison = record.comparison.unwrap();
            assert!(
                comparison.relative_loss_deviation < 1e-4
                    && comparison.relative_gradient_deviation < 1e-3,
                "{arguments:?} {record:?}"
            );
            assert!(tree.tokens < flat.tokens && comparison.token_bound > 1.2);
        }
        for picture in ["loss.png", "speedup.png"] {
            assert!(folder.join(name).join(picture).is_file());
        }
        records
    }

    /// A run that is interrupted after the checkpoint of step `completed` and resumed has the same
    /// losses and weights, bit for bit. Returns the records of the uninterrupted run.
    pub fn resumes(self, options: &[&str], completed: usize, exported: &str) -> Vec<StepRecord> {
        let folder = setup();
        let base = folder.path();
        let common = [
            "--checkpoint-every",
            "1",
            "--keep-checkpoints",
            "99",
            "--learning-rate",
            "0.01",
        ];
        let options = [&common[..], options].concat();
        let own = ["--output", "whole", "--export", "whole-model"];
        self.succeed(base, &[&options[..], &own].concat());
        let whole = records(base, "whole");
        interrupt(base, completed);
        let own = ["--resume", "cut", "--export", "cut-model"];
        self.succeed(base, &[&options[..], &own].concat());
        let resumed = records(base, "cut");
        let all = |records: &[StepRecord]| records.iter().map(numbers).collect::<Vec<_>>();
        assert_eq!(all(&resumed), all(&whole));
        assert!(
            weights(base, "cut-model", exported) == weights(base, "whole-model", exported),
            "the exported weights differ"
        );

        // With another setting the run cannot be resumed.
        let own = ["--seed", "1", "--resume", "cut"];
        let message = self.error(base, &[&options[..], &own].concat());
        assert!(message.contains("was started with"), "{message}");
        whole
    }
}

/// An exported file.
pub fn weights(folder: &Path, model: &str, file: &str) -> Vec<u8> {
    fs::read(folder.join(model).join(file)).unwrap()
}

pub fn records(folder: &Path, run: &str) -> Vec<StepRecord> {
    read_records(&folder.join(run).join("metrics.jsonl")).unwrap()
}

/// The parts of a record that do not depend on the clock.
pub fn numbers(record: &StepRecord) -> (usize, u64, u64, u64, Option<u64>) {
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

/// Creates `cut` from the finished run `whole` as if it had been interrupted in the step after
/// `completed`: with its checkpoints, and a line of metrics written after the last one.
fn interrupt(base: &Path, completed: usize) {
    let checkpoints = base.join("cut/checkpoints");
    fs::create_dir_all(&checkpoints).unwrap();
    let mut copied = 0;
    for step in 1..=completed {
        let name = format!("step-{step:08}");
        let (from, to) = (
            base.join("whole/checkpoints").join(&name),
            checkpoints.join(&name),
        );
        if !from.exists() {
            continue;
        }
        copied = step;
        fs::create_dir(&to).unwrap();
        for file in fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    assert_eq!(copied, completed, "there is no such checkpoint");
    let metrics = fs::read_to_string(base.join("whole/metrics.jsonl")).unwrap();
    let lines: String = metrics.split_inclusive('\n').take(completed + 1).collect();
    fs::write(base.join("cut/metrics.jsonl"), lines).unwrap();
}
