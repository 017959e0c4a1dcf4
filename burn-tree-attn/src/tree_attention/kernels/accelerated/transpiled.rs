//! Translates the kernels to CUDA C++, for devices that need not be there: that they expand, that
//! their shared memory fits, and that no copies are left out where they wait for copies. If the
//! environment variable `BURN_TREE_ATTN_SOURCES` names a folder, the sources are written there, for
//! `nvcc -cubin -Xptxas -v` to tell registers and spills.

use burn_tree_kit::cube::translation::{
    BF16, Case, F16, Target, assert_translate, buffer, settings,
};
use cubecl::ir::ElemType;

use super::arguments::{ListsCompilationArg, MaskCompilationArg};
use super::backward::transpiled::backward_kernels;
use super::forward::tree_attention_forward::TreeAttentionForward;
use super::forward_warpgroup::tree_attention_forward_warpgroup::TreeAttentionForwardWarpgroup;
use super::*;

/// A mask as an argument.
pub(super) fn mask() -> MaskCompilationArg {
    MaskCompilationArg {
        key_start: buffer(),
        key_end: buffer(),
        key_position: buffer(),
        query_position: buffer(),
    }
}

/// A plan as an argument.
pub(super) fn lists() -> ListsCompilationArg {
    ListsCompilationArg {
        offsets: buffer(),
        entries: buffer(),
        order: buffer(),
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
    let b = buffer;
    let name = format!("forward_{head_dim}_{group}_{scores:?}_{window}_{dtype}");
    let config = forward_config(head_dim, group, scores, window);
    let kernel = TreeAttentionForward::new(
        settings(config.units()),
        device.clone(),
        target.clone(),
        b(),
        b(),
        b(),
        mask(),
        lists(),
        b(),
        b(),
        (),
        (),
        (),
        (),
        (),
        (),
        (),
        config,
        dtype,
    );
    let mut cases: Vec<Case> = vec![(name.clone(), Box::new(kernel), "mma.sync")];
    if has_warpgroup_products(&device, head_dim) {
        let config = WarpgroupForwardConfig {
            head_dim,
            query_rows: config.query_rows,
            heads: config.heads,
            scores,
            window,
        };
        let kernel = TreeAttentionForwardWarpgroup::new(
            settings(config.units()),
            device,
            target,
            b(),
            b(),
            b(),
            mask(),
            lists(),
            b(),
            b(),
            (),
            (),
            (),
            (),
            (),
            (),
            (),
            config,
            dtype,
        );
        cases.push((format!("{name}_warpgroup"), Box::new(kernel), "wgmma"));
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
