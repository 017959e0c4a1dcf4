//! Draws a tree as lines of text.

use std::fmt::Write;

use indicatif::HumanCount;

use super::labels::{ends, left_out, shortened};
use super::outline::{Hidden, Outline, OutlineNode, Title};
use crate::output::counted;

/// Maximum number of levels of indentation; deeper nodes show their depth as a number.
const MAX_INDENTATION: usize = 24;

/// Colours for one to all trajectories, of the 256-colour palette: grey, then pale to deep blue.
const SHADES: [u8; 6] = [245, 152, 116, 74, 32, 27];

/// Draws one line for each node; the longest bar is `bar_width` characters.
pub fn draw(outline: &Outline, bar_width: usize, colored: bool) -> String {
    let mut out = String::new();
    headline(&mut out, &outline.title);
    let lengths = outline.nodes.iter().map(|node| node.tokens as usize);
    let longest = lengths.max().unwrap_or(1);
    // A character represents at least one token.
    let bar_width = bar_width.min(longest);
    let mut depths: Vec<usize> = Vec::with_capacity(outline.nodes.len());
    // For the current path: whether the node at each depth has later siblings.
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

/// `continues` contains, for each ancestor from the root on, whether it has later siblings.
fn indentation(out: &mut String, continues: &[bool], last: bool) {
    // The root is at the margin: no line is drawn to its left.
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

/// Each character represents an equal share of the tokens and shows whether most of them are
/// trained.
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
