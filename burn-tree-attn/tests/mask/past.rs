//! Keys of an earlier pack.

use burn_tree_attn::{PastKeys, TreeMask, TreeMaskError};
use tree_pack::{PackOptions, Partitioning, Trajectory, TreeLayout, build_forests, pack_step};

use crate::support::{Forest, device};

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
