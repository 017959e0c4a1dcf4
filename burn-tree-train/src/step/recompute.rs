//! A pack with activation checkpointing: only the inputs of the blocks are kept for the backward
//! pass.

use burn::module::Module;
use burn::tensor::{Int, Tensor};

use super::error::StepError;
use super::inputs::{PackInputs, injections, tracked_sum};
use super::output_store::{Kept, Stored};
use super::rows::{BlockRows, Rows, left_by};
use super::state::{PackLossFn, Step};
use crate::TreeModel;

/// The tensors needed to recompute the blocks of a pack, from the last to the first.
pub(super) struct Checkpoint {
    inputs: PackInputs,
    loss: Tensor<1>,
    /// Input of each block.
    blocks: Vec<Stored<3>>,
    /// The experts that each block chose, which the recomputation must use again.
    routing: Vec<Option<Tensor<2, Int>>>,
    /// Gradient of the output of the last block.
    gradient: Option<Stored<3>>,
    /// Whether the input of the first block depends on a trained parameter.
    embedding_is_trained: bool,
}

impl Checkpoint {
    /// Forward pass of the blocks without autodiff, then forward and backward pass of the head.
    pub(super) fn forward<M: Module + TreeModel>(
        step: &mut Step<'_, M>,
        inputs: PackInputs,
        loss_of: &mut impl PackLossFn,
    ) -> Result<Self, StepError> {
        let model = step.model;
        let storage = step.storage();
        let x = model.embed(inputs.tokens.clone(), &inputs.context);
        let embedding_is_trained = x.is_tracked();
        let (mut blocks, mut routing) = (Vec::new(), Vec::new());
        let mut router_loss: Option<Tensor<1>> = None;
        let options = step.options;
        let x = inputs.run_blocks(
            &step.frozen,
            x.detach(),
            &mut step.store,
            storage,
            |x, outputs| {
                blocks.push(Stored::new(x, storage)?);
                let router = outputs.router.as_ref();
                routing.push(router.map(|router| router.experts.clone()));
                if let (Some(options), Some(router)) = (&options.router_loss, router) {
                    let part = options.of_block(&inputs.multiplicities, router);
                    router_loss = Some(match router_loss.take() {
                        Some(sum) => sum + part,
                        None => part,
                    });
                }
                Ok(())
            },
        )?;
        let x = Tensor::from_inner(x).require_grad();
        let log_probs = inputs.log_probs(model, x.clone(), step.options.head)?;
        let loss = loss_of.of_pack(inputs.index, log_probs, &inputs.occurrences)?;
        let mut gradient = None;
        if loss.is_tracked() {
            let mut gradients = loss.backward();
            if let Some(of_x) = x.grad_remove(&mut gradients) {
                gradient = Some(Stored::new(of_x, storage)?);
            }
            step.add(gradients);
        }
        let loss = loss.inner();
        Ok(Self {
            loss: match router_loss {
                Some(router_loss) => loss.clone() + router_loss.cast(loss.dtype()),
                None => loss,
            },
            inputs,
            blocks,
            routing,
            gradient,
            embedding_is_trained,
        })
    }

    pub(super) fn loss(&self) -> Tensor<1> {
        self.loss.clone()
    }

    /// Recomputes and differentiates one block after another, then the embedding.
    pub(super) fn backward<M: Module + TreeModel>(
        self,
        step: &mut Step<'_, M>,
    ) -> Result<(), StepError> {
        let Self { inputs, .. } = self;
        let mut kept = step.store.remove(inputs.index).unwrap_or_default();
        let mut gradient = self
            .gradient
            .map(|gradient| gradient.take(&step.inner_device));
        let blocks = self.blocks.into_iter().zip(self.routing).enumerate();
        for (block, (x, routing)) in blocks.rev() {
            let is_trained = block > 0 || self.embedding_is_trained;
            let x = Tensor::from_inner(x.take(&step.inner_device)).set_require_grad(is_trained);
            gradient = step.block_backward(
                &inputs,
                block,
                x,
                routing,
                gradient,
                kept.pop().unwrap_or(BlockRows::Nothing),
            )?;
        }
        if let (true, Some(gradient)) = (self.embedding_is_trained, gradient) {
            let x = step.model.embed(inputs.tokens.clone(), &inputs.context);
            let gradients = (x * gradient).sum().backward();
            step.add(gradients);
        }
        Ok(())
    }
}

impl<M: Module + TreeModel> Step<'_, M> {
    /// Recomputes a block and runs its backward pass from the `gradient` of its output and from the
    /// gradients of its outputs for later packs. Returns the gradient of its input `x`.
    fn block_backward(
        &mut self,
        inputs: &PackInputs,
        block: usize,
        x: Tensor<3>,
        routing: Option<Tensor<2, Int>>,
        gradient: Option<Tensor<3>>,
        mut kept: BlockRows<Kept>,
    ) -> Result<Option<Tensor<3>>, StepError> {
        let rows = inputs
            .past
            .gather(&self.store, block)
            .map(Rows::into_leaves);
        let leaves = rows.as_ref().map(|rows| rows.tensor.clone());
        let context = match routing {
            Some(experts) => &inputs.context.clone().with_routing(block, experts),
            None => &inputs.context,
        };
        let (y, outputs) = inputs.run_block(self.model, block, x.clone(), context, rows)?;
        let mut parts = Vec::new();
        if let (Some(options), Some(router)) = (&self.options.router_loss, &outputs.router) {
            parts.push(options.of_block(&inputs.multiplicities, router));
        }
        if let Some(gradient) = gradient {
            parts.push((y * gradient).sum());
        }
        if let Some(rows) = &inputs.kept_rows {
            let left = left_by(outputs, rows).map(|rows| rows.tensor);
            parts.extend(injections(left, &mut kept, &self.inner_device));
        }
        let Some(sum) = tracked_sum(parts) else {
            return Ok(None);
        };
        let mut gradients = sum.backward();
        let of_past = leaves.map(|leaf| leaf.grad_remove(&mut gradients));
        inputs.past.add_gradients(&mut self.store, block, of_past)?;
        let of_x = x.grad_remove(&mut gradients);
        self.add(gradients);
        Ok(of_x)
    }
}
