//! Paths in the pieces that one cube of a kernel, or one task of a CPU, walks along.

use std::ops::Range;

use super::paths::Paths;

/// Most paths of a run.
const MAX_SIBLINGS: usize = 8;

/// Consecutive windows that one cube or task works on, one after the other: either a path, or
/// several paths of one window each that start from the same state and of which no state is kept. A
/// node with hundreds of short children costs a gradient of its state per run, not per child.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "cubecl-backend"), allow(dead_code))]
pub(crate) struct Runs {
    /// `[Q + 1]` where the windows of every run start.
    pub(super) offsets: Vec<u32>,
    /// `[Q]` the state with which every run, or each of its windows, starts: see
    /// [`TreeRecurrence::path_entries`](crate::TreeRecurrence::path_entries).
    pub(super) entries: Vec<i32>,
    /// `[Q]` 1 if every window starts from the entry, 0 if each continues the one before.
    pub(super) siblings: Vec<u32>,
    levels: Vec<Range<usize>>,
    /// `[S + 1]` where the list of every slot starts in `slot_children`: the runs that start from
    /// it, ascending.
    pub(super) slot_child_offsets: Vec<u32>,
    pub(super) slot_children: Vec<u32>,
    /// `[G + 1]` where the list of every initial state starts in `initial_children`.
    pub(super) initial_child_offsets: Vec<u32>,
    pub(super) initial_children: Vec<u32>,
}

impl Runs {
    pub(super) fn bytes(&self) -> usize {
        let lists = [
            &self.offsets,
            &self.siblings,
            &self.slot_child_offsets,
            &self.slot_children,
            &self.initial_child_offsets,
            &self.initial_children,
        ];
        lists
            .map(|list| size_of_val(list.as_slice()))
            .iter()
            .sum::<usize>()
            + size_of_val(self.entries.as_slice())
            + size_of_val(self.levels.as_slice())
    }

    pub(super) fn build(paths: &Paths) -> Self {
        let path_entries = &paths.path_entries;
        let windows =
            |path: usize| paths.path_offsets[path] as usize..paths.path_offsets[path + 1] as usize;
        let is_single =
            |path: usize| windows(path).len() == 1 && paths.window_slots[windows(path).start] < 0;
        let mut runs = Self {
            offsets: vec![0],
            ..Self::default()
        };
        for level in &paths.levels {
            let first_run = runs.len();
            let mut path = level.start;
            while path < level.end {
                let mut end = path + 1;
                while end < level.end.min(path + MAX_SIBLINGS)
                    && path_entries[end] == path_entries[path]
                    && is_single(path)
                    && is_single(end)
                {
                    end += 1;
                }
                runs.offsets.push(windows(end - 1).end as u32);
                runs.entries.push(path_entries[path]);
                runs.siblings.push(u32::from(end - path > 1));
                path = end;
            }
            runs.levels.push(first_run..runs.len());
        }
        (runs.slot_child_offsets, runs.slot_children) =
            runs.children(paths.n_slots(), |slot| slot as i32);
        (runs.initial_child_offsets, runs.initial_children) =
            runs.children(paths.n_initial_states(), |state| -2 - state as i32);
        runs
    }

    /// Number of runs, `Q`.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The windows of a run.
    #[cfg(feature = "flex")]
    pub(crate) fn windows(&self, run: usize) -> Range<usize> {
        self.offsets[run] as usize..self.offsets[run + 1] as usize
    }

    /// The state with which a run, or each of its windows, starts.
    #[cfg(feature = "flex")]
    pub(crate) fn entry(&self, run: usize) -> i32 {
        self.entries[run]
    }

    /// Whether every window of a run starts from the entry.
    #[cfg(feature = "flex")]
    pub(crate) fn are_siblings(&self, run: usize) -> bool {
        self.siblings[run] == 1
    }

    /// Ranges of runs as of paths in [`TreeRecurrence::levels`](crate::TreeRecurrence::levels).
    pub(crate) fn levels(&self) -> &[Range<usize>] {
        &self.levels
    }

    /// The runs that start from each of `count` states, as offsets and a list.
    fn children(&self, count: usize, entry: impl Fn(usize) -> i32) -> (Vec<u32>, Vec<u32>) {
        let mut by_entry: Vec<u32> = (0..self.len() as u32).collect();
        by_entry.sort_by_key(|&run| self.entries[run as usize]);
        let mut offsets = vec![0];
        let mut children = Vec::new();
        for state in 0..count {
            let entry = entry(state);
            let entry_of = |&run: &u32| self.entries[run as usize];
            let start = by_entry.partition_point(|run| entry_of(run) < entry);
            let end = by_entry.partition_point(|run| entry_of(run) <= entry);
            children.extend_from_slice(&by_entry[start..end]);
            offsets.push(children.len() as u32);
        }
        (offsets, children)
    }
}

#[cfg(test)]
mod tests {
    use tree_pack::{Segment, TreeLayout};

    use super::*;
    use crate::recurrence::TreeRecurrence;

    /// A prompt of two tokens, one answer of 70, and `answers` of 40.
    fn star(answers: usize) -> TreeLayout {
        let lengths = std::iter::once(70).chain(std::iter::repeat_n(40, answers));
        let mut layout = TreeLayout {
            tokens: vec![0, 1],
            position_ids: vec![0, 1],
            parents: vec![-1, 0],
            subtree_ends: vec![0, 0],
            segments: vec![Segment {
                start: 0,
                end: 2,
                parent: None,
            }],
        };
        for length in lengths {
            let start = layout.tokens.len();
            for i in 0..length {
                layout.tokens.push(9);
                layout.position_ids.push(2 + i as u32);
                layout
                    .parents
                    .push(if i == 0 { 1 } else { (start + i - 1) as i32 });
                layout.subtree_ends.push((start + length) as u32);
            }
            layout.segments.push(Segment {
                start: start as u32,
                end: (start + length) as u32,
                parent: Some(0),
            });
        }
        let rows = layout.tokens.len() as u32;
        layout.subtree_ends[..2].fill(rows);
        layout
    }

    #[test]
    fn short_siblings_share_runs() {
        let layout = star(10);
        let rows = layout.len();
        let last = rows as u32 - 1;
        let recurrence = TreeRecurrence::from_layouts(&[layout], rows);
        let runs = Runs::build(&recurrence.0.paths);
        // The prompt; the long answer; eight short ones; two.
        assert_eq!(runs.offsets, [0, 1, 3, 11, 13]);
        assert_eq!(runs.entries, [-1, 0, 0, 0]);
        assert_eq!(runs.siblings, [0, 0, 1, 1]);
        assert_eq!(runs.levels(), [0..1, 1..4]);
        assert_eq!(runs.slot_child_offsets, [0, 3]);
        assert_eq!(runs.slot_children, [1, 2, 3]);

        // An answer whose state is asked for has a run of its own.
        let recurrence = recurrence.with_requested_rows(&[last]);
        let runs = Runs::build(&recurrence.0.paths);
        assert_eq!(runs.offsets, [0, 1, 3, 11, 12, 13]);
        assert_eq!(runs.siblings, [0, 0, 1, 0, 0]);
        assert_eq!(runs.slot_child_offsets, [0, 0, 4]);
        assert_eq!(runs.slot_children, [1, 2, 3, 4]);
    }
}
