//! The program `dpo`.

use std::fs;

use crate::support::{DPO, records, setup};

/// Trees and separate rollouts have the same losses. Before the first update every margin is 0, and
/// at the end the better rollouts are preferred.
#[test]
fn comparing_shows_the_same_losses_for_fewer_tokens() {
    let folder = setup();
    for (index, options) in [
        &[][..],
        &["--pairs", "all", "--label-smoothing", "0.1"],
        &["--loss", "ipo", "--beta", "0.02"],
        &["--model", "hybrid.json", "--pairs", "all"],
        &["--lora-rank", "4"],
        &["--token-budget", "12", "--pairs", "all"],
    ]
    .into_iter()
    .enumerate()
    {
        let options = [&["--epochs", "3"], options].concat();
        let records = DPO.compare(folder.path(), &format!("run{index}"), &options);
        assert_eq!(records.len(), 9);
        let tree = |index: usize| records[index].tree.as_ref().unwrap();
        let (first, last) = (tree(0), tree(8));
        // Packs other than those of the reference: f32 sums in another order.
        assert!(first.metrics["reward_margin"].abs() < 1e-4, "{first:?}");
        assert!(last.loss < first.loss, "{options:?}");
        assert!(last.metrics["reward_margin"] > 0.0);
        assert_eq!(last.metrics["accuracy"], 1.0, "{options:?} {last:?}");
    }
}

/// The loss of a pair with no margin yet is ln 2, in one pass as in two over parts of trees.
#[test]
fn the_first_loss_is_known() {
    let folder = setup();
    for (name, options) in [
        ("whole", &[][..]),
        ("parts", &["--token-budget", "7"]),
        (
            "shared",
            &["--token-budget", "7", "--partitioning", "shared"],
        ),
    ] {
        let own = ["--max-steps", "1", "--output", name];
        DPO.succeed(folder.path(), &[&own[..], options].concat());
        let record = &records(folder.path(), name)[0];
        let loss = record.tree.as_ref().unwrap().loss;
        // Log-probabilities of f32, summed over a trajectory.
        assert!(
            (loss - std::f64::consts::LN_2).abs() < 1e-5,
            "{name}: {loss}"
        );
    }
}

#[test]
fn a_resumed_run_is_bit_identical() {
    let options = [
        "--epochs",
        "2",
        "--validation-fraction",
        "0.2",
        "--validate-every",
        "1",
        "--pairs",
        "all",
    ];
    let whole = DPO.resumes(&options, 3, "model.safetensors");
    assert_eq!(whole.len(), 4);
    assert!(whole.iter().all(|record| record.validation_loss.is_some()));
}

/// Pairs from a file make the run that the same pairs from rewards make.
#[test]
fn pairs_can_be_given() {
    let folder = setup();
    let lines = (0..5).map(|task| {
        format!("{{\"task_id\": \"t{task}\", \"chosen\": \"1-20\", \"rejected\": \"0-20\"}}\n")
    });
    fs::write(folder.path().join("pairs.jsonl"), lines.collect::<String>()).unwrap();
    let losses = |name: &str, options: &[&str]| -> Vec<f64> {
        DPO.succeed(folder.path(), &[&["--output", name], options].concat());
        let records = records(folder.path(), name);
        records
            .iter()
            .map(|record| record.tree.as_ref().unwrap().loss)
            .collect()
    };
    let given = losses("given", &["--pairs-file", "pairs.jsonl"]);
    assert_eq!(given, losses("rewards", &[]));
    assert_ne!(given, losses("all", &["--pairs", "all"]));
}

#[test]
fn mistakes_are_explained() {
    let folder = setup();
    let base = folder.path();
    let pair = "{\"task_id\": \"t1\", \"chosen\": \"1-20\", \"rejected\": \"7\"}\n";
    fs::write(base.join("pairs.jsonl"), pair).unwrap();
    let pair = pair.replace("t1", "elsewhere");
    fs::write(base.join("elsewhere.jsonl"), pair).unwrap();
    let itself: String = (0..5)
        .map(|task| {
            format!("{{\"task_id\":\"t{task}\",\"chosen\":\"1-20\",\"rejected\":\"1-20\"}}\n")
        })
        .collect();
    fs::write(base.join("itself.jsonl"), itself).unwrap();
    DPO.explains(
        base,
        &[
            (&["--pairs-file", "pairs.jsonl"], "pairs.jsonl:1: "),
            (&["--pairs-file", "elsewhere.jsonl"], "no pairs"),
            (&["--pairs-file", "none.jsonl"], "none.jsonl"),
            (&["--pairs-file", "x", "--pairs", "all"], "--pairs"),
            (
                &["--pairs-file", "itself.jsonl"],
                "trajectories are the same",
            ),
            (&["--margin", "2"], "no pairs"),
            (&["--beta", "0"], "beta is 0"),
            (&["--label-smoothing", "0.7"], "label_smoothing is 0.7"),
            (&["--ref-log-probs", "data"], "has no ref_logps"),
        ],
    );
    // No run was started.
    assert!(!base.join("runs").exists());
}
