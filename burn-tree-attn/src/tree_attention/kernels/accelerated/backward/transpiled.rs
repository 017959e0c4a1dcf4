//! The backward kernels for the test that translates them.

use burn_tree_kit::cube::translation::{Case, Target, buffer, settings};
use cubecl::prelude::*;

use super::super::has_warpgroup_products;
use super::super::transpiled::{plan, sizes};
use super::arguments::{
    BackwardTensorsCompilationArg, KeyGradientsCompilationArg, ScoresCompilationArg,
};
use super::key_value::tree_attention_backward_key_value::TreeAttentionBackwardKeyValue;
use super::key_value_warpgroup::tree_attention_backward_key_value_warpgroup::TreeAttentionBackwardKeyValueWarpgroup;
use super::query::tree_attention_backward_query::TreeAttentionBackwardQuery;
use super::query_warpgroup::tree_attention_backward_query_warpgroup::TreeAttentionBackwardQueryWarpgroup;
use super::splits::sum_partial_gradients::SumPartialGradients;
use super::statistics::RowSizesCompilationArg;
use super::statistics::row_statistics::RowStatistics;
use super::*;

/// All kernels of the backward pass; with `options`, softcapped and with a window.
pub(in super::super) fn backward_kernels(
    target: &Target,
    head_dim: usize,
    group: usize,
    options: bool,
    dtype: ElemType,
) -> Vec<Case> {
    let config = BackwardConfig::new(head_dim, group, options, options);
    let mut cases = key_value_kernels(target, config, dtype);
    cases.extend(query_kernels(target, config, dtype));
    cases.extend(elementwise_kernels(target, head_dim, dtype));
    for (name, ..) in &mut cases {
        *name = format!("backward_{name}_{head_dim}_{group}_{options}_{dtype}");
    }
    cases
}

fn tensors<E: Float>() -> BackwardTensorsCompilationArg<E> {
    BackwardTensorsCompilationArg {
        query: buffer(),
        key: buffer(),
        value: buffer(),
        grad_output: buffer(),
        statistics: buffer(),
    }
}

fn scores() -> ScoresCompilationArg {
    ScoresCompilationArg {
        scale: (),
        scale_log2: (),
        cap_scale: (),
        window: (),
    }
}

fn key_value_kernels(target: &Target, config: BackwardConfig, dtype: ElemType) -> Vec<Case> {
    let (device, target) = (&target.device, &target.target);
    let mut cases: Vec<Case> = Vec::new();
    macro_rules! kernel {
        ($name:expr, $kernel:ident, $config:expr, $units:expr, $instruction:expr) => {
            let kernel = $kernel::new(
                settings($units),
                device.clone(),
                target.clone(),
                tensors(),
                plan(),
                KeyGradientsCompilationArg {
                    key: buffer(),
                    value: buffer(),
                },
                sizes(),
                (),
                scores(),
                $config,
                dtype,
            );
            cases.push(($name.into(), Box::new(kernel), $instruction));
        };
    }
    let units = config.key_units();
    kernel!(
        "key_value",
        TreeAttentionBackwardKeyValue,
        config,
        units,
        "mma.sync"
    );
    if has_warpgroup_products(device, config.head_dim) {
        kernel!(
            "key_value_warpgroup",
            TreeAttentionBackwardKeyValueWarpgroup,
            config.of_warpgroups(),
            key_value_warpgroup::UNITS,
            "wgmma"
        );
    }
    cases
}

fn query_kernels(target: &Target, config: BackwardConfig, dtype: ElemType) -> Vec<Case> {
    let (device, target) = (&target.device, &target.target);
    let mut cases: Vec<Case> = Vec::new();
    macro_rules! kernel {
        ($name:expr, $kernel:ident, $config:expr, $units:expr, $instruction:expr) => {
            let kernel = $kernel::new(
                settings($units),
                device.clone(),
                target.clone(),
                tensors(),
                plan(),
                buffer(),
                sizes(),
                scores(),
                $config,
                dtype,
            );
            cases.push(($name.into(), Box::new(kernel), $instruction));
        };
    }
    let units = config.query_units();
    kernel!(
        "query",
        TreeAttentionBackwardQuery,
        config,
        units,
        "mma.sync"
    );
    if has_warpgroup_products(device, config.head_dim) {
        kernel!(
            "query_warpgroup",
            TreeAttentionBackwardQueryWarpgroup,
            config.of_warpgroups(),
            query_warpgroup::UNITS,
            "wgmma"
        );
    }
    cases
}

/// Those without products of matrices.
fn elementwise_kernels(target: &Target, head_dim: usize, dtype: ElemType) -> Vec<Case> {
    let (device, target) = (&target.device, &target.target);
    let statistics = RowStatistics::new(
        settings(statistics::UNITS),
        device.clone(),
        target.clone(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        RowSizesCompilationArg {
            n_rows: (),
            n_queries: (),
            padded_queries: (),
        },
        head_dim,
        dtype,
    );
    let sum = SumPartialGradients::new(
        settings(SUM_UNITS),
        device.clone(),
        target.clone(),
        buffer(),
        buffer(),
        (),
        (),
        dtype,
    );
    vec![
        ("statistics".into(), Box::new(statistics), "shfl.sync"),
        ("sum".into(), Box::new(sum), "cvt.rn"),
    ]
}
