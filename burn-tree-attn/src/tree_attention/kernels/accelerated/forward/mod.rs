//! Forward pass on tensor cores.

pub(super) mod config;
pub(super) mod planes;
mod planes_softmax;
pub(super) mod softmax;
pub(super) mod warpgroups;
mod warpgroups_copies;
mod warpgroups_softmax;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::empty;
use burn_tree_kit::implementation::Unavailable;
use cubecl::prelude::*;

use super::super::call::Inputs;
use super::super::plan::TileShape;
use super::arguments::TensorsLaunch;
use super::{element, has_warpgroup_products, plan_by_query, sizes, stage, window_length};
use crate::mask::Visibility;
use crate::tree_attention::options::AttentionSettings;
use config::ForwardConfig;
use planes::tree_attention_forward;
use softmax::{ResultsLaunch, ScoreMap, ScoreOptionsLaunch};
use warpgroups::tree_attention_forward_warpgroup;

/// Rows of a cube's tile of queries: rows of the sequence times heads.
pub(super) const TILE_ROWS: usize = 128;

/// Bytes of shared memory that a cube of the forward pass needs at most.
pub(super) fn shared_bytes(head_dim: usize) -> usize {
    config(head_dim, 1, ScoreMap::Plain, true).shared_bytes()
}

/// Query heads that share a cube of the forward kernels, which loads their keys once: the powers
/// of two up to 8 keep whole 16-row blocks in one head.
pub(super) fn heads_of_cube(group: usize) -> usize {
    1 << group.trailing_zeros().min(3)
}

/// Tiles of the forward kernels' plan, for a number of query heads per key head.
pub(super) fn tiles(group: usize) -> TileShape {
    TileShape {
        query_rows: TILE_ROWS / heads_of_cube(group),
        keys: stage::TILE_ROWS,
    }
}

/// The kernel of single planes for a head dimension and a number of query heads per key head.
pub(super) fn config(
    head_dim: usize,
    group: usize,
    scores: ScoreMap,
    window: bool,
) -> ForwardConfig {
    let tiles = tiles(group);
    ForwardConfig {
        head_dim,
        query_rows: tiles.query_rows,
        heads: heads_of_cube(group),
        key_rows: tiles.keys,
        // Rows of output sums are what fills the registers: 32 x 128 numbers per plane.
        planes: if head_dim <= 128 { 4 } else { 8 },
        stages: 2,
        scores,
        window,
    }
}

/// How scores are computed, and the numbers for it.
fn scores(settings: AttentionSettings) -> (ScoreMap, ScoreOptionsLaunch) {
    let (scores, factor, scale) = match settings.softcap {
        Some(cap) => (ScoreMap::Capped, settings.scale / cap, cap),
        None if settings.scale > 0.0 => (ScoreMap::Plain, 1.0, settings.scale),
        None => (ScoreMap::Multiplied, settings.scale, 1.0),
    };
    let scale_log2 = (scale * core::f64::consts::LOG2_E) as f32;
    let numbers = ScoreOptionsLaunch::new(scale_log2, factor as f32, window_length(settings));
    (scores, numbers)
}

/// Output and log-sum-exp.
pub(crate) fn forward(
    inputs: Inputs,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor), Unavailable> {
    let call = inputs.call(visibility, settings);
    let dims = call.dims;
    let (map, scores) = scores(settings);
    let window = settings.sliding_window.is_some();
    let config = config(dims.head_dim, dims.group(), map, window);
    // Both kernels go by the same plan.
    let plan = call.plan(tiles(dims.group()))?;

    let Inputs { query, key, value } = inputs;
    let client = query.client.clone();
    let dtype = element(&query);
    let log_sum_exp = empty(&query, dims.rows_shape(), DType::F32);
    let output = empty(&query, dims.output_shape(), query.dtype);
    let cubes = CubeCount::Static(
        plan.n_query_tiles as u32,
        (dims.query_heads / config.heads) as u32,
        1,
    );
    macro_rules! launch {
        ($kernel:ident, $config:expr) => {
            // SAFETY: the kernel reads and writes rows below N and keys below M only, which are the
            // sizes of the tensors and of the plan's mask.
            unsafe {
                $kernel::launch_unchecked(
                    &client,
                    cubes,
                    CubeDim::new_1d($config.units() as u32),
                    TensorsLaunch::new(
                        query.into_buffer_arg(),
                        key.into_buffer_arg(),
                        value.into_buffer_arg(),
                    ),
                    plan_by_query(&plan),
                    ResultsLaunch::new(
                        output.clone().into_buffer_arg(),
                        log_sum_exp.clone().into_buffer_arg(),
                    ),
                    sizes(&dims),
                    scores,
                    $config,
                    dtype,
                )
            }
        };
    }
    if has_warpgroup_products(client.properties(), dims.head_dim) {
        launch!(tree_attention_forward_warpgroup, config.of_warpgroups());
    } else {
        launch!(tree_attention_forward, config);
    }
    Ok((output, log_sum_exp))
}
