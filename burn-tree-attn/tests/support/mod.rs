//! Random trees, tensors and comparisons shared by the tests of this crate.

// Not every test and benchmark uses everything.
#![allow(dead_code, unused_imports)]

#[cfg(feature = "cubecl-backend")]
pub mod direct;

use std::fmt;

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_tree_attn::{KeyIntervals, PastKeys, TreeMask};
use proptest::prelude::*;
use tree_pack::{Segment, TreeLayout};

pub use tree_training_devices::{computes_in, device_from_environment as device, is_cubecl};

/// Where reference results are computed, in f64, which not every device has.
pub fn reference_device() -> Device {
    #[cfg(feature = "flex")]
    return Device::flex();
    #[cfg(not(feature = "flex"))]
    device()
}

/// `cases` on Flex; fewer on other devices, where most of them compile kernels first.
pub fn n_cases(cases: u32) -> u32 {
    match std::env::var("BURN_DEVICE") {
        Ok(name) if name != "flex" => cases.div_ceil(4),
        _ => cases,
    }
}

/// A forest by its nodes: parent node (an earlier one; `None` for a root) and number of tokens.
#[derive(Clone)]
pub struct Forest(pub Vec<(Option<usize>, usize)>);

impl Forest {
    fn children(&self) -> (Vec<usize>, Vec<Vec<usize>>) {
        let mut roots = Vec::new();
        let mut children = vec![Vec::new(); self.0.len()];
        for (node, &(parent, _)) in self.0.iter().enumerate() {
            match parent {
                Some(parent) => children[parent].push(node),
                None => roots.push(node),
            }
        }
        (roots, children)
    }

    /// Depth-first layout, built token by token from the definitions.
    pub fn layout(&self) -> TreeLayout {
        let (roots, children) = self.children();
        let mut layout = TreeLayout::default();
        // (node, row of the parent's last token, segment of the parent)
        let mut stack: Vec<(usize, i32, Option<u32>)> =
            roots.iter().rev().map(|&root| (root, -1, None)).collect();
        while let Some((node, mut parent, parent_segment)) = stack.pop() {
            let start = layout.tokens.len() as u32;
            for _ in 0..self.0[node].1 {
                let row = layout.tokens.len() as i32;
                let depth = if parent < 0 {
                    0
                } else {
                    layout.position_ids[parent as usize] + 1
                };
                layout.tokens.push(row as u32);
                layout.parents.push(parent);
                layout.position_ids.push(depth);
                parent = row;
            }
            let segment = layout.segments.len() as u32;
            let end = layout.tokens.len() as u32;
            layout.segments.push(Segment {
                start,
                end,
                parent: parent_segment,
            });
            stack.extend(
                children[node]
                    .iter()
                    .rev()
                    .map(|&child| (child, parent, Some(segment))),
            );
        }
        layout.subtree_ends = (1..=layout.tokens.len() as u32).collect();
        for row in (0..layout.tokens.len()).rev() {
            if let Ok(parent) = usize::try_from(layout.parents[row]) {
                let end = layout.subtree_ends[row].max(layout.subtree_ends[parent]);
                layout.subtree_ends[parent] = end;
            }
        }
        layout
    }
}

/// `5(1 3(2 2)) 4` for a root of 5 tokens with children of 1 and 3, and a second root of 4.
impl fmt::Debug for Forest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn node(forest: &Forest, children: &[Vec<usize>], index: usize, text: &mut String) {
            *text += &forest.0[index].1.to_string();
            if !children[index].is_empty() {
                *text += "(";
                for (i, &child) in children[index].iter().enumerate() {
                    *text += if i > 0 { " " } else { "" };
                    node(forest, children, child, text);
                }
                *text += ")";
            }
        }
        let (roots, children) = self.children();
        let mut text = String::new();
        for root in roots {
            text += if text.is_empty() { "" } else { " " };
            node(self, &children, root, &mut text);
        }
        write!(f, "Forest[{text}]")
    }
}

/// Forests of up to `max_nodes` nodes: forks, single-token nodes, nodes longer than a tile,
/// several roots.
pub fn forests(max_nodes: usize) -> impl Strategy<Value = Forest> {
    let len = prop_oneof![3 => Just(1usize), 5 => 2usize..20, 1 => 60usize..200];
    prop::collection::vec((any::<prop::sample::Index>(), 0..8u8, len), 1..=max_nodes).prop_map(
        |nodes| {
            let nodes = nodes.into_iter().enumerate().map(|(i, (pick, root, len))| {
                // One in eight nodes starts a new tree.
                let parent = (i > 0 && root > 0).then(|| pick.index(i));
                (parent, len)
            });
            Forest(nodes.collect())
        },
    )
}

/// One batch row: a forest, and past keys as (interval picks, position).
#[derive(Clone, Debug)]
pub struct Row {
    pub forest: Forest,
    pub past: Vec<(f64, f64, u32)>,
}

/// A batch with everything that a mask may hold.
#[derive(Clone, Debug)]
pub struct Case {
    pub rows: Vec<Row>,
    pub padding: usize,
    pub kv_heads: usize,
    pub group: usize,
    pub head_dim: usize,
    pub value_dim: usize,
    pub softcap: Option<f64>,
    pub sliding_window: Option<usize>,
    pub seed: u64,
}

impl Case {
    pub fn layouts(&self) -> Vec<TreeLayout> {
        self.rows.iter().map(|row| row.forest.layout()).collect()
    }

    pub fn mask(&self, device: &Device) -> TreeMask {
        let layouts = self.layouts();
        let padded = layouts.iter().map(TreeLayout::len).max().unwrap() + self.padding;
        let past: Vec<PastKeys> = self
            .rows
            .iter()
            .zip(&layouts)
            .map(|(row, layout)| {
                let mut past = PastKeys::default();
                for &(from, length, position) in &row.past {
                    let start = (from * layout.len() as f64) as u32;
                    let end =
                        start + (length * (layout.len() as f64 - f64::from(start))).ceil() as u32;
                    past.start.push(start);
                    past.end.push(end.min(layout.len() as u32));
                    past.position.push(position);
                }
                past
            })
            .collect();
        TreeMask::with_past_keys(&layouts, padded, &past, device).unwrap()
    }
}

pub fn cases(max_nodes: usize) -> impl Strategy<Value = Case> {
    let past = prop::collection::vec((0.0..1.0f64, 0.0..=1.0f64, 0..40u32), 0..30);
    // Runs of past keys with one interval, as an ancestor node leaves them.
    let past = (past, 1..6usize).prop_map(|(keys, times)| {
        keys.into_iter()
            .flat_map(|(from, len, p)| (0..times as u32).map(move |i| (from, len, p + i)))
            .collect::<Vec<_>>()
    });
    let past = prop_oneof![1 => Just(Vec::new()), 1 => past];
    let row = (forests(max_nodes), past).prop_map(|(forest, past)| Row { forest, past });
    let heads = (1..=2usize, 1..=3usize, 1..=9usize, 1..=9usize);
    let options = (
        prop::option::weighted(0.3, 0.5..5.0f64),
        prop::option::weighted(0.3, 1..60usize),
        any::<u64>(),
    );
    (prop::collection::vec(row, 1..=2), 0..4usize, heads, options).prop_map(
        |(
            rows,
            padding,
            (kv_heads, group, head_dim, value_dim),
            (softcap, sliding_window, seed),
        )| {
            Case {
                rows,
                padding,
                kv_heads,
                group,
                head_dim,
                value_dim,
                softcap,
                sliding_window,
                seed,
            }
        },
    )
}

/// Numbers in -1..1 from a small generator, the same on every backend and in every dtype.
pub fn random(shape: [usize; 4], seed: u64, dtype: DType, device: &Device) -> Tensor<4> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let values: Vec<f64> = (0..shape.iter().product::<usize>())
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect();
    Tensor::from_data(TensorData::new(values, shape), (device, dtype))
}

/// `||a - b|| / max(||b||, 1)`: absolute where the exact value is about zero, as the gradient of
/// the query is for rows that see one key.
pub fn relative_error(a: &Tensor<4>, b: &Tensor<4>) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let values = |t: &Tensor<4>| t.to_data().iter::<f64>().collect::<Vec<_>>();
    let (a, b) = (values(a), values(b));
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(&b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(1.0)
}

/// Intervals of one layout without padding.
pub fn intervals(layout: &TreeLayout) -> KeyIntervals {
    KeyIntervals {
        key_start: (0..layout.len() as u32).collect(),
        key_end: layout.subtree_ends.clone(),
        key_position: layout.position_ids.clone(),
        query_position: layout.position_ids.clone(),
    }
}
