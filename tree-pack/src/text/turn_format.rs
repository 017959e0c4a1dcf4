//! How a template delimits turns, found by rendering a short conversation.

use serde_json::{Value, json};

use super::error::TextError;
use super::template::ChatTemplate;
use super::tokenizer::TextTokenizer;

/// The text around turns: `start`, role and content, `end`, as in
/// `<|im_start|>user\n...<|im_end|>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnFormat {
    /// Token that opens a block.
    pub start: Marker,
    /// Token that closes a block.
    pub end: Marker,
    /// What follows `start` in an assistant block before the content, such as `assistant\n`; empty
    /// if `start` itself names the role.
    pub assistant_header: String,
}

/// A special token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The token's text.
    pub text: String,
    /// The token's id.
    pub id: u32,
}

impl TurnFormat {
    /// Finds the format of `template`: the token that opens its generation prompt, the token that
    /// follows an assistant's content, and the header between them.
    ///
    /// # Errors
    /// [`TextError`] if the template adds no generation prompt, or if added tokens of the tokenizer
    /// do not open and close its turns.
    pub fn detect(template: &ChatTemplate, tokenizer: &TextTokenizer) -> Result<Self, TextError> {
        const QUESTION: &str = "Question-7f3a";
        const ANSWER: &str = "Answer-7f3a";
        let conversation: [Value; 3] = [
            json!({"role": "user", "content": QUESTION}),
            json!({"role": "assistant", "content": ANSWER}),
            json!({"role": "user", "content": QUESTION}),
        ];
        let problem = |problem: &str| TextError::TurnFormat {
            origin: template.origin().to_owned(),
            problem: problem.to_owned(),
        };
        let marker = |text: &str| {
            let text = tokenizer.leading_added_token(text)?;
            let id = tokenizer.token_id(&text)?;
            Some(Marker { text, id })
        };

        let history = template.render(&conversation, None, false)?;
        let prompt = template.render(&conversation, None, true)?;
        let opening = prompt
            .strip_prefix(&history)
            .filter(|opening| !opening.is_empty())
            .ok_or_else(|| {
                problem("`add_generation_prompt` appends nothing to the conversation")
            })?;
        let start = marker(opening).ok_or_else(|| {
            problem("the generation prompt does not begin with an added token of the tokenizer")
        })?;
        let (_, after) = history.split_once(ANSWER).ok_or_else(|| {
            problem("the template does not render the content of an assistant unchanged")
        })?;
        let end = marker(after).ok_or_else(|| {
            problem("no added token of the tokenizer follows an assistant's content")
        })?;
        // A reasoning block may follow in both the prompt and the history. Their common part
        // therefore ends where the header of a user's turn ends.
        let header_before = |text: &str| {
            let (before, _) = history.split_once(text)?;
            Some(before.rsplit_once(&start.text)?.1.to_owned())
        };
        let user_header = header_before(QUESTION).unwrap_or_default();
        let separator = user_header.trim_start_matches(char::is_alphanumeric);
        let earlier = header_before(ANSWER).unwrap_or_default();
        let common = common_prefix(&opening[start.text.len()..], &earlier);
        let assistant_header = match common.find(separator) {
            Some(at) if !separator.is_empty() => &common[..at + separator.len()],
            _ => common,
        };
        Ok(Self {
            start,
            end,
            assistant_header: assistant_header.to_owned(),
        })
    }
}

fn common_prefix<'a>(left: &'a str, right: &str) -> &'a str {
    let length: usize = left
        .chars()
        .zip(right.chars())
        .take_while(|(left, right)| left == right)
        .map(|(character, _)| character.len_utf8())
        .sum();
    &left[..length]
}
