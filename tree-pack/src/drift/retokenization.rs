//! Forks whose branches begin with the same text.

use super::fork::Fork;
use crate::text::{TextError, TextTokenizer};
use crate::trajectory::Trajectory;

/// Number of tokens after a fork that are compared as text. Different tokens of the same text
/// usually align again after one or two words.
const WINDOW: usize = 64;

/// Two branches of a fork that begin with different tokens of the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retokenization {
    /// The branches, as indices in [`Fork::branches`].
    pub branches: [usize; 2],
    /// The text that both begin with.
    pub text: String,
    /// The tokens of each branch for this text.
    pub tokens: [Vec<u32>; 2],
    /// Number of equal tokens after this text, which the drift prevents from being shared.
    pub equal_after: usize,
}

impl Fork {
    /// The branches that begin with different tokens, but the same text.
    ///
    /// Compares each branch only with its neighbour in the order of the texts, not all pairs. Reads
    /// only the first 64 tokens of the first trajectory of a branch.
    pub fn retokenizations(
        &self,
        trajectories: &[Trajectory],
        tokenizer: &TextTokenizer,
    ) -> Result<Vec<Retokenization>, TextError> {
        let tokens_from_here = |branch: usize| {
            let trajectory = self.branches[branch].trajectory as usize;
            &trajectories[trajectory].tokens[self.position as usize..]
        };
        let mut by_text = Vec::with_capacity(self.branches.len());
        for branch in 0..self.branches.len() {
            let tokens = tokens_from_here(branch);
            let start = &tokens[..tokens.len().min(WINDOW)];
            by_text.push((tokenizer.decode(start)?, branch));
        }
        by_text.sort();
        let mut found = Vec::new();
        for pair in by_text.windows(2) {
            let mut branches = [pair[0].1, pair[1].1];
            branches.sort_unstable();
            let [left, right] = branches.map(tokens_from_here);
            let Some((text, [left_count, right_count])) = same_text(left, right, tokenizer)? else {
                continue;
            };
            let rest = left[left_count..].iter().zip(&right[right_count..]);
            found.push(Retokenization {
                branches,
                text,
                tokens: [left[..left_count].to_vec(), right[..right_count].to_vec()],
                equal_after: rest.take_while(|(left, right)| left == right).count(),
            });
        }
        found.sort_by_key(|found| found.branches);
        Ok(found)
    }
}

/// The shortest text that both sides spell with whole tokens, and the number of tokens on each
/// side.
fn same_text(
    left: &[u32],
    right: &[u32],
    tokenizer: &TextTokenizer,
) -> Result<Option<(String, [usize; 2])>, TextError> {
    // An incomplete character, which the next token completes.
    const INCOMPLETE: char = char::REPLACEMENT_CHARACTER;
    let mut counts = [1, 1];
    loop {
        if counts[0] > left.len().min(WINDOW) || counts[1] > right.len().min(WINDOW) {
            return Ok(None);
        }
        let texts = [
            tokenizer.decode(&left[..counts[0]])?,
            tokenizer.decode(&right[..counts[1]])?,
        ];
        if texts[0] == texts[1] && !texts[0].ends_with(INCOMPLETE) {
            let [text, _] = texts;
            return Ok(Some((text, counts)));
        }
        let whole = [&texts[0], &texts[1]].map(|text| text.trim_end_matches(INCOMPLETE));
        if !whole[0].starts_with(whole[1]) && !whole[1].starts_with(whole[0]) {
            return Ok(None);
        }
        counts[usize::from(whole[0].len() > whole[1].len())] += 1;
    }
}
