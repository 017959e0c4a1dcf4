//! Translates the kernels to CUDA C++: in bf16, too, which software devices lack.

use burn_tree_kit::cube::translation::{
    BF16, Case, F16, Target, assert_translate, buffer, settings,
};
use cubecl::ir::ElemType;

use super::window::ProblemCompilationArg;
use super::*;

/// Run-time arguments are nothing to a compiler.
fn problem() -> ProblemCompilationArg {
    ProblemCompilationArg {
        key_heads: (),
        value_heads: (),
        key_dim: (),
        value_dim: (),
        window_rows: (),
        items: (),
        first_path: (),
        subtree_ends: (),
        window_starts: (),
        window_lengths: (),
        window_slots: (),
        path_offsets: (),
        path_entries: (),
        requested: (),
        slot_child_offsets: (),
        slot_children: (),
    }
}

/// A kernel of `$units` units with a buffer for each `b`.
macro_rules! case {
    ($target:ident, $path:path, $units:expr, [$($buffer:ident)*], $($rest:expr),*) => {{
        use $path as Kernel;
        let (device, target) = ($target.device.clone(), $target.target.clone());
        let units = settings($units as usize);
        let kernel = Kernel::new(units, device, target, $($buffer()),*, $($rest),*);
        Box::new(kernel) as Box<dyn CubeKernel>
    }};
}

/// The kernels that store `dtype`, which CUDA calls `name`.
fn kernels(target: &Target, key_tiles: usize, dtype: ElemType, name: &'static str) -> Vec<Case> {
    let (b, p) = (buffer, problem);
    let (on_window, on_path) = (forward::UNITS, scan::UNITS);
    let kernels = [
        case!(target, forward::window_inverse::WindowInverse, on_window, [b b b b], p(), dtype),
        case!(
            target,
            forward::window_operators::WindowOperators,
            on_window,
            [b b b b b b b],
            p(),
            dtype
        ),
        case!(
            target,
            forward::window_output::WindowOutput,
            on_window,
            [b b b b b b b],
            p(),
            (),
            dtype
        ),
        case!(target, scan::scan::Scan, on_path, [b b b b b b b b], p(), key_tiles, true, dtype),
        case!(
            target,
            scan::scan_backward::ScanBackward,
            on_path,
            [b b b b b b b],
            p(),
            key_tiles,
            dtype
        ),
        case!(
            target,
            backward::update_gradients::UpdateGradients,
            on_window,
            [b b b b b b],
            p(),
            (),
            dtype
        ),
        case!(
            target,
            backward::state_gradients::StateGradients,
            on_window,
            [b b b b b b b],
            p(),
            (),
            key_tiles,
            dtype
        ),
        case!(
            target,
            gradients::value_gradients::ValueGradients,
            on_window,
            [b b b b b b],
            p(),
            dtype
        ),
        case!(
            target,
            gradients::query_gradients::QueryGradients,
            on_window,
            [b b b b b b b b],
            p(),
            (),
            dtype
        ),
        case!(
            target,
            gradients::key_gradients_of_pairs::KeyGradientsOfPairs,
            on_window,
            [b b b b b b b b],
            p(),
            (),
            dtype
        ),
        case!(
            target,
            gradients::key_gradients_of_states::KeyGradientsOfStates,
            on_window,
            [b b b b b b b b],
            p(),
            dtype
        ),
    ];
    let numbered = kernels.into_iter().enumerate();
    numbered
        .map(|(at, kernel)| (format!("portable_{at}_{key_tiles}_{dtype}"), kernel, name))
        .collect()
}

#[test]
fn kernels_translate_to_cuda() {
    let target = Target::hopper();
    let mut cases = Vec::new();
    for key_tiles in [1, MAX_KEY_TILES] {
        cases.extend(kernels(&target, key_tiles, BF16, "__nv_bfloat16"));
        cases.extend(kernels(&target, key_tiles, F16, "__half"));
    }
    let folder = std::env::var_os("BURN_TREE_SSM_SOURCES").map(Into::into);
    assert_translate(cases, folder);
}
