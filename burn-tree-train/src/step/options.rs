//! The options of a step.

use burn::tensor::Tensor;
use burn_tree_nn::LmHeadOptions;

use super::output_store::Storage;
use crate::model::RouterOutput;
use crate::router_loss::{RouterLoad, load_balancing_loss};

/// The options of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOptions {
    /// The projection of rows on the vocabulary.
    pub head: LmHeadOptions,
    /// Activation checkpointing: keep only the inputs of blocks, `[N, hidden]` each in the dtype of
    /// the blocks, from the forward to the backward pass of a pack. Costs one more forward pass;
    /// the activations of one block exist at a time.
    ///
    /// The model must be deterministic: no dropout. Experts are not chosen again.
    pub recompute: bool,
    /// Host offload: keep tensors that are not in use in host memory. These are the sums of
    /// gradients for rows of earlier packs; with `recompute` also the inputs of blocks, and the
    /// keys, values and states for later packs. (Without `recompute` the graphs hold the latter on
    /// the device.) Frees device memory at the price of blocking copies both ways.
    pub offload: bool,
    /// The load-balancing loss of a mixture of experts, which is added to the losses of the packs.
    pub router_loss: Option<RouterLossOptions>,
}

/// The load-balancing loss of a mixture of experts over all packs of a step. It is not a sum over
/// packs: the load must be collected first ([`step_router_load`](crate::step_router_load)).
#[derive(Clone, Debug, PartialEq)]
pub struct RouterLossOptions {
    /// Coefficient of the loss.
    pub coefficient: f64,
    /// The load that the loss is computed from: that of the whole step, or that of the one pack.
    pub load: RouterLoad,
}

impl RouterLossOptions {
    /// The contribution of one block of a pack, `[1]`, whose rows are in the given numbers of
    /// trajectories.
    pub(super) fn of_block(&self, multiplicities: &[f32], router: &RouterOutput) -> Tensor<1> {
        let routers = std::slice::from_ref(router);
        load_balancing_loss(routers, multiplicities, &self.load) * self.coefficient
    }
}

impl StepOptions {
    /// Where tensors that are not in use are stored.
    pub(super) fn storage(&self) -> Storage {
        match self.offload {
            true => Storage::Host,
            false => Storage::Device,
        }
    }
}
