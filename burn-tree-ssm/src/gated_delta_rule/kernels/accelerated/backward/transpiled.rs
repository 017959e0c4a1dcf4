//! The kernels of the backward pass, for the test that translates all kernels.

use burn_tree_kit::cube::translation::{Case, Target, buffer};
use cubecl::ir::ElemType;

use super::super::super::transpiled::kernel;
use super::super::blocks::WindowConfig;
use super::super::place::PathConfig;
use super::super::transpiled::{gates, level, path_lists, sizes, windows};
use super::config::path_config;
use super::gradients::{GradientInputsCompilationArg, GradientResultsCompilationArg};
use super::local::{LocalInputsCompilationArg, LocalResultsCompilationArg};
use super::reverse_scan::{
    ReverseScanInputsCompilationArg, ReverseScanResultsCompilationArg, SlotListsCompilationArg,
};
use super::scan::{ScanInputsCompilationArg, ScanResultsCompilationArg};
use super::{cube_window, gradients, local, reverse_scan, scan};

/// All kernels of the backward pass that use tensor cores.
pub(in super::super) fn backward_kernels(
    target: &Target,
    key_dim: usize,
    value_dim: usize,
    dtype: ElemType,
) -> Vec<Case> {
    let window = WindowConfig { key_dim, value_dim };
    let name = |kernel: &str| format!("backward_{kernel}_{key_dim}_{value_dim}_{dtype}");
    let mut cases = vec![local_kernel(target, name("local"), window, dtype)];
    for (few, stages) in [(true, 3), (true, 2), (false, 2)] {
        let path = path_config(&window, few, stages);
        let of_scan = name(&format!("scan_{}_{stages}", path.planes));
        cases.push(scan_kernel(target, of_scan, path, dtype));
        let of_reverse = name(&format!("reverse_scan_{}_{stages}", path.planes));
        cases.push(reverse_scan_kernel(target, of_reverse, path, dtype));
    }
    cases.push(gradients_kernel(target, name("gradients"), window, dtype));
    cases
}

fn local_kernel(target: &Target, name: String, config: WindowConfig, dtype: ElemType) -> Case {
    (
        name,
        kernel!(
            target,
            local::gated_delta_rule_backward_local::GatedDeltaRuleBackwardLocal,
            local::UNITS,
            LocalInputsCompilationArg {
                query: buffer(),
                key: buffer(),
                value: buffer(),
                grad_output: buffer(),
                inverse: buffer(),
            },
            gates(),
            windows(),
            LocalResultsCompilationArg {
                w: buffer(),
                u: buffer(),
                grad_u: buffer(),
                decays: buffer(),
            },
            sizes(),
            (),
            config,
            dtype,
        ),
        "mma.sync",
    )
}

fn scan_kernel(target: &Target, name: String, config: PathConfig, dtype: ElemType) -> Case {
    (
        name,
        kernel!(
            target,
            scan::gated_delta_rule_backward_scan::GatedDeltaRuleBackwardScan,
            config.units(),
            ScanInputsCompilationArg {
                key: buffer(),
                w: buffer(),
                decays: buffer(),
                states: buffer(),
                initial_states: buffer(),
            },
            path_lists(),
            ScanResultsCompilationArg {
                u: buffer(),
                entries: buffer(),
                entry_windows: buffer(),
            },
            sizes(),
            config,
            dtype,
        ),
        "mma.sync",
    )
}

fn reverse_scan_kernel(target: &Target, name: String, config: PathConfig, dtype: ElemType) -> Case {
    (
        name,
        kernel!(
            target,
            reverse_scan::gated_delta_rule_backward_reverse_scan::GatedDeltaRuleBackwardReverseScan,
            config.units(),
            ReverseScanInputsCompilationArg {
                query: buffer(),
                key: buffer(),
                w: buffer(),
                grad_output: buffer(),
                decays: buffer(),
                grad_states: buffer(),
            },
            path_lists(),
            SlotListsCompilationArg {
                of_windows: buffer(),
                child_offsets: buffer(),
                children: buffer(),
                requested: (),
            },
            ReverseScanResultsCompilationArg {
                grad_u: buffer(),
                exits: buffer(),
                has_exit: buffer(),
                run_gradients: buffer(),
            },
            sizes(),
            level(),
            config,
            dtype,
        ),
        "mma.sync",
    )
}

fn gradients_kernel(target: &Target, name: String, config: WindowConfig, dtype: ElemType) -> Case {
    (
        name,
        kernel!(
            target,
            gradients::gated_delta_rule_backward_gradients::GatedDeltaRuleBackwardGradients,
            cube_window::UNITS,
            GradientInputsCompilationArg {
                query: buffer(),
                key: buffer(),
                value: buffer(),
                grad_output: buffer(),
                inverse: buffer(),
                beta: buffer(),
                decays: buffer(),
                u: buffer(),
                grad_u: buffer(),
                entries: buffer(),
                exits: buffer(),
                subtree_ends: buffer(),
                entry_windows: buffer(),
                has_exit: buffer(),
            },
            windows(),
            GradientResultsCompilationArg {
                query: buffer(),
                key: buffer(),
                value: buffer(),
                log_decay: buffer(),
                beta: buffer(),
            },
            sizes(),
            (),
            config,
            dtype,
        ),
        "mma.sync",
    )
}
