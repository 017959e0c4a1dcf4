//! Backward pass with matrix instructions: statistics of the query rows, then one kernel for the
//! gradients of keys and values and one for that of queries.
//!
//! Every gradient is summed in registers by one plane, in the order of the plan: two runs give the
//! same bits.

mod blocks;
mod key_value;
mod query;
mod statistics;

use burn::tensor::DType;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use super::super::Dims;
use super::super::plan::{PlanTooLarge, Section, TileShape};
use super::element;
use crate::ops::AttentionSettings;
use crate::visibility::Visibility;
use blocks::{BackwardConfig, KEY_ROWS, QUERY_ROWS};
use key_value::tree_attention_backward_key_value;
use query::tree_attention_backward_query;
use statistics::row_statistics;

/// Bytes of shared memory that a cube of the backward pass needs at most.
pub(super) fn shared_bytes(head_dim: usize) -> usize {
    let config = BackwardConfig::new(head_dim, 2, true, true);
    config.key_shared_bytes().max(config.query_shared_bytes())
}

/// Gradients of query, key and value, from contiguous tensors.
#[allow(clippy::too_many_arguments)]
pub(crate) fn backward(
    grad_output: CubeTensor,
    query: CubeTensor,
    key: CubeTensor,
    value: CubeTensor,
    output: CubeTensor,
    log_sum_exp: CubeTensor,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<(CubeTensor, CubeTensor, CubeTensor), PlanTooLarge> {
    let dims = Dims::new(&query, &key, &value);
    let window = settings.sliding_window;
    let capped = settings.softcap.is_some();
    let config = BackwardConfig::new(dims.head_dim, dims.group(), capped, window.is_some());
    let tiles = TileShape {
        query_rows: QUERY_ROWS,
        keys: KEY_ROWS,
    };
    let plan = visibility.device_plan(&query.device, tiles, window)?;
    let dtype = element(query.dtype).expect("check_available allows f16 and bf16 only");

    let (client, device) = (query.client.clone(), query.device.clone());
    let empty = |shape: Vec<usize>, dtype| {
        empty_device_contiguous_dtype(client.clone(), device.clone(), shape.into(), dtype)
    };
    let of_queries = vec![dims.batch, dims.query_heads, dims.queries, dims.head_dim];
    let of_keys = vec![dims.batch, dims.kv_heads, dims.keys, dims.head_dim];
    let grad_query = empty(of_queries, query.dtype);
    let grad_key = empty(of_keys.clone(), query.dtype);
    let grad_value = empty(of_keys, query.dtype);
    let padded_queries = dims.queries.next_multiple_of(QUERY_ROWS);
    let n_rows = dims.batch * dims.query_heads * padded_queries;
    // An empty tensor cannot be bound.
    let statistics = empty(vec![2, n_rows.max(1)], DType::F32);

    let scale = settings.scale as f32;
    let outer = settings.softcap.unwrap_or(settings.scale);
    let scale_log2 = (outer * core::f64::consts::LOG2_E) as f32;
    let cap_scale = settings.softcap.map_or(1.0, |cap| settings.scale / cap) as f32;
    // Positions are below 2^31.
    let window = window.map_or(0, |window| window.min(i32::MAX as usize)) as u32;
    let cubes = |count: usize| CubeCount::Static(count as u32, 1, 1);
    let query_cubes = plan.n_query_tiles * dims.query_heads / config.heads;
    let key_cubes = plan.n_key_tiles * dims.kv_heads;

    // SAFETY of all launches: kernels read and write rows below N and keys below M only, which are
    // the sizes of the tensors and of the plan's mask, and rows below their padded number of the
    // statistics.
    if n_rows > 0 {
        unsafe {
            row_statistics::launch_unchecked(
                &client,
                cubes((2 * n_rows).div_ceil(statistics::UNITS)),
                CubeDim::new_1d(statistics::UNITS as u32),
                output.into_buffer_arg(),
                grad_output.clone().into_buffer_arg(),
                log_sum_exp.into_buffer_arg(),
                statistics.clone().into_buffer_arg(),
                n_rows as u32,
                dims.queries as u32,
                padded_queries as u32,
                config.head_dim,
                dtype,
            );
        }
    }
    if key_cubes > 0 {
        unsafe {
            tree_attention_backward_key_value::launch_unchecked(
                &client,
                cubes(key_cubes),
                CubeDim::new_1d(config.key_units() as u32),
                query.clone().into_buffer_arg(),
                key.clone().into_buffer_arg(),
                value.clone().into_buffer_arg(),
                grad_output.clone().into_buffer_arg(),
                statistics.clone().into_buffer_arg(),
                plan.section(Section::KeyStart),
                plan.section(Section::KeyEnd),
                plan.section(Section::KeyPosition),
                plan.section(Section::QueryPosition),
                plan.section(Section::KeyOffsets),
                plan.section(Section::KeyEntries),
                plan.section(Section::KeyOrder),
                grad_key.clone().into_buffer_arg(),
                grad_value.clone().into_buffer_arg(),
                dims.queries as u32,
                dims.keys as u32,
                dims.kv_heads as u32,
                dims.group() as u32,
                dims.batch as u32,
                scale,
                scale_log2,
                cap_scale,
                window,
                config,
                dtype,
            );
        }
    }
    if query_cubes > 0 {
        unsafe {
            tree_attention_backward_query::launch_unchecked(
                &client,
                cubes(query_cubes),
                CubeDim::new_1d(config.query_units() as u32),
                query.into_buffer_arg(),
                key.into_buffer_arg(),
                value.into_buffer_arg(),
                grad_output.into_buffer_arg(),
                statistics.into_buffer_arg(),
                plan.section(Section::KeyStart),
                plan.section(Section::KeyEnd),
                plan.section(Section::KeyPosition),
                plan.section(Section::QueryPosition),
                plan.section(Section::QueryOffsets),
                plan.section(Section::QueryEntries),
                plan.section(Section::QueryOrder),
                grad_query.clone().into_buffer_arg(),
                dims.queries as u32,
                dims.keys as u32,
                dims.kv_heads as u32,
                dims.group() as u32,
                dims.batch as u32,
                scale,
                scale_log2,
                cap_scale,
                window,
                config,
                dtype,
            );
        }
    }
    Ok((grad_query, grad_key, grad_value))
}
