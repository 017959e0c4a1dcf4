//! Pairs of tiles under a sliding window.

use std::ops::Range;

use super::TileShape;
use crate::mask::Visibility;

/// The sliding window over the query tiles of a batch row.
pub(super) struct Window {
    len: u64,
    /// Lowest and highest position in each query tile.
    positions: Vec<(u64, u64)>,
}

impl Window {
    pub(super) fn new(visibility: &Visibility, batch: usize, tiles: TileShape, len: usize) -> Self {
        let queries = visibility.n_queries();
        let positions = &visibility.query_position()[batch * queries..(batch + 1) * queries];
        let bounds = |rows: &[u32]| {
            let (low, high) = rows
                .iter()
                .fold((u32::MAX, 0), |(low, high), &p| (low.min(p), high.max(p)));
            (u64::from(low), u64::from(high))
        };
        Self {
            len: len as u64,
            positions: positions.chunks(tiles.query_rows).map(bounds).collect(),
        }
    }

    /// Whether the window hides all of a tile's keys, and whether the pair is full if it is
    /// without the window. `keys`: range of the keys' positions.
    pub(super) fn of(&self, query_tile: u32, keys: &Range<u64>, full: bool) -> (bool, bool) {
        let (low, high) = self.positions[query_tile as usize];
        let hidden = (keys.end - 1).saturating_add(self.len) <= low;
        (hidden, full && keys.start.saturating_add(self.len) > high)
    }
}
