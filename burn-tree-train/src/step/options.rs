//! How a step is computed.

use burn::tensor::Tensor;
use burn_tree_nn::LmHeadOptions;

use super::shelf::Place;
use crate::model::RouterOutput;
use crate::router_loss::{RouterLoad, load_balancing_loss};

/// How a step is computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOptions {
    /// How rows are projected on the vocabulary.
    pub head: LmHeadOptions,
    /// Activation checkpointing: keep only the inputs of blocks, `[N, hidden]` each in the dtype of
    /// the blocks, from the forward to the backward pass of a pack. Costs one more forward pass; the
    /// activations of one block exist at a time.
    ///
    /// The model must compute the same twice: no dropout. Experts are not chosen again.
    pub recompute: bool,
    /// Host offload: keep tensors that wait in host memory. These are the sums of gradients for rows
    /// of ancestors; with `recompute` also the inputs of blocks, and the keys, values and states that
    /// descendants continue from. (Without `recompute` the graphs hold the latter on the device.)
    /// Frees device memory at the price of blocking copies both ways.
    pub offload: bool,
    /// The load-balancing loss of a mixture of experts, to be added to the losses of the packs.
    pub router_loss: Option<RouterLoss>,
}

/// The load-balancing loss of a mixture of experts over all packs of a step. It is not a sum over
/// packs: how often each expert was chosen must be known before ([`step_router_load`](crate::step_router_load)).
#[derive(Clone, Debug, PartialEq)]
pub struct RouterLoss {
    /// Factor of the loss.
    pub coefficient: f64,
    /// How often each expert was chosen in the packs that the loss is over: all of the step, or the
    /// one pack.
    pub load: RouterLoad,
}

impl RouterLoss {
    /// The part of the loss that comes from one block of a pack, `[1]`, whose rows are on so many
    /// trajectories.
    pub(super) fn of_block(&self, multiplicities: &[f32], router: &RouterOutput) -> Tensor<1> {
        let routers = std::slice::from_ref(router);
        load_balancing_loss(routers, multiplicities, &self.load) * self.coefficient
    }
}

impl StepOptions {
    /// Where tensors wait.
    pub(super) fn place(&self) -> Place {
        match self.offload {
            true => Place::Host,
            false => Place::Device,
        }
    }
}
