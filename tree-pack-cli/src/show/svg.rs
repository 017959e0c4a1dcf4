//! Draws a tree as SVG: tokens from left to right, one bar per node.

use std::fmt::Write;

use indicatif::HumanCount;

use super::labels::{ends, left_out};
use super::outline::{Outline, OutlineNode};
use crate::output::counted;

const WIDTH: f64 = 1400.0;
const MARGIN: f64 = 28.0;
/// Approximate width of a character of a label.
const CHARACTER: f64 = 6.8;
const HEADER: f64 = 104.0;
const FOOTER: f64 = 54.0;
const MAX_TREE_HEIGHT: f64 = 2400.0;
/// Smallest distance between branches at which their names are legible.
const LABEL_PITCH: f64 = 13.0;

const TEXT: &str = "#2b2f36";
const FAINT: &str = "#8a929e";
const TRAINED: &str = "#ec8122";
/// Colour of nodes of one trajectory.
const OWN: [u8; 3] = [0xc3, 0xcb, 0xd6];
/// Colours of nodes that two trajectories share, and that all share.
const SHARED: [[u8; 3]; 2] = [[0x8f, 0xc1, 0xe3], [0x0d, 0x4f, 0x8b]];

struct Picture<'a> {
    outline: &'a Outline,
    out: String,
    /// Centre of each node's bar.
    heights: Vec<f64>,
    /// Distance between neighbouring branches.
    pitch: f64,
    /// Pixels per token.
    scale: f64,
}

/// Draws the tree with a title, a legend and an axis.
pub fn draw(outline: &Outline) -> String {
    let (rows, branches) = rows(outline);
    let pitch = (MAX_TREE_HEIGHT / branches.max(1) as f64).clamp(2.5, 30.0);
    let mut picture = Picture {
        outline,
        out: String::new(),
        heights: rows
            .into_iter()
            .map(|row| HEADER + (row + 0.5) * pitch)
            .collect(),
        pitch,
        scale: scale(outline, pitch >= LABEL_PITCH),
    };
    let bottom = HEADER + branches as f64 * pitch;
    picture.start(bottom + FOOTER);
    picture.axis(bottom);
    for index in 0..outline.nodes.len() {
        picture.connector(index);
    }
    for node in outline.nodes.iter().zip(picture.heights.clone()) {
        picture.node(node.0, node.1);
    }
    picture.out.push_str("</svg>\n");
    picture.out
}

/// Pixels per token, so that every bar and its label fit into the width.
fn scale(outline: &Outline, labelled: bool) -> f64 {
    let fitting = |node: &OutlineNode| {
        let label = match labelled && node.children.is_empty() {
            true => 7.0 + CHARACTER * label(node).chars().count() as f64,
            false => 0.0,
        };
        (WIDTH - 2.0 * MARGIN - label) / f64::from(node.position + node.tokens)
    };
    let longest = outline.title.longest_path.max(1) as f64;
    outline
        .nodes
        .iter()
        .map(fitting)
        .fold((WIDTH - 2.0 * MARGIN) / longest, f64::min)
}

/// Row of each node, and the number of rows. A node with children is in the middle of their rows.
fn rows(outline: &Outline) -> (Vec<f64>, usize) {
    let mut rows = vec![0.0; outline.nodes.len()];
    let mut next = 0;
    for (index, node) in outline.nodes.iter().enumerate() {
        if node.children.is_empty() {
            rows[index] = next as f64;
            next += 1;
        }
    }
    // Children come after their parent.
    for (index, node) in outline.nodes.iter().enumerate().rev() {
        if let [first, .., last] | [first @ last] = node.children.as_slice() {
            rows[index] = (rows[*first] + rows[*last]) / 2.0;
        }
    }
    (rows, next)
}

impl Picture<'_> {
    fn start(&mut self, height: f64) {
        let title = &self.outline.title;
        let _ = write!(
            self.out,
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:.0}" viewBox="0 0 {WIDTH} {height:.0}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="13">
<rect width="100%" height="100%" fill="white"/>
"#
        );
        self.text(MARGIN, 36.0, 20, TEXT, "start", &title.task_id);
        let por = 100.0 * (1.0 - title.unique_tokens as f64 / title.tokens as f64);
        let summary = format!(
            "{}, {}; the tree has {} ({} of them trained): POR {por:.1} %",
            counted(title.trajectories as u64, "trajectory"),
            counted(title.tokens, "token"),
            HumanCount(title.unique_tokens),
            HumanCount(title.trained_tokens),
        );
        self.text(MARGIN, 58.0, 14, TEXT, "start", &summary);
        self.legend();
    }

    fn legend(&mut self) {
        const Y: f64 = 84.0;
        let all = self.outline.title.trajectories as u32;
        let shades: Vec<u32> = match all {
            0 | 1 => vec![1],
            2..=5 => (1..=all).collect(),
            _ => vec![1, 2, 2 + (all - 2) / 3, 2 + 2 * (all - 2) / 3, all],
        };
        self.text(
            MARGIN,
            Y,
            13,
            TEXT,
            "start",
            "trajectories that share a node:",
        );
        let mut x = MARGIN + 214.0;
        for shared_by in shades {
            self.rectangle(x, Y - 11.0, 22.0, 13.0, &color(shared_by, all));
            let label = HumanCount(shared_by.into()).to_string();
            self.text(x + 27.0, Y, 13, TEXT, "start", &label);
            x += 38.0 + 8.0 * label.len() as f64;
        }
        x += 20.0;
        self.rectangle(x, Y - 11.0, 40.0, 13.0, &color(1, all));
        self.rectangle(x + 14.0, Y - 11.0 + 13.0 * 0.62, 18.0, 13.0 * 0.38, TRAINED);
        self.text(x + 46.0, Y, 13, TEXT, "start", "trained tokens");
    }

    fn axis(&mut self, bottom: f64) {
        let longest = self.outline.title.longest_path;
        let step = tick_step(longest);
        for tick in (0..=longest).step_by(step as usize) {
            let x = self.x(tick as u32);
            let _ = writeln!(
                self.out,
                r##"<line x1="{x:.1}" y1="{:.1}" x2="{x:.1}" y2="{:.1}" stroke="#eceff3"/>"##,
                HEADER - 4.0,
                bottom + 6.0
            );
            self.text(
                x,
                bottom + 22.0,
                12,
                FAINT,
                "middle",
                &HumanCount(tick).to_string(),
            );
        }
        let middle = self.x(longest as u32 / 2);
        self.text(
            middle,
            bottom + 42.0,
            13,
            FAINT,
            "middle",
            "tokens from the start of the trajectory",
        );
    }

    /// The line from the end of a node to the starts of its children.
    fn connector(&mut self, index: usize) {
        let node = &self.outline.nodes[index];
        if let [first, .., last] = node.children.as_slice() {
            let x = self.x(node.position + node.tokens);
            let (top, bottom) = (self.heights[*first], self.heights[*last]);
            let _ = writeln!(
                self.out,
                r#"<line x1="{x:.1}" y1="{top:.1}" x2="{x:.1}" y2="{bottom:.1}" stroke="{FAINT}"/>"#
            );
        }
    }

    fn node(&mut self, node: &OutlineNode, y: f64) {
        let thickness = (self.pitch * 0.62).clamp(1.5, 16.0);
        let top = y - thickness / 2.0;
        let x = self.x(node.position);
        let width = (f64::from(node.tokens) * self.scale).max(0.75);
        let _ = write!(self.out, "<g><title>{}</title>", escaped(&tooltip(node)));
        let fill = color(node.shared_by, self.outline.title.trajectories as u32);
        self.rectangle(x, top, width, thickness, &fill);
        for run in &node.trained {
            let start = self.x(node.position + run.start);
            let length = (f64::from(run.end - run.start) * self.scale).max(0.5);
            self.rectangle(
                start,
                top + thickness * 0.62,
                length,
                thickness * 0.38,
                TRAINED,
            );
        }
        let end = x + width;
        if !node.ends.is_empty() && !node.children.is_empty() {
            let radius = (thickness * 0.3).clamp(1.0, 4.0);
            let _ = write!(
                self.out,
                r#"<circle cx="{end:.1}" cy="{y:.1}" r="{radius:.1}" fill="white" stroke="{TEXT}"/>"#
            );
        }
        self.out.push_str("</g>\n");
        if self.pitch >= LABEL_PITCH && node.children.is_empty() {
            self.text(end + 7.0, y + 4.0, 12, TEXT, "start", &label(node));
        }
    }

    fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        let _ = write!(
            self.out,
            r#"<rect x="{x:.2}" y="{y:.2}" width="{width:.2}" height="{height:.2}" fill="{fill}"/>"#
        );
    }

    fn text(&mut self, x: f64, y: f64, size: u32, fill: &str, anchor: &str, text: &str) {
        let _ = writeln!(
            self.out,
            r#"<text x="{x:.1}" y="{y:.1}" font-size="{size}" fill="{fill}" text-anchor="{anchor}">{}</text>"#,
            escaped(text)
        );
    }

    fn x(&self, position: u32) -> f64 {
        MARGIN + f64::from(position) * self.scale
    }
}

fn color(shared_by: u32, all: u32) -> String {
    let [red, green, blue] = if shared_by <= 1 {
        OWN
    } else {
        // Logarithmic, because few trajectories share most nodes of a wide tree.
        let share = match shared_by {
            by if by >= all => 1.0,
            by => f64::from(by - 1).ln() / f64::from(all - 1).ln(),
        };
        let [from, to] = SHARED;
        [0, 1, 2].map(|channel| {
            let (from, to) = (f64::from(from[channel]), f64::from(to[channel]));
            (from + share * (to - from)).round() as u8
        })
    };
    format!("#{red:02x}{green:02x}{blue:02x}")
}

fn label(node: &OutlineNode) -> String {
    let hidden = node.hidden;
    if hidden.branches > 0 {
        return left_out(hidden);
    }
    ends(&node.ends)
}

fn tooltip(node: &OutlineNode) -> String {
    let mut text = format!(
        "{} from {}, shared by {}, {:.0} % trained",
        counted(node.tokens.into(), "token"),
        HumanCount(node.position.into()),
        node.shared_by,
        100.0 * node.trained_share()
    );
    if !node.ends.is_empty() {
        text.push_str(&format!("\nends here: {}", node.ends.join("; ")));
    }
    if node.hidden.branches > 0 {
        text.push_str(&format!(
            "\nnot drawn: {}",
            counted(node.hidden.branches.into(), "branch")
        ));
    }
    if let Some(preview) = &node.preview {
        text.push_str(&format!("\n{preview:?}"));
    }
    text
}

/// A step of 1, 2 or 5 times a power of ten that gives at most ten ticks.
fn tick_step(length: u64) -> u64 {
    let mut power = 1;
    loop {
        for factor in [1, 2, 5] {
            if length / (factor * power) < 10 {
                return factor * power;
            }
        }
        power *= 10;
    }
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // Characters that XML does not allow.
            control if control < ' ' && !"\n\t\r".contains(control) => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out
}
