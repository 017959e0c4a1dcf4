//! The backward kernels for the test that translates them.

use burn_tree_kit::cube::translation::{Case, Target, buffer, settings};
use cubecl::prelude::*;

use super::super::has_warpgroup_products;
use super::super::transpiled::{lists, mask};
use super::blocks::{ScoresCompilationArg, SizesCompilationArg};
use super::key_value::tree_attention_backward_key_value::TreeAttentionBackwardKeyValue;
use super::key_value_warpgroup::tree_attention_backward_key_value_warpgroup::TreeAttentionBackwardKeyValueWarpgroup;
use super::query::tree_attention_backward_query::TreeAttentionBackwardQuery;
use super::query_warpgroup::tree_attention_backward_query_warpgroup::TreeAttentionBackwardQueryWarpgroup;
use super::splits::sum_partial_gradients::SumPartialGradients;
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
    let b = buffer;
    let config = BackwardConfig::new(head_dim, group, options, options);
    let (device, target) = (&target.device, &target.target);
    let name = |kernel: &str| format!("backward_{kernel}_{head_dim}_{group}_{options}_{dtype}");
    let sizes = || SizesCompilationArg {
        n_queries: (),
        n_keys: (),
        kv_heads: (),
        group: (),
        batches: (),
    };
    let scores = || ScoresCompilationArg {
        scale: (),
        scale_log2: (),
        cap_scale: (),
        window: (),
    };
    let mut cases: Vec<Case> = Vec::new();

    macro_rules! key_value {
        ($name:expr, $kernel:ident, $units:expr, $instruction:expr) => {{
            let kernel = $kernel::new(
                settings($units),
                device.clone(),
                target.clone(),
                b(),
                b(),
                b(),
                b(),
                b(),
                mask(),
                lists(),
                b(),
                b(),
                sizes(),
                (),
                scores(),
                config,
                dtype,
            );
            cases.push((name($name), Box::new(kernel), $instruction));
        }};
    }
    macro_rules! query {
        ($name:expr, $kernel:ident, $units:expr, $instruction:expr) => {
            let kernel = $kernel::new(
                settings($units),
                device.clone(),
                target.clone(),
                b(),
                b(),
                b(),
                b(),
                b(),
                mask(),
                lists(),
                b(),
                sizes(),
                scores(),
                config,
                dtype,
            );
            cases.push((name($name), Box::new(kernel), $instruction));
        };
    }
    key_value!(
        "key_value",
        TreeAttentionBackwardKeyValue,
        config.key_units(),
        "mma.sync"
    );
    query!(
        "query",
        TreeAttentionBackwardQuery,
        config.query_units(),
        "mma.sync"
    );
    if has_warpgroup_products(device, head_dim) {
        key_value!(
            "key_value_warpgroup",
            TreeAttentionBackwardKeyValueWarpgroup,
            key_value_warpgroup::UNITS,
            "wgmma"
        );
        query!(
            "query_warpgroup",
            TreeAttentionBackwardQueryWarpgroup,
            query_warpgroup::UNITS,
            "wgmma"
        );
    }
    let kernel = RowStatistics::new(
        settings(statistics::UNITS),
        device.clone(),
        target.clone(),
        b(),
        b(),
        b(),
        b(),
        (),
        (),
        (),
        head_dim,
        dtype,
    );
    cases.push((name("statistics"), Box::new(kernel), "shfl.sync"));
    let kernel = SumPartialGradients::new(
        settings(SUM_UNITS),
        device.clone(),
        target.clone(),
        b(),
        b(),
        (),
        (),
        dtype,
    );
    cases.push((name("sum"), Box::new(kernel), "cvt.rn"));
    cases
}
