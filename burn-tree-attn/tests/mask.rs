//! Masks: visibility by definition, plans, and refused arguments.

mod support;

use burn_tree_attn::{KeyIntervals, PastKeys, TreeMask, TreeMaskError};
use proptest::prelude::*;
use support::{Forest, cases, device, intervals};
use tree_pack::{PackOptions, Partitioning, Trajectory, TreeLayout, build_forests, pack_step};

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
    fn rows_see_their_ancestors(forest in support::forests(10), padding in 0..5usize) {
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

/// Two trees of 2 and 3 rows that begin at these depths.
fn beginning_at(depths: [u32; 2]) -> TreeLayout {
    let mut layout = Forest(vec![(None, 2), (None, 1), (Some(1), 2)]).layout();
    for (row, position) in layout.position_ids.iter_mut().enumerate() {
        *position += depths[usize::from(row >= 2)];
    }
    layout
}

/// Without its past keys it would be computed as if its tokens came first.
#[test]
fn a_pack_that_continues_another_is_refused_without_its_past() {
    let device = device();
    let layouts = [beginning_at([0, 0]), beginning_at([0, 7])];
    let expected = TreeMaskError::Continues {
        batch: 1,
        row: 2,
        depth: 7,
    };
    let error = TreeMask::try_from_layouts(&layouts, 6, &device).unwrap_err();
    assert_eq!(error, expected);
    assert_eq!(
        error.to_string(),
        "batch row 1: the tree of row 2 begins at depth 7, expected 0: its pack continues another \
         one (past keys are given to TreeMask::with_past_keys; step_gradients does it)"
    );
    let none = [PastKeys::default(), PastKeys::default()];
    let error = TreeMask::with_past_keys(&layouts, 6, &none, &device).unwrap_err();
    assert_eq!(error, expected);
}

#[test]
fn a_root_sees_one_past_key_for_each_ancestor() {
    let device = device();
    // Both trees continue the same 2 keys, and the second one a third.
    let layouts = [beginning_at([2, 3])];
    let mask = |start: &[u32], end: &[u32]| {
        let past = PastKeys {
            start: start.to_vec(),
            end: end.to_vec(),
            position: (0..start.len() as u32).collect(),
        };
        TreeMask::with_past_keys(&layouts, 6, &[past], &device)
    };
    let ancestors = |row, depth, found| TreeMaskError::Ancestors {
        batch: 0,
        row,
        depth,
        found,
    };
    let fits = mask(&[0, 0, 2], &[5, 5, 5]).unwrap();
    assert_eq!(fits.visible_pairs(), 2 * 5 + 3 + (1 + 2) + (1 + 2 + 3));
    // A key that nobody sees counts for nobody.
    assert!(mask(&[0, 0, 3, 2], &[5, 5, 3, 5]).is_ok());

    assert_eq!(mask(&[0, 0], &[5, 5]).unwrap_err(), ancestors(2, 3, 2));
    assert_eq!(mask(&[0; 3], &[5; 3]).unwrap_err(), ancestors(0, 2, 3));
    assert_eq!(
        mask(&[0; 3], &[2; 3]).unwrap_err().to_string(),
        "batch row 0: the tree of row 0 begins at depth 2, but 3 past keys are visible to that \
         row, expected 2 (one for each ancestor)"
    );
    // Only the first tree has a past.
    let error = mask(&[0; 2], &[2; 2]).unwrap_err();
    let (row, depth) = (2, 3);
    assert_eq!(
        error,
        TreeMaskError::Continues {
            batch: 0,
            row,
            depth
        }
    );
    // Intervals are looked at first.
    let error = mask(&[0; 2], &[7; 2]).unwrap_err();
    assert!(matches!(error, TreeMaskError::Interval { .. }), "{error}");
}

/// The parts of a tree: their gateways say what their masks ask for.
#[test]
fn gateways_hold_every_ancestor() {
    let trajectories: Vec<Trajectory> = (0..12u32)
        .map(|run| {
            let tokens = (0..40u32).map(|i| if i < run * 3 { i } else { 100 * run + i });
            let tokens: Vec<u32> = tokens.collect();
            let mask = vec![true; tokens.len()];
            Trajectory::new("task", run.to_string(), tokens, mask)
        })
        .collect();
    let forests = build_forests(&trajectories).unwrap();
    for partitioning in [
        Partitioning::Connected,
        Partitioning::Shared,
        Partitioning::PerNode,
    ] {
        let options = PackOptions {
            partitioning,
            ..PackOptions::new(48)
        };
        let step = pack_step(&trajectories, &forests, &options).unwrap();
        let mut continuing = 0;
        for pack in &step.packs {
            let Some(gateway) = &pack.gateway else {
                continue;
            };
            let (layouts, rows) = (std::slice::from_ref(&pack.layout), pack.layout.len());
            let past = PastKeys::from(gateway);
            TreeMask::with_past_keys(layouts, rows, &[past], &device()).unwrap();
            let error = TreeMask::try_from_layouts(layouts, rows, &device()).unwrap_err();
            assert!(matches!(error, TreeMaskError::Continues { .. }), "{error}");
            continuing += 1;
        }
        assert!(continuing > 2, "{partitioning:?}: {continuing}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let device = device();
    let layout = Forest(vec![(None, 2), (Some(0), 1), (Some(0), 1)]).layout();
    let layouts = std::slice::from_ref(&layout);
    let error = TreeMask::from_intervals(&[], &device).unwrap_err();
    assert_eq!(error, TreeMaskError::EmptyBatch);

    let error = TreeMask::try_from_layouts(layouts, 3, &device).unwrap_err();
    assert_eq!(
        error,
        TreeMaskError::PaddedLength {
            batch: 0,
            len: 4,
            padded_len: 3
        }
    );
    assert_eq!(
        error.to_string(),
        "batch row 0: the layout has 4 tokens, more than the padded length 3"
    );

    let mut broken = layout.clone();
    broken.subtree_ends.pop();
    let error = TreeMask::try_from_layouts(&[layout.clone(), broken], 4, &device).unwrap_err();
    let field = "subtree_ends";
    assert_eq!(
        error,
        TreeMaskError::Length {
            batch: 1,
            field,
            found: 3,
            expected: 4
        }
    );

    let error = TreeMask::with_past_keys(layouts, 4, &[], &device).unwrap_err();
    assert_eq!(
        error,
        TreeMaskError::PastBatch {
            found: 0,
            expected: 1
        }
    );

    let past = PastKeys {
        start: vec![0, 1],
        end: vec![4],
        position: vec![0, 1],
    };
    let error = TreeMask::with_past_keys(layouts, 4, &[past], &device).unwrap_err();
    assert_eq!(
        error,
        TreeMaskError::Length {
            batch: 0,
            field: "past end",
            found: 1,
            expected: 2
        }
    );

    let past = PastKeys {
        start: vec![0],
        end: vec![5],
        position: vec![0],
    };
    let error = TreeMask::with_past_keys(layouts, 4, &[past], &device).unwrap_err();
    assert_eq!(
        error,
        TreeMaskError::Interval {
            batch: 0,
            key: 0,
            start: 0,
            end: 5,
            queries: 4
        }
    );

    let reversed = KeyIntervals {
        key_start: vec![0, 3, 2, 3],
        ..intervals(&layout)
    };
    let mut reversed = reversed;
    reversed.key_end[1] = 2;
    let error = TreeMask::from_intervals(&[reversed], &device).unwrap_err();
    assert_eq!(
        error,
        TreeMaskError::Interval {
            batch: 0,
            key: 1,
            start: 3,
            end: 2,
            queries: 4
        }
    );

    let mut far = intervals(&layout);
    far.query_position[2] = u32::MAX;
    let error = TreeMask::from_intervals(&[far], &device).unwrap_err();
    let max = i32::MAX as u64;
    let value = u64::from(u32::MAX);
    assert_eq!(
        error,
        TreeMaskError::TooLarge {
            batch: 0,
            field: "position",
            value,
            max
        }
    );

    let error = TreeMask::try_from_layouts(&[], 0, &device).unwrap_err();
    assert_eq!(error, TreeMaskError::EmptyBatch);
    let few = KeyIntervals {
        query_position: vec![0; 5],
        ..intervals(&layout)
    };
    let error = TreeMask::from_intervals(&[few], &device).unwrap_err();
    assert_eq!(
        error,
        TreeMaskError::FewKeys {
            keys: 4,
            queries: 5
        }
    );

    let mut short = intervals(&layout);
    short.key_start.pop();
    let error = TreeMask::from_intervals(&[intervals(&layout), short], &device).unwrap_err();
    let field = "key_start";
    assert_eq!(
        error,
        TreeMaskError::Length {
            batch: 1,
            field,
            found: 3,
            expected: 4
        }
    );
}
