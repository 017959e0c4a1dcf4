//! Translates the kernels to CUDA C++, for devices that need not be there: that they expand, that
//! their shared memory fits, and that no copies are left out where they wait for copies. If the
//! environment variable `BURN_TREE_ATTN_SOURCES` names a folder, the sources are written there, for
//! `nvcc -cubin -Xptxas -v` to tell registers and spills.

use burn_tree_kit::cube::translation::{
    BF16, Case, F16, Target, assert_translate, buffer, settings,
};
use cubecl::ir::ElemType;

use super::arguments::{
    ListsCompilationArg, MaskCompilationArg, PlanCompilationArg, SizesCompilationArg,
    TensorsCompilationArg,
};
use super::backward::transpiled::backward_kernels;
use super::forward::planes::tree_attention_forward::TreeAttentionForward;
use super::forward::softmax::{ResultsCompilationArg, ScoreMap, ScoreOptionsCompilationArg};
use super::forward::warpgroups::tree_attention_forward_warpgroup::TreeAttentionForwardWarpgroup;
use super::*;

/// A mask and lists as an argument.
pub(super) fn plan() -> PlanCompilationArg {
    PlanCompilationArg {
        mask: MaskCompilationArg {
            key_start: buffer(),
            key_end: buffer(),
            key_position: buffer(),
            query_position: buffer(),
        },
        lists: ListsCompilationArg {
            offsets: buffer(),
            entries: buffer(),
            order: buffer(),
        },
    }
}

/// Sizes as an argument.
pub(super) fn sizes() -> SizesCompilationArg {
    SizesCompilationArg {
        n_queries: (),
        n_keys: (),
        kv_heads: (),
        group: (),
        batches: (),
    }
}

fn forward_kernels(
    Target { device, target }: Target,
    head_dim: usize,
    group: usize,
    scores: ScoreMap,
    window: bool,
    dtype: ElemType,
) -> Vec<Case> {
    let name = format!("forward_{head_dim}_{group}_{scores:?}_{window}_{dtype}");
    let config = forward::config(head_dim, group, scores, window);
    let mut cases: Vec<Case> = Vec::new();
    macro_rules! kernel {
        ($name:expr, $kernel:ident, $config:expr, $instruction:expr) => {
            let kernel = $kernel::new(
                settings($config.units()),
                device.clone(),
                target.clone(),
                TensorsCompilationArg {
                    query: buffer(),
                    key: buffer(),
                    value: buffer(),
                },
                plan(),
                ResultsCompilationArg {
                    output: buffer(),
                    log_sum_exp: buffer(),
                },
                sizes(),
                ScoreOptionsCompilationArg {
                    scale_log2: (),
                    factor: (),
                    window: (),
                },
                $config,
                dtype,
            );
            cases.push(($name, Box::new(kernel), $instruction));
        };
    }
    kernel!(name.clone(), TreeAttentionForward, config, "mma.sync");
    if has_warpgroup_products(&device, head_dim) {
        let config = config.of_warpgroups();
        let name = format!("{name}_warpgroup");
        kernel!(name, TreeAttentionForwardWarpgroup, config, "wgmma");
    }
    cases
}

#[test]
fn kernels_translate_to_cuda() {
    let target = Target::hopper();
    let mut cases = Vec::new();
    for head_dim in [64, 80, 96, 128, 256] {
        assert_eq!(
            check_available(&target.device, DType::BF16, head_dim, head_dim),
            Ok(())
        );
        cases.extend(forward_kernels(
            target.clone(),
            head_dim,
            2,
            ScoreMap::Plain,
            false,
            BF16,
        ));
        cases.extend(forward_kernels(
            target.clone(),
            head_dim,
            8,
            ScoreMap::Capped,
            true,
            F16,
        ));
        cases.extend(backward_kernels(&target, head_dim, 2, false, BF16));
        cases.extend(backward_kernels(&target, head_dim, 1, true, F16));
    }
    cases.extend(forward_kernels(
        target.clone(),
        128,
        3,
        ScoreMap::Multiplied,
        false,
        BF16,
    ));

    let folder = std::env::var_os("BURN_TREE_ATTN_SOURCES").map(Into::into);
    assert_translate(cases, folder);
}
