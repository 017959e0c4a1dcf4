//! Visibility by definition, and plans.

use burn_tree_attn::TreeMask;
use proptest::prelude::*;

use crate::support::{Forest, cases, device, forests};

/// Whether `ancestor` lies on the path from `row` to its root, by following parents.
fn on_path(parents: &[i32], row: usize, ancestor: usize) -> bool {
    let mut current = row as i32;
    while current >= 0 {
        if current as usize == ancestor {
            return true;
        }
        current = parents[current as usize];
    }
    false
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A row sees itself and its ancestors, and padding sees nothing and is not seen.
    #[test]
    fn rows_see_their_ancestors(forest in forests(10), padding in 0..5usize) {
        let layout = forest.layout();
        let n = layout.len() + padding;
        let mask = TreeMask::from_layouts(std::slice::from_ref(&layout), n, &device());
        let visibility = mask.visibility();
        for row in 0..n {
            for key in 0..n {
                let rows = visibility.key_start()[key]..visibility.key_end()[key];
                let expected = row < layout.len()
                    && key < layout.len()
                    && on_path(&layout.parents, row, key);
                prop_assert_eq!(rows.contains(&(row as u32)), expected, "row {} key {}", row, key);
            }
        }
        prop_assert_eq!(mask.visible_pairs(), layout.visible_pairs());
    }

    /// Blocks in which a row sees a key, by looking at every pair.
    #[test]
    fn visited_blocks_are_those_with_a_visible_pair(
        case in cases(12),
        query_rows in 1..70usize,
        keys in 1..70usize,
    ) {
        let mask = case.mask(&device());
        let visibility = mask.visibility();
        let [n, m] = [mask.n_queries(), mask.n_keys()];
        for window in [None, case.sliding_window] {
            let mut visited = std::collections::BTreeSet::new();
            for b in 0..mask.batch_size() {
                for key in 0..m {
                    let at = b * m + key;
                    for row in visibility.key_start()[at]..visibility.key_end()[at] {
                        let query_position = visibility.query_position()[b * n + row as usize];
                        let reach = (visibility.key_position()[at] as usize)
                            .saturating_add(window.unwrap_or(usize::MAX));
                        if reach > query_position as usize {
                            visited.insert((b, row as usize / query_rows, key / keys));
                        }
                    }
                }
            }
            let counted = visibility.visited_blocks(query_rows, keys, window);
            match window {
                None => prop_assert_eq!(counted, visited.len() as u64),
                Some(_) => prop_assert!(counted >= visited.len() as u64),
            }
        }
    }

    /// The spans of a plan hold every visible pair exactly once, do not overlap, and say rightly
    /// which are full.
    #[test]
    fn plans_cover_what_is_visible(case in cases(12), tile_rows in 1..70usize) {
        let mask = case.mask(&device());
        let visibility = mask.visibility();
        let plan = visibility.plan(tile_rows, case.sliding_window);
        let [n, m] = [mask.n_queries(), mask.n_keys()];
        let sees = |b: usize, row: usize, key: usize| {
            let at = b * m + key;
            let window = case.sliding_window.unwrap_or(usize::MAX);
            let query_position = visibility.query_position()[b * n + row] as usize;
            (visibility.key_start()[at]..visibility.key_end()[at]).contains(&(row as u32))
                && (visibility.key_position()[at] as usize).saturating_add(window) > query_position
        };
        let mut covered = vec![false; mask.batch_size() * n * m];
        let mut rows_planned = 0;
        for tile in plan.tiles() {
            rows_planned += tile.rows.len();
            let mut next_key = 0;
            for span in plan.spans(tile) {
                prop_assert!(span.key_start >= next_key && span.key_start < span.key_end);
                next_key = span.key_end;
                let rows = span.row_start as usize..span.row_end as usize;
                prop_assert!(rows.start >= tile.rows.start && rows.end <= tile.rows.end);
                prop_assert!(!rows.is_empty());
                for row in rows {
                    for key in span.key_start as usize..span.key_end as usize {
                        covered[(tile.batch * n + row) * m + key] = true;
                        let seen = sees(tile.batch, row, key);
                        prop_assert!(!span.full || seen, "full, but {row} does not see {key}");
                    }
                }
            }
        }
        prop_assert_eq!(rows_planned, mask.batch_size() * n);
        for b in 0..mask.batch_size() {
            for row in 0..n {
                for key in 0..m {
                    let covered = covered[(b * n + row) * m + key];
                    prop_assert!(covered || !sees(b, row, key), "{row} sees {key}: not planned");
                }
            }
        }
    }
}

#[test]
fn plans_are_made_once_and_shared() {
    let mask = TreeMask::from_layouts(&[Forest(vec![(None, 9)]).layout()], 9, &device());
    let first = mask.visibility().plan(4, None);
    let again = mask.clone().visibility().plan(4, None);
    assert!(std::sync::Arc::ptr_eq(&first, &again));
    assert!(!std::sync::Arc::ptr_eq(
        &first,
        &mask.visibility().plan(4, Some(2))
    ));
}

/// A path of 100,000 nodes of one token, and as many roots: spans do not multiply.
#[test]
fn plans_stay_small_for_extreme_trees() {
    let n = 100_000;
    let chain = Forest((0..n).map(|i: usize| (i.checked_sub(1), 1)).collect()).layout();
    let roots = Forest(vec![(None, 1); n]).layout();
    let mask = TreeMask::from_layouts(&[chain, roots], n, &device());
    let plan = mask.visibility().plan(128, None);
    let spans = |batch| {
        let tiles = plan.tiles().iter().filter(|tile| tile.batch == batch);
        tiles.map(|tile| plan.spans(tile).len()).sum::<usize>()
    };
    let tiles = n.div_ceil(128);
    assert!(
        spans(0) <= 2 * tiles,
        "a chain is a run before the tile and one within it"
    );
    assert_eq!(spans(1), n, "a root sees itself");
}
