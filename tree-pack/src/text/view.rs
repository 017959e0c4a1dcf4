//! The fields of a recorded message that the template receives.

use serde_json::{Map, Value};

use crate::trajectory::FieldError;

/// Names of the fields that contain the output of the model in assistant messages.
///
/// Recordings differ: the text may be in `content`, or split into an `action` and a `thought`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageView {
    /// Field of assistant messages that the template sees as `content`.
    pub content_field: String,
    /// Field of assistant messages that the template sees as `reasoning_content`; `None` omits the
    /// reasoning.
    pub reasoning_field: Option<String>,
    /// Assistant messages in which this field is `true` are context that is not trained, such as
    /// a demonstration.
    pub context_field: String,
}

impl Default for MessageView {
    /// `content`, `reasoning_content` and `is_demo`.
    fn default() -> Self {
        Self {
            content_field: CONTENT.into(),
            reasoning_field: Some(REASONING.into()),
            context_field: "is_demo".into(),
        }
    }
}

const CONTENT: &str = "content";
const REASONING: &str = "reasoning_content";

impl MessageView {
    /// Whether the message is a trained turn.
    pub(super) fn is_trained(&self, message: &Map<String, Value>) -> bool {
        is_assistant(message) && message.get(&self.context_field) != Some(&true.into())
    }

    /// The content that the template receives.
    pub(super) fn content<'a>(&self, message: &'a Map<String, Value>) -> Option<&'a Value> {
        message.get(if is_assistant(message) {
            self.content_field.as_str()
        } else {
            CONTENT
        })
    }

    /// Moves the chosen fields of message `index` to the names that templates read.
    ///
    /// # Errors
    /// [`FieldError`] if an assistant message lacks the content field. It may lack `content` if it
    /// has `tool_calls`.
    pub(super) fn apply(
        &self,
        index: usize,
        message: &mut Map<String, Value>,
    ) -> Result<(), FieldError> {
        if !is_assistant(message) {
            return Ok(());
        }
        let reasoning = match &self.reasoning_field {
            Some(field) => message.get(field).cloned(),
            None => None,
        };
        if self.content_field != CONTENT {
            let content = message.get(&self.content_field).cloned().ok_or_else(|| {
                FieldError::new(
                    format!("messages[{index}].{}", self.content_field),
                    "nothing",
                    "the content of an assistant message",
                )
            })?;
            message.insert(CONTENT.into(), content);
        } else if !message.contains_key(CONTENT) && !message.contains_key("tool_calls") {
            return Err(FieldError::new(
                format!("messages[{index}].content"),
                "nothing",
                "a text, or a field tool_calls",
            ));
        }
        match reasoning {
            Some(reasoning) => message.insert(REASONING.into(), reasoning),
            // Removal must keep the order of the other keys, since templates may print them.
            None => message.shift_remove(REASONING),
        };
        Ok(())
    }
}

fn is_assistant(message: &Map<String, Value>) -> bool {
    message.get("role").is_some_and(|role| role == "assistant")
}
