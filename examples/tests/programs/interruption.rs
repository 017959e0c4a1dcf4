//! A run whose process is killed while writing a checkpoint can be resumed.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::support::{FINE_TUNE, numbers, records, setup, weights};

const KILLS: usize = 6;

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
    entries.filter_map(name).collect()
}

fn checkpoints(folder: &Path) -> Vec<String> {
    let mut names = names(folder);
    names.retain(|name| name.starts_with("step-"));
    names.sort();
    names
}

fn is_writing(folder: &Path) -> bool {
    names(folder)
        .iter()
        .any(|name| name.starts_with(".unfinished"))
}

/// SIGKILL at random times during the writing of checkpoints, several times in one run: each time
/// the newest complete checkpoint loads, and the run ends with the weights of an uninterrupted run.
#[test]
fn killed_while_writing_a_checkpoint() {
    let folder = setup();
    let base = folder.path();
    // A model that is slow to write and fast to train.
    let config = fs::read_to_string(base.join("config.json")).unwrap();
    let large = config.replace("\"vocab_size\":50", "\"vocab_size\":60000");
    assert_ne!(large, config);
    fs::write(base.join("large.json"), large).unwrap();
    let options = [
        "--model",
        "large.json",
        "--max-steps",
        "12",
        "--epochs",
        "12",
        "--learning-rate",
        "0.01",
        "--checkpoint-every",
        "1",
        "--head-chunk-rows",
        "16",
    ];
    let own = ["--output", "whole", "--export", "whole-model"];
    FINE_TUNE.succeed(base, &[&options[..], &own].concat());

    let folder_of_checkpoints = base.join("killed/checkpoints");
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut left_unfinished = 0;
    for kill in 0..KILLS {
        let place = if kill == 0 { "--output" } else { "--resume" };
        let before = checkpoints(&folder_of_checkpoints);
        let arguments = [&options[..], &[place, "killed"]].concat();
        let mut child = FINE_TUNE
            .command(base, &arguments)
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        // Waits until a new checkpoint is complete and the next is being written.
        let started = Instant::now();
        loop {
            let progressed = checkpoints(&folder_of_checkpoints) != before;
            if progressed && is_writing(&folder_of_checkpoints) {
                break;
            }
            assert!(
                child.try_wait().unwrap().is_none(),
                "the run ended before it was killed {KILLS} times"
            );
            assert!(started.elapsed() < Duration::from_secs(120));
            sleep(Duration::from_micros(200));
        }
        sleep(Duration::from_micros(random.random_range(0..8000)));
        child.kill().unwrap();
        child.wait().unwrap();
        left_unfinished += usize::from(is_writing(&folder_of_checkpoints));
        assert!(!checkpoints(&folder_of_checkpoints).is_empty());
    }
    assert!(
        left_unfinished > 0,
        "no kill hit the writing of a checkpoint"
    );

    let own = ["--resume", "killed", "--export", "killed-model"];
    FINE_TUNE.succeed(base, &[&options[..], &own].concat());
    let all = |run: &str| -> Vec<_> { records(base, run).iter().map(numbers).collect() };
    assert_eq!(all("killed"), all("whole"));
    let exported = |model: &str| weights(base, model, "model.safetensors");
    assert!(exported("killed-model") == exported("whole-model"));
    assert!(
        !is_writing(&folder_of_checkpoints),
        "remains were not removed"
    );
}
