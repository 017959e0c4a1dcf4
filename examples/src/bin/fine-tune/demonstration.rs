//! What runs without `--data`: bundled recordings, a small model with random weights, and the
//! comparison with separate trajectories.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::args::Args;

/// Recordings of an agent that searched tool calls depth first: many rollouts share long prefixes.
const FILE: &str = "data/tokens/toolbench_dfsdt.jsonl.gz";
/// Tasks small enough for a few minutes on two cores.
const TASKS: [&str; 3] = ["toolbench/G1_57", "toolbench/G2_119", "toolbench/G2_127"];
const EPOCHS: NonZeroUsize = NonZeroUsize::new(4).unwrap();
const TASKS_PER_STEP: NonZeroUsize = NonZeroUsize::new(1).unwrap();

/// Fills in data, tasks, epochs and the comparison, if no data are given, and says what
/// was chosen.
pub fn fill_in(mut args: Args) -> Result<Args> {
    if !args.data.is_empty() {
        return Ok(args);
    }
    let file = find(FILE)?;
    if args.tasks.is_empty() {
        args.tasks = TASKS.map(String::from).to_vec();
    }
    args.epochs.get_or_insert(EPOCHS);
    args.tasks_per_step.get_or_insert(TASKS_PER_STEP);
    args.compare = !args.no_tree && args.resume.is_none();
    args.compact_vocab |= !Path::new(&args.model).exists();
    println!(
        "No --data given, so this is the demonstration. The same by hand:\n  fine-tune --data {} \
         --tasks {} --tasks-per-step {} --epochs {}{}{}\n",
        file.display(),
        args.tasks.join(","),
        args.tasks_per_step(),
        args.epochs(),
        if args.compare { " --compare" } else { "" },
        if args.compact_vocab {
            " --compact-vocab"
        } else {
            ""
        },
    );
    args.data = vec![file];
    Ok(args)
}

/// A bundled file, from the current folder upwards or in the folder this program was built in.
fn find(file: &str) -> Result<PathBuf> {
    let current = std::env::current_dir().unwrap_or_default();
    let built_in = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    for folder in current.ancestors().chain([built_in]) {
        let path = folder.join(file);
        if path.is_file() {
            return Ok(path
                .strip_prefix(&current)
                .map(Path::to_owned)
                .unwrap_or(path));
        }
    }
    bail!(
        "the bundled recordings ({file}) are neither in {} or a folder above it nor in {}; give \
         your own with --data",
        current.display(),
        built_in.display()
    )
}
