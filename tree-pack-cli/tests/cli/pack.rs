//! `tree-pack pack`, and the budgets of `tree-pack stats`.

use serde_json::Value;
use tree_pack::{
    PackOptions, PackedStep, Partitioning, build_forests, load_trajectories, pack_step,
};

use super::{Folder, data, fail, succeed};

#[test]
fn packs_are_those_of_the_library() {
    let folder = Folder::new();
    let file = data("tokens/tau_airline.jsonl.gz");
    let output = folder.path("packs.safetensors");
    let arguments = [
        "--budget",
        "65536",
        "--pad-to-multiple",
        "128",
        "--aggregation",
        "sep-avg",
    ];
    let mut command = vec!["pack", &file, "--output", &output, "--format", "json"];
    command.extend(arguments);
    let summary: Value = serde_json::from_str(&succeed(&command)).unwrap();
    let trajectories = load_trajectories([&file]).unwrap();
    let options = PackOptions {
        pad_to_multiple: 128,
        aggregation: tree_pack::Aggregation::SepAvg,
        ..PackOptions::new(65536)
    };
    let expected = pack_step(
        &trajectories,
        &build_forests(&trajectories).unwrap(),
        &options,
    )
    .unwrap();
    assert_eq!(PackedStep::load(&output).unwrap(), expected);
    assert_eq!(summary[0]["packs"], expected.packs.len());
    assert_eq!(summary[0]["unique_tokens"], 273_049);
}

/// Trees over the budget: the program gives the packs and counts of the library.
#[test]
fn trees_over_the_budget_are_cut_as_asked() {
    let folder = Folder::new();
    let file = data("tokens/tau_airline.jsonl.gz");
    let trajectories = load_trajectories([&file]).unwrap();
    let forests = build_forests(&trajectories).unwrap();
    let counts = succeed(&["stats", &file, "--format", "json", "--budget", "8192,16384"]);
    let counts: Value = serde_json::from_str(&counts).unwrap();
    for (name, partitioning) in [
        ("connected", Partitioning::Connected),
        ("shared", Partitioning::Shared),
        ("per-node", Partitioning::PerNode),
        ("repeated-prefixes", Partitioning::RepeatedPrefixes),
    ] {
        let output = folder.path(name);
        let arguments = [
            "--budget",
            "16384",
            "--partitioning",
            name,
            "--format",
            "json",
        ];
        let mut command = vec!["pack", &file, "--output", &output];
        command.extend(arguments);
        let summary: Value = serde_json::from_str(&succeed(&command)).unwrap();
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(16384)
        };
        let expected = pack_step(&trajectories, &forests, &options).unwrap();
        assert_eq!(PackedStep::load(&output).unwrap(), expected);
        let gateways = || {
            expected
                .packs
                .iter()
                .filter_map(|pack| pack.gateway.as_ref())
        };
        let past_keys: usize = gateways().map(|gateway| gateway.past_keys()).sum();
        let rows: usize = expected.packs.iter().map(|pack| pack.layout.len()).sum();
        let budgets = counts["budgets"].as_array().unwrap();
        let listed = budgets
            .iter()
            .filter(|entry| entry["partitioning"] == name && entry["token_budget"] == 16384);
        for found in listed.chain([&summary[0]]) {
            assert_eq!(found["packs"], expected.packs.len());
            assert_eq!(found["continued_packs"], gateways().count());
            assert_eq!(found["past_keys"], past_keys);
            assert_eq!(found["rows"], rows);
            assert_eq!(found["retained_tokens"], expected.retained_tokens());
        }
        assert_eq!(rows > 273_049, name == "repeated-prefixes");
    }
    let text = succeed(&["stats", &file, "--budget", "16384"]);
    assert!(
        text.contains("connected") && text.contains("retained"),
        "{text}"
    );
}

#[test]
fn steps_go_to_a_folder_that_is_whole() {
    let folder = Folder::new();
    let file = data("tokens/toolbench_dfsdt.jsonl.gz");
    let output = folder.path("steps");
    let mut command = vec![
        "pack",
        &file,
        "-o",
        &output,
        "--budget",
        "16800",
        "--tasks-per-step",
        "5",
    ];
    command.extend(["--seed", "7", "--format", "json"]);
    let summaries: Vec<Value> = serde_json::from_str(&succeed(&command)).unwrap();
    assert_eq!(summaries.len(), 3);
    let mut trajectories = 0;
    for summary in &summaries {
        let step = PackedStep::load(summary["file"].as_str().unwrap()).unwrap();
        trajectories += step.trajectories.len();
        assert_eq!(step.packs.len() as u64, summary["packs"].as_u64().unwrap());
    }
    assert_eq!(trajectories, 131);
    let message = fail(&command);
    assert!(message.contains("already exists"), "{message}");

    // The largest tree has 16,798 tokens, in a later step; no files of earlier steps remain.
    let output = folder.path("failed");
    let message = fail(&[
        "pack",
        &file,
        "-o",
        &output,
        "--budget",
        "16797",
        "--tasks-per-step",
        "1",
    ]);
    assert!(
        message.contains("toolbench/G3_13") && message.contains("16798 tokens"),
        "{message}"
    );
    assert_eq!(folder.names(), ["steps"]);
}
