//! Which tiles the kernels visit: for every tile of query rows the tiles of keys that it sees, and
//! the other way round.

mod visible_pairs;
mod window;

use std::cmp::Reverse;

use crate::mask::Visibility;
use burn_tree_kit::implementation::Unavailable;
use visible_pairs::pairs_by_query_tile;
use window::Window;

/// Query rows and keys of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TileShape {
    pub query_rows: usize,
    pub keys: usize,
}

/// The pairs of tiles in which some query row sees some key, from both sides.
///
/// Tiles are counted per batch row: query tile `t` of batch row `b` is number
/// `b * ceil(N / query_rows) + t`, and likewise for keys over `M`. Pairs without a visible key are
/// in no list; under a sliding window, pairs are left out by the positions in the tile, so that
/// a pair may be listed of which the window hides all keys.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BlockPlan {
    /// For every query tile, the key tiles of its batch row.
    pub by_query: TileLists,
    /// For every key tile, the query tiles of its batch row.
    pub by_key: TileLists,
}

/// One list for every tile of one side.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TileLists {
    /// `[tiles + 1]` where the list of each tile starts.
    pub offsets: Vec<u32>,
    /// `other tile << 1 | partial`, ascending. `partial` is 0 only if every row of the pair sees
    /// every key and neither tile overhangs `N` or `M`.
    pub entries: Vec<u32>,
    /// Tiles by descending length of their lists, so that long ones start first.
    pub order: Vec<u32>,
}

impl TileLists {
    fn finish(&mut self) {
        self.order = (0..self.offsets.len() as u32 - 1).collect();
        let len = |tile: u32| self.offsets[tile as usize + 1] - self.offsets[tile as usize];
        self.order.sort_by_key(|&tile| Reverse(len(tile)));
    }
}

impl BlockPlan {
    /// Takes O(visible pairs of tiles + runs of keys).
    pub(crate) fn build(
        visibility: &Visibility,
        tiles: TileShape,
        sliding_window: Option<usize>,
    ) -> Result<Self, Unavailable> {
        let (queries, keys) = (visibility.n_queries(), visibility.n_keys());
        let n_query_tiles = queries.div_ceil(tiles.query_rows);
        let n_key_tiles = keys.div_ceil(tiles.keys);
        let batches = visibility.batch_size();
        u32::try_from(batches.max(1) * n_query_tiles.max(n_key_tiles))
            .map_err(|_| too_large(visibility, tiles))?;

        let mut by_key = TileLists::default();
        let mut by_query = TileLists {
            offsets: vec![0; batches * n_query_tiles + 1],
            ..Default::default()
        };
        by_key.offsets.push(0);
        let mut events = Vec::new();
        for batch in 0..batches {
            let window = sliding_window.map(|window| Window::new(visibility, batch, tiles, window));
            // Counts, one further on: they become offsets.
            let counts = &mut by_query.offsets[batch * n_query_tiles + 1..];
            let runs = visibility.key_runs(batch);
            let mut first_run = 0;
            for key_tile in 0..n_key_tiles {
                let keys = key_tile * tiles.keys..(key_tile + 1) * tiles.keys;
                while runs
                    .get(first_run)
                    .is_some_and(|run| run.keys().end <= keys.start)
                {
                    first_run += 1;
                }
                let inside = runs[first_run..]
                    .iter()
                    .take_while(|run| run.keys().start < keys.end);
                let positions = pairs_by_query_tile(inside, &keys, tiles, &mut events);
                let (mut row_tile, mut pairs) = (0, 0);
                for event in &events {
                    if pairs > 0 && event.query_tile > row_tile {
                        let full = pairs == (tiles.query_rows * tiles.keys) as i64;
                        for tile in row_tile..event.query_tile {
                            let (hidden, full) = window
                                .as_ref()
                                .map_or((false, full), |window| window.of(tile, &positions, full));
                            if !hidden {
                                by_key.entries.push(tile << 1 | u32::from(!full));
                                counts[tile as usize] += 1;
                            }
                        }
                    }
                    row_tile = event.query_tile;
                    pairs += event.change;
                }
                debug_assert_eq!(pairs, 0);
                let end = u32::try_from(by_key.entries.len())
                    .map_err(|_| too_large(visibility, tiles))?;
                by_key.offsets.push(end);
            }
        }
        by_query.entries = transpose(&by_key, &mut by_query.offsets, n_query_tiles, n_key_tiles);
        by_query.finish();
        by_key.finish();
        Ok(Self { by_query, by_key })
    }
}

pub(super) fn too_large(visibility: &Visibility, tiles: TileShape) -> Unavailable {
    Unavailable(format!(
        "the plan of {} x {} query rows and {} x {} keys in tiles of {} x {} exceeds 2^32 numbers",
        visibility.batch_size(),
        visibility.n_queries(),
        visibility.batch_size(),
        visibility.n_keys(),
        tiles.query_rows,
        tiles.keys,
    ))
}

/// The lists by query tile, from those by key tile and the number of entries of each query tile
/// (at `offsets[tile + 1]`), which become offsets.
fn transpose(
    by_key: &TileLists,
    offsets: &mut [u32],
    n_query_tiles: usize,
    n_key_tiles: usize,
) -> Vec<u32> {
    for tile in 1..offsets.len() {
        offsets[tile] += offsets[tile - 1];
    }
    let mut next = offsets.to_vec();
    let mut entries = vec![0; by_key.entries.len()];
    for (key_tile, bounds) in by_key.offsets.windows(2).enumerate() {
        let (batch, key_tile) = (key_tile / n_key_tiles, (key_tile % n_key_tiles) as u32);
        let next = &mut next[batch * n_query_tiles..];
        for &entry in &by_key.entries[bounds[0] as usize..bounds[1] as usize] {
            let at = &mut next[(entry >> 1) as usize];
            entries[*at as usize] = key_tile << 1 | entry & 1;
            *at += 1;
        }
    }
    entries
}

#[cfg(test)]
mod tests;
