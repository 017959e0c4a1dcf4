//! The kernels of the backward pass, for the test that translates all kernels.

use burn_tree_kit::cube::translation::{Case, Target, buffer, settings};
use cubecl::ir::ElemType;

use super::super::blocks::WindowConfig;
use super::config::path_config;
use super::gradients::gated_delta_rule_backward_gradients::GatedDeltaRuleBackwardGradients;
use super::local::gated_delta_rule_backward_local::GatedDeltaRuleBackwardLocal;
use super::reverse_scan::gated_delta_rule_backward_reverse_scan::GatedDeltaRuleBackwardReverseScan;
use super::scan::gated_delta_rule_backward_scan::GatedDeltaRuleBackwardScan;
use super::{cube_window, local};

/// All kernels of the backward pass that use tensor cores.
pub(in super::super) fn backward_kernels(
    target: &Target,
    key_dim: usize,
    value_dim: usize,
    dtype: ElemType,
) -> Vec<Case> {
    let window = WindowConfig { key_dim, value_dim };
    let (device, target) = (&target.device, &target.target);
    let name = |kernel: &str| format!("backward_{kernel}_{key_dim}_{value_dim}_{dtype}");
    let b = buffer;
    let mut cases: Vec<Case> = Vec::new();
    let kernel = GatedDeltaRuleBackwardLocal::new(
        settings(local::UNITS),
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
        (),
        (),
        (),
        (),
        window,
        dtype,
    );
    cases.push((name("local"), Box::new(kernel), "mma.sync"));
    for (few, stages) in [(true, 3), (true, 2), (false, 2)] {
        let path = path_config(&window, few, stages);
        let kernel = GatedDeltaRuleBackwardScan::new(
            settings(path.units()),
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
            (),
            (),
            (),
            path,
            dtype,
        );
        let of_scan = name(&format!("scan_{}_{stages}", path.planes));
        cases.push((of_scan, Box::new(kernel), "mma.sync"));
        let kernel = GatedDeltaRuleBackwardReverseScan::new(
            settings(path.units()),
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
            b(),
            b(),
            b(),
            (),
            (),
            (),
            (),
            (),
            (),
            path,
            dtype,
        );
        let of_reverse = name(&format!("reverse_scan_{}_{stages}", path.planes));
        cases.push((of_reverse, Box::new(kernel), "mma.sync"));
    }
    let kernel = GatedDeltaRuleBackwardGradients::new(
        settings(cube_window::UNITS),
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
        window,
        dtype,
    );
    cases.push((name("gradients"), Box::new(kernel), "mma.sync"));
    cases
}
