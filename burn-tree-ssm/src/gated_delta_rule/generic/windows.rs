//! What the backward pass knows of all windows before it goes along paths.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn_tree_kit::dtype::at_least_f32;

use super::array::Array;
use super::forward::Local;
use super::tiles::{Tiles, fit_columns};
use crate::gated_delta_rule::settings::GatedDeltaRuleSettings;
use crate::gated_delta_rule::tensors::GatedDeltaRuleInputs;
use crate::recurrence::TreeRecurrence;

/// Values of the forward pass, and the gradient of the output.
pub(super) struct Windows<B: Backend> {
    pub(super) tiles: Tiles<B>,
    pub(super) local: Local<B>,
    /// `[W, HV, C, C]` the `T` of the equations.
    pub(super) inverse: Array<B>,
    /// `[W, HV, C, C]` the `Ag`.
    pub(super) mixing: Array<B>,
    /// `[W, HV, C, DV]`
    pub(super) grad_output: Array<B>,
}

impl<B: Backend> Windows<B> {
    /// From the inputs, the inverse that the forward pass saved, and the gradient of the output.
    pub(super) fn new(
        inputs: &GatedDeltaRuleInputs<B>,
        inverse: FloatTensor<B>,
        grad_output: FloatTensor<B>,
        recurrence: &TreeRecurrence,
        settings: GatedDeltaRuleSettings,
    ) -> Self {
        let value = &inputs.value;
        let tiles = Tiles::<B>::new(recurrence, &value.device(), at_least_f32(value.dtype()));
        let local = Local::new(&tiles, inputs, settings);
        // Columns past the length of a window are undefined.
        let inverse = tiles.gather(inverse, 1);
        let inverse = fit_columns(inverse, tiles.size).fill_where_zero(&tiles.mask, 0.0);
        let mixing = local.mixing(&inverse);
        let grad_output = tiles.gather(grad_output, 1);
        Self {
            tiles,
            local,
            inverse,
            mixing,
            grad_output,
        }
    }
}
