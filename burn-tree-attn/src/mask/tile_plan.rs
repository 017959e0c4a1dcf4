//! Which keys each tile of query rows must visit.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use tree_pack::IndexMemory;

use super::visibility::Visibility;

/// For every tile of query rows, the runs of keys that some of its rows see.
///
/// Its size is the number of visible runs: a run of keys of one tree node costs one entry per
/// tile, however long it is.
#[derive(Debug)]
pub struct TilePlan {
    tile_rows: usize,
    tiles: Vec<Tile>,
    spans: Vec<KeySpan>,
}

/// Consecutive query rows of one batch row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Batch row.
    pub batch: usize,
    /// Query rows.
    pub rows: Range<usize>,
    spans: Range<usize>,
}

/// Consecutive keys and the rows of a tile that see at least one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpan {
    /// First key.
    pub key_start: u32,
    /// One past the last key.
    pub key_end: u32,
    /// First query row of the tile that sees one of the keys.
    pub row_start: u32,
    /// One past the last such row.
    pub row_end: u32,
    /// Whether all of these rows see all of these keys.
    pub full: bool,
}

impl KeySpan {
    /// Number of keys.
    pub fn n_keys(&self) -> usize {
        (self.key_end - self.key_start) as usize
    }
}

impl TilePlan {
    /// Query rows per tile; the last tile of a row may have fewer.
    pub fn tile_rows(&self) -> usize {
        self.tile_rows
    }

    /// Tiles, batch row by batch row.
    pub fn tiles(&self) -> &[Tile] {
        &self.tiles
    }

    fn bytes(&self) -> usize {
        size_of_val(self.tiles.as_slice()) + size_of_val(self.spans.as_slice())
    }

    /// Spans of a tile in ascending order of their keys, which do not overlap.
    pub fn spans(&self, tile: &Tile) -> &[KeySpan] {
        &self.spans[tile.spans.clone()]
    }
}

/// A maximal run of keys whose intervals follow one rule.
#[derive(Clone, Copy)]
pub(crate) struct KeyRun {
    pub(crate) key_start: u32,
    pub(crate) len: u32,
    /// Interval of the first key.
    pub(crate) row_start: u32,
    pub(crate) row_end: u32,
    /// Growth of `row_start` from key to key: 0 or 1 (a node's own rows).
    pub(crate) step: u32,
    /// Position of the first key; it grows by one from key to key.
    pub(crate) position: u32,
}

impl Visibility {
    /// Number of blocks of `query_rows` rows and `keys` keys in which some row sees some key: those
    /// that a tiled kernel must compute. Blocks begin at multiples of these sizes. A sliding window
    /// is judged by the positions in each block of rows, so that a block may be counted although
    /// the window hides all its keys.
    ///
    /// # Panics
    /// If `query_rows` or `keys` is 0.
    pub fn visited_blocks(
        &self,
        query_rows: usize,
        keys: usize,
        sliding_window: Option<usize>,
    ) -> u64 {
        let plan = self.build_plan(query_rows, sliding_window);
        let of_tile = |tile: &Tile| {
            // Spans ascend, but two of them may begin in one block.
            let mut counted_until = 0;
            let blocks = plan.spans(tile).iter().map(|span| {
                let first = (span.key_start as usize / keys).max(counted_until);
                let end = (span.key_end as usize).div_ceil(keys);
                counted_until = end;
                end.saturating_sub(first) as u64
            });
            blocks.sum::<u64>()
        };
        plan.tiles().iter().map(of_tile).sum()
    }

    /// The plan for tiles of `tile_rows` query rows, made on first use and shared afterwards.
    pub fn plan(&self, tile_rows: usize, sliding_window: Option<usize>) -> Arc<TilePlan> {
        let make = || {
            let plan = self.build_plan(tile_rows, sliding_window);
            let memory = IndexMemory {
                host_bytes: plan.bytes() as u64,
                device_bytes: 0,
            };
            Ok::<_, Infallible>((plan, memory))
        };
        let Ok(plan) = self.derived().get((tile_rows, sliding_window), make);
        plan
    }

    fn build_plan(&self, tile_rows: usize, sliding_window: Option<usize>) -> TilePlan {
        assert!(tile_rows > 0, "a tile has at least one row");
        let mut plan = TilePlan {
            tile_rows,
            tiles: Vec::new(),
            spans: Vec::new(),
        };
        for batch in 0..self.batch_size() {
            let mut runs = self.key_runs(batch);
            runs.sort_by_key(|run| run.row_start);
            let mut arriving = runs.into_iter().peekable();
            let mut seen: Vec<KeyRun> = Vec::new();
            for row_start in (0..self.n_queries()).step_by(tile_rows) {
                let rows = row_start..(row_start + tile_rows).min(self.n_queries());
                seen.retain(|run| run.row_end as usize > rows.start);
                while let Some(run) = arriving.next_if(|run| (run.row_start as usize) < rows.end) {
                    seen.push(run);
                }
                seen.sort_by_key(|run| run.key_start);
                let window = sliding_window.map(|window| self.window(batch, &rows, window));
                let first_span = plan.spans.len();
                for run in &seen {
                    run.push_spans(&rows, window, first_span, &mut plan.spans);
                }
                let spans = first_span..plan.spans.len();
                plan.tiles.push(Tile { batch, rows, spans });
            }
        }
        plan
    }

    /// Key positions of a tile's sliding window: the first that some row sees, and the first that
    /// all rows see.
    fn window(&self, batch: usize, rows: &Range<usize>, window: usize) -> (u64, u64) {
        let positions = &self.query_position()[batch * self.n_queries()..][rows.clone()];
        let first = |position: u32| (u64::from(position) + 1).saturating_sub(window as u64);
        let lowest = positions.iter().copied().min().unwrap_or(0);
        let highest = positions.iter().copied().max().unwrap_or(0);
        (first(lowest), first(highest))
    }

    /// The visible keys of a batch row as runs, in order of their keys.
    pub(crate) fn key_runs(&self, batch: usize) -> Vec<KeyRun> {
        let keys = batch * self.n_keys()..(batch + 1) * self.n_keys();
        let (starts, ends) = (
            &self.key_start()[keys.clone()],
            &self.key_end()[keys.clone()],
        );
        let positions = &self.key_position()[keys];
        let mut runs: Vec<KeyRun> = Vec::new();
        for key in 0..self.n_keys() {
            let (start, end, position) = (starts[key], ends[key], positions[key]);
            if start == end {
                continue;
            }
            if let Some(run) = runs.last_mut()
                && run.key_start + run.len == key as u32
                && run.row_end == end
                && run.position + run.len == position
            {
                let step = start.wrapping_sub(run.row_start + run.step * (run.len - 1));
                if step == run.step || (run.len == 1 && step <= 1) {
                    run.step = step;
                    run.len += 1;
                    continue;
                }
            }
            runs.push(KeyRun {
                key_start: key as u32,
                len: 1,
                row_start: start,
                row_end: end,
                step: 0,
                position,
            });
        }
        runs
    }
}

impl KeyRun {
    #[cfg(feature = "cubecl-backend")]
    pub(crate) fn keys(&self) -> Range<usize> {
        self.key_start as usize..(self.key_start + self.len) as usize
    }

    /// Appends what the rows of a tile see of this run: a part that all rows in reach see, then a
    /// part whose keys begin to be seen within the tile.
    fn push_spans(
        &self,
        rows: &Range<usize>,
        window: Option<(u64, u64)>,
        first_span: usize,
        spans: &mut Vec<KeySpan>,
    ) {
        let (tile_start, tile_end) = (rows.start as u32, rows.end as u32);
        let row_end = self.row_end.min(tile_end);
        let window_offset = |position: u64| {
            let skipped = position.saturating_sub(u64::from(self.position));
            skipped.min(u64::from(self.len)) as u32
        };
        // Keys of the run by index: those before `first` left the window of every row, those
        // before `inside` left the window of some row.
        let (first, inside) = window.map_or((0, 0), |(some, all)| {
            (window_offset(some), window_offset(all))
        });
        // Keys whose interval begins before, and within, the tile.
        let (before, until) = if self.step == 0 {
            let seen = if self.row_start <= tile_start {
                self.len
            } else {
                0
            };
            (seen, self.len)
        } else {
            let begun = |row: u32| (row.saturating_sub(self.row_start)).min(self.len);
            (begun(tile_start + 1), begun(tile_end))
        };
        let mut push = |keys: Range<u32>, row_start: u32, full: bool| {
            if keys.is_empty() || row_start >= row_end {
                return;
            }
            let span = KeySpan {
                key_start: self.key_start + keys.start,
                key_end: self.key_start + keys.end,
                row_start,
                row_end,
                full,
            };
            match spans[first_span..].last_mut() {
                Some(last)
                    if last.full
                        && full
                        && last.key_end == span.key_start
                        && (last.row_start, last.row_end) == (span.row_start, span.row_end) =>
                {
                    last.key_end = span.key_end;
                }
                _ => spans.push(span),
            }
        };
        let start_of = |key: u32| (self.row_start + self.step * key).max(tile_start);
        push(first..before.min(inside), tile_start, false);
        push(first.max(inside)..before, tile_start, true);
        let rest = first.max(before)..until;
        let full = self.step == 0 && inside <= rest.start;
        push(rest.clone(), start_of(rest.start), full);
    }
}
