//! Numbers of rows and states of the packs of a step, from which memory is estimated.

use std::collections::BTreeSet;
use std::slice::from_ref;

use burn_tree_ssm::TreeRecurrence;
use tree_pack::Pack;

/// The numbers of one pack that its memory depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackRows {
    /// Rows, with padding.
    pub rows: u64,
    /// Projected rows: rows that predict at least one target.
    pub projected_rows: u64,
    /// States that each recurrent layer keeps within the pack.
    pub kept_states: u64,
    /// Past keys: rows of earlier packs that it continues from.
    pub past_rows: u64,
    /// Rows that later packs continue from.
    pub left_rows: u64,
    /// Rows after which each recurrent layer provides a state to later packs.
    pub left_states: u64,
    /// The parent pack, if it continues one. The parent and its ancestors are in memory while this
    /// pack is computed.
    pub parent: Option<usize>,
}

/// The numbers of the packs of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepRows {
    /// The packs in the order of the step: parents come first.
    pub packs: Vec<PackRows>,
}

impl StepRows {
    /// Counts the rows of packs, and the states if the model has recurrent layers.
    ///
    /// # Panics
    /// If the packs are inconsistent, which those of [`tree_pack::pack_step`] are not.
    pub fn of_packs(packs: &[Pack], recurrent: bool) -> Self {
        let mut sizes: Vec<PackRows> = packs
            .iter()
            .map(|pack| PackRows {
                rows: pack.padded_len as u64,
                projected_rows: pack.occurrences.distinct_rows() as u64,
                kept_states: match recurrent {
                    true => kept_states(pack),
                    false => 0,
                },
                ..PackRows::default()
            })
            .collect();
        let mut left = vec![BTreeSet::new(); packs.len()];
        let mut states = left.clone();
        for (pack, index) in packs.iter().zip(0..) {
            let Some(gateway) = &pack.gateway else {
                continue;
            };
            let parent = gateway.parent as usize;
            sizes[index].parent = Some(parent);
            sizes[index].past_rows = gateway.past_keys() as u64;
            for run in &gateway.runs {
                left[run.pack as usize].extend(run.rows.clone());
            }
            let rows: Vec<u32> = gateway
                .runs
                .iter()
                .flat_map(|run| run.rows.clone())
                .collect();
            let row_before = |&past_key: &u32| rows[past_key as usize];
            states[parent].extend(gateway.root_parents.iter().map(row_before));
        }
        for (size, (left, states)) in sizes.iter_mut().zip(left.iter().zip(&states)) {
            size.left_rows = left.len() as u64;
            size.left_states = states.len() as u64;
        }
        Self { packs: sizes }
    }

    /// One pack in which every row predicts a token.
    pub fn one_pack(rows: u64) -> Self {
        Self::chain(1, rows)
    }

    /// A path cut into parts of `rows` rows, each of which continues all rows of all earlier parts.
    pub fn chain(parts: u64, rows: u64) -> Self {
        let part = |index: u64| PackRows {
            rows,
            projected_rows: rows,
            past_rows: index * rows,
            left_rows: if index + 1 < parts { rows } else { 0 },
            left_states: u64::from(index + 1 < parts),
            parent: (index as usize).checked_sub(1),
            ..PackRows::default()
        };
        Self {
            packs: (0..parts).map(part).collect(),
        }
    }

    /// The packs in memory while pack `index` is computed: itself and its ancestors.
    pub fn alive(&self, index: usize) -> impl Iterator<Item = &PackRows> {
        let first = self.packs.get(index);
        std::iter::successors(first, |pack| self.packs.get(pack.parent?))
    }
}

fn kept_states(pack: &Pack) -> u64 {
    let rows = pack.padded_len.max(1);
    let layout = &pack.layout;
    let parents = layout.parents.iter().zip(&layout.position_ids);
    let roots = parents.filter(|&(&parent, _)| parent < 0);
    // A root that is not the first token of its path continues a state of another pack.
    let states: Vec<Option<u32>> = (0..)
        .zip(roots)
        .map(|(root, (_, &depth))| (depth > 0).then_some(root))
        .collect();
    let recurrence = TreeRecurrence::try_continuing(from_ref(layout), rows, &states);
    recurrence.map_or(0, |recurrence| recurrence.n_slots() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{PackOptions, Partitioning, Trajectory, build_forests, pack_step};

    fn packs(trajectories: &[Trajectory], token_budget: usize) -> Vec<Pack> {
        let options = PackOptions {
            partitioning: Partitioning::Connected,
            ..PackOptions::new(token_budget)
        };
        let forests = build_forests(trajectories).unwrap();
        pack_step(trajectories, &forests, &options).unwrap().packs
    }

    #[test]
    fn a_path_in_parts_is_a_chain() {
        let path = Trajectory::new("path", "0", (0..120).collect(), vec![true; 120]);
        let size = StepRows::of_packs(&packs(from_ref(&path), 40), false);
        let mut expected = StepRows::chain(3, 40);
        // The first token of a path is not predicted, and the last one predicts nothing.
        expected.packs[2].projected_rows = 39;
        assert_eq!(size, expected);
        assert_eq!(size.alive(2).count(), 3);
        assert_eq!(size.alive(0).count(), 1);
    }

    #[test]
    fn branches_are_not_there_at_the_same_time() {
        let answer = |answer: u32| {
            let tokens = (0..30).chain((0..30).map(|index| 100 * answer + 100 + index));
            Trajectory::new("star", answer.to_string(), tokens.collect(), vec![true; 60])
        };
        let star: Vec<Trajectory> = (0..4).map(answer).collect();
        let size = StepRows::of_packs(&packs(&star, 30), true);
        assert_eq!(size.packs.len(), 5);
        for (index, pack) in size.packs.iter().enumerate().skip(1) {
            assert_eq!(
                (pack.parent, pack.past_rows, pack.left_rows),
                (Some(0), 30, 0)
            );
            assert_eq!(size.alive(index).count(), 2);
        }
        // All branches see the same 30 rows and start from the same state.
        assert_eq!(
            (size.packs[0].left_rows, size.packs[0].left_states),
            (30, 1)
        );
    }
}
