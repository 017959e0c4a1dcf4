//! Which tiles the kernels visit: for every tile of query rows the tiles of keys that it sees, and
//! the other way round.

use std::cmp::Reverse;
use std::ops::Range;

use crate::mask::{KeyRun, Visibility};
use burn_tree_kit::implementation::Unavailable;

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

/// From query tile `query_tile` on, `change` more pairs of each tile are visible.
struct Event {
    query_tile: u32,
    change: i64,
}

/// Collects, as changes in ascending order, how many pairs of (query row, key in `keys`) are
/// visible in each query tile. Returns the range of positions of the visible keys.
fn pairs_by_query_tile<'a>(
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

/// The sliding window over the query tiles of a batch row.
struct Window {
    len: u64,
    /// Lowest and highest position in each query tile.
    positions: Vec<(u64, u64)>,
}

impl Window {
    fn new(visibility: &Visibility, batch: usize, tiles: TileShape, len: usize) -> Self {
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
    fn of(&self, query_tile: u32, keys: &Range<u64>, full: bool) -> (bool, bool) {
        let (low, high) = self.positions[query_tile as usize];
        let hidden = (keys.end - 1).saturating_add(self.len) <= low;
        (hidden, full && keys.start.saturating_add(self.len) > high)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use burn::tensor::Device;
    use proptest::prelude::*;

    use super::*;
    use crate::support::{Case, Forest, Row, cases};

    /// Number of visible pairs of a pair of tiles, counted one by one.
    fn visible_pairs(
        visibility: &Visibility,
        batch: usize,
        rows: Range<usize>,
        keys: Range<usize>,
        window: Option<usize>,
    ) -> usize {
        let (n, m) = (visibility.n_queries(), visibility.n_keys());
        let sees = |row: usize, key: usize| {
            let key = batch * m + key;
            let seen = visibility.key_start()[key] as usize..visibility.key_end()[key] as usize;
            let position = visibility.query_position()[batch * n + row] as usize;
            let key_position = visibility.key_position()[key] as usize;
            seen.contains(&row)
                && window.is_none_or(|window| key_position.saturating_add(window) > position)
        };
        (rows.start..rows.end.min(n))
            .flat_map(|row| (keys.start..keys.end.min(m)).map(move |key| (row, key)))
            .filter(|&(row, key)| sees(row, key))
            .count()
    }

    fn list(lists: &TileLists, tile: usize) -> &[u32] {
        &lists.entries[lists.offsets[tile] as usize..lists.offsets[tile + 1] as usize]
    }

    fn check(
        visibility: &Visibility,
        tiles: TileShape,
        window: Option<usize>,
    ) -> Result<(), TestCaseError> {
        let plan = BlockPlan::build(visibility, tiles, window).unwrap();
        let full = tiles.query_rows * tiles.keys;
        let n_query_tiles = visibility.n_queries().div_ceil(tiles.query_rows);
        let n_key_tiles = visibility.n_keys().div_ceil(tiles.keys);
        let batches = visibility.batch_size();
        let mut by_query = vec![Vec::new(); batches * n_query_tiles];
        for key_tile in 0..batches * n_key_tiles {
            let (batch, key) = (key_tile / n_key_tiles, key_tile % n_key_tiles);
            let entries = list(&plan.by_key, key_tile);
            prop_assert!(entries.is_sorted_by(|a, b| a >> 1 < b >> 1));
            for tile in 0..n_query_tiles {
                let rows = tile * tiles.query_rows..(tile + 1) * tiles.query_rows;
                let keys = key * tiles.keys..(key + 1) * tiles.keys;
                let pairs =
                    |window| visible_pairs(visibility, batch, rows.clone(), keys.clone(), window);
                let entry = entries.iter().find(|&&entry| entry >> 1 == tile as u32);
                let at = format!("batch row {batch}, query tile {tile}, key tile {key}");
                match entry {
                    None => prop_assert_eq!(pairs(window), 0, "{}", at),
                    Some(entry) if entry & 1 == 0 => prop_assert_eq!(pairs(window), full, "{}", at),
                    Some(_) if window.is_some() => prop_assert!(pairs(None) > 0, "{at}"),
                    Some(_) => prop_assert!((1..full).contains(&pairs(None)), "{at}"),
                }
                if let Some(entry) = entry {
                    by_query[batch * n_query_tiles + tile].push((key as u32) << 1 | entry & 1);
                }
            }
        }
        for (tile, expected) in by_query.iter().enumerate() {
            prop_assert_eq!(list(&plan.by_query, tile), expected.as_slice());
        }
        for lists in [&plan.by_query, &plan.by_key] {
            let lengths: Vec<usize> = lists
                .order
                .iter()
                .map(|&tile| list(lists, tile as usize).len())
                .collect();
            prop_assert!(lengths.is_sorted_by(|a, b| a >= b));
            let mut order = lists.order.clone();
            order.sort_unstable();
            prop_assert!(order.iter().copied().eq(0..lists.offsets.len() as u32 - 1));
        }
        Ok(())
    }

    fn visibility(forest: Forest, padding: usize) -> std::sync::Arc<Visibility> {
        let layout = forest.layout();
        let len = layout.len() + padding;
        crate::mask::TreeMask::from_layouts(&[layout], len, &Device::flex())
            .visibility()
            .clone()
    }

    const TILES: [(usize, usize); 7] = [
        (1, 1),
        (3, 5),
        (16, 8),
        (64, 32),
        (64, 64),
        (128, 64),
        (512, 1024),
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn lists_hold_the_visible_pairs_of_tiles(
            case in cases(10),
            tiles in prop::sample::select(&TILES[1..]),
        ) {
            let tiles = TileShape { query_rows: tiles.0, keys: tiles.1 };
            let mask = case.mask(&Device::flex());
            check(mask.visibility(), tiles, None)?;
            check(mask.visibility(), tiles, case.sliding_window)?;
            check(mask.visibility(), tiles, Some(usize::MAX))?;
        }
    }

    #[test]
    fn single_tokens_and_many_trees() {
        let spine = (0..300).flat_map(|turn: usize| {
            [
                (turn.checked_sub(1).map(|it| 2 * it), 1),
                (Some(2 * turn), 1),
            ]
        });
        for forest in [
            Forest(vec![(None, 1)]),
            Forest((0..1000).map(|tree| (None, 1 + tree % 3)).collect()),
            Forest(spine.collect()),
        ] {
            for padding in [0, 1, 200] {
                let visibility = visibility(forest.clone(), padding);
                for (query_rows, keys) in TILES {
                    let tiles = TileShape { query_rows, keys };
                    if visibility.n_queries() < 50 || query_rows > 3 {
                        check(&visibility, tiles, None).unwrap();
                        check(&visibility, tiles, Some(3)).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn a_mask_that_shows_nothing_has_empty_lists() {
        let visibility = visibility(Forest(Vec::new()), 70);
        let tiles = TileShape {
            query_rows: 16,
            keys: 16,
        };
        let plan = BlockPlan::build(&visibility, tiles, None).unwrap();
        assert_eq!(plan.by_query.offsets, [0; 6]);
        assert_eq!(plan.by_key.order, [0, 1, 2, 3, 4]);
        assert!(plan.by_query.entries.is_empty());
    }

    #[test]
    fn a_run_of_keys_counts_once_however_long() {
        // Every token of the spine has an interval of its own: many runs in each tile.
        let case = Case {
            rows: vec![Row {
                forest: Forest(vec![(None, 5000)]),
                past: Vec::new(),
            }],
            padding: 0,
            kv_heads: 1,
            group: 1,
            head_dim: 1,
            value_dim: 1,
            softcap: None,
            sliding_window: None,
            seed: 0,
        };
        let mask = case.mask(&Device::flex());
        let tiles = TileShape {
            query_rows: 64,
            keys: 64,
        };
        let plan = BlockPlan::build(mask.visibility(), tiles, None).unwrap();
        // A triangle of 79 tiles, of which the diagonal and the overhanging last row are partial.
        assert_eq!(plan.by_key.entries.len(), 79 * 80 / 2);
        let partial = plan
            .by_key
            .entries
            .iter()
            .filter(|&entry| entry & 1 == 1)
            .count();
        assert_eq!(partial, 79 + 78);
    }

    /// Prints how long plans take: `cargo test --release -- --ignored --nocapture plan_cost`.
    #[test]
    #[ignore = "a measurement"]
    fn plan_cost() {
        let star16 = std::iter::once((None, 2048)).chain((0..16).map(|_| (Some(0), 896)));
        let leaf40 = std::iter::once((None, 2048)).chain((0..358).map(|_| (Some(0), 40)));
        let comb = (0..32).flat_map(|turn: usize| {
            let spine = turn.checked_sub(1).map(|previous| 3 * previous);
            [(spine, 192), (Some(3 * turn), 160), (Some(3 * turn), 160)]
        });
        let spine = (0..8192).flat_map(|turn: usize| {
            [
                (turn.checked_sub(1).map(|it| 2 * it), 1),
                (Some(2 * turn), 1),
            ]
        });
        for (name, forest) in [
            ("star16", star16.collect()),
            ("leaf40", leaf40.collect()),
            ("comb", comb.collect()),
            ("causal", vec![(None, 16384)]),
            ("forks at every token", spine.collect()),
            ("trees of one token", vec![(None, 1); 16384]),
        ] {
            let visibility = visibility(Forest(forest), 0);
            for (query_rows, keys) in [(64, 32), (64, 64), (128, 64), (128, 128)] {
                let tiles = TileShape { query_rows, keys };
                let mut times: Vec<f64> = (0..21)
                    .map(|_| {
                        let start = Instant::now();
                        std::hint::black_box(BlockPlan::build(&visibility, tiles, None)).unwrap();
                        start.elapsed().as_secs_f64()
                    })
                    .collect();
                times.sort_by(f64::total_cmp);
                let plan = BlockPlan::build(&visibility, tiles, None).unwrap();
                println!(
                    "{name}: N {}, tiles {query_rows} x {keys}, {} pairs of tiles: {:.0} us",
                    visibility.n_queries(),
                    plan.by_key.entries.len(),
                    times[10] * 1e6,
                );
            }
        }
    }
}
