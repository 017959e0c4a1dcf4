//! The kernels of the forward pass, for the test that translates all kernels.

use burn_tree_kit::cube::translation::{Case, Target, buffer, settings};
use cubecl::ir::ElemType;

use super::local::gated_delta_rule_local::GatedDeltaRuleLocal;
use super::paths::gated_delta_rule_paths::GatedDeltaRulePaths;
use super::*;

/// All kernels of the forward pass.
pub(in super::super) fn forward_kernels(
    target: &Target,
    key_dim: usize,
    value_dim: usize,
    dtype: ElemType,
) -> Vec<Case> {
    let (device, target) = (&target.device, &target.target);
    let name = |kernel: &str| format!("forward_{kernel}_{key_dim}_{value_dim}_{dtype}");
    let b = buffer;
    let mut cases: Vec<Case> = Vec::new();
    for heads in [1, 2] {
        let config = LocalConfig { key_dim, heads };
        let kernel = GatedDeltaRuleLocal::new(
            settings(config.units()),
            device.clone(),
            target.clone(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            (),
            (),
            (),
            (),
            config,
            dtype,
        );
        let of_local = name(&format!("local_{heads}"));
        cases.push((of_local, Box::new(kernel), "mma.sync"));
    }
    for shape in [FEW, MANY, SMALL] {
        let config = path_config(key_dim, value_dim, shape);
        let kernel = GatedDeltaRulePaths::new(
            settings(config.units()),
            device.clone(),
            target.clone(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            b(),
            (),
            (),
            (),
            (),
            (),
            config,
            dtype,
        );
        let of_paths = name(&format!("paths_{}_{}", config.planes, config.stages));
        cases.push((of_paths, Box::new(kernel), "mma.sync"));
    }
    cases
}
