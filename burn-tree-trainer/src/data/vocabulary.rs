//! Token ids renumbered to those that occur in the data, so that the language-model head of a small
//! random model does not dominate the step.

use std::collections::BTreeSet;

use tree_pack::Trajectory;

/// A compact numbering of the token ids that occur in some data: id `k` is the `k`-th smallest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactVocabulary {
    /// The original id of each compact id, ascending.
    pub original_ids: Vec<u32>,
}

impl CompactVocabulary {
    /// The numbering of the ids that occur in the trajectories.
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

    /// Renumbers the tokens of trajectories that the numbering was built from.
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
