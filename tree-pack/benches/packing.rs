//! Time and peak memory of packing trajectories, at one, two and four times the data.
//!
//! ```text
//! cargo bench -p tree-pack
//! ```
//!
//! The data are the recorded game-of-24 samples, repeated with changed tails up to 10,000
//! trajectories of 5.5 M tokens with a prefix overlap ratio of 0.96. Each size runs in a separate
//! process, so that peak memory is measured separately. Two extreme shapes follow: one path of
//! 100,000 tokens and more, and a fork of a million single tokens and more.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tree_pack::{
    Aggregation, LossForm, Objective, PackOptions, Trajectory, TreeStats, build_forests,
    load_trajectories, pack_step,
};

const TRAJECTORIES: usize = 10_000;
/// Tokens changed at the end of every repetition.
const TAIL: usize = 25;
const RUNS: usize = 7;
const TOKEN_BUDGET: usize = 32_768;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // Cargo adds its own arguments (`--bench`).
    if let Some(position) = arguments.iter().position(|argument| argument == "--scale") {
        let scale = arguments[position + 1]
            .parse()
            .expect("the scale is a number");
        return measure(scale);
    }
    println!(
        "{:>12} {:>12} {:>10} {:>6} {:>11} {:>8} {:>11} {:>9} {:>8}",
        "trajectories",
        "tokens",
        "unique",
        "POR",
        "objective",
        "packs",
        "seconds",
        "peak MiB",
        "x input"
    );
    for scale in [1, 2, 4] {
        let program = std::env::current_exe().expect("the program has a path");
        let status = Command::new(program)
            .args(["--scale", &scale.to_string()])
            .status();
        assert!(status.expect("the program starts again").success());
    }
    for length in [100_000, 200_000, 400_000] {
        let path = Trajectory::new("path", "0", vec![1; length], vec![true; length]);
        time_shape(&format!("one path of {length} tokens"), &[path]);
    }
    for count in [1_000_000, 2_000_000] {
        let branch = |token| Trajectory::new("fork", "", vec![7, token], vec![false, true]);
        let branches: Vec<_> = (0..count).map(branch).collect();
        time_shape(&format!("{count} branches of one token"), &branches);
    }
}

fn time_shape(name: &str, trajectories: &[Trajectory]) {
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..RUNS {
        let start = Instant::now();
        let forests = build_forests(trajectories).expect("the trajectories are valid");
        let budget = forests[0].tokens().len();
        let step = pack_step(trajectories, &forests, &PackOptions::new(budget));
        assert_eq!(step.expect("the tree fits").packs.len(), 1);
        times.push(start.elapsed());
    }
    times.sort();
    println!("{name}: {:.4} s", times[RUNS / 2].as_secs_f64());
}

fn measure(scale: usize) {
    let trajectories = repeated_with_changed_tails(scale * TRAJECTORIES);
    let tokens: usize = trajectories.iter().map(Trajectory::len).sum();
    // Four bytes per token and one for its mask.
    let input_bytes = 5 * tokens;
    for (name, objective, loss) in [
        ("per path", Objective::PerPath, LossForm::LogLikelihood),
        (
            "occurrences",
            Objective::PerOccurrence,
            LossForm::PerTrajectory,
        ),
    ] {
        let options = PackOptions {
            objective,
            loss,
            aggregation: Aggregation::TokenMean,
            ..PackOptions::new(TOKEN_BUDGET)
        };
        let mut packs = 0;
        let mut times: Vec<Duration> = Vec::new();
        for _ in 0..RUNS {
            let start = Instant::now();
            let forests = build_forests(&trajectories).expect("the trajectories are valid");
            let step = pack_step(&trajectories, &forests, &options).expect("every tree fits");
            times.push(start.elapsed());
            packs = step.packs.len();
        }
        times.sort();
        // Before the statistics, which are not part of packing.
        let peak = peak_memory();
        let forests = build_forests(&trajectories).expect("the trajectories are valid");
        let stats = TreeStats::of_all(&forests, &trajectories);
        println!(
            "{:>12} {:>12} {:>10} {:>6.3} {:>11} {:>8} {:>11.3} {:>9} {:>8}",
            stats.trajectories,
            stats.tokens,
            stats.unique_tokens,
            stats.prefix_overlap_ratio(),
            name,
            packs,
            times[RUNS / 2].as_secs_f64(),
            peak.map_or("?".into(), |bytes| format!(
                "{:.0}",
                bytes as f64 / f64::from(1 << 20)
            )),
            peak.map_or("?".into(), |bytes| format!(
                "{:.2}",
                bytes as f64 / input_bytes as f64
            )),
        );
    }
}

/// Repeats the recorded samples, with new last tokens in every repetition.
fn repeated_with_changed_tails(count: usize) -> Vec<Trajectory> {
    let path =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../data/tokens/tot_game24_cot16.jsonl.gz");
    let recorded = load_trajectories([path]).expect("the recorded runs are readable");
    let mut trajectories = Vec::with_capacity(count);
    for number in 0..count {
        let repetition = (number / recorded.len()) as u32;
        let mut trajectory = recorded[number % recorded.len()].clone();
        if repetition > 0 {
            let start = trajectory.len().saturating_sub(TAIL);
            for token in &mut trajectory.tokens[start..] {
                *token = (*token + 7919 * repetition) % 151_643;
            }
        }
        trajectories.push(trajectory);
    }
    trajectories
}

/// Peak memory of this process, if the system reports it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
