//! The packs of a step as a tree: what each continues from, what it leaves, and in which order they
//! are visited. On the host, once per step; rows are kept as ranges until a pack is entered.

use std::ops::Range;

use burn_tree_attn::PastKeys;
use tree_pack::{Gateway, Pack, validate_packs};

use super::error::StepError;

/// What is to be done with each pack, and when.
pub(super) struct StepPlan<'a> {
    packs: &'a [Pack],
    left: Vec<Left>,
    pub(super) visits: Vec<Visit>,
}

/// Packs are visited depth-first: what a pack leaves is there from `Enter` to `Leave`, and all
/// packs that continue it are entered and left in between, one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    Enter(usize),
    Leave(usize),
}

/// What a pack leaves for later ones.
#[derive(Debug, Default)]
pub(super) struct Left {
    /// Rows whose keys and values they see.
    pub(super) kept: RowSet,
    /// Rows whose states they start from, ascending.
    pub(super) requested: Vec<u32>,
}

/// Rows in order, as disjoint ranges.
#[derive(Debug, Default)]
pub(super) struct RowSet {
    ranges: Vec<Range<u32>>,
    /// Number of rows before each range.
    before: Vec<u32>,
}

/// What a pack continues from.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// Whose rows the past keys are, the outermost pack first.
    pub(super) keys: Vec<PastRows>,
    /// The past keys as the mask takes them.
    pub(super) mask: PastKeys,
    /// Whose rows the initial states come from.
    pub(super) states: Option<PastRows>,
    /// Which of the initial states each root starts from; empty without any.
    pub(super) root_states: Vec<Option<u32>>,
}

/// Rows that one earlier pack leaves.
#[derive(Debug)]
pub(super) struct PastRows {
    /// The pack that owns them.
    pub(super) pack: usize,
    /// Which of the rows that it leaves, ascending.
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

    /// The numbers of consecutive rows that are in the set.
    fn numbers(&self, rows: &Range<u32>) -> Range<u32> {
        let range = self.ranges.partition_point(|range| range.end <= rows.start);
        let first = self.before[range] + (rows.start - self.ranges[range].start);
        first..first + rows.len() as u32
    }
}

impl<'a> StepPlan<'a> {
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

    /// What a pack leaves.
    pub(super) fn left(&self, pack: usize) -> &Left {
        &self.left[pack]
    }

    /// What a pack continues from.
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
        let plan = StepPlan::new(&packs).unwrap();
        let past = plan.past(2);
        assert_eq!(keys(&past), [(0, &[0, 1, 2][..]), (1, &[0, 1, 2])]);
        assert_eq!(past.mask.position, [0, 1, 2, 3, 4, 5]);
        assert!(plan.left(0).kept.rows().eq(0..3));
        let requested: Vec<_> = (0..3).map(|pack| &plan.left(pack).requested).collect();
        assert_eq!(requested, [&[2][..], &[2], &[]]);
    }

    /// 24: what is left are ancestors of later parts, not their siblings.
    #[test]
    fn siblings_are_not_left() {
        let packs = packs(&[&[1, 2, 3, 4], &[1, 2, 5, 6, 7, 8, 9, 10]], 6);
        let plan = StepPlan::new(&packs).unwrap();
        let is_sibling = |row: u32| [3, 4].contains(&packs[0].layout.tokens[row as usize]);
        assert!((0..packs[0].layout.len() as u32).any(is_sibling));
        assert!(!plan.left(0).kept.rows().any(is_sibling));
        assert_eq!(plan.past(1).mask.position.len(), plan.left(0).kept.len());
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
            StepPlan::new(&packs).unwrap().visits,
            [Enter(0), Enter(1), Leave(1), Enter(2), Leave(2), Leave(0)]
        );
    }

    #[test]
    fn packs_without_room_for_their_rows_are_refused() {
        let mut packs = packs(&[&[1, 2, 3]], 3);
        packs[0].padded_len = 2;
        let error = StepPlan::new(&packs).err().unwrap().to_string();
        assert_eq!(
            error,
            "pack 0: padded_len: got 2, expected at least 3, its tokens"
        );
    }
}
