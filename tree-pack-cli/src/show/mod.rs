//! `tree-pack show`: draws the tree of one task, in the terminal and as SVG.

mod labels;
mod outline;
mod svg;
mod terminal;

use std::io::IsTerminal;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::ValueEnum;
use tree_pack::build_forests;

use self::outline::Outline;
use crate::input::{InputArgs, quoted, tokenizer_file};
use crate::output::{print, write_file};

/// Draw the prefix tree of one task.
///
/// Each node is a bar. Its length is the number of tokens, its colour shows how many trajectories
/// share it, and its pattern shows which tokens are trained.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    input: InputArgs,
    /// Also draw the tree as an SVG picture.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Maximum number of nodes to draw: those with the largest subtrees.
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    max_nodes: u32,
    /// Length in characters of the longest bar in the terminal.
    #[arg(long, value_name = "N", default_value_t = 40)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    bar_width: u16,
    /// Show the beginning of each node's text: a tokenizer.json, or the folder of a model.
    #[arg(long, value_name = "PATH")]
    tokenizer: Option<PathBuf>,
    /// Colours in the terminal.
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    color: Color,
}

#[derive(Clone, Copy, ValueEnum)]
enum Color {
    /// Only if the output is a terminal and NO_COLOR is not set.
    Auto,
    Always,
    Never,
}

pub fn run(args: &Args) -> Result<()> {
    let trajectories = args.input.read()?;
    let forests = build_forests(&trajectories)?;
    let [forest] = forests.as_slice() else {
        let tasks: Vec<_> = forests
            .iter()
            .take(10)
            .map(|forest| forest.task_id().to_owned())
            .collect();
        bail!(
            "choose one of {} tasks with --task: {}, ...",
            forests.len(),
            quoted(&tasks)
        );
    };
    let mut outline = Outline::new(forest, &trajectories, args.max_nodes as usize);
    if let Some(path) = &args.tokenizer {
        let path = tokenizer_file(path)?;
        let tokenizer = tree_pack::text::TextTokenizer::from_file(&path)?;
        outline.add_previews(|tokens| tokenizer.decode(tokens), forest)?;
    }
    let colored = match args.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => {
            std::io::stdout().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    };
    print(&terminal::draw(
        &outline,
        usize::from(args.bar_width),
        colored,
    ))?;
    if let Some(path) = &args.svg {
        write_file(path, &svg::draw(&outline))?;
    }
    Ok(())
}
