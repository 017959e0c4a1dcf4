//! Chains windows into paths and sorts paths into levels.

use std::cmp::Reverse;
use std::ops::Range;

use super::limits::ENTRY_ZERO;
use super::tree::Tree;
use super::windows::Window;

/// The schedule; see the accessors of [`super::TreeRecurrence`].
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub(super) window_starts: Vec<u32>,
    pub(super) window_lengths: Vec<u32>,
    pub(super) window_slots: Vec<i32>,
    pub(super) path_offsets: Vec<u32>,
    pub(super) path_entries: Vec<i32>,
    pub(super) levels: Vec<Range<usize>>,
    pub(super) slot_child_offsets: Vec<u32>,
    pub(super) slot_children: Vec<u32>,
    pub(super) initial_child_offsets: Vec<u32>,
    pub(super) initial_children: Vec<u32>,
}

/// Windows that follow each other, as indices in order of rows.
struct Path {
    level: usize,
    windows: Vec<usize>,
}

impl Paths {
    pub(super) fn bytes(&self) -> usize {
        let lists = [
            &self.window_starts,
            &self.window_lengths,
            &self.path_offsets,
            &self.slot_child_offsets,
            &self.slot_children,
            &self.initial_child_offsets,
            &self.initial_children,
        ];
        lists
            .map(|list| size_of_val(list.as_slice()))
            .iter()
            .sum::<usize>()
            + size_of_val(self.window_slots.as_slice())
            + size_of_val(self.path_entries.as_slice())
            + size_of_val(self.levels.as_slice())
    }

    pub(super) fn build(tree: &Tree, windows: &[Window], requested_rows: &[u32]) -> Self {
        let paths = heavy_paths(windows);

        let mut schedule = Self::default();
        // From windows in order of rows to windows in order of paths.
        let mut numbers = vec![0; windows.len()];
        schedule.path_offsets.push(0);
        for path in &paths {
            for &window in &path.windows {
                numbers[window] = schedule.window_starts.len();
                let rows = &windows[window].rows;
                schedule.window_starts.push(rows.start as u32);
                schedule.window_lengths.push(rows.len() as u32);
            }
            schedule
                .path_offsets
                .push(schedule.window_starts.len() as u32);
        }
        schedule.levels = paths
            .chunk_by(|a, b| a.level == b.level)
            .scan(0, |end, level| {
                let start = *end;
                *end += level.len();
                Some(start..*end)
            })
            .collect();

        let mut window_of_end = vec![usize::MAX; tree.rows()];
        for (window, &number) in windows.iter().zip(&numbers) {
            window_of_end[window.rows.end - 1] = number;
        }
        schedule.window_slots = vec![-1; windows.len()];
        for (slot, &row) in requested_rows.iter().enumerate() {
            schedule.window_slots[window_of_end[row as usize]] = slot as i32;
        }
        let mut n_slots = requested_rows.len();
        for path in &paths {
            let first = &windows[path.windows[0]];
            let entry = match (first.parent, tree.initial_state(first.rows.start)) {
                (Some(parent), _) => {
                    let slot = &mut schedule.window_slots[numbers[parent]];
                    if *slot < 0 {
                        *slot = n_slots as i32;
                        n_slots += 1;
                    }
                    *slot
                }
                (None, Some(state)) => -2 - state as i32,
                (None, None) => ENTRY_ZERO,
            };
            schedule.path_entries.push(entry);
        }
        (schedule.slot_child_offsets, schedule.slot_children) =
            schedule.children(n_slots, |entry| usize::try_from(entry).ok());
        (schedule.initial_child_offsets, schedule.initial_children) = schedule
            .children(tree.n_initial_states(), |entry| {
                usize::try_from(-2 - i64::from(entry)).ok()
            });
        schedule
    }

    /// Number of slots.
    pub(super) fn n_slots(&self) -> usize {
        self.slot_child_offsets.len() - 1
    }

    /// Number of initial states.
    #[cfg(any(feature = "cubecl-backend", feature = "flex"))]
    pub(super) fn n_initial_states(&self) -> usize {
        self.initial_child_offsets.len() - 1
    }

    /// The paths that start from each of `count` states, as offsets and a list.
    fn children(
        &self,
        count: usize,
        state_of: impl Fn(i32) -> Option<usize>,
    ) -> (Vec<u32>, Vec<u32>) {
        let mut lists = vec![Vec::new(); count];
        for (path, &entry) in self.path_entries.iter().enumerate() {
            if let Some(state) = state_of(entry) {
                lists[state].push(path as u32);
            }
        }
        let mut offsets = vec![0];
        for list in &lists {
            offsets.push(offsets[offsets.len() - 1] + list.len() as u32);
        }
        (offsets, lists.concat())
    }
}

/// Paths by level and, within a level, by descending length. A path continues with the child
/// window below which most windows follow each other; the others start paths one level below.
fn heavy_paths(windows: &[Window]) -> Vec<Path> {
    // Windows of the longest chain that begins with each window.
    let mut heights = vec![1; windows.len()];
    let mut heavy_child: Vec<Option<usize>> = vec![None; windows.len()];
    for (index, window) in windows.iter().enumerate().rev() {
        if let Some(parent) = window.parent
            && heights[index] + 1 >= heights[parent]
        {
            heights[parent] = heights[index] + 1;
            heavy_child[parent] = Some(index);
        }
    }
    let mut path_of = vec![0; windows.len()];
    let mut branches = vec![false; windows.len()];
    let mut paths: Vec<Path> = Vec::new();
    for (index, window) in windows.iter().enumerate() {
        path_of[index] = match window.parent {
            Some(parent) if heavy_child[parent] == Some(index) => path_of[parent],
            parent => {
                let level = parent.map_or(0, |parent| {
                    branches[parent] = true;
                    paths[path_of[parent]].level + 1
                });
                paths.push(Path {
                    level,
                    windows: Vec::new(),
                });
                paths.len() - 1
            }
        };
        paths[path_of[index]].windows.push(index);
    }
    shorten(&mut paths, &branches);
    paths.sort_by_key(|path| (path.level, Reverse(path.windows.len())));
    paths
}

/// Cuts paths after the last window that `branches`, if the levels then take fewer steps in all:
/// the answers to a prompt are better computed next to each other than one of them before the
/// others. A level takes as many steps as its longest path has windows.
fn shorten(paths: &mut Vec<Path>, branches: &[bool]) {
    let levels = paths.iter().map(|path| path.level + 1).max().unwrap_or(0);
    let mut of_level = vec![Vec::new(); levels];
    for (index, path) in paths.iter().enumerate() {
        of_level[path.level].push(index);
    }
    // Steps of the level below.
    let mut below = 0;
    for level in of_level.iter().rev() {
        let length = |index: usize| paths[index].windows.len();
        let shortest = |index: usize| {
            let last = paths[index].windows.iter().rposition(|&w| branches[w]);
            last.map_or(length(index), |last| last + 1)
        };
        let steps = level.iter().map(|&path| length(path)).max().unwrap_or(0);
        let cut_steps = level.iter().map(|&path| shortest(path)).max().unwrap_or(0);
        let cuts: Vec<_> = level
            .iter()
            .filter(|&&path| length(path) > cut_steps)
            .map(|&path| (path, shortest(path)))
            .collect();
        let tails = cuts.iter().map(|&(path, cut)| length(path) - cut).max();
        let below_cut = below.max(tails.unwrap_or(0));
        if cut_steps + below_cut >= steps + below {
            below = steps;
            continue;
        }
        below = cut_steps;
        for (path, cut) in cuts {
            let windows = paths[path].windows.split_off(cut);
            let level = paths[path].level + 1;
            paths.push(Path { level, windows });
        }
    }
}
