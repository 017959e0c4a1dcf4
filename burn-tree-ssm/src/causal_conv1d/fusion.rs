//! Shapes and dtypes of the outputs, which Fusion needs before anything runs.

use std::sync::Arc;

use burn::backend::fusion::custom::TensorSpec;
use burn::tensor::Shape;

use super::settings::ConvolutionSettings;
use super::tensors::{
    ConvolutionGradientsMetadata, ConvolutionInputsMetadata, ConvolutionOutputsMetadata,
};
use crate::recurrence::ConvolutionPlan;

/// Of [`TreeSsmOps::causal_conv1d`](crate::TreeSsmOps::causal_conv1d).
pub(crate) fn forward(
    inputs: &ConvolutionInputsMetadata,
    plan: &Arc<ConvolutionPlan>,
    settings: &ConvolutionSettings,
) -> ConvolutionOutputsMetadata {
    let x = &inputs.x;
    let [first, second, third] = settings.parts.map(|channels| {
        let shape = match channels {
            0 => [1, 1],
            channels => [plan.rows(), channels],
        };
        TensorSpec::new(Shape::new(shape), x.dtype)
    });
    let tail_rows = plan.requested_sources().len().max(1);
    ConvolutionOutputsMetadata {
        first,
        second,
        third,
        tails: TensorSpec::new(Shape::new([tail_rows, x.shape[1]]), x.dtype),
    }
}

/// Of [`TreeSsmOps::causal_conv1d_backward`](crate::TreeSsmOps::causal_conv1d_backward).
pub(crate) fn backward(
    inputs: &ConvolutionInputsMetadata,
    _grads: &ConvolutionOutputsMetadata,
    _plan: &Arc<ConvolutionPlan>,
    _settings: &ConvolutionSettings,
) -> ConvolutionGradientsMetadata {
    let inputs = inputs.clone();
    ConvolutionGradientsMetadata {
        x: inputs.x,
        weight: inputs.weight,
        initial_tails: inputs.initial_tails,
    }
}
