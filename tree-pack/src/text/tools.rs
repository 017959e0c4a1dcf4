//! Tool schemas in a separate file.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::conversation::Conversation;
use super::error::TextError;
use crate::reader::ReadError;
use crate::trajectory::FieldError;

/// Tool schemas for conversations that do not contain their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ToolSchemas {
    /// No tools.
    #[default]
    None,
    /// One list for all tasks.
    Shared(Value),
    /// A list for each task.
    PerTask {
        /// The file that contains them.
        file: PathBuf,
        /// Task id to list.
        tasks: Map<String, Value>,
    },
}

impl ToolSchemas {
    /// Reads a JSON file with one list of schemas, or an object from task ids to lists.
    pub fn from_file(path: &Path) -> Result<Self, TextError> {
        let bytes = fs::read(path).map_err(|error| TextError::read(path, error))?;
        let problem = |problem| TextError::Json {
            path: path.to_owned(),
            problem,
        };
        match serde_json::from_slice(&bytes).map_err(|error| problem(error.to_string()))? {
            tools @ Value::Array(_) => Ok(Self::Shared(tools)),
            Value::Object(tasks) => match tasks.iter().find(|(_, tools)| !tools.is_array()) {
                None => Ok(Self::PerTask {
                    file: path.to_owned(),
                    tasks,
                }),
                Some((task, _)) => Err(problem(format!("task `{task}`: expected a list of tools"))),
            },
            _ => Err(problem(
                "expected a list of tools, or an object of one for each task".into(),
            )),
        }
    }

    /// The tools of a conversation: its own, otherwise those of the file.
    ///
    /// # Errors
    /// [`TextError`] if the file has a list for each task, but none for this task.
    pub(super) fn of<'a>(
        &'a self,
        conversation: &'a Conversation,
    ) -> Result<Option<&'a Value>, ReadError> {
        match (&conversation.tools, self) {
            (Some(own), _) => Ok(Some(own)),
            (None, Self::None) => Ok(None),
            (None, Self::Shared(tools)) => Ok(Some(tools)),
            (None, Self::PerTask { file, tasks }) => {
                tasks.get(&conversation.task_id).map(Some).ok_or_else(|| {
                    conversation.error(FieldError::new(
                        "task_id",
                        format!("`{}`", conversation.task_id),
                        format!("a task with tools in {}", file.display()),
                    ))
                })
            }
        }
    }
}
