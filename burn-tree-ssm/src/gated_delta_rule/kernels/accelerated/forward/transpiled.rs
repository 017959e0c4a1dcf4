//! The kernels of the forward pass, for the test that translates all kernels.

use burn_tree_kit::cube::translation::{Case, Target, buffer};
use cubecl::ir::ElemType;

use super::super::super::transpiled::kernel;
use super::super::transpiled::{gates, level, path_lists, sizes, windows};
use super::local::{LocalInputsCompilationArg, LocalResultsCompilationArg};
use super::paths::{PathInputsCompilationArg, PathResultsCompilationArg};
use super::*;

/// All kernels of the forward pass.
pub(in super::super) fn forward_kernels(
    target: &Target,
    key_dim: usize,
    value_dim: usize,
    dtype: ElemType,
) -> Vec<Case> {
    let name = |kernel: &str| format!("forward_{kernel}_{key_dim}_{value_dim}_{dtype}");
    let mut cases: Vec<Case> = Vec::new();
    for heads in [1, 2] {
        let config = LocalConfig { key_dim, heads };
        cases.push((
            name(&format!("local_{heads}")),
            kernel!(
                target,
                local::gated_delta_rule_local::GatedDeltaRuleLocal,
                config.units(),
                LocalInputsCompilationArg {
                    query: buffer(),
                    key: buffer(),
                },
                gates(),
                windows(),
                LocalResultsCompilationArg {
                    inverse: buffer(),
                    mixing: buffer(),
                    scores: buffer(),
                    decays: buffer(),
                },
                sizes(),
                (),
                config,
                dtype,
            ),
            "mma.sync",
        ));
    }
    for shape in [FEW, MANY, SMALL] {
        let config = path_config(key_dim, value_dim, shape);
        cases.push((
            name(&format!("paths_{}_{}", config.planes, config.stages)),
            kernel!(
                target,
                paths::gated_delta_rule_paths::GatedDeltaRulePaths,
                config.units(),
                PathInputsCompilationArg {
                    query: buffer(),
                    key: buffer(),
                    value: buffer(),
                    mixing: buffer(),
                    scores: buffer(),
                    decays: buffer(),
                    initial_states: buffer(),
                },
                path_lists(),
                buffer(),
                PathResultsCompilationArg {
                    states: buffer(),
                    output: buffer(),
                },
                sizes(),
                level(),
                config,
                dtype,
            ),
            "mma.sync",
        ));
    }
    cases
}
