//! `tree-pack tokenize`: converts conversations to trajectories in token form.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use indicatif::{HumanBytes, HumanCount};
use serde_json::Value;
use tree_pack::text::{
    ChatTemplate, ConversationReader, ConversationTokenizer, MessageView, TextTokenizer,
    ToolSchemas,
};
use tree_pack::{JsonLines, write_trajectory};

use crate::input::{first_file, open, tokenizer_file};
use crate::output::{NewFile, counted};

/// Render conversations with a chat template and tokenise them.
///
/// Each line of a file is {"task_id", "rollout_id", "messages", "tools", "reward", ...}. Every
/// assistant turn is rendered as if a client sent the whole conversation again. A turn whose prompt
/// does not begin with all tokens so far begins a new segment. Completions are trained, prompts are
/// not.
#[derive(clap::Args)]
pub struct Args {
    /// Files of conversations (JSON lines, may be gzipped); `-` is standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output file of trajectories (JSON lines; gzipped if the name ends in .gz).
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// tokenizer.json (may be gzipped), or the folder of a model that contains it.
    #[arg(long, value_name = "PATH")]
    tokenizer: PathBuf,
    /// Chat template: a Jinja file or a tokenizer_config.json. Default: the one in the folder of
    /// --tokenizer.
    #[arg(long, value_name = "FILE")]
    template: Option<PathBuf>,
    /// Tool schemas: a list, or an object with a list for each task. A conversation's own tools
    /// take precedence.
    #[arg(long, value_name = "FILE")]
    tools: Option<PathBuf>,
    /// Field of assistant messages that contains their content.
    #[arg(long, value_name = "NAME", default_value = "content")]
    content_field: String,
    /// Field of assistant messages that contains their reasoning.
    #[arg(long, value_name = "NAME", default_value = "reasoning_content")]
    reasoning_field: String,
    /// Omit the reasoning.
    #[arg(long, conflicts_with = "reasoning_field")]
    no_reasoning: bool,
    /// Assistant messages in which this field is true are context; they are not trained.
    #[arg(long, value_name = "NAME", default_value = "is_demo")]
    context_field: String,
    /// Variable of the template, such as enable_thinking=false; a value that is not JSON is text.
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = variable)]
    variables: Vec<(String, Value)>,
    /// Local time for the template's strftime_now, such as 2025-01-31.
    #[arg(long, value_name = "TIME")]
    now: Option<String>,
    /// Keep only this task; may be given several times.
    #[arg(long = "task", value_name = "ID")]
    tasks: Vec<String>,
}

pub fn run(args: &Args) -> Result<()> {
    let tokenizer = args.conversation_tokenizer()?;
    let mut output = NewFile::create(&args.output)?;
    let mut counts = Counts::default();
    for path in &args.files {
        let (source, progress) = open(path)?;
        let conversations = ConversationReader::new(JsonLines::new(path, source)?);
        let chosen = conversations.filter(|conversation| match conversation {
            Ok(conversation) => args.tasks.is_empty() || args.tasks.contains(&conversation.task_id),
            Err(_) => true,
        });
        tokenizer.tokenize_all(chosen, |_, trajectories| {
            counts.conversations += 1;
            counts.without_turns += u64::from(trajectories.is_empty());
            for trajectory in trajectories {
                counts.trajectories += 1;
                counts.tokens += trajectory.len() as u64;
                counts.trained_tokens += trajectory.trained_tokens() as u64;
                write_trajectory(&mut output, &trajectory)
                    .with_context(|| format!("{}: cannot be written", args.output.display()))?;
            }
            anyhow::Ok(())
        })?;
        progress.finish_and_clear();
    }
    if counts.trajectories == 0 {
        bail!("nothing to write: no conversation has a trained assistant turn");
    }
    output.flush()?;
    output.finish()?;
    counts.report(&args.output);
    Ok(())
}

#[derive(Default)]
struct Counts {
    conversations: u64,
    without_turns: u64,
    trajectories: u64,
    tokens: u64,
    trained_tokens: u64,
}

impl Counts {
    fn report(&self, output: &Path) {
        let size = std::fs::metadata(output).map_or(0, |metadata| metadata.len());
        eprintln!(
            "{}, {}, {} ({} trained) -> {} ({})",
            counted(self.conversations, "conversation"),
            counted(self.trajectories, "trajectory"),
            counted(self.tokens, "token"),
            HumanCount(self.trained_tokens),
            output.display(),
            HumanBytes(size),
        );
        if self.without_turns > 0 {
            eprintln!(
                "omitted {} without a trained assistant turn",
                counted(self.without_turns, "conversation")
            );
        }
    }
}

impl Args {
    fn conversation_tokenizer(&self) -> Result<ConversationTokenizer> {
        let mut template = ChatTemplate::from_file(&self.template_path()?)?;
        let config = self.tokenizer.join("tokenizer_config.json");
        if config.is_file() {
            template = template.with_special_tokens(&config)?;
        }
        for (name, value) in &self.variables {
            template = template.with_variable(name, value);
        }
        if let Some(now) = &self.now {
            template = template.with_now(now)?;
        }
        let tokenizer = TextTokenizer::from_file(&tokenizer_file(&self.tokenizer)?)?;
        let mut tokenizer = ConversationTokenizer::new(template, tokenizer)?;
        tokenizer.view = MessageView {
            content_field: self.content_field.clone(),
            reasoning_field: (!self.no_reasoning).then(|| self.reasoning_field.clone()),
            context_field: self.context_field.clone(),
        };
        if let Some(tools) = &self.tools {
            tokenizer.tools = ToolSchemas::from_file(tools)?;
        }
        Ok(tokenizer)
    }

    fn template_path(&self) -> Result<PathBuf> {
        if let Some(template) = &self.template {
            return Ok(template.clone());
        }
        first_file(
            &self.tokenizer,
            &["chat_template.jinja", "tokenizer_config.json"],
        )
        .context("--template is not given, and the folder of the tokenizer contains no template")
    }
}

fn variable(text: &str) -> Result<(String, Value), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
    Ok((name.to_owned(), value))
}
