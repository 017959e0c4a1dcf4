//! The windows and paths of a recurrence, and what they cost.

use std::ops::Range;

use super::tree_recurrence::TreeRecurrence;

impl TreeRecurrence {
    /// Number of windows, `W`.
    pub fn n_windows(&self) -> usize {
        self.0.paths.window_starts.len()
    }

    /// `[W]` first row of every window. The windows of a path are consecutive, each beginning
    /// with the state after the last row of the one before.
    ///
    /// A window is either a piece of a node, or (then it is the last of its path) complete
    /// subtrees of one parent. In both, row `i` depends on row `j` of the window exactly when
    /// `j <= i < subtree_ends[j]`.
    pub fn window_starts(&self) -> &[u32] {
        &self.0.paths.window_starts
    }

    /// `[W]` number of rows of every window, at least 1.
    pub fn window_lengths(&self) -> &[u32] {
        &self.0.paths.window_lengths
    }

    /// `[W]` slot in which the state after the window's last row is kept, -1 if in none.
    pub fn window_slots(&self) -> &[i32] {
        &self.0.paths.window_slots
    }

    /// Number of paths, `P`.
    pub fn n_paths(&self) -> usize {
        self.0.paths.path_entries.len()
    }

    /// `[P + 1]` where the windows of every path start.
    pub fn path_offsets(&self) -> &[u32] {
        &self.0.paths.path_offsets
    }

    /// `[P]` the state with which every path starts: a slot, [`ENTRY_ZERO`](crate::ENTRY_ZERO), or
    /// `-2 - g` for initial state `g`.
    pub fn path_entries(&self) -> &[i32] {
        &self.0.paths.path_entries
    }

    /// Ranges of paths, long ones first, that can run at the same time: the slot with which a path
    /// starts is written by a path of an earlier level.
    pub fn levels(&self) -> &[Range<usize>] {
        &self.0.paths.levels
    }

    /// Number of slots, `S`: states kept after a window because they are asked for or because
    /// paths start from them. Those of the requested rows come first.
    pub fn n_slots(&self) -> usize {
        self.0.paths.n_slots()
    }

    /// `[S + 1]` where the list of every slot starts in [`slot_children`](Self::slot_children).
    pub fn slot_child_offsets(&self) -> &[u32] {
        &self.0.paths.slot_child_offsets
    }

    /// The paths that start from each slot, ascending.
    pub fn slot_children(&self) -> &[u32] {
        &self.0.paths.slot_children
    }

    /// `[G + 1]` where the list of every initial state starts in
    /// [`initial_children`](Self::initial_children).
    pub fn initial_child_offsets(&self) -> &[u32] {
        &self.0.paths.initial_child_offsets
    }

    /// The paths that start from each initial state, ascending.
    pub fn initial_children(&self) -> &[u32] {
        &self.0.paths.initial_children
    }

    /// The most windows of which each needs the state after the one before: what cannot be computed
    /// at the same time.
    pub fn longest_chain(&self) -> usize {
        // Windows up to the one that writes each slot. Paths that start from a slot come after it.
        let mut until_slot = vec![0; self.n_slots()];
        let mut longest = 0;
        for (path, &entry) in self.path_entries().iter().enumerate() {
            let mut chain = usize::try_from(entry).map_or(0, |slot| until_slot[slot]);
            let offsets = self.path_offsets();
            for window in offsets[path]..offsets[path + 1] {
                chain += 1;
                if let Ok(slot) = usize::try_from(self.window_slots()[window as usize]) {
                    until_slot[slot] = chain;
                }
            }
            longest = longest.max(chain);
        }
        longest
    }

    /// Rows that tiles of `tile_rows` rows compute: each window is rounded up to whole tiles.
    ///
    /// # Panics
    /// If `tile_rows` is 0.
    pub fn tiled_rows(&self, tile_rows: usize) -> usize {
        let lengths = self.window_lengths().iter().map(|&length| length as usize);
        lengths.map(|rows| rows.next_multiple_of(tile_rows)).sum()
    }

    /// Rows that tiles of `tile_rows` rows compute per row of the layouts: each window is rounded
    /// up to whole tiles. 1 means no padding, also of layouts without rows.
    ///
    /// # Panics
    /// If `tile_rows` is 0.
    pub fn padding_factor(&self, tile_rows: usize) -> f64 {
        let computed = self.tiled_rows(tile_rows);
        let rows: usize = self.0.tree.layouts.iter().map(Range::len).sum();
        match rows {
            0 => 1.0,
            rows => computed as f64 / rows as f64,
        }
    }
}
