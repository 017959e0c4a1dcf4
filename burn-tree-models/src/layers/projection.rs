//! Linear layers by the operations of burn-tree-nn.

use burn::nn::Linear;
use burn::tensor::Tensor;
use burn_tree_nn::{linear, linears};

/// `layer` of `x [.., K]`: `[.., N]`.
pub(super) fn project<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    with_bias(layer, linear(x, layer.weight.val()))
}

/// Each of `layers`, two or three, of the same `x [.., K]`: `[.., N_i]`.
pub(super) fn project_all<const D: usize, const N: usize>(
    layers: [&Linear; N],
    x: Tensor<D>,
) -> [Tensor<D>; N] {
    let mut outputs = linears(x, layers.map(|layer| layer.weight.val())).into_iter();
    layers.map(|layer| with_bias(layer, outputs.next().expect("an output for each layer")))
}

fn with_bias<const D: usize>(layer: &Linear, y: Tensor<D>) -> Tensor<D> {
    match &layer.bias {
        Some(bias) => y + bias.val().unsqueeze(),
        None => y,
    }
}
