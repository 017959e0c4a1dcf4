//! Translates the kernels to CUDA C++, for devices that need not be there. If the environment
//! variable `BURN_TREE_SSM_SOURCES` names a folder, the sources are written there, for
//! `nvcc -cubin -Xptxas -v` to tell registers and spills.

use burn_tree_kit::cube::translation::{BF16, F16, Target, assert_translate, buffer};

use super::arguments::{
    GatesCompilationArg, LevelCompilationArg, PathListsCompilationArg, RunListsCompilationArg,
    SizesCompilationArg, WindowsCompilationArg,
};
use super::backward::transpiled::backward_kernels;
use super::forward::transpiled::forward_kernels;
use super::*;

pub(super) fn sizes() -> SizesCompilationArg {
    SizesCompilationArg {
        rows: (),
        key_heads: (),
        value_heads: (),
    }
}

pub(super) fn level() -> LevelCompilationArg {
    LevelCompilationArg {
        first_run: (),
        scale: (),
    }
}

pub(super) fn windows() -> WindowsCompilationArg {
    WindowsCompilationArg {
        starts: buffer(),
        lengths: buffer(),
    }
}

pub(super) fn path_lists() -> PathListsCompilationArg {
    PathListsCompilationArg {
        windows: windows(),
        runs: RunListsCompilationArg {
            offsets: buffer(),
            entries: buffer(),
            siblings: buffer(),
        },
    }
}

pub(super) fn gates() -> GatesCompilationArg {
    GatesCompilationArg {
        log_decay: buffer(),
        beta: buffer(),
        subtree_ends: buffer(),
    }
}

#[test]
fn kernels_translate_to_cuda() {
    let target = Target::hopper();
    let mut cases = Vec::new();
    for (key_dim, value_dim) in [(64, 64), (64, 128), (128, 64), (128, 128)] {
        let dims = Dims::of_shapes([1, 8, 2, key_dim], [1, 8, 4, value_dim]);
        let available = check_available(&target.device, DType::BF16, &dims, ROWS);
        assert_eq!(available, Ok(()));
        for dtype in [BF16, F16] {
            cases.extend(forward_kernels(&target, key_dim, value_dim, dtype));
            cases.extend(backward_kernels(&target, key_dim, value_dim, dtype));
        }
    }
    let folder = std::env::var_os("BURN_TREE_SSM_SOURCES").map(Into::into);
    assert_translate(cases, folder);
}
