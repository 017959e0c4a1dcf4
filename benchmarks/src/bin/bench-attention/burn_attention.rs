//! Burn's attention under autodiff, which keeps `[N, N]` scores, compared with tree attention on
//! one path: time and memory of forward and backward pass.

use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_tree_attn::{TreeAttentionOptions, TreeMask, tree_attention};
use burn_tree_trainer::report::timing::{Repetitions, seconds, wait};
use serde::Serialize;
use tree_training_benchmarks::attention::Heads;

/// Forward and backward pass on one path.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cost {
    /// Median seconds.
    pub seconds: f64,
    /// Memory reserved besides the inputs, if the device reports it.
    pub bytes: Option<u64>,
}

/// Both at one length.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Comparison {
    /// Tokens of the path.
    pub rows: usize,
    /// Tree attention.
    pub tree: Cost,
    /// Burn's attention.
    pub burn: Cost,
}

/// Compares both with `heads.query` query, key and value heads, since Burn's attention has no
/// groups.
pub fn compare(
    rows: usize,
    heads: Heads,
    dtype: DType,
    device: &Device,
    repetitions: Repetitions,
) -> Comparison {
    let leaf = || {
        let shape = [1, heads.query, rows, heads.dim];
        let values = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), device);
        values.cast(dtype).autodiff().require_grad()
    };
    let (query, key, value) = (leaf(), leaf(), leaf());
    let mask = TreeMask::from_layouts(&[path(rows)], rows, device);
    let tree = cost(device, repetitions, || {
        let options = TreeAttentionOptions::default();
        tree_attention(query.clone(), key.clone(), value.clone(), &mask, options)
    });
    let burn = cost(device, repetitions, || {
        let options = AttentionModuleOptions {
            is_causal: true,
            ..Default::default()
        };
        attention(
            query.clone(),
            key.clone(),
            value.clone(),
            None,
            None,
            options,
        )
    });
    Comparison { rows, tree, burn }
}

/// The backward pass starts from a gradient of ones in both.
fn cost(device: &Device, repetitions: Repetitions, forward: impl Fn() -> Tensor<4>) -> Cost {
    device.memory_cleanup();
    wait(device);
    let reserved = || device.memory_pool_usage().map(|usage| usage.bytes_reserved);
    let before = reserved();
    let seconds = seconds(device, repetitions, || forward().backward());
    let bytes = reserved()
        .zip(before)
        .map(|(after, before)| after.saturating_sub(before));
    Cost { seconds, bytes }
}

fn path(rows: usize) -> tree_pack::TreeLayout {
    let rows = rows as u32;
    tree_pack::TreeLayout {
        tokens: vec![0; rows as usize],
        position_ids: (0..rows).collect(),
        parents: (-1..rows as i32 - 1).collect(),
        subtree_ends: vec![rows; rows as usize],
        segments: vec![tree_pack::Segment {
            start: 0,
            end: rows,
            parent: None,
        }],
    }
}
