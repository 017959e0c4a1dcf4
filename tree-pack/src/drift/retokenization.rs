//! Forks whose branches begin with the same text.

use super::fork::Fork;
use crate::text::{TextError, TextTokenizer};
use crate::trajectory::Trajectory;

/// Tokens after a fork in which texts are compared. Other tokens for the same text come
/// together again after a word or two.
const WINDOW: usize = 64;

/// Two branches of a fork that begin with other tokens of the same text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retokenization {
    /// The branches, as indices in [`Fork::branches`].
    pub branches: [usize; 2],
    /// The text that both begin with.
    pub text: String,
    /// The tokens of each for this text.
    pub tokens: [Vec<u32>; 2],
    /// Number of tokens after it that are equal again, and would be shared but for the drift.
    pub equal_after: usize,
}

impl Fork {
    /// The branches that differ in their tokens, but begin with the same text.
    ///
    /// Compares each branch with its neighbour in the order of the texts, not all pairs; of a
    /// branch its first trajectory is read, at most some dozen tokens far.
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

/// The shortest text that both sides spell with whole tokens, and with how many.
fn same_text(
    left: &[u32],
    right: &[u32],
    tokenizer: &TextTokenizer,
) -> Result<Option<(String, [usize; 2])>, TextError> {
    // A character cut in the middle, which the next token completes.
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
