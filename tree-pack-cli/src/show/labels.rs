//! Labels of nodes and of omitted branches.

use super::outline::Hidden;
use crate::output::counted;

const MAX_LABEL: usize = 60;

/// Describes omitted branches.
pub fn left_out(hidden: Hidden) -> String {
    let branches = counted(hidden.branches.into(), "branch");
    format!(
        "... and {branches}, {}",
        counted(hidden.tokens.into(), "token")
    )
}

/// The first name of a list of trajectories, and the number of others.
pub fn ends(labels: &[String]) -> String {
    match labels {
        [] => String::new(),
        [only] => without_middle(only),
        [first, more @ ..] => format!("{} and {} more", without_middle(first), more.len()),
    }
}

/// The beginning of a long text.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_LABEL) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Shortens the middle of a long name, since rollouts differ in the ends of their names.
fn without_middle(name: &str) -> String {
    let length = name.chars().count();
    if length <= MAX_LABEL {
        return name.to_owned();
    }
    let start: String = name.chars().take(MAX_LABEL / 2).collect();
    let end: String = name.chars().skip(length - MAX_LABEL / 2).collect();
    format!("{start}...{end}")
}
