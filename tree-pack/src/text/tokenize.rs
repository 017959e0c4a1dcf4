//! Converts conversations to token trajectories, turn by turn, as a client would send them.

use std::ops::Range;

use minijinja::Value;
use minijinja::value::Serde;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use super::conversation::Conversation;
use super::error::TextError;
use super::template::ChatTemplate;
use super::tokenizer::TextTokenizer;
use super::tools::ToolSchemas;
use super::turn_format::TurnFormat;
use super::view::MessageView;
use crate::reader::ReadError;
use crate::trajectory::{Advantage, FieldError, Trajectory};

/// Largest number of conversations in one parallel chunk.
const CHUNK_CONVERSATIONS: usize = 256;
/// Number of messages after which a parallel chunk ends; the last conversation may exceed it.
const CHUNK_MESSAGES: usize = 4096;

/// Renders and tokenises conversations.
///
/// Every assistant turn is rendered as if a client sent the whole conversation again. The prompt
/// ends with the header of the assistant's turn; the completion is the text that the template then
/// adds, up to the end marker. If a turn's prompt begins with all tokens so far, the turn extends
/// the trajectory. If it does not, for example because the template removes the reasoning of
/// earlier turns, the turn begins a new segment of the rollout. Only completions and their end
/// markers are trained.
#[derive(Clone, Debug)]
pub struct ConversationTokenizer {
    /// The chat template.
    pub template: ChatTemplate,
    /// The tokenizer.
    pub tokenizer: TextTokenizer,
    /// How the template delimits turns.
    pub format: TurnFormat,
    /// The fields of messages that the template receives.
    pub view: MessageView,
    /// Tools for conversations that do not contain their own.
    pub tools: ToolSchemas,
}

impl ConversationTokenizer {
    /// Detects the turn format. Messages have the standard fields; there are no tools.
    pub fn new(template: ChatTemplate, tokenizer: TextTokenizer) -> Result<Self, TextError> {
        let format = TurnFormat::detect(&template, &tokenizer)?;
        Ok(Self {
            template,
            tokenizer,
            format,
            view: MessageView::default(),
            tools: ToolSchemas::default(),
        })
    }

    /// The segments of one conversation, in order; none if it has no trained assistant turn.
    pub fn tokenize(&self, conversation: &Conversation) -> Result<Vec<Trajectory>, TextError> {
        self.tokenize_with(conversation, &mut PieceCache::new(&self.tokenizer))
    }

    fn tokenize_with(
        &self,
        conversation: &Conversation,
        pieces: &mut PieceCache,
    ) -> Result<Vec<Trajectory>, TextError> {
        let tools = Value::from(Serde(self.tools.of(conversation)?));
        let mut messages = Vec::with_capacity(conversation.messages.len());
        for (index, message) in conversation.messages.iter().enumerate() {
            let mut message = message.clone();
            self.view
                .apply(index, &mut message)
                .map_err(|error| conversation.error(error))?;
            messages.push(Value::from(Serde(message)));
        }

        pieces.limit();
        let mut segments: Vec<(Vec<u32>, Vec<bool>)> = Vec::new();
        let mut checked = 0;
        for (index, message) in conversation.messages.iter().enumerate() {
            if !self.view.is_trained(message) {
                continue;
            }
            let located = |error: TextError| {
                conversation.error(FieldError::new(
                    format!("messages[{index}]"),
                    error,
                    "a turn that can be rendered and tokenised",
                ))
            };
            let prompt = self
                .template
                .render_values(&messages[..index], &tools, true)
                .map_err(located)?;
            let full = self
                .template
                .render_values(&messages[..=index], &tools, false)
                .map_err(located)?;
            self.check_parts(conversation, checked..index + 1, &full)?;
            checked = index + 1;
            let completion = full
                .strip_prefix(&prompt)
                .and_then(|completion| completion.rsplit_once(&self.format.end.text))
                .map(|(completion, _)| completion)
                .ok_or_else(|| {
                    conversation.error(FieldError::new(
                        format!("messages[{index}]"),
                        "a turn whose rendering does not continue its own prompt",
                        format!("the prompt, a completion and `{}`", self.format.end.text),
                    ))
                })?;
            let prompt = self.encode_blocks(&prompt, pieces).map_err(located)?;
            let mut tokens = Vec::new();
            pieces.encode(completion, &mut tokens).map_err(located)?;
            tokens.push(self.format.end.id);
            append_turn(&mut segments, &prompt, &tokens);
        }
        Ok(trajectories(conversation, segments)?)
    }

    /// Tokenises conversations in parallel and passes their trajectories to `consume`, in the order
    /// of the conversations.
    ///
    /// At most a few hundred conversations are in memory at a time. Stops at the first error.
    pub fn tokenize_all<E: From<TextError>>(
        &self,
        conversations: impl IntoIterator<Item = Result<Conversation, ReadError>>,
        mut consume: impl FnMut(&Conversation, Vec<Trajectory>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut conversations = conversations.into_iter();
        loop {
            let mut chunk = Vec::new();
            let mut messages = 0;
            while chunk.len() < CHUNK_CONVERSATIONS && messages < CHUNK_MESSAGES {
                let Some(conversation) = conversations.next() else {
                    break;
                };
                messages += conversation.as_ref().map_or(0, |chat| chat.messages.len());
                chunk.push(conversation);
            }
            if chunk.is_empty() {
                return Ok(());
            }
            let tokenized: Vec<Result<_, TextError>> = chunk
                .into_par_iter()
                .map_init(
                    || PieceCache::new(&self.tokenizer),
                    |pieces, conversation| {
                        let conversation = conversation?;
                        let trajectories = self.tokenize_with(&conversation, pieces)?;
                        Ok((conversation, trajectories))
                    },
                )
                .collect();
            for result in tokenized {
                let (conversation, trajectories) = result?;
                consume(&conversation, trajectories)?;
            }
        }
    }

    /// Content may be a list of parts. Many templates silently omit such content, so this is an
    /// error.
    fn check_parts(
        &self,
        conversation: &Conversation,
        indices: Range<usize>,
        rendered: &str,
    ) -> Result<(), ReadError> {
        for index in indices {
            let content = self.view.content(&conversation.messages[index]);
            let parts = content.and_then(|content| content.as_array());
            for part in parts.into_iter().flatten() {
                let text = part
                    .get("text")
                    .and_then(|text| text.as_str())
                    .unwrap_or_default();
                if !rendered.contains(text.trim()) {
                    return Err(conversation.error(FieldError::new(
                        format!("messages[{index}].content"),
                        "a list of parts",
                        "a text, since the template does not render parts",
                    )));
                }
            }
        }
        Ok(())
    }

    /// Token ids of a rendered prompt, one block at a time. The text of a block is tokenised as one
    /// piece; the header and content of an assistant block are two pieces, because the content was
    /// generated after the header.
    fn encode_blocks(&self, text: &str, pieces: &mut PieceCache) -> Result<Vec<u32>, TextError> {
        let TurnFormat {
            start,
            end,
            assistant_header,
        } = &self.format;
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some((between, block)) = rest.split_once(&start.text) {
            pieces.encode(between, &mut tokens)?;
            tokens.push(start.id);
            let (block, after) = match block.split_once(&end.text) {
                Some((block, after)) => (block, Some(after)),
                None => (block, None),
            };
            match block.strip_prefix(assistant_header.as_str()) {
                Some(content) => {
                    pieces.encode(assistant_header, &mut tokens)?;
                    pieces.encode(content, &mut tokens)?;
                }
                None => pieces.encode(block, &mut tokens)?,
            }
            // The last block of a prompt has no end marker.
            let Some(after) = after else {
                return Ok(tokens);
            };
            tokens.push(end.id);
            rest = after;
        }
        pieces.encode(rest, &mut tokens)?;
        Ok(tokens)
    }
}

/// Cache of encoded pieces of text. The pieces of a conversation recur in the prompt of every turn,
/// and its first pieces also recur in other conversations.
struct PieceCache<'a> {
    tokenizer: &'a TextTokenizer,
    tokens: FxHashMap<String, Vec<u32>>,
    bytes: usize,
}

impl<'a> PieceCache<'a> {
    const MAX_BYTES: usize = 16 << 20;

    fn new(tokenizer: &'a TextTokenizer) -> Self {
        Self {
            tokenizer,
            tokens: FxHashMap::default(),
            bytes: 0,
        }
    }

    /// Clears the cache if it exceeds the limit.
    fn limit(&mut self) {
        if self.bytes > Self::MAX_BYTES {
            self.tokens.clear();
            self.bytes = 0;
        }
    }

    fn encode(&mut self, piece: &str, tokens: &mut Vec<u32>) -> Result<(), TextError> {
        if let Some(known) = self.tokens.get(piece) {
            tokens.extend_from_slice(known);
        } else if !piece.is_empty() {
            let encoded = self.tokenizer.encode(piece)?;
            tokens.extend_from_slice(&encoded);
            self.bytes += piece.len() + 4 * encoded.len();
            self.tokens.insert(piece.to_owned(), encoded);
        }
        Ok(())
    }
}

/// Extends the last segment by a turn if the prompt begins with the whole segment; otherwise begins
/// a new one.
fn append_turn(segments: &mut Vec<(Vec<u32>, Vec<bool>)>, prompt: &[u32], completion: &[u32]) {
    let extends = segments
        .last()
        .is_some_and(|(tokens, _)| prompt.starts_with(tokens));
    if !extends {
        segments.push(Default::default());
    }
    if let Some((tokens, loss_mask)) = segments.last_mut() {
        tokens.extend_from_slice(&prompt[tokens.len()..]);
        loss_mask.resize(tokens.len(), false);
        tokens.extend_from_slice(completion);
        loss_mask.resize(tokens.len(), true);
    }
}

fn trajectories(
    conversation: &Conversation,
    segments: Vec<(Vec<u32>, Vec<bool>)>,
) -> Result<Vec<Trajectory>, ReadError> {
    let count = u32::try_from(segments.len()).map_err(|_| {
        conversation.error(FieldError::new(
            "messages",
            segments.len(),
            "at most 2^32 segments",
        ))
    })?;
    let trajectory = |(segment, (tokens, loss_mask))| Trajectory {
        segment,
        segments: count,
        reward: conversation.reward,
        advantage: conversation.advantage.map(Advantage::Trajectory),
        weight: conversation.weight,
        ..Trajectory::new(
            &conversation.task_id,
            &conversation.rollout_id,
            tokens,
            loss_mask,
        )
    };
    Ok((0..count).zip(segments).map(trajectory).collect())
}
