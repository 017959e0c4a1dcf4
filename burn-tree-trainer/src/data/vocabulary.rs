//! Token ids renumbered to those that occur, so that the language-model head of a small model with
//! random weights does not dominate the step.

use std::collections::BTreeSet;

use tree_pack::Trajectory;

/// A numbering of the token ids that occur in some data: id `k` stands for the `k`-th smallest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactVocabulary {
    /// The original id of each new one, ascending.
    pub original_ids: Vec<u32>,
}

impl CompactVocabulary {
    /// The ids that occur in the trajectories.
    pub fn of<'a>(trajectories: impl IntoIterator<Item = &'a Trajectory>) -> Self {
        let tokens = trajectories
            .into_iter()
            .flat_map(|trajectory| &trajectory.tokens);
        let occurring: BTreeSet<u32> = tokens.copied().collect();
        Self {
            original_ids: occurring.into_iter().collect(),
        }
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.original_ids.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.original_ids.is_empty()
    }

    /// Renumbers the tokens of trajectories that the numbering was made from.
    ///
    /// # Panics
    /// If a token is not in the numbering.
    pub fn renumber(&self, trajectories: &mut [Trajectory]) {
        for token in trajectories
            .iter_mut()
            .flat_map(|trajectory| &mut trajectory.tokens)
        {
            let index = self.original_ids.binary_search(token);
            *token = index.unwrap_or_else(|_| panic!("token {token} is not numbered")) as u32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renumbering_keeps_order_and_equality() {
        let tokens = [vec![900, 7, 900], vec![7, 151_644]];
        let mut trajectories = tokens.clone().map(|tokens| {
            let mask = vec![true; tokens.len()];
            Trajectory::new("a", "0", tokens, mask)
        });
        let vocabulary = CompactVocabulary::of(&trajectories);
        assert_eq!(vocabulary.original_ids, [7, 900, 151_644]);
        vocabulary.renumber(&mut trajectories);
        assert_eq!(trajectories[0].tokens, [1, 0, 1]);
        assert_eq!(trajectories[1].tokens, [0, 2]);
    }
}
