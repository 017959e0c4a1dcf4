//! Trajectories of a run: read from files in token or message form, then selected and split.

pub mod demonstration;
pub mod pairs;
pub mod rollouts;
pub mod selection;
pub mod vocabulary;

use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tree_pack::text::{
    ChatTemplate, ConversationReader, ConversationTokenizer, TextError, TextTokenizer, ToolSchemas,
};
use tree_pack::{JsonLines, ReadError, Trajectory, read_trajectories};

use crate::data::selection::{Selection, TooLong, select};
use crate::data::vocabulary::CompactVocabulary;

/// The data of a run and their selection.
#[derive(Clone, Debug, Default)]
pub struct DataOptions {
    /// Files of trajectories in token or message form, gzipped or not.
    pub files: Vec<PathBuf>,
    /// Rendering and tokenisation of messages; needed for message files only.
    pub text: TextOptions,
    /// Number of token ids of the model, if it limits the data.
    pub vocab_size: Option<usize>,
    /// Tasks to use; all if empty.
    pub tasks: Vec<String>,
    /// Which trajectories of a task are trained.
    pub selection: Selection,
    /// Longest trajectory in tokens.
    pub max_length: Option<usize>,
    /// Treatment of longer trajectories.
    pub too_long: TooLong,
    /// Share of the tasks held out for validation.
    pub validation_fraction: f64,
    /// Seed of the selection of validation tasks.
    pub seed: u64,
}

/// How message trajectories are rendered and tokenised.
#[derive(Clone, Debug, Default)]
pub struct TextOptions {
    /// A Jinja file, or a `tokenizer_config.json` that holds the template.
    pub template: Option<PathBuf>,
    /// A `tokenizer.json`, gzipped or not.
    pub tokenizer: Option<PathBuf>,
    /// Tool schemas of conversations that contain none.
    pub tools: Option<PathBuf>,
}

/// The trajectories of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Data {
    /// Training trajectories.
    pub training: Arc<Vec<Trajectory>>,
    /// Trajectories of the validation tasks.
    pub validation: Arc<Vec<Trajectory>>,
    /// Number of trajectories truncated at the length limit.
    pub truncated: usize,
    /// Number of trajectories dropped because of their length.
    pub dropped: usize,
    /// Number of tasks dropped because none of their tokens is trained.
    pub untrained_tasks: usize,
}

impl Data {
    /// Renumbers the token ids to those that occur in the data.
    pub fn compact_vocabulary(&mut self) -> CompactVocabulary {
        let vocabulary = CompactVocabulary::of(self.training.iter().chain(self.validation.iter()));
        for trajectories in [&mut self.training, &mut self.validation] {
            vocabulary.renumber(Arc::make_mut(trajectories).as_mut_slice());
        }
        vocabulary
    }
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
    /// A message file without a template or tokenizer.
    #[error("{}: the file contains messages, which need --{missing}", file.display())]
    NoText {
        /// The file.
        file: PathBuf,
        /// The missing option.
        missing: &'static str,
    },
    /// The tokenizer produced a token id that is not in the vocabulary of the model.
    #[error(
        "task {task_id:?}, rollout {rollout_id:?}: token id {token}, expected less than \
         {vocab_size}, the vocabulary of the model"
    )]
    Vocabulary {
        /// The task.
        task_id: String,
        /// The rollout.
        rollout_id: String,
        /// The token id.
        token: u32,
        /// Number of token ids of the model.
        vocab_size: usize,
    },
    /// A selected task is not in the files.
    #[error("task {task_id:?} is not in the data; its {count} tasks begin with {examples}")]
    NoSuchTask {
        /// The task.
        task_id: String,
        /// Number of tasks in the data.
        count: usize,
        /// Some task ids.
        examples: String,
    },
    /// A trajectory is longer than the limit.
    #[error(
        "task {task_id:?}, rollout {rollout_id:?}: got {length} tokens, --max-length is \
         {max_length}; use --too-long truncate or drop, or a higher limit"
    )]
    TooLong {
        /// The task.
        task_id: String,
        /// The rollout.
        rollout_id: String,
        /// Its number of tokens.
        length: usize,
        /// The limit.
        max_length: usize,
    },
    /// The validation fraction leaves no training or no validation tasks.
    #[error("a validation fraction of {fraction} leaves {left} of {tasks} tasks for training")]
    Validation {
        /// The fraction.
        fraction: f64,
        /// Tasks in the data.
        tasks: usize,
        /// Tasks left for training.
        left: usize,
    },
    /// Nothing is left to train.
    #[error("no trained token in the data: {0}")]
    Empty(&'static str),
}

/// Reads the files and applies the options.
///
/// # Errors
/// [`DataError`], with file and line for errors in a file.
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

/// Whether the first line of a file has a field `messages`.
fn holds_messages(file: &PathBuf) -> Result<bool, DataError> {
    let mut lines = JsonLines::open(file)?;
    // An invalid line is reported by its reader.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_outside_the_vocabulary_is_named_with_its_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = r#"{"task_id":"a","rollout_id":"0","tokens":[1,9],"loss_mask":[0,1]}"#;
        std::fs::write(file.path(), line).unwrap();
        let options = DataOptions {
            files: vec![file.path().into()],
            vocab_size: Some(9),
            ..DataOptions::default()
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
            ..DataOptions::default()
        };
        let error = load(&options).unwrap_err().to_string();
        assert!(error.contains("--template"), "{error}");
    }
}
