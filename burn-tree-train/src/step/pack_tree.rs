//! The packs of a step as a tree: the rows that each continues, the rows that each provides, and
//! the order of the visits. Built on the host, once per step; rows are kept as ranges until a pack
//! is entered.

use std::ops::Range;

use burn_tree_attn::PastKeys;
use tree_pack::{Gateway, Pack, validate_packs};

use super::error::StepError;

/// The packs of a step with their dependencies and the order of their visits.
pub(super) struct PackTree<'a> {
    packs: &'a [Pack],
    left: Vec<Left>,
    pub(super) visits: Vec<Visit>,
}

/// Packs are visited depth-first. The outputs of a pack exist from `Enter` to `Leave`; all packs
/// that continue it are entered and left in between, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    Enter(usize),
    Leave(usize),
}

/// The rows that a pack provides to later packs.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Rows whose keys and values later packs see.
    pub(super) kept: RowSet,
    /// Rows whose states later packs start from, ascending.
    pub(super) requested: Vec<u32>,
}

/// Rows in order, as disjoint ranges.
#[derive(Debug, Default)]
pub(super) struct RowSet {
    ranges: Vec<Range<u32>>,
    /// Number of rows before each range.
    before: Vec<u32>,
}

/// The rows that a pack continues from.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// The packs and rows of the past keys, the outermost pack first.
    pub(super) keys: Vec<PastRows>,
    /// The past keys in the format of the mask.
    pub(super) mask: PastKeys,
    /// The pack and rows of the initial states.
    pub(super) states: Option<PastRows>,
    /// The index of the initial state of each root; empty without initial states.
    pub(super) root_states: Vec<Option<u32>>,
}

/// Rows that one earlier pack provides.
#[derive(Debug)]
pub(super) struct PastRows {
    /// The pack that owns them.
    pub(super) pack: usize,
    /// Indices of the rows among those that the pack provides, ascending.
    pub(super) slots: Vec<u32>,
}

impl RowSet {
    fn new(mut ranges: Vec<Range<u32>>) -> Self {
        ranges.sort_unstable_by_key(|range| range.start);
        let mut set = Self::default();
        let mut len = 0;
        for range in ranges {
            match set.ranges.last_mut() {
                Some(last) if range.start <= last.end => {
                    len += range.end.saturating_sub(last.end);
                    last.end = last.end.max(range.end);
                }
                _ => {
                    set.before.push(len);
                    len += range.len() as u32;
                    set.ranges.push(range);
                }
            }
        }
        set
    }

    pub(super) fn len(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().cloned().flatten()
    }

    /// The indices in the set of a range of consecutive rows.
    fn numbers(&self, rows: &Range<u32>) -> Range<u32> {
        let range = self.ranges.partition_point(|range| range.end <= rows.start);
        let first = self.before[range] + (rows.start - self.ranges[range].start);
        first..first + rows.len() as u32
    }
}

impl<'a> PackTree<'a> {
    pub(super) fn new(packs: &'a [Pack]) -> Result<Self, StepError> {
        validate_packs(packs)?;
        for (index, pack) in packs.iter().enumerate() {
            let rows = pack.layout.len();
            if rows == 0 || rows > pack.padded_len {
                return Err(StepError::Rows {
                    pack: index,
                    rows,
                    padded_len: pack.padded_len,
                });
            }
        }
        let mut kept: Vec<Vec<Range<u32>>> = vec![Vec::new(); packs.len()];
        let mut requested: Vec<Vec<u32>> = vec![Vec::new(); packs.len()];
        for gateway in packs.iter().filter_map(|pack| pack.gateway.as_ref()) {
            for run in &gateway.runs {
                kept[run.pack as usize].push(run.rows.clone());
            }
            requested[gateway.parent as usize].extend(rows_before_roots(gateway));
        }
        let left = kept
            .into_iter()
            .zip(requested)
            .map(|(kept, mut requested)| {
                requested.sort_unstable();
                requested.dedup();
                let kept = RowSet::new(kept);
                Left { kept, requested }
            });
        Ok(Self {
            packs,
            left: left.collect(),
            visits: depth_first(packs),
        })
    }

    /// The rows that a pack provides.
    pub(super) fn left(&self, pack: usize) -> &Left {
        &self.left[pack]
    }

    /// The rows that a pack continues from.
    pub(super) fn past(&self, pack: usize) -> Past {
        let Some(gateway) = &self.packs[pack].gateway else {
            return Past::default();
        };
        let mut keys: Vec<PastRows> = Vec::new();
        for run in &gateway.runs {
            let owner = run.pack as usize;
            let slots = self.left[owner].kept.numbers(&run.rows);
            match keys.last_mut() {
                Some(past) if past.pack == owner => past.slots.extend(slots),
                _ => keys.push(PastRows {
                    pack: owner,
                    slots: slots.collect(),
                }),
            }
        }
        // Roots that continue the same row start from the same state.
        let parent = gateway.parent as usize;
        let rows = rows_before_roots(gateway);
        let mut distinct = rows.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let state = |row| distinct.binary_search(row).ok().map(|state| state as u32);
        let root_states = rows.iter().map(state).collect();
        let requested = &self.left[parent].requested;
        let slot = |row| requested.binary_search(row).expect("collected before") as u32;
        Past {
            keys,
            mask: PastKeys::from(gateway),
            states: Some(PastRows {
                pack: parent,
                slots: distinct.iter().map(slot).collect(),
            }),
            root_states,
        }
    }
}

/// The row of the parent pack that each root continues.
fn rows_before_roots(gateway: &Gateway) -> Vec<u32> {
    let mut first = 0;
    let firsts: Vec<u32> = gateway
        .runs
        .iter()
        .map(|run| {
            let this = first;
            first += run.rows.len() as u32;
            this
        })
        .collect();
    let row = |&past_key: &u32| {
        let run = firsts.partition_point(|&first| first <= past_key) - 1;
        gateway.runs[run].rows.start + (past_key - firsts[run])
    };
    gateway.root_parents.iter().map(row).collect()
}

fn depth_first(packs: &[Pack]) -> Vec<Visit> {
    let mut children: Vec<Vec<usize>> = vec![Vec::new(); packs.len()];
    let mut stack = Vec::new();
    for (index, pack) in packs.iter().enumerate() {
        match &pack.gateway {
            Some(gateway) => children[gateway.parent as usize].push(index),
            None => stack.push(Visit::Enter(index)),
        }
    }
    stack.reverse();
    let mut visits = Vec::with_capacity(2 * packs.len());
    while let Some(visit) = stack.pop() {
        visits.push(visit);
        if let Visit::Enter(index) = visit {
            stack.push(Visit::Leave(index));
            let children = children[index].iter().rev();
            stack.extend(children.map(|&child| Visit::Enter(child)));
        }
    }
    visits
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{PackOptions, Partitioning, Trajectory, build_forests, pack_step};

    fn packs(sequences: &[&[u32]], budget: usize) -> Vec<Pack> {
        let trajectories: Vec<_> = sequences
            .iter()
            .map(|tokens| Trajectory::new("t", "r", tokens.to_vec(), vec![true; tokens.len()]))
            .collect();
        let forests = build_forests(&trajectories).unwrap();
        let options = PackOptions {
            partitioning: Partitioning::Connected,
            ..PackOptions::new(budget)
        };
        pack_step(&trajectories, &forests, &options).unwrap().packs
    }

    fn keys(past: &Past) -> Vec<(usize, &[u32])> {
        let keys = past.keys.iter();
        keys.map(|past| (past.pack, past.slots.as_slice()))
            .collect()
    }

    #[test]
    fn a_chain_continues_every_part_before() {
        let packs = packs(&[&[1, 2, 3, 4, 5, 6, 7, 8, 9]], 3);
        let tree = PackTree::new(&packs).unwrap();
        let past = tree.past(2);
        assert_eq!(keys(&past), [(0, &[0, 1, 2][..]), (1, &[0, 1, 2])]);
        assert_eq!(past.mask.position, [0, 1, 2, 3, 4, 5]);
        assert!(tree.left(0).kept.rows().eq(0..3));
        let requested: Vec<_> = (0..3).map(|pack| &tree.left(pack).requested).collect();
        assert_eq!(requested, [&[2][..], &[2], &[]]);
    }

    /// Fault 24: a pack provides the ancestors of later parts, not the siblings of these
    /// ancestors.
    #[test]
    fn siblings_are_not_left() {
        let packs = packs(&[&[1, 2, 3, 4], &[1, 2, 5, 6, 7, 8, 9, 10]], 6);
        let tree = PackTree::new(&packs).unwrap();
        let is_sibling = |row: u32| [3, 4].contains(&packs[0].layout.tokens[row as usize]);
        assert!((0..packs[0].layout.len() as u32).any(is_sibling));
        assert!(!tree.left(0).kept.rows().any(is_sibling));
        assert_eq!(tree.past(1).mask.position.len(), tree.left(0).kept.len());
    }

    #[test]
    fn rows_are_numbered_over_ranges() {
        let set = RowSet::new(vec![7..9, 2..4, 3..5, 5..6]);
        assert!(set.rows().eq([2, 3, 4, 5, 7, 8]));
        assert_eq!(
            (set.len(), set.numbers(&(4..6)), set.numbers(&(7..9))),
            (6, 2..4, 4..6)
        );
    }

    #[test]
    fn children_come_one_after_another() {
        use Visit::{Enter, Leave};
        let packs = packs(&[&[1, 2, 3, 4, 5, 6], &[1, 2, 3, 7, 8, 9]], 3);
        assert_eq!(
            PackTree::new(&packs).unwrap().visits,
            [Enter(0), Enter(1), Leave(1), Enter(2), Leave(2), Leave(0)]
        );
    }

    #[test]
    fn packs_without_room_for_their_rows_are_refused() {
        let mut packs = packs(&[&[1, 2, 3]], 3);
        packs[0].padded_len = 2;
        let error = PackTree::new(&packs).err().unwrap().to_string();
        assert_eq!(
            error,
            "pack 0: padded_len: got 2, expected at least 3, its tokens"
        );
    }
}
