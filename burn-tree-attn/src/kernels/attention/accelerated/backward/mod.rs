//! Backward pass with matrix instructions: statistics of the query rows, then one kernel for the
//! gradients of keys and values and one for that of queries.
//!
//! Every gradient is summed in registers by one plane, in the order of the plan: two runs give the
//! same bits.

mod blocks;
mod by_key;
mod by_query;
mod key_value;
mod key_value_warpgroup;
mod query;
mod query_warpgroup;
mod splits;
mod statistics;
#[cfg(all(test, feature = "cuda"))]
pub(super) mod transpiled;

use burn::tensor::DType;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::matrix::operand;
use cubecl::prelude::*;

use super::super::plan::TileShape;
use super::super::{Dims, Unavailable};
use super::{has_warpgroup_products, lists_of_keys, lists_of_queries, mask};
use crate::ops::AttentionSettings;
use crate::visibility::Visibility;
use blocks::{BackwardConfig, KEY_ROWS, QUERY_ROWS, ScoresLaunch, SizesLaunch};
use key_value::tree_attention_backward_key_value;
use key_value_warpgroup::tree_attention_backward_key_value_warpgroup;
use query::tree_attention_backward_query;
use query_warpgroup::tree_attention_backward_query_warpgroup;
use splits::{KeyWork, SUM_UNITS, sum_partial_gradients};
use statistics::row_statistics;

/// Tiles of the backward kernels' plan.
pub(super) const TILES: TileShape = TileShape {
    query_rows: QUERY_ROWS,
    keys: KEY_ROWS,
};

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
) -> Result<(CubeTensor, CubeTensor, CubeTensor), Unavailable> {
    let dims = Dims::new(&query, &key, &value);
    let window = settings.sliding_window;
    let capped = settings.softcap.is_some();
    let config = BackwardConfig::new(dims.head_dim, dims.group(), capped, window.is_some());
    let plan = visibility.device_plan(&query.device, TILES, window)?;
    let dtype = operand(query.dtype).expect("check_available allows f16 and bf16 only");

    let (client, device) = (query.client.clone(), query.device.clone());
    let empty = |shape: Vec<usize>, dtype| {
        empty_device_contiguous_dtype(client.clone(), device.clone(), shape.into(), dtype)
    };
    let of_queries = vec![dims.batch, dims.query_heads, dims.queries, dims.head_dim];
    let of_keys = vec![dims.batch, dims.kv_heads, dims.keys, dims.head_dim];
    let grad_query = empty(of_queries, query.dtype);
    let grad_key = empty(of_keys.clone(), query.dtype);
    let grad_value = empty(of_keys.clone(), query.dtype);
    let work = KeyWork {
        entries: plan.n_pairs,
        longest: plan.most_seen,
        key_bytes: 2 * of_keys.iter().product::<usize>(),
    };
    // A processor count is known for all CUDA devices. Cubes fill the registers: two to a
    // processor, one if they have eight planes.
    let processors = client.properties().hardware.num_streaming_multiprocessors;
    let splits = processors.map_or(1, |processors| {
        let slots = processors as usize * if dims.head_dim <= 128 { 2 } else { 1 };
        config.splits(work, dims.kv_heads, dims.group(), slots)
    });
    let partial = splits > 1;
    // Where the key and value kernel writes to.
    let [key_sums, value_sums] = [&grad_key, &grad_value].map(|gradient| {
        if partial {
            empty([vec![splits], of_keys.clone()].concat(), DType::F32)
        } else {
            gradient.clone()
        }
    });
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
    let sizes = || {
        SizesLaunch::new(
            dims.queries as u32,
            dims.keys as u32,
            dims.kv_heads as u32,
            dims.group() as u32,
            dims.batch as u32,
        )
    };
    let scores = || ScoresLaunch::new(scale, scale_log2, cap_scale, window);
    let cubes = |count: usize| CubeCount::Static(count as u32, 1, 1);
    let key_cubes = plan.n_key_tiles * dims.kv_heads * splits;

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
    macro_rules! launch_key_value {
        ($kernel:ident, $config:expr, $units:expr) => {
            unsafe {
                $kernel::launch_unchecked(
                    &client,
                    cubes(key_cubes),
                    CubeDim::new_1d($units as u32),
                    query.clone().into_buffer_arg(),
                    key.clone().into_buffer_arg(),
                    value.clone().into_buffer_arg(),
                    grad_output.clone().into_buffer_arg(),
                    statistics.clone().into_buffer_arg(),
                    mask(&plan),
                    lists_of_keys(&plan),
                    key_sums.clone().into_buffer_arg(),
                    value_sums.clone().into_buffer_arg(),
                    sizes(),
                    splits as u32,
                    scores(),
                    $config,
                    dtype,
                )
            }
        };
    }
    let warpgroups = has_warpgroup_products(client.properties(), dims.head_dim);
    if key_cubes > 0 {
        if warpgroups {
            launch_key_value!(
                tree_attention_backward_key_value_warpgroup,
                config.of_warpgroups(),
                key_value_warpgroup::UNITS
            );
        } else {
            launch_key_value!(
                tree_attention_backward_key_value,
                config,
                config.key_units()
            );
        }
    }
    if partial && key_cubes > 0 {
        let fours = of_keys.iter().product::<usize>() / 4;
        for (sums, gradient) in [(key_sums, &grad_key), (value_sums, &grad_value)] {
            unsafe {
                sum_partial_gradients::launch_unchecked(
                    &client,
                    cubes(fours.div_ceil(SUM_UNITS)),
                    CubeDim::new_1d(SUM_UNITS as u32),
                    sums.into_buffer_arg(),
                    gradient.clone().into_buffer_arg(),
                    fours as u32,
                    splits as u32,
                    dtype,
                );
            }
        }
    }
    macro_rules! launch_query {
        ($kernel:ident, $config:expr, $units:expr) => {
            unsafe {
                $kernel::launch_unchecked(
                    &client,
                    cubes(plan.n_query_tiles * dims.query_heads / $config.heads),
                    CubeDim::new_1d($units as u32),
                    query.into_buffer_arg(),
                    key.into_buffer_arg(),
                    value.into_buffer_arg(),
                    grad_output.into_buffer_arg(),
                    statistics.into_buffer_arg(),
                    mask(&plan),
                    lists_of_queries(&plan),
                    grad_query.clone().into_buffer_arg(),
                    sizes(),
                    scores(),
                    $config,
                    dtype,
                )
            }
        };
    }
    if n_rows > 0 {
        if warpgroups {
            launch_query!(
                tree_attention_backward_query_warpgroup,
                config.of_warpgroups(),
                query_warpgroup::UNITS
            );
        } else {
            launch_query!(tree_attention_backward_query, config, config.query_units());
        }
    }
    Ok((grad_query, grad_key, grad_value))
}
