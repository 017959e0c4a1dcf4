//! Where trajectories of a task part, and whether their texts part there, too.
//!
//! A sampled completion that is rendered and tokenised again in the next turn's prompt may come
//! back as other tokens of the same text (retokenisation drift): the prefix is then shared no
//! longer, although nothing was changed.

use crate::{PrefixForest, Trajectory};

/// A place where trajectories of a task part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// Node after whose last token they part; `None` if their first tokens differ.
    pub node: Option<u32>,
    /// Number of tokens that they share, which is the index of the first that differs.
    pub position: u32,
    /// The ways they take, in order of rows; at least two.
    pub branches: Vec<Branch>,
}

/// One way on from a [`Fork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch {
    /// Its first node.
    pub node: u32,
    /// First trajectory that takes it, as an index in the data set.
    pub trajectory: u32,
    /// Number of trajectories that take it.
    pub trajectories: u32,
    /// Rows from here on: the tokens of its subtree, each once.
    pub tokens: u32,
    /// Whether the first trajectory trains the first token: it was sampled, not part of a prompt.
    pub is_trained: bool,
}

/// The places where trajectories of a task part, in order of rows. Takes time linear in the nodes,
/// whatever the number of trajectories.
///
/// A trajectory that ends where others go on does not part from them.
pub fn forks(forest: &PrefixForest, trajectories: &[Trajectory]) -> Vec<Fork> {
    let shared_by = forest.trajectories_by_node();
    let branch = |node: u32| {
        let first = &forest.nodes()[node as usize];
        let trajectory = forest.trajectories()[first.source as usize];
        Branch {
            node,
            trajectory,
            trajectories: shared_by[node as usize],
            tokens: first.subtree_end - first.start,
            is_trained: trajectories[trajectory as usize].is_trained(first.position as usize),
        }
    };
    let fork = |node: Option<u32>, position, nodes: Vec<u32>| {
        (nodes.len() > 1).then(|| Fork {
            node,
            position,
            branches: nodes.into_iter().map(branch).collect(),
        })
    };
    let roots = forest.trees().iter().map(|tree| tree.nodes.start).collect();
    let below = (0u32..).zip(forest.nodes()).filter_map(|(number, node)| {
        let position = node.position + (node.end - node.start);
        fork(Some(number), position, forest.children(number).collect())
    });
    fork(None, 0, roots).into_iter().chain(below).collect()
}

#[cfg(feature = "text")]
pub use text::Retokenization;

#[cfg(feature = "text")]
mod text {
    use super::Fork;
    use crate::Trajectory;
    use crate::text::{TextError, TextTokenizer};

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
                let Some((text, [left_count, right_count])) = same_text(left, right, tokenizer)?
                else {
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
}
