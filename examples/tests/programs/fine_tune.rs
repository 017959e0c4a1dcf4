//! The program `fine-tune`.

use std::fs;
#[cfg(feature = "learner")]
use std::process::Command;

use crate::support::{FINE_TUNE, Program, records, setup};

const PROGRAM: Program = FINE_TUNE;

/// Options that a resumed run must handle.
const RESUMED: [&str; 12] = [
    "--epochs",
    "3",
    "--warmup-steps",
    "2",
    "--weight-decay",
    "0.1",
    "--validation-fraction",
    "0.2",
    "--validate-every",
    "2",
    "--token-budget",
    "64",
];

#[test]
fn a_resumed_run_is_bit_identical() {
    let whole = PROGRAM.resumes(&RESUMED, 2, "model.safetensors");
    assert_eq!(whole.len(), 6);
    // A budget that splits steps, so that gradients are accumulated.
    let packs = |index: usize| whole[index].tree.as_ref().unwrap().packs;
    assert!((0..6).any(|index| packs(index) > 1));
}

#[test]
fn a_resumed_run_with_adapters_is_bit_identical() {
    let options = [&RESUMED[..], &["--lora-rank", "2"]].concat();
    PROGRAM.resumes(&options, 2, "adapter_model.safetensors");
}

#[test]
fn a_resumed_run_of_a_hybrid_model_is_bit_identical() {
    let options = [&RESUMED[..], &["--model", "hybrid.json"]].concat();
    PROGRAM.resumes(&options, 2, "model.safetensors");
}

/// Trees and separate trajectories have the same losses over many steps, for every aggregation, and
/// trees compute fewer tokens.
#[test]
fn comparing_shows_the_same_losses_for_fewer_tokens() {
    let folder = setup();
    for (index, options) in [
        &["--aggregation", "token-mean"][..],
        &["--aggregation", "sep-avg"],
        &["--aggregation", "constant:7"],
        &["--objective", "unique", "--aggregation", "unique-mean"],
        &["--lora-rank", "4"],
        &["--model", "hybrid.json"],
    ]
    .into_iter()
    .enumerate()
    {
        let options = [&["--epochs", "3"], options].concat();
        let records = PROGRAM.compare(folder.path(), &format!("run{index}"), &options);
        assert_eq!(records.len(), 9);
        let loss = |index: usize| records[index].tree.as_ref().unwrap().loss;
        assert!(loss(8) < loss(0), "{options:?}");
    }
}

/// Partitioned trees with activation checkpointing and host offload have the losses of whole trees.
#[test]
fn partitioned_trees_have_the_losses_of_whole_ones() {
    let folder = setup();
    for model in ["config.json", "hybrid.json"] {
        let losses = |name: &str, options: &[&str]| -> Vec<f64> {
            let name = format!("{model}-{name}");
            let own = ["--epochs", "2", "--learning-rate", "0.01", "--model", model];
            let output = ["--output", &name];
            PROGRAM.succeed(folder.path(), &[&own, options, &output].concat());
            let records = records(folder.path(), &name);
            records
                .iter()
                .map(|record| record.tree.as_ref().unwrap().loss)
                .collect()
        };
        let whole = losses("whole", &[]);
        for (index, options) in [
            &["--token-budget", "20"][..],
            &["--token-budget", "7"],
            &["--token-budget", "7", "--partitioning", "shared"],
            &["--token-budget", "7", "--recompute"],
            &["--token-budget", "12", "--recompute", "--offload"],
            &["--recompute"],
        ]
        .into_iter()
        .enumerate()
        {
            let parts = losses(&index.to_string(), options);
            assert_eq!(parts.len(), whole.len());
            for (part, whole) in parts.iter().zip(&whole) {
                // f32 sums in another order, through six AdamW steps.
                assert!(
                    (part - whole).abs() < 1e-4 * whole,
                    "{model} {options:?}: {parts:?} against {whole}"
                );
            }
        }
    }
}

/// The flat baseline alone has the same steps as in a comparison.
#[test]
fn the_baseline_alone_is_that_of_the_comparison() {
    let folder = setup();
    PROGRAM.succeed(folder.path(), &["--compare", "--output", "both"]);
    PROGRAM.succeed(folder.path(), &["--sharing", "flat", "--output", "flat"]);
    let losses = |run: &str| -> Vec<f64> {
        records(folder.path(), run)
            .iter()
            .map(|record| record.flat.as_ref().unwrap().loss)
            .collect()
    };
    assert_eq!(losses("both"), losses("flat"));
}

/// Trees of 38 tokens do not fit packs of 25, their trajectories of 20 do.
#[test]
fn what_does_not_fit_as_trees_is_trained_separately() {
    let folder = setup();
    fn run<'a>(options: &[&'a str]) -> Vec<&'a str> {
        [
            &["--token-budget", "25", "--partitioning", "refuse"],
            options,
        ]
        .concat()
    }
    let text = PROGRAM.succeed(
        folder.path(),
        &run(&["--sharing", "auto", "--output", "auto"]),
    );
    assert!(text.contains("Sharing: 0 of 5 tasks as trees"), "{text}");
    assert!(text.contains("Steps as chosen: predicted"), "{text}");
    assert!(folder.path().join("auto/sharing.json").is_file());
    PROGRAM.succeed(
        folder.path(),
        &run(&["--sharing", "flat", "--output", "flat"]),
    );
    let (auto, flat) = (
        records(folder.path(), "auto"),
        records(folder.path(), "flat"),
    );
    assert_eq!(auto.len(), flat.len());
    for (auto, flat) in auto.iter().zip(&flat) {
        let (auto, flat) = (auto.tree.as_ref().unwrap(), flat.flat.as_ref().unwrap());
        assert_eq!((auto.loss, auto.tokens), (flat.loss, flat.tokens));
        assert!(auto.predicted_seconds.unwrap() > 0.0);
    }
    let text = PROGRAM.error(folder.path(), &run(&["--sharing", "tree"]));
    assert!(text.contains("38 tokens"), "{text}");
    let options = ["--sharing", "auto", "--device-memory", "1e-6"];
    let text = PROGRAM.error(folder.path(), &run(&options));
    assert!(text.contains("fits neither as trees"), "{text}");
}

/// A reloaded export has the validation loss of the end of the run, also with merged adapters.
#[test]
fn exported_models_are_the_trained_ones() {
    let folder = setup();
    let options = ["--validation-fraction", "0.4", "--epochs", "3"];
    let last_loss = |run: &str, own: &[&str]| {
        PROGRAM.succeed(
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
        // A learning rate too small to change anything.
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
        PROGRAM.succeed(folder.path(), &[&options[..], &own].concat());
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
#[cfg(feature = "learner")]
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
    PROGRAM.succeed(base, &["--output", "run", "--max-steps", "1"]);
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
        (
            &["--token-budget", "10", "--partitioning", "refuse"],
            "over the budget of 10",
        ),
        (&["--max-length", "12"], "--too-long"),
        (&["--warmup-steps", "100"], "100 warm-up steps"),
        (&["--learning-rate=-1"], "learning rate"),
        (&["--resume", "nowhere"], "nowhere"),
        (&["--data", "missing.jsonl"], "missing.jsonl"),
    ];
    PROGRAM.explains(base, &cases);
    // No run was started.
    assert!(!base.join("runs").exists());
}
