//! Kernels for tensor cores: `mma.sync` with `ldmatrix` and asynchronous copies, on NVIDIA
//! GPUs through CubeCL's C++ compiler; on compute capability 9.0, `wgmma` where it fits.

mod arguments;
mod backward;
mod barrier;
mod copies;
mod forward;
mod products;
mod stage;
#[cfg(all(test, feature = "cuda"))]
mod transpiled;
mod warpgroup;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::matrix::{missing_instructions, operand};
use burn_tree_kit::implementation::Unavailable;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::call::Call;
use super::device_plan::{DevicePlan, Section};
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;
use arguments::{ListsLaunch, MaskLaunch, PlanLaunch, SizesLaunch};
pub(super) use backward::backward;
pub(super) use forward::forward;

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
    let shared = forward::shared_bytes(head_dim).max(backward::shared_bytes(head_dim));
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
    let queries = dims.batch * dims.query_heads * dims.queries.next_multiple_of(forward::TILE_ROWS);
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
    let of_heads = dims.query_heads / forward::heads_of_cube(dims.group());
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
    call.plan(forward::tiles(call.dims.group()))?;
    if with_backward {
        call.plan(backward::TILES)?;
    }
    Ok(())
}

/// Length of the sliding window as kernels are given it; 0 if there is none.
fn window_length(settings: AttentionSettings) -> u32 {
    // Positions are below 2^31.
    let length = |window: usize| window.min(i32::MAX as usize) as u32;
    settings.sliding_window.map_or(0, length)
}

/// Sizes of a call as kernels are given them.
fn sizes(dims: &Dims) -> SizesLaunch {
    SizesLaunch::new(
        dims.queries as u32,
        dims.keys as u32,
        dims.kv_heads as u32,
        dims.group() as u32,
        dims.batch as u32,
    )
}

/// The plan by query tiles.
fn plan_by_query(plan: &DevicePlan) -> PlanLaunch {
    use Section::{QueryEntries, QueryOffsets, QueryOrder};
    plan_by(plan, [QueryOffsets, QueryEntries, QueryOrder])
}

/// The plan by key tiles.
fn plan_by_key(plan: &DevicePlan) -> PlanLaunch {
    use Section::{KeyEntries, KeyOffsets, KeyOrder};
    plan_by(plan, [KeyOffsets, KeyEntries, KeyOrder])
}

/// The mask, and the lists in the sections of offsets, entries and order.
fn plan_by(plan: &DevicePlan, lists: [Section; 3]) -> PlanLaunch {
    let mask = MaskLaunch::new(
        plan.section(Section::KeyStart),
        plan.section(Section::KeyEnd),
        plan.section(Section::KeyPosition),
        plan.section(Section::QueryPosition),
    );
    let [offsets, entries, order] = lists.map(|section| plan.section(section));
    PlanLaunch::new(mask, ListsLaunch::new(offsets, entries, order))
}

/// The element type as kernels name it.
fn element(tensor: &CubeTensor) -> ElemType {
    operand(tensor.dtype).expect("check_available allows f16 and bf16 only")
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
