//! Translates the kernels to CUDA C++: in bf16, too, which software devices lack.

use burn_tree_kit::cube::translation::{BF16, Case, F16, Target, assert_translate, buffer};
use cubecl::ir::ElemType;

use super::super::transpiled::kernel;
use super::backward::StateGradientInputsCompilationArg;
use super::gradients::{
    PairGradientInputsCompilationArg, QueryGradientInputsCompilationArg,
    StateKeyGradientInputsCompilationArg,
};
use super::scan::{ScanConfig, TransitionsCompilationArg};
use super::window::ProblemCompilationArg;
use super::*;

/// What takes states from window to window, as an argument.
fn transitions<E: Float>() -> TransitionsCompilationArg<E> {
    TransitionsCompilationArg {
        key: buffer(),
        w: buffer(),
        gates: buffer(),
    }
}

/// Run-time arguments are nothing to a compiler.
fn problem() -> ProblemCompilationArg {
    ProblemCompilationArg {
        schedule: buffer(),
        scale: (),
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

/// The kernels of the forward pass.
fn forward_kernels(target: &Target, key_tiles: usize, dtype: ElemType) -> Vec<Box<dyn CubeKernel>> {
    use forward::{window_inverse, window_operators, window_output};
    let (b, p, units) = (buffer, problem, forward::UNITS);
    let config = ScanConfig {
        key_tiles,
        stores_slots: true,
    };
    vec![
        kernel!(
            target,
            window_inverse::WindowInverse,
            units,
            b(),
            b(),
            b(),
            p(),
            dtype
        ),
        kernel!(
            target,
            window_operators::WindowOperators,
            units,
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            p(),
            dtype
        ),
        kernel!(
            target,
            window_output::WindowOutput,
            units,
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            p(),
            dtype
        ),
        kernel!(
            target,
            scan::scan::Scan,
            scan::UNITS,
            transitions(),
            b(),
            b(),
            b(),
            b(),
            p(),
            config,
            dtype
        ),
    ]
}

/// The kernels of the backward pass up to the gradients of states.
fn state_kernels(target: &Target, key_tiles: usize, dtype: ElemType) -> Vec<Box<dyn CubeKernel>> {
    use backward::{state_gradients, update_gradients};
    let (b, p, units) = (buffer, problem, forward::UNITS);
    let inputs = StateGradientInputsCompilationArg {
        query: b(),
        w: b(),
        grad_output: b(),
        grad_updates: b(),
    };
    vec![
        kernel!(
            target,
            scan::scan_backward::ScanBackward,
            scan::UNITS,
            transitions(),
            b(),
            b(),
            b(),
            p(),
            key_tiles,
            dtype
        ),
        kernel!(
            target,
            update_gradients::UpdateGradients,
            units,
            b(),
            b(),
            b(),
            b(),
            b(),
            p(),
            dtype
        ),
        kernel!(
            target,
            state_gradients::StateGradients,
            units,
            inputs,
            b(),
            b(),
            p(),
            key_tiles,
            dtype
        ),
    ]
}

/// The kernels of the gradients of inputs.
fn gradient_kernels(target: &Target, dtype: ElemType) -> Vec<Box<dyn CubeKernel>> {
    use gradients::{
        key_gradients_of_pairs::KeyGradientsOfPairs, key_gradients_of_states::KeyGradientsOfStates,
        query_gradients::QueryGradients, value_gradients::ValueGradients,
    };
    let (b, p, units) = (buffer, problem, forward::UNITS);
    let queries = QueryGradientInputsCompilationArg {
        query: b(),
        key: b(),
        grad_output: b(),
        updates: b(),
        window_states: b(),
    };
    let pairs = PairGradientInputsCompilationArg {
        query: b(),
        key: b(),
        grad_output: b(),
        updates: b(),
        x: b(),
    };
    let states = StateKeyGradientInputsCompilationArg {
        key: b(),
        updates: b(),
        x: b(),
        window_states: b(),
        window_grads: b(),
    };
    vec![
        kernel!(
            target,
            ValueGradients,
            units,
            b(),
            b(),
            b(),
            b(),
            b(),
            p(),
            dtype
        ),
        kernel!(target, QueryGradients, units, queries, b(), b(), p(), dtype),
        kernel!(
            target,
            KeyGradientsOfPairs,
            units,
            pairs,
            b(),
            b(),
            p(),
            dtype
        ),
        kernel!(
            target,
            KeyGradientsOfStates,
            units,
            states,
            b(),
            b(),
            p(),
            dtype
        ),
    ]
}

/// The kernels that store `dtype`, which CUDA calls `name`.
fn kernels(target: &Target, key_tiles: usize, dtype: ElemType, name: &'static str) -> Vec<Case> {
    let mut kernels = forward_kernels(target, key_tiles, dtype);
    kernels.extend(state_kernels(target, key_tiles, dtype));
    kernels.extend(gradient_kernels(target, dtype));
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
