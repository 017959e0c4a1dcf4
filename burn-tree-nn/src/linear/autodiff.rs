//! Gradients of linear layers.

use burn::backend::{AutodiffBackend, tensor::FloatTensor};
use burn_autodiff::{
    Autodiff, NodeId,
    checkpoint::{base::Checkpointer, strategy::CheckpointStrategy},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn_tree_kit::autodiff::{OutputGradients, Tracked};

use super::tensors::InputGradientTerm;
use crate::ops::TreeNnOps;

#[derive(Debug)]
struct LinearBackward;

impl<B: TreeNnOps> Backward<B, 2> for LinearBackward {
    /// The input, if the gradient of the weight is needed, and the weight, if that of the input is.
    type State = (Option<NodeId>, Option<NodeId>);

    fn backward(
        self,
        ops: Ops<Self::State, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let grad = grads.consume::<B>(&ops.node);
        let [x_parent, weight_parent] = ops.parents;
        let (x, weight) = ops.state;
        if let (Some(parent), Some(weight)) = (x_parent, weight) {
            let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
            let grad = grad.clone();
            let grad_x = B::linear_grad_input(InputGradientTerm { grad, weight });
            grads.register::<B>(parent.id, grad_x);
        }
        if let (Some(parent), Some(x)) = (weight_parent, x) {
            let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
            grads.register::<B>(parent.id, B::linear_grad_weight(x, grad));
        }
    }
}

/// [`TreeNnOps::linear_output`] on an autodiff backend.
pub(crate) fn linear<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    weight: Tracked<B, C>,
) -> Tracked<B, C> {
    let output = B::linear_output(x.primitive().clone(), weight.primitive().clone());
    match LinearBackward
        .prepare::<C>([x.node(), weight.node()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = (
                weight.is_tracked().then(|| prep.checkpoint(&x)),
                x.is_tracked().then(|| prep.checkpoint(&weight)),
            );
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// The sum of the terms of the outputs that have a gradient, at least one.
fn grad_input<B: TreeNnOps>(terms: Vec<InputGradientTerm<B>>) -> FloatTensor<B> {
    let mut terms = terms.into_iter();
    match (terms.next(), terms.next(), terms.next()) {
        (Some(first), None, _) => B::linear_grad_input(first),
        (Some(first), Some(second), None) => B::linear_pair_grad_input(first, second),
        (Some(first), Some(second), Some(third)) => {
            B::linear_triple_grad_input(first, second, third)
        }
        (None, ..) => unreachable!("the node has a gradient, so one of its outputs has"),
    }
}

/// Several weights of one input. The parents are the input, then the `N` weights.
#[derive(Debug)]
struct LinearsBackward<const N: usize>;

#[derive(Clone, Debug)]
struct LinearsState<B: TreeNnOps, const N: usize> {
    /// If the gradient of a weight is needed.
    x: Option<NodeId>,
    /// If the gradient of the input is needed.
    weights: Option<[NodeId; N]>,
    gradients: OutputGradients<B, N>,
}

impl<B: TreeNnOps, const N: usize, const PARENTS: usize> Backward<B, PARENTS>
    for LinearsBackward<N>
{
    type State = LinearsState<B, N>;

    fn backward(
        self,
        ops: Ops<Self::State, PARENTS>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let LinearsState {
            x,
            weights,
            gradients,
        } = ops.state;
        // The gradient of the operation's own node is one of these.
        grads.consume::<B>(&ops.node);
        let gradients = gradients.take();
        let mut parents = ops.parents.into_iter();
        if let (Some(Some(parent)), Some(weights)) = (parents.next(), weights) {
            let terms = gradients.iter().zip(weights);
            let terms = terms.filter_map(|(gradient, weight)| {
                let weight = checkpointer.retrieve_node_output::<FloatTensor<B>>(weight);
                let grad = gradient.clone()?;
                Some(InputGradientTerm::<B> { grad, weight })
            });
            grads.register::<B>(parent.id, grad_input(terms.collect()));
        }
        let Some(x) = x else { return };
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(x);
        let (parents, gradients): (Vec<_>, Vec<_>) = parents
            .zip(gradients)
            .filter_map(|(parent, gradient)| Some((parent?, gradient?)))
            .unzip();
        for (parent, gradient) in parents.iter().zip(grad_weights::<B>(x, gradients)) {
            grads.register::<B>(parent.id, gradient);
        }
    }
}

/// Gradients of the weights whose products have the gradients `grads`, at most three.
fn grad_weights<B: TreeNnOps>(
    x: FloatTensor<B>,
    grads: Vec<FloatTensor<B>>,
) -> Vec<FloatTensor<B>> {
    let mut grads = grads.into_iter();
    match (grads.next(), grads.next(), grads.next()) {
        (None, ..) => Vec::new(),
        (Some(first), None, _) => vec![B::linear_grad_weight(x, first)],
        (Some(first), Some(second), None) => {
            let (first, second) = B::linear_pair_grad_weights(x, first, second);
            vec![first, second]
        }
        (Some(first), Some(second), Some(third)) => {
            let (first, second, third) = B::linear_triple_grad_weights(x, first, second, third);
            vec![first, second, third]
        }
    }
}

fn linears<B: TreeNnOps, C: CheckpointStrategy, const N: usize, const PARENTS: usize>(
    parents: [&Tracked<B, C>; PARENTS],
    outputs: [FloatTensor<B>; N],
) -> [Tracked<B, C>; N] {
    match <LinearsBackward<N> as Backward<B, PARENTS>>::prepare::<C>(
        LinearsBackward::<N>,
        parents.map(|parent| parent.node()),
    )
    .compute_bound()
    .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let [x, weights @ ..] = &parents[..] else {
                unreachable!("the input is a parent");
            };
            let trained = weights.iter().any(|weight| weight.is_tracked());
            let gradients = OutputGradients::new();
            let state = LinearsState {
                x: trained.then(|| prep.checkpoint(x)),
                weights: x
                    .is_tracked()
                    .then(|| std::array::from_fn(|index| prep.checkpoint(weights[index]))),
                gradients: gradients.clone(),
            };
            let operation = prep.finish(state, outputs[0].clone());
            gradients.outputs::<C>(operation, outputs)
        }
        OpsKind::UnTracked(_) => outputs.map(Autodiff::<B, C>::from_inner),
    }
}

/// [`TreeNnOps::linear_pair`] on an autodiff backend.
pub(crate) fn linear_pair<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    weights: [Tracked<B, C>; 2],
) -> (Tracked<B, C>, Tracked<B, C>) {
    let primitive = |tensor: &Tracked<B, C>| tensor.primitive().clone();
    let outputs = B::linear_pair(
        primitive(&x),
        primitive(&weights[0]),
        primitive(&weights[1]),
    );
    let parents = [&x, &weights[0], &weights[1]];
    linears::<B, C, _, _>(parents, outputs.into()).into()
}

/// [`TreeNnOps::linear_triple`] on an autodiff backend.
pub(crate) fn linear_triple<B: TreeNnOps, C: CheckpointStrategy>(
    x: Tracked<B, C>,
    weights: [Tracked<B, C>; 3],
) -> (Tracked<B, C>, Tracked<B, C>, Tracked<B, C>) {
    let primitive = |tensor: &Tracked<B, C>| tensor.primitive().clone();
    let [first, second, third] = [0, 1, 2].map(|index: usize| primitive(&weights[index]));
    let outputs = B::linear_triple(primitive(&x), first, second, third);
    let parents = [&x, &weights[0], &weights[1], &weights[2]];
    linears::<B, C, _, _>(parents, outputs.into()).into()
}
