//! Converts message trajectories to token trajectories: chat templates and tokenisation.
//!
//! [`ConversationReader`] reads message files, [`ChatTemplate`] renders each turn as a client would
//! send it, [`ConversationTokenizer`] converts the rendered text to [`crate::Trajectory`]s.

mod conversation;
mod error;
mod python_json;
mod template;
mod tokenize;
mod tokenizer;
mod tools;
mod turn_format;
mod view;

pub use conversation::{Conversation, ConversationReader};
pub use error::TextError;
pub use template::ChatTemplate;
pub use tokenize::ConversationTokenizer;
pub use tokenizer::TextTokenizer;
pub use tools::ToolSchemas;
pub use turn_format::{Marker, TurnFormat};
pub use view::MessageView;
