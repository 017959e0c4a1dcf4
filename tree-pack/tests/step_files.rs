//! Files of packed steps: written steps are read back, and damaged ones are refused.

mod reference;

use std::path::Path;

use proptest::prelude::*;
use tree_pack::{
    FileError, Gateway, LossForm, PackOptions, PackedStep, Partitioning, Trajectory, build_forests,
    flat_forests, pack_step,
};

fn step_of(
    trajectories: &[Trajectory],
    flat: bool,
    loss: LossForm,
    token_budget: usize,
) -> PackedStep {
    let build = if flat { flat_forests } else { build_forests };
    let forests = build(trajectories).unwrap();
    let options = PackOptions {
        loss,
        pad_to_multiple: 16,
        partitioning: Partitioning::Shared,
        ..PackOptions::new(token_budget)
    };
    pack_step(trajectories, &forests, &options).unwrap()
}

fn small_step() -> PackedStep {
    let trajectory =
        |tokens: [u32; 3]| Trajectory::new("t", "r", tokens.to_vec(), vec![false, true, true]);
    step_of(
        &[trajectory([1, 2, 3]), trajectory([1, 2, 4])],
        false,
        LossForm::LogLikelihood,
        4096,
    )
}

/// Two packs: 1 2 with one branch, and two more branches.
fn partitioned_step() -> PackedStep {
    let trajectory = |branch: u32| {
        let tokens = [1, 2, branch].into_iter().chain([9; 3]).collect();
        Trajectory::new("t", "r", tokens, vec![true; 6])
    };
    let step = step_of(
        &[trajectory(3), trajectory(4), trajectory(5)],
        false,
        LossForm::LogLikelihood,
        8,
    );
    assert_eq!(step.packs.len(), 2);
    step
}

fn gateway(step: &mut PackedStep) -> &mut Gateway {
    step.packs[1].gateway.as_mut().unwrap()
}

fn save_and_load(step: &PackedStep, path: &Path) -> Result<PackedStep, FileError> {
    step.save(path)?;
    PackedStep::load(path)
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        trajectories in reference::trajectories(8),
        flat in any::<bool>(),
        loss in prop::sample::select(vec![LossForm::LogLikelihood, LossForm::PerTrajectory]),
        token_budget in prop::sample::select(vec![3, 20, 4096]),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let step = step_of(&trajectories, flat, loss, token_budget);
        prop_assert_eq!(&save_and_load(&step, &folder.path().join("a")).unwrap(), &step);
        step.save(folder.path().join("b")).unwrap();
        let bytes = ["a", "b"].map(|name| std::fs::read(folder.path().join(name)).unwrap());
        prop_assert_eq!(&bytes[0], &bytes[1], "the same step is the same file");
    }

    /// Any change of the file gives an error or a step that passes all checks, never a panic.
    #[test]
    fn damaged_files_give_an_answer(
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
        partitioned in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("step.safetensors");
        let step = if partitioned { partitioned_step() } else { small_step() };
        step.save(&path).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        let position = at.index(bytes.len());
        bytes[position] = byte;
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&path, bytes).unwrap();
        match PackedStep::load(&path) {
            Ok(step) => prop_assert_eq!(step.validate(), Ok(())),
            Err(error) => {
                prop_assert!(error.to_string().starts_with(&path.display().to_string()));
            }
        }
    }
}

/// A change to a step, and a part of the error that names it.
type Damage = (&'static str, fn(&mut PackedStep));

/// Checks that a file of each damaged step is refused with its error.
fn check_refused(step: fn() -> PackedStep, damages: &[Damage]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.safetensors");
    for (expected, damage) in damages {
        let mut step = step();
        damage(&mut step);
        let message = save_and_load(&step, &path).unwrap_err().to_string();
        assert!(
            message.contains(expected),
            "{message} instead of {expected}"
        );
    }
}

#[test]
fn steps_that_contradict_themselves_are_refused() {
    let damages: [Damage; 12] = [
        ("pack 0: layout: parents at 2", |step| {
            step.packs[0].layout.parents[2] = 2
        }),
        ("pack 0: layout: position_ids at 3", |step| {
            step.packs[0].layout.position_ids[3] = 3
        }),
        ("pack 0: layout: subtree_ends at 1", |step| {
            step.packs[0].layout.subtree_ends[1] = 3
        }),
        ("pack 0: layout: end of segment at 2", |step| {
            step.packs[0].layout.segments[2].end = 9
        }),
        (
            "\"0.parents\": got I32 of shape [3], expected I32 of shape [4]",
            |step| {
                step.packs[0].layout.parents.pop();
            },
        ),
        (
            "\"0.tokens\": got 4294967295, expected numbers below 2147483648",
            |step| {
                step.packs[0].layout.tokens[0] = u32::MAX;
            },
        ),
        (
            "\"0.occurrences.rows\": got 4, expected numbers below 4",
            |step| {
                step.packs[0].occurrences.rows[2] = 4;
            },
        ),
        (
            "\"0.occurrences.rows\": got rows that are not in ascending order",
            |step| {
                step.packs[0].occurrences.rows[0] = 3;
            },
        ),
        (
            "\"0.occurrences.weights\": got NaN, expected finite numbers",
            |step| {
                step.packs[0].occurrences.weights[1] = f64::NAN;
            },
        ),
        (
            "\"0.occurrences.trajectories\": got 2, expected numbers below 2",
            |step| {
                step.packs[0].occurrences.trajectories[0] = 2;
            },
        ),
        (
            "\"0.occurrences.targets\": got U32 of shape [2], expected U32 of shape [3]",
            |step| {
                step.packs[0].occurrences.targets.pop();
            },
        ),
        ("pack 0 has 1 trees of 4 tokens, but 0 task ids", |step| {
            step.packs[0].task_ids.clear()
        }),
    ];
    check_refused(small_step, &damages);
}

/// A pack with a gateway: rows that do not exist or are not ancestors, and wrong intervals.
#[test]
fn gateways_that_contradict_the_packs_are_refused() {
    let damages: [Damage; 14] = [
        ("pack 1 is of another optimizer step than pack 0", |step| {
            step.packs[1].step = small_step().packs[0].step
        }),
        (
            "pack 1: gateway: parent of pack 1: got 1, expected a pack before 1",
            |step| gateway(step).parent = 1,
        ),
        (
            "run 0: got rows 0..2 of pack 1, expected rows of an earlier pack",
            |step| gateway(step).runs[0].pack = 1,
        ),
        ("run 0: got rows 0..20 of pack 0", |step| {
            gateway(step).runs[0].rows.end = 20
        }),
        ("run 0: got rows 0..0 of pack 0", |step| {
            gateway(step).runs[0].rows.end = 0
        }),
        ("run 0: got PastRun", |step| {
            gateway(step).runs[0].visible_to.end = 4
        }),
        ("run 0: got PastRun", |step| {
            gateway(step).runs[0].position = 1
        }),
        ("run 0: got PastRun", |step| {
            gateway(step).runs[0].rows.end = 6
        }),
        ("run 1: got PastRun", |step| {
            let again = gateway(step).runs[0].clone();
            gateway(step).runs.push(again);
        }),
        (
            "root_parents 0: got 2, expected a past key below 2",
            |step| gateway(step).root_parents[0] = 2,
        ),
        (
            "row before root 0: got 0, expected the last row of a segment",
            |step| gateway(step).root_parents[0] = 0,
        ),
        (
            "\"1.gateway.root_parents\": got U32 of shape [1], expected U32 of shape [2]",
            |step| {
                gateway(step).root_parents.pop();
            },
        ),
        ("position of root 1: got 3, expected 2", |step| {
            step.packs[1].layout.position_ids[4..]
                .iter_mut()
                .for_each(|position| *position += 1)
        }),
        (
            "position of root 0: got 2, expected 0, or a gateway",
            |step| step.packs[1].gateway = None,
        ),
    ];
    check_refused(partitioned_step, &damages);
}

/// The ids and names are those of the saved step, known or unknown.
#[test]
fn files_have_the_step_and_the_names_of_trajectories() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.safetensors");
    let mut trajectory = Trajectory::new("task ü", "run 1", vec![1, 2], vec![true; 2]);
    trajectory.segments = 4;
    trajectory.segment = 3;
    let mut step = step_of(&[trajectory], false, LossForm::LogLikelihood, 4096);
    let loaded = save_and_load(&step, &path).unwrap();
    assert!(loaded.packs[0].step.is_some());
    assert_eq!(loaded.packs[0].step, step.packs[0].step);
    let entry = &loaded.trajectories[0];
    assert_eq!(
        (&*entry.task_id, &*entry.rollout_id, entry.segment),
        ("task ü", "run 1", 3)
    );
    step.packs[0].step = None;
    assert_eq!(save_and_load(&step, &path).unwrap().packs[0].step, None);
}

#[test]
fn other_files_are_not_packs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let empty = Vec::<(&str, safetensors::tensor::TensorView)>::new;
    std::fs::write(&path, safetensors::serialize(empty(), None).unwrap()).unwrap();
    let message = PackedStep::load(&path).unwrap_err().to_string();
    assert!(message.contains("no key \"tree_pack\""), "{message}");

    let metadata = [(
        "tree_pack".to_owned(),
        r#"{"version":4,"new":[]}"#.to_owned(),
    )];
    let bytes = safetensors::serialize(empty(), Some(metadata.into())).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let message = PackedStep::load(&path).unwrap_err().to_string();
    assert!(message.contains("version 4, expected 3"), "{message}");
}

#[test]
fn saving_replaces_the_whole_file_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step.safetensors");
    std::fs::write(&path, "old").unwrap();
    small_step().save(&path).unwrap();
    assert_eq!(PackedStep::load(&path).unwrap(), small_step());
    let names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "no temporary file is left");

    // A folder with the name of the file cannot be replaced; no other file remains.
    let occupied = folder.path().join("occupied");
    std::fs::create_dir(&occupied).unwrap();
    std::fs::write(occupied.join("kept"), "").unwrap();
    assert!(matches!(
        small_step().save(&occupied),
        Err(FileError::Io { .. })
    ));
    assert!(occupied.join("kept").exists());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}
