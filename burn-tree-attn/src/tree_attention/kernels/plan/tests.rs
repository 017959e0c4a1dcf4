//! Plans against pairs of query rows and keys counted one by one.

use std::ops::Range;
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
