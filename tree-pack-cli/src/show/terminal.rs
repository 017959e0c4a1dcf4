//! A tree as lines of text.

use std::fmt::Write;

use indicatif::HumanCount;

use crate::output::counted;

use super::outline::{Hidden, Outline, OutlineNode, Title};

/// Levels of indentation drawn; deeper nodes say how deep they are instead.
const MAX_INDENTATION: usize = 24;
const MAX_LABEL: usize = 60;

/// Colours for one trajectory to all of them (of the 256-colour palette: grey, then pale to deep
/// blue).
const SHADES: [u8; 6] = [245, 152, 116, 74, 32, 27];

/// Draws one line for each node; the longest bar is `bar_width` characters.
pub fn draw(outline: &Outline, bar_width: usize, colored: bool) -> String {
    let mut out = String::new();
    headline(&mut out, &outline.title);
    let lengths = outline.nodes.iter().map(|node| node.tokens as usize);
    let longest = lengths.max().unwrap_or(1);
    // A character stands for a token at least.
    let bar_width = bar_width.min(longest);
    let mut depths: Vec<usize> = Vec::with_capacity(outline.nodes.len());
    // Of the current path: whether the node at each depth has siblings below it.
    let mut continues: Vec<bool> = Vec::new();
    for (index, node) in outline.nodes.iter().enumerate() {
        let depth = node.parent.map_or(0, |parent| depths[parent] + 1);
        depths.push(depth);
        continues.truncate(depth);
        let last = node
            .parent
            .is_none_or(|parent| outline.nodes[parent].children.last() == Some(&index));
        if depth > 0 {
            indentation(&mut out, &continues, last);
        }
        continues.push(!last);

        let bar = bar(node, bar_width * node.tokens as usize / longest);
        let share = f64::from(node.shared_by) / outline.title.trajectories as f64;
        let _ = match shade(node.shared_by, share, colored) {
            Some(shade) => write!(out, "\x1b[38;5;{shade}m{bar}\x1b[0m"),
            None => write!(out, "{bar}"),
        };
        let _ = write!(
            out,
            " {} x{}",
            HumanCount(node.tokens.into()),
            node.shared_by
        );
        if !node.ends.is_empty() {
            let _ = write!(out, "  > {}", ends(&node.ends));
        }
        if let Some(preview) = &node.preview {
            let _ = write!(out, "  {}", shortened(&format!("{preview:?}")));
        }
        out.push('\n');
        if node.hidden.branches > 0 {
            indentation(&mut out, &continues, node.children.is_empty());
            hidden(&mut out, node.hidden);
        }
    }
    if outline.hidden_trees.branches > 0 {
        hidden(&mut out, outline.hidden_trees);
    }
    out.push_str(
        "\n\u{2588} trained  \u{2591} context  xN shared by N trajectories  > ends here\n",
    );
    out
}

fn headline(out: &mut String, title: &Title) {
    let _ = writeln!(
        out,
        "{}: {}, {}, {} unique (POR {:.1} %), {} unique trained\n",
        title.task_id,
        counted(title.trajectories as u64, "trajectory"),
        counted(title.tokens, "token"),
        HumanCount(title.unique_tokens),
        100.0 * (1.0 - title.unique_tokens as f64 / title.tokens as f64),
        HumanCount(title.trained_tokens),
    );
}

/// `continues` says for each ancestor, from the root, whether it has siblings below.
fn indentation(out: &mut String, continues: &[bool], last: bool) {
    // The root is at the margin: nothing continues to its left.
    let levels = continues.get(1..).unwrap_or_default();
    let left_out = levels.len().saturating_sub(MAX_INDENTATION);
    if left_out > 0 {
        let _ = write!(out, "[{left_out}]");
    }
    for &continues in &levels[left_out..] {
        out.push_str(if continues { "\u{2502} " } else { "  " });
    }
    out.push_str(if last {
        "\u{2514}\u{2500}"
    } else {
        "\u{251c}\u{2500}"
    });
}

fn hidden(out: &mut String, hidden: Hidden) {
    let _ = writeln!(out, "{}", left_out(hidden));
}

/// What is not drawn, in words.
pub fn left_out(hidden: Hidden) -> String {
    let branches = counted(hidden.branches.into(), "branch");
    format!(
        "... and {branches}, {}",
        counted(hidden.tokens.into(), "token")
    )
}

/// Each character stands for an equal share of the tokens and shows whether most are trained.
fn bar(node: &OutlineNode, width: usize) -> String {
    let width = width.max(1) as u64;
    let edge = |cell: u64| (u64::from(node.tokens) * cell / width) as u32;
    let mut runs = node.trained.iter().peekable();
    let cell = |cell| {
        let (start, end) = (edge(cell), edge(cell + 1));
        let mut trained = 0;
        while let Some(run) = runs.peek() {
            trained += run.end.min(end).saturating_sub(run.start.max(start));
            if run.end > end {
                break;
            }
            runs.next();
        }
        if 2 * trained >= end - start {
            '\u{2588}'
        } else {
            '\u{2591}'
        }
    };
    (0..width).map(cell).collect()
}

fn shade(shared_by: u32, share: f64, colored: bool) -> Option<u8> {
    colored.then(|| match shared_by {
        1 => SHADES[0],
        _ => SHADES[1 + (share * (SHADES.len() - 2) as f64).round() as usize],
    })
}

/// Names of trajectories, the first and how many more.
pub fn ends(labels: &[String]) -> String {
    match labels {
        [] => String::new(),
        [only] => without_middle(only),
        [first, more @ ..] => format!("{} and {} more", without_middle(first), more.len()),
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_LABEL) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A long name keeps its end, too, by which rollouts differ.
fn without_middle(name: &str) -> String {
    let length = name.chars().count();
    if length <= MAX_LABEL {
        return name.to_owned();
    }
    let start: String = name.chars().take(MAX_LABEL / 2).collect();
    let end: String = name.chars().skip(length - MAX_LABEL / 2).collect();
    format!("{start}...{end}")
}
