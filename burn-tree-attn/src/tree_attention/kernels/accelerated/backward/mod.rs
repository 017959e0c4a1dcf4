//! Backward pass on tensor cores: statistics of the query rows, then one kernel for the gradients
//! of keys and values and one for the gradient of queries.
//!
//! Every gradient is summed in registers by one plane, in the order of the plan: two runs give the
//! same bits.

mod arguments;
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

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::empty;
use burn_tree_kit::implementation::Unavailable;
use cubecl::client::Client;
use cubecl::prelude::*;

use super::super::call::{Gradients, Inputs, Results};
use super::super::device_plan::DevicePlan;
use super::super::plan::TileShape;
use super::{element, has_warpgroup_products, plan_by_key, plan_by_query, sizes, window_length};
use crate::mask::Visibility;
use crate::tree_attention::dims::Dims;
use crate::tree_attention::options::AttentionSettings;
use arguments::{BackwardTensorsLaunch, KeyGradientsLaunch, ScoresLaunch};
use blocks::{BackwardConfig, KEY_ROWS, QUERY_ROWS};
use key_value::tree_attention_backward_key_value;
use key_value_warpgroup::tree_attention_backward_key_value_warpgroup;
use query::tree_attention_backward_query;
use query_warpgroup::tree_attention_backward_query_warpgroup;
use splits::{KeyWork, SUM_UNITS, sum_partial_gradients};
use statistics::{RowSizesLaunch, row_statistics};

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

/// Gradients of query, key and value.
pub(crate) fn backward(
    inputs: Inputs,
    results: Results,
    visibility: &Visibility,
    settings: AttentionSettings,
) -> Result<Gradients, Unavailable> {
    let call = inputs.call(visibility, settings);
    let plan = call.plan(TILES)?;
    let (dims, grad_output) = (call.dims, results.grad_output);
    let statistics = statistics(&dims, results.output, &grad_output, results.log_sum_exp);
    let pass = Pass {
        config: config(&dims, settings),
        dims,
        settings,
        plan,
        grad_output,
        statistics,
        inputs,
    };
    let (grad_key, grad_value) = pass.key_value_gradients();
    Ok((pass.query_gradient(), grad_key, grad_value))
}

fn config(dims: &Dims, settings: AttentionSettings) -> BackwardConfig {
    let (capped, window) = (
        settings.softcap.is_some(),
        settings.sliding_window.is_some(),
    );
    BackwardConfig::new(dims.head_dim, dims.group(), capped, window)
}

fn cubes(count: usize) -> CubeCount {
    CubeCount::Static(count as u32, 1, 1)
}

/// Query rows of all heads, each head's padded to whole tiles.
fn padded_rows(dims: &Dims) -> usize {
    dims.batch * dims.query_heads * dims.queries.next_multiple_of(QUERY_ROWS)
}

/// What [`row_statistics`] leaves.
fn statistics(
    dims: &Dims,
    output: CubeTensor,
    grad_output: &CubeTensor,
    log_sum_exp: CubeTensor,
) -> CubeTensor {
    let rows = padded_rows(dims);
    // An empty tensor cannot be bound.
    let statistics = empty(&output, [2, rows.max(1)], DType::F32);
    if rows == 0 {
        return statistics;
    }
    // SAFETY: the kernel reads rows below N, the size of the tensors, and writes rows below their
    // padded number.
    unsafe {
        row_statistics::launch_unchecked(
            &output.client.clone(),
            cubes((2 * rows).div_ceil(statistics::UNITS)),
            CubeDim::new_1d(statistics::UNITS as u32),
            output.into_buffer_arg(),
            grad_output.clone().into_buffer_arg(),
            log_sum_exp.into_buffer_arg(),
            statistics.clone().into_buffer_arg(),
            RowSizesLaunch::new(
                rows as u32,
                dims.queries as u32,
                dims.queries.next_multiple_of(QUERY_ROWS) as u32,
            ),
            dims.head_dim,
            element(grad_output),
        );
    }
    statistics
}

/// What the kernels of gradients share.
struct Pass {
    inputs: Inputs,
    grad_output: CubeTensor,
    statistics: CubeTensor,
    dims: Dims,
    settings: AttentionSettings,
    config: BackwardConfig,
    plan: Arc<DevicePlan>,
}

impl Pass {
    fn client(&self) -> &Client {
        &self.grad_output.client
    }

    /// Whether the warpgroup kernels run.
    fn warpgroups(&self) -> bool {
        has_warpgroup_products(self.client().properties(), self.dims.head_dim)
    }

    /// Cubes that share a tile of keys.
    fn splits(&self) -> usize {
        let dims = &self.dims;
        let work = KeyWork {
            entries: self.plan.n_pairs,
            longest: self.plan.most_seen,
            key_bytes: 2 * dims.key_shape().iter().product::<usize>(),
        };
        // A processor count is known for all CUDA devices. Cubes fill the registers: two to a
        // processor, one if they have eight planes.
        let hardware = &self.client().properties().hardware;
        hardware
            .num_streaming_multiprocessors
            .map_or(1, |processors| {
                let slots = processors as usize * if dims.head_dim <= 128 { 2 } else { 1 };
                self.config.splits(work, dims.kv_heads, dims.group(), slots)
            })
    }

    /// What gradients are computed from, as kernels are given it.
    fn tensors<E: Float>(&self) -> BackwardTensorsLaunch<E> {
        let Inputs { query, key, value } = &self.inputs;
        BackwardTensorsLaunch::new(
            query.clone().into_buffer_arg(),
            key.clone().into_buffer_arg(),
            value.clone().into_buffer_arg(),
            self.grad_output.clone().into_buffer_arg(),
            self.statistics.clone().into_buffer_arg(),
        )
    }

    fn scores(&self) -> ScoresLaunch {
        let (scale, cap) = (self.settings.scale, self.settings.softcap);
        let scale_log2 = cap.unwrap_or(scale) * core::f64::consts::LOG2_E;
        let cap_scale = cap.map_or(1.0, |cap| scale / cap);
        let window = window_length(self.settings);
        ScoresLaunch::new(scale as f32, scale_log2 as f32, cap_scale as f32, window)
    }

    fn key_value_gradients(&self) -> (CubeTensor, CubeTensor) {
        let (dims, query) = (&self.dims, &self.inputs.query);
        let splits = self.splits();
        let gradients = [(); 2].map(|()| empty(query, dims.key_shape(), query.dtype));
        let [batch, heads, keys, width] = dims.key_shape();
        // Where the kernel writes to.
        let sums = gradients.each_ref().map(|gradient| {
            if splits > 1 {
                empty(query, [splits, batch, heads, keys, width], DType::F32)
            } else {
                gradient.clone()
            }
        });
        let count = self.plan.n_key_tiles * dims.kv_heads * splits;
        if count > 0 {
            self.launch_key_value(count, splits, &sums);
            if splits > 1 {
                for (sums, gradient) in sums.into_iter().zip(&gradients) {
                    self.add_partial(sums, gradient, splits);
                }
            }
        }
        gradients.into()
    }

    /// Launches `count` cubes, `splits` for each tile of keys.
    fn launch_key_value(&self, count: usize, splits: usize, [keys, values]: &[CubeTensor; 2]) {
        macro_rules! launch {
            ($kernel:ident, $config:expr, $units:expr) => {
                // SAFETY: the kernel reads and writes rows below N and keys below M only, which are
                // the sizes of the tensors and of the plan's mask, and rows below their padded
                // number of the statistics.
                unsafe {
                    $kernel::launch_unchecked(
                        self.client(),
                        cubes(count),
                        CubeDim::new_1d($units as u32),
                        self.tensors(),
                        plan_by_key(&self.plan),
                        KeyGradientsLaunch::new(
                            keys.clone().into_buffer_arg(),
                            values.clone().into_buffer_arg(),
                        ),
                        sizes(&self.dims),
                        splits as u32,
                        self.scores(),
                        $config,
                        element(&self.grad_output),
                    )
                }
            };
        }
        let config = self.config;
        if self.warpgroups() {
            launch!(
                tree_attention_backward_key_value_warpgroup,
                config.of_warpgroups(),
                key_value_warpgroup::UNITS
            );
        } else {
            launch!(
                tree_attention_backward_key_value,
                config,
                config.key_units()
            );
        }
    }

    /// Adds the gradients of the cubes that share a tile of keys.
    fn add_partial(&self, sums: CubeTensor, gradient: &CubeTensor, splits: usize) {
        let fours = self.dims.key_shape().iter().product::<usize>() / 4;
        // SAFETY: the kernel reads `splits` times as many fours as it writes, and `gradient` has
        // `fours` of them.
        unsafe {
            sum_partial_gradients::launch_unchecked(
                self.client(),
                cubes(fours.div_ceil(SUM_UNITS)),
                CubeDim::new_1d(SUM_UNITS as u32),
                sums.into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                fours as u32,
                splits as u32,
                element(gradient),
            );
        }
    }

    fn query_gradient(self) -> CubeTensor {
        let query = &self.inputs.query;
        let gradient = empty(query, query.shape(), query.dtype);
        if padded_rows(&self.dims) == 0 {
            return gradient;
        }
        macro_rules! launch {
            ($kernel:ident, $config:expr, $units:expr) => {
                // SAFETY: as in `launch_key_value`.
                unsafe {
                    $kernel::launch_unchecked(
                        self.client(),
                        cubes(self.plan.n_query_tiles * self.dims.query_heads / $config.heads),
                        CubeDim::new_1d($units as u32),
                        self.tensors(),
                        plan_by_query(&self.plan),
                        gradient.clone().into_buffer_arg(),
                        sizes(&self.dims),
                        self.scores(),
                        $config,
                        element(query),
                    )
                }
            };
        }
        let config = self.config;
        if self.warpgroups() {
            launch!(
                tree_attention_backward_query_warpgroup,
                config.of_warpgroups(),
                query_warpgroup::UNITS
            );
        } else {
            launch!(tree_attention_backward_query, config, config.query_units());
        }
        gradient
    }
}
