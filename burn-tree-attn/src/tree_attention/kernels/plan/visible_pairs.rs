//! How many pairs of a query row and a key of one tile are visible in each query tile.

use std::ops::Range;

use super::TileShape;
use crate::mask::KeyRun;

/// From query tile `query_tile` on, `change` more pairs of each tile are visible.
pub(super) struct Event {
    pub query_tile: u32,
    pub change: i64,
}

/// Collects, as changes in ascending order, how many pairs of (query row, key in `keys`) are
/// visible in each query tile. Returns the range of positions of the visible keys.
pub(super) fn pairs_by_query_tile<'a>(
    runs: impl Iterator<Item = &'a KeyRun>,
    keys: &Range<usize>,
    tiles: TileShape,
    events: &mut Vec<Event>,
) -> Range<u64> {
    events.clear();
    let rows = tiles.query_rows as i64;
    let mut positions = Range {
        start: u64::MAX,
        end: 0,
    };
    for run in runs {
        let first = keys.start.saturating_sub(run.key_start as usize) as i64;
        let last = (keys.end.min(run.keys().end) - run.key_start as usize) as i64;
        let n = last - first;
        let start = i64::from(run.row_start) + i64::from(run.step) * first;
        let end = i64::from(run.row_end);
        let first_position = u64::from(run.position) + first as u64;
        positions.start = positions.start.min(first_position);
        positions.end = positions.end.max(first_position + n as u64);

        // Visible pairs in the rows before `row`.
        let before = |row: i64| {
            let seen = (row.min(end) - start).max(0);
            let growing = if run.step == 0 { 0 } else { seen.min(n) };
            growing * (growing + 1) / 2 + (seen - growing) * n
        };
        let mut add = |tiles: Range<i64>, pairs: i64| {
            if pairs > 0 && !tiles.is_empty() {
                events.push(Event {
                    query_tile: tiles.start as u32,
                    change: pairs,
                });
                events.push(Event {
                    query_tile: tiles.end as u32,
                    change: -pairs,
                });
            }
        };
        let (first_tile, end_tile) = (start / rows, (end + rows - 1) / rows);
        // Tiles all of whose rows see all `n` keys.
        let all_seen = start + i64::from(run.step) * (n - 1);
        let full_start = ((all_seen + rows - 1) / rows).min(end_tile);
        let full_end = (end / rows).max(full_start);
        for tile in (first_tile..full_start).chain(full_end..end_tile) {
            add(
                tile..tile + 1,
                before((tile + 1) * rows) - before(tile * rows),
            );
        }
        add(full_start..full_end, n * rows);
    }
    events.sort_unstable_by_key(|event| event.query_tile);
    positions
}
