//! Trajectories of a run: read, selected, and split into training and validation by task.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::Serialize;
use thiserror::Error;
use tree_pack::text::{
    ChatTemplate, ConversationReader, ConversationTokenizer, TextError, TextTokenizer, ToolSchemas,
};
use tree_pack::{Advantage, JsonLines, ReadError, Trajectory, read_trajectories};

/// Which trajectories of a task are trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Selection {
    /// All of them.
    #[default]
    All,
    /// The longest one; the first of several that are equally long.
    Longest,
}

/// What happens to trajectories longer than the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum TooLong {
    /// The run is refused.
    #[default]
    Error,
    /// They are cut at the limit, and left out if nothing trained is before it.
    Truncate,
    /// They are left out.
    Drop,
}

/// Where the data of a run comes from and what is taken of it.
#[derive(Clone, Debug, Default)]
pub struct DataOptions {
    /// Files of trajectories in token or message form, gzipped or not.
    pub files: Vec<PathBuf>,
    /// How messages become tokens; needed for message files only.
    pub text: TextOptions,
    /// Number of token ids of the model, if it limits them.
    pub vocab_size: Option<usize>,
    /// Tasks to use; all if empty.
    pub tasks: Vec<String>,
    /// Which trajectories of a task are trained.
    pub selection: Selection,
    /// Longest trajectory in tokens.
    pub max_length: Option<usize>,
    /// What happens to longer ones.
    pub too_long: TooLong,
    /// Share of the tasks held out for validation.
    pub validation_fraction: f64,
    /// Seed of the choice of validation tasks.
    pub seed: u64,
}

/// How message trajectories are rendered and tokenised.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// A Jinja file, or a `tokenizer_config.json` that holds the template.
    pub template: Option<PathBuf>,
    /// A `tokenizer.json`, gzipped or not.
    pub tokenizer: Option<PathBuf>,
    /// Tool schemas of conversations that carry none.
    pub tools: Option<PathBuf>,
}

/// The trajectories of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Data {
    /// Those that are trained.
    pub training: Vec<Trajectory>,
    /// Those of the tasks held out.
    pub validation: Vec<Trajectory>,
    /// Trajectories cut at the length limit.
    pub truncated: usize,
    /// Trajectories left out because of their length.
    pub dropped: usize,
}

/// Data that cannot be used.
#[derive(Debug, Error)]
pub enum DataError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Messages cannot be rendered or tokenised.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A message file, but nothing to render it with.
    #[error("{}: holds messages, so a {missing} is needed (--{missing})", file.display())]
    NoText {
        /// The file.
        file: PathBuf,
        /// The option that is missing.
        missing: &'static str,
    },
    /// A message became a token that the model does not have.
    #[error(
        "task {task_id:?}, rollout {rollout_id:?}: token id {token}, but the model has {vocab_size}"
    )]
    Vocabulary {
        /// The task.
        task_id: String,
        /// The rollout.
        rollout_id: String,
        /// The token id.
        token: u32,
        /// Number of ids of the model.
        vocab_size: usize,
    },
    /// A task that is asked for is not in the files.
    #[error("task {task_id:?} is not in the data; the first of its {count} tasks are {examples}")]
    NoSuchTask {
        /// The task.
        task_id: String,
        /// Number of tasks there are.
        count: usize,
        /// Some of them.
        examples: String,
    },
    /// A trajectory is longer than the limit.
    #[error(
        "task {task_id:?}, rollout {rollout_id:?}: {length} tokens are more than --max-length \
         {max_length}; use --too-long truncate or drop, or a higher limit"
    )]
    TooLong {
        /// The task.
        task_id: String,
        /// The rollout.
        rollout_id: String,
        /// Its tokens.
        length: usize,
        /// The limit.
        max_length: usize,
    },
    /// The share of validation tasks makes no sense.
    #[error("a validation fraction of {fraction} leaves {left} of {tasks} tasks for training")]
    Validation {
        /// The share.
        fraction: f64,
        /// Tasks in the data.
        tasks: usize,
        /// Tasks not held out.
        left: usize,
    },
    /// Nothing is left to train.
    #[error("no trained token in the data: {0}")]
    Empty(&'static str),
}

/// Reads the files and applies the options.
///
/// # Errors
/// [`DataError`], with file and line where a file is at fault.
pub fn load(options: &DataOptions) -> Result<Data, DataError> {
    let mut trajectories = Vec::new();
    for file in &options.files {
        match holds_messages(file)? {
            true => read_messages(file, options, &mut trajectories)?,
            false => read_tokens(file, options, &mut trajectories)?,
        }
    }
    select(trajectories, options)
}

/// As [`load`], of trajectories that are in memory.
///
/// # Errors
/// [`DataError`] if the options do not fit the trajectories.
pub fn select(mut trajectories: Vec<Trajectory>, options: &DataOptions) -> Result<Data, DataError> {
    let mut data = Data::default();
    keep_tasks(&mut trajectories, &options.tasks)?;
    if options.selection == Selection::Longest {
        keep_longest(&mut trajectories);
    }
    limit_length(&mut trajectories, options, &mut data)?;
    let held_out = validation_tasks(&trajectories, options)?;
    (data.validation, data.training) = trajectories
        .into_iter()
        .partition(|trajectory| held_out.contains(&trajectory.task_id));
    if trained_tokens(&data.training) == 0 {
        return Err(DataError::Empty(
            "every loss mask is 0 or every trajectory was left out",
        ));
    }
    if !held_out.is_empty() && trained_tokens(&data.validation) == 0 {
        return Err(DataError::Empty("the validation tasks train nothing"));
    }
    Ok(data)
}

/// Whether the first line of a file has a field `messages`.
fn holds_messages(file: &PathBuf) -> Result<bool, DataError> {
    let mut lines = JsonLines::open(file)?;
    // What is wrong with the line, its reader will say.
    let is_message = |line: &[u8]| {
        serde_json::from_slice::<serde_json::Value>(line)
            .is_ok_and(|value| value.get("messages").is_some())
    };
    Ok(lines.next_line()?.is_some_and(|(_, line)| is_message(line)))
}

fn read_tokens(
    file: &PathBuf,
    options: &DataOptions,
    trajectories: &mut Vec<Trajectory>,
) -> Result<(), DataError> {
    let mut reader = read_trajectories(file)?;
    if let Some(size) = options.vocab_size.and_then(|size| u32::try_from(size).ok()) {
        reader = reader.with_vocab_size(size);
    }
    for trajectory in reader {
        trajectories.push(trajectory?);
    }
    Ok(())
}

fn read_messages(
    file: &PathBuf,
    options: &DataOptions,
    trajectories: &mut Vec<Trajectory>,
) -> Result<(), DataError> {
    let missing = |missing| DataError::NoText {
        file: file.clone(),
        missing,
    };
    let text = &options.text;
    let template = text.template.as_ref().ok_or_else(|| missing("template"))?;
    let tokenizer = text
        .tokenizer
        .as_ref()
        .ok_or_else(|| missing("tokenizer"))?;
    let mut conversations = ConversationTokenizer::new(
        ChatTemplate::from_file(template)?,
        TextTokenizer::from_file(tokenizer)?,
    )?;
    if let Some(tools) = &text.tools {
        conversations.tools = ToolSchemas::from_file(tools)?;
    }
    conversations.tokenize_all(ConversationReader::open(file)?, |_, segments| {
        for trajectory in &segments {
            check_vocabulary(trajectory, options.vocab_size)?;
        }
        trajectories.extend(segments);
        Ok(())
    })
}

fn check_vocabulary(trajectory: &Trajectory, size: Option<usize>) -> Result<(), DataError> {
    let outside = |&&token: &&u32| size.is_some_and(|size| token as usize >= size);
    match trajectory.tokens.iter().find(outside) {
        None => Ok(()),
        Some(&token) => Err(DataError::Vocabulary {
            task_id: trajectory.task_id.clone(),
            rollout_id: trajectory.rollout_id.clone(),
            token,
            vocab_size: size.unwrap_or(0),
        }),
    }
}

fn keep_tasks(trajectories: &mut Vec<Trajectory>, tasks: &[String]) -> Result<(), DataError> {
    if tasks.is_empty() {
        return Ok(());
    }
    let present = task_ids(trajectories);
    if let Some(task_id) = tasks.iter().find(|task| !present.contains(task)) {
        return Err(DataError::NoSuchTask {
            task_id: task_id.clone(),
            count: present.len(),
            examples: present
                .iter()
                .take(5)
                .cloned()
                .collect::<Vec<_>>()
                .join(", "),
        });
    }
    trajectories.retain(|trajectory| tasks.contains(&trajectory.task_id));
    Ok(())
}

fn keep_longest(trajectories: &mut Vec<Trajectory>) {
    let mut longest = BTreeMap::<String, usize>::new();
    for (index, trajectory) in trajectories.iter().enumerate() {
        let best = longest.entry(trajectory.task_id.clone()).or_insert(index);
        if trajectory.len() > trajectories[*best].len() {
            *best = index;
        }
    }
    let mut index = 0;
    trajectories.retain(|trajectory| {
        index += 1;
        longest[&trajectory.task_id] == index - 1
    });
}

fn limit_length(
    trajectories: &mut Vec<Trajectory>,
    options: &DataOptions,
    data: &mut Data,
) -> Result<(), DataError> {
    let Some(max_length) = options.max_length else {
        return Ok(());
    };
    let too_long = |trajectory: &Trajectory| trajectory.len() > max_length;
    match options.too_long {
        TooLong::Error => match trajectories.iter().find(|trajectory| too_long(trajectory)) {
            None => Ok(()),
            Some(trajectory) => Err(DataError::TooLong {
                task_id: trajectory.task_id.clone(),
                rollout_id: trajectory.rollout_id.clone(),
                length: trajectory.len(),
                max_length,
            }),
        },
        TooLong::Drop => {
            let before = trajectories.len();
            trajectories.retain(|trajectory| !too_long(trajectory));
            data.dropped = before - trajectories.len();
            Ok(())
        }
        TooLong::Truncate => {
            trajectories.retain_mut(|trajectory| {
                if !too_long(trajectory) {
                    return true;
                }
                truncate(trajectory, max_length);
                let kept = trajectory.trained_tokens() > 0;
                data.truncated += usize::from(kept);
                data.dropped += usize::from(!kept);
                kept
            });
            Ok(())
        }
    }
}

/// Cuts a trajectory and all its columns to `length` tokens.
fn truncate(trajectory: &mut Trajectory, length: usize) {
    trajectory.tokens.truncate(length);
    trajectory.loss_mask.truncate(length);
    let rows = length.saturating_sub(1);
    if let Some(Advantage::Token(values)) = &mut trajectory.advantage {
        values.truncate(rows);
    }
    for values in [&mut trajectory.old_log_probs, &mut trajectory.ref_log_probs]
        .into_iter()
        .flatten()
    {
        values.truncate(rows);
    }
}

/// The tasks held out, chosen by the seed.
fn validation_tasks(
    trajectories: &[Trajectory],
    options: &DataOptions,
) -> Result<Vec<String>, DataError> {
    let fraction = options.validation_fraction;
    let mut tasks = task_ids(trajectories);
    if fraction == 0.0 {
        return Ok(Vec::new());
    }
    // At least one task, where validation is asked for at all.
    let held_out = ((fraction * tasks.len() as f64).round() as usize).max(1);
    if !(0.0..1.0).contains(&fraction) || held_out >= tasks.len() {
        return Err(DataError::Validation {
            fraction,
            tasks: tasks.len(),
            left: tasks.len().saturating_sub(held_out),
        });
    }
    tasks.shuffle(&mut ChaCha8Rng::seed_from_u64(options.seed));
    tasks.truncate(held_out);
    Ok(tasks)
}

/// The tasks in order of first appearance.
fn task_ids(trajectories: &[Trajectory]) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let ids = trajectories.iter().map(|trajectory| &trajectory.task_id);
    ids.filter(|id| seen.insert(id.as_str())).cloned().collect()
}

fn trained_tokens(trajectories: &[Trajectory]) -> usize {
    trajectories.iter().map(Trajectory::trained_tokens).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> DataOptions {
        DataOptions::default()
    }

    /// A trajectory of `length` tokens whose last one is trained.
    fn trajectory(task: &str, rollout: &str, length: usize) -> Trajectory {
        let mut mask = vec![false; length];
        mask[length - 1] = true;
        Trajectory::new(task, rollout, (0..length as u32).collect(), mask)
    }

    fn names(trajectories: &[Trajectory]) -> Vec<&str> {
        trajectories
            .iter()
            .map(|trajectory| trajectory.rollout_id.as_str())
            .collect()
    }

    #[test]
    fn longest_keeps_one_trajectory_a_task_and_the_first_of_equals() {
        let all = vec![
            trajectory("a", "a0", 3),
            trajectory("b", "b0", 5),
            trajectory("a", "a1", 4),
            trajectory("a", "a2", 4),
        ];
        let options = DataOptions {
            selection: Selection::Longest,
            ..options()
        };
        assert_eq!(
            names(&select(all, &options).unwrap().training),
            ["b0", "a1"]
        );
    }

    #[test]
    fn long_trajectories_are_refused_cut_or_left_out() {
        let mut two = trajectory("a", "cut", 6);
        two.loss_mask[2] = true;
        two.old_log_probs = Some(vec![-1.0; 5]);
        let all = vec![
            trajectory("a", "short", 3),
            two,
            trajectory("a", "untrained", 6),
        ];
        let with = |too_long| DataOptions {
            max_length: Some(4),
            too_long,
            ..options()
        };

        let error = select(all.clone(), &with(TooLong::Error))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("\"cut\"") && error.contains("6 tokens"),
            "{error}"
        );

        let data = select(all.clone(), &with(TooLong::Drop)).unwrap();
        assert_eq!((names(&data.training), data.dropped), (vec!["short"], 2));

        let data = select(all, &with(TooLong::Truncate)).unwrap();
        assert_eq!(names(&data.training), ["short", "cut"]);
        assert_eq!((data.truncated, data.dropped), (1, 1));
        assert_eq!(data.training[1].validate(), Ok(()));
        assert_eq!(data.training[1].len(), 4);
    }

    #[test]
    fn validation_holds_out_whole_tasks_by_the_seed() {
        let all: Vec<_> = (0..10)
            .flat_map(|task| {
                (0..2)
                    .map(move |rollout| trajectory(&format!("t{task}"), &format!("r{rollout}"), 3))
            })
            .collect();
        let split = |seed| {
            let options = DataOptions {
                validation_fraction: 0.3,
                seed,
                ..options()
            };
            let data = select(all.clone(), &options).unwrap();
            assert_eq!((data.training.len(), data.validation.len()), (14, 6));
            let held_out = task_ids(&data.validation);
            assert!(
                task_ids(&data.training)
                    .iter()
                    .all(|task| !held_out.contains(task))
            );
            held_out
        };
        assert_eq!(split(1), split(1));
        assert_ne!(split(1), split(2));
    }

    #[test]
    fn a_split_that_leaves_nothing_is_refused() {
        let all = vec![trajectory("a", "0", 3)];
        let options = DataOptions {
            validation_fraction: 0.5,
            ..options()
        };
        let error = select(all, &options).unwrap_err();
        assert!(
            matches!(error, DataError::Validation { left: 0, .. }),
            "{error}"
        );
    }

    #[test]
    fn unknown_tasks_and_untrained_data_are_refused() {
        let mut untrained = trajectory("a", "0", 3);
        untrained.loss_mask = vec![true, false, false];
        let with = |tasks: &[&str]| DataOptions {
            tasks: tasks.iter().map(|task| task.to_string()).collect(),
            ..options()
        };
        let error = select(vec![untrained.clone()], &with(&["b"])).unwrap_err();
        assert!(matches!(error, DataError::NoSuchTask { .. }), "{error}");
        let error = select(vec![untrained], &with(&["a"])).unwrap_err();
        assert!(matches!(error, DataError::Empty(_)), "{error}");
    }

    #[test]
    fn a_token_outside_the_vocabulary_is_named_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = r#"{"task_id":"a","rollout_id":"0","tokens":[1,9],"loss_mask":[0,1]}"#;
        std::fs::write(file.path(), line).unwrap();
        let options = DataOptions {
            files: vec![file.path().into()],
            vocab_size: Some(9),
            ..options()
        };
        let error = load(&options).unwrap_err().to_string();
        assert!(
            error.contains(":1: ") && error.contains("tokens[1]"),
            "{error}"
        );
    }

    #[test]
    fn messages_without_a_template_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            file.path(),
            r#"{"task_id":"a","rollout_id":"0","messages":[]}"#,
        )
        .unwrap();
        let options = DataOptions {
            files: vec![file.path().into()],
            ..options()
        };
        let error = load(&options).unwrap_err().to_string();
        assert!(error.contains("--template"), "{error}");
    }
}
