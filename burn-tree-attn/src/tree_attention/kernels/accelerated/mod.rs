//! Kernels for tensor cores: `mma.sync` with `ldmatrix` and asynchronous copies, on NVIDIA
//! GPUs through CubeCL's C++ compiler; on compute capability 9.0, `wgmma` where it fits.

mod arguments;
mod backward;
mod barrier;
mod copies;
mod forward;
mod forward_warpgroup;
mod softmax;
mod stage;
#[cfg(all(test, feature = "cuda"))]
mod transpiled;
mod warpgroup;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::empty;
use burn_tree_kit::cube::matrix::{missing_instructions, operand};
use burn_tree_kit::implementation::Unavailable;
use cubecl::prelude::*;

use super::call::{Call, Inputs};
use super::device_plan::{DevicePlan, Section};
use super::plan::TileShape;
use crate::mask::Visibility;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;
use arguments::{ListsLaunch, MaskLaunch};
pub(super) use backward::backward;
use forward::{ForwardConfig, tree_attention_forward};
use forward_warpgroup::{WarpgroupForwardConfig, tree_attention_forward_warpgroup};
use softmax::ScoreMap;

/// Rows of a cube's tile of queries: rows of the sequence times heads.
const TILE_ROWS: usize = 128;

/// Whether these kernels run on a device.
pub(super) fn check_available(
    properties: &DeviceProperties,
    dtype: DType,
    head_dim: usize,
    value_dim: usize,
) -> Result<(), Unavailable> {
    let refuse = |text: String| Err(Unavailable(text));
    let element = match operand(dtype) {
        Some(element) => element,
        None => return refuse(format!("{dtype:?} tensors; f16 or bf16 are needed")),
    };
    if head_dim != value_dim {
        return refuse(format!("head dimensions {head_dim} and {value_dim} differ"));
    }
    if !(16..=256).contains(&head_dim) || !head_dim.is_multiple_of(16) {
        return refuse(format!(
            "head dimension {head_dim}; a multiple of 16 up to 256 is needed"
        ));
    }
    if let Some(missing) = missing_instructions(properties, element) {
        return refuse(missing);
    }
    let forward = forward_config(head_dim, 1, ScoreMap::Plain, true).shared_bytes();
    let shared = forward.max(backward::shared_bytes(head_dim));
    let hardware = &properties.hardware;
    if hardware.max_shared_memory_size < shared {
        return refuse(format!(
            "{} bytes of shared memory; {shared} are needed",
            hardware.max_shared_memory_size
        ));
    }
    Ok(())
}

/// Refuses tensors that 32 bits cannot count as the kernels do (rows of queries, padded to whole
/// tiles, in 16-byte chunks, and keys by fours), and launches of more cubes than there can be.
pub(super) fn check_sizes(properties: &DeviceProperties, dims: &Dims) -> Result<(), Unavailable> {
    let queries = dims.batch * dims.query_heads * dims.queries.next_multiple_of(TILE_ROWS);
    let keys = dims.batch * dims.kv_heads * dims.keys;
    let largest = (queries * (dims.head_dim / 8)).max(keys * (dims.head_dim / 4));
    if u32::try_from(largest).is_err() {
        return Err(Unavailable(format!(
            "{dims:?} exceed 2^32 chunks of 16 bytes"
        )));
    }
    // Along x for all key tiles and query heads, along y for the query heads; other launches have
    // fewer.
    let of_keys = dims.batch * dims.keys.div_ceil(backward::TILES.keys) * dims.query_heads;
    let of_heads = dims.query_heads / heads_of_cube(dims.group());
    let (most_x, most_y, _) = properties.hardware.max_cube_count;
    if of_keys > most_x as usize || of_heads > most_y as usize {
        return Err(Unavailable(format!(
            "{of_keys} and {of_heads} cubes in one launch, which has at most {most_x} and {most_y}"
        )));
    }
    Ok(())
}

/// Refuses a call whose plans cannot be made: that of the forward pass and, with `with_backward`,
/// that of the backward pass.
pub(super) fn check_plans(call: &Call<'_>, with_backward: bool) -> Result<(), Unavailable> {
    call.plan(forward_tiles(call.dims.group()))?;
    if with_backward {
        call.plan(backward::TILES)?;
    }
    Ok(())
}

/// Query heads that share a cube of the forward kernels, which loads their keys once: the powers
/// of two up to 8 keep whole 16-row blocks in one head.
fn heads_of_cube(group: usize) -> usize {
    1 << group.trailing_zeros().min(3)
}

/// Tiles of the forward kernels' plan, for a number of query heads per key head.
fn forward_tiles(group: usize) -> TileShape {
    TileShape {
        query_rows: TILE_ROWS / heads_of_cube(group),
        keys: stage::TILE_ROWS,
    }
}

/// The forward kernel for a head dimension and a number of query heads per key head.
fn forward_config(head_dim: usize, group: usize, scores: ScoreMap, window: bool) -> ForwardConfig {
    let tiles = forward_tiles(group);
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

/// Output and log-sum-exp.
pub(super) fn forward(
    inputs: Inputs,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor), Unavailable> {
    let call = inputs.call(visibility, settings);
    let dims = call.dims;
    let (scores, score_factor, scale) = match settings.softcap {
        Some(cap) => (ScoreMap::Capped, settings.scale / cap, cap),
        None if settings.scale > 0.0 => (ScoreMap::Plain, 1.0, settings.scale),
        None => (ScoreMap::Multiplied, settings.scale, 1.0),
    };
    let window = settings.sliding_window;
    let config = forward_config(dims.head_dim, dims.group(), scores, window.is_some());
    // Both kernels go by the same plan.
    let plan = call.plan(forward_tiles(dims.group()))?;

    let Inputs { query, key, value } = inputs;
    let client = query.client.clone();
    let log_sum_exp = empty(&query, dims.rows_shape(), DType::F32);
    let output = empty(&query, dims.output_shape(), query.dtype);
    let dtype = operand(query.dtype).expect("check_available allows f16 and bf16 only");
    let cubes = CubeCount::Static(
        plan.n_query_tiles as u32,
        (dims.query_heads / config.heads) as u32,
        1,
    );
    let scale_log2 = (scale * core::f64::consts::LOG2_E) as f32;
    let window = window_length(settings);
    macro_rules! launch {
        ($kernel:ident, $config:expr) => {
            // SAFETY: the kernel reads and writes rows below N and keys below M only, which are the
            // sizes of the tensors and of the plan's mask.
            unsafe {
                $kernel::launch_unchecked(
                    &client,
                    cubes,
                    CubeDim::new_1d($config.units() as u32),
                    query.into_buffer_arg(),
                    key.into_buffer_arg(),
                    value.into_buffer_arg(),
                    mask(&plan),
                    lists_of_queries(&plan),
                    output.clone().into_buffer_arg(),
                    log_sum_exp.clone().into_buffer_arg(),
                    dims.queries as u32,
                    dims.keys as u32,
                    dims.query_heads as u32,
                    dims.group() as u32,
                    scale_log2,
                    score_factor as f32,
                    window,
                    $config,
                    dtype,
                )
            }
        };
    }
    if has_warpgroup_products(client.properties(), dims.head_dim) {
        let config = WarpgroupForwardConfig {
            head_dim: config.head_dim,
            query_rows: config.query_rows,
            heads: config.heads,
            scores: config.scores,
            window: config.window,
        };
        launch!(tree_attention_forward_warpgroup, config);
    } else {
        launch!(tree_attention_forward, config);
    }
    Ok((output, log_sum_exp))
}

/// Length of the sliding window as kernels are given it; 0 if there is none.
fn window_length(settings: AttentionSettings) -> u32 {
    // Positions are below 2^31.
    let length = |window: usize| window.min(i32::MAX as usize) as u32;
    settings.sliding_window.map_or(0, length)
}

/// The mask as kernels are given it.
fn mask(plan: &DevicePlan) -> MaskLaunch {
    MaskLaunch::new(
        plan.section(Section::KeyStart),
        plan.section(Section::KeyEnd),
        plan.section(Section::KeyPosition),
        plan.section(Section::QueryPosition),
    )
}

/// The plan by query tiles.
fn lists_of_queries(plan: &DevicePlan) -> ListsLaunch {
    ListsLaunch::new(
        plan.section(Section::QueryOffsets),
        plan.section(Section::QueryEntries),
        plan.section(Section::QueryOrder),
    )
}

/// The plan by key tiles.
fn lists_of_keys(plan: &DevicePlan) -> ListsLaunch {
    ListsLaunch::new(
        plan.section(Section::KeyOffsets),
        plan.section(Section::KeyEntries),
        plan.section(Section::KeyOrder),
    )
}

/// Whether the warpgroup kernels run: only compute capability 9.0 has these instructions, and they
/// take head dimensions of whole panels whose sums fit the registers.
fn has_warpgroup_products(properties: &DeviceProperties, head_dim: usize) -> bool {
    properties.identity.fingerprint == "ptx_sm90" && matches!(head_dim, 64 | 128)
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use burn_tree_kit::cube::translation::Target;

    use super::*;

    #[test]
    fn sizes_that_the_kernels_cannot_count_are_refused() {
        let device = Target::hopper().device;
        let check = |batch, heads: [usize; 2], rows| {
            let [query, key] = heads.map(|heads| [batch, heads, rows, 128]);
            check_sizes(&device, &Dims::of_shapes([query, key, key]))
        };
        // 2^28 rows of queries have 2^32 chunks.
        assert_eq!(check(1, [16, 8], (1 << 24) - 128), Ok(()));
        assert!(check(1, [16, 8], 1 << 24).is_err());
        assert!(check(1 << 10, [16, 8], 1 << 14).is_err());
        // A cube for each of these heads, or for two of them that share keys.
        assert_eq!(check(1, [65535, 65535], 1), Ok(()));
        assert!(check(1, [65536, 65536], 1).is_err());
        assert_eq!(check(1, [131_070, 65535], 1), Ok(()));
    }
}
