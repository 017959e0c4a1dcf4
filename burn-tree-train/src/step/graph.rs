//! A pack whose autodiff graph is kept from its forward to its backward pass.

use burn::module::Module;
use burn::tensor::Tensor;

use super::error::StepError;
use super::inputs::{PackInputs, injections, tracked_sum};
use super::output_store::{Kept, Storage};
use super::rows::{BlockRows, Rows, left_by};
use super::state::{PackLossFn, Step};
use crate::TreeModel;

/// The graph of a pack, with its inputs from and outputs for other packs.
pub(super) struct Graph {
    inputs: PackInputs,
    loss: Tensor<1>,
    /// The past context of each block: leaves of the graph.
    past: Vec<BlockRows<Tensor<4>>>,
    /// The outputs of each block for later packs; empty if no pack continues this one.
    left: Vec<BlockRows<Tensor<4>>>,
}

impl Graph {
    pub(super) fn forward<M: Module + TreeModel>(
        step: &mut Step<'_, M>,
        inputs: PackInputs,
        loss_of: &mut impl PackLossFn,
    ) -> Result<Self, StepError> {
        let model = step.model;
        let context = &inputs.context;
        let (mut past, mut left, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let mut router_losses = Vec::new();
        let mut x = model.embed(inputs.tokens.clone(), context);
        for block in 0..model.n_blocks() {
            let rows = inputs
                .past
                .gather(&step.store, block)
                .map(Rows::into_leaves);
            past.push(rows.as_ref().map(|rows| rows.tensor.clone()));
            let (y, outputs) = inputs.run_block(model, block, x, context, rows)?;
            x = y;
            if let (Some(options), Some(router)) = (&step.options.router_loss, &outputs.router) {
                router_losses.push(options.of_block(&inputs.multiplicities, router));
            }
            if let Some(rows) = &inputs.kept_rows {
                let rows = left_by(outputs, rows);
                left.push(rows.as_ref().map(|rows| rows.tensor.clone()));
                // The graph keeps these tensors on the device in any case.
                kept.push(rows.try_map(|rows| Kept::new(rows, Storage::Device))?);
            }
        }
        step.store.put(inputs.index, kept);
        let log_probs = inputs.log_probs(model, x, step.options.head)?;
        let mut loss = loss_of.of_pack(inputs.index, log_probs, &inputs.occurrences)?;
        for part in router_losses {
            let part = part.cast(loss.dtype());
            loss = loss + part;
        }
        Ok(Self {
            inputs,
            loss,
            past,
            left,
        })
    }

    pub(super) fn loss(&self) -> Tensor<1> {
        self.loss.clone().inner()
    }

    /// The backward pass of the pack's own loss and of the gradients from the packs that continue
    /// it.
    pub(super) fn backward<M: Module + TreeModel>(
        self,
        step: &mut Step<'_, M>,
    ) -> Result<(), StepError> {
        let kept = step.store.remove(self.inputs.index).unwrap_or_default();
        let injected = self.left.into_iter().zip(kept);
        let injected =
            injected.flat_map(|(left, mut kept)| injections(left, &mut kept, &step.inner_device));
        let Some(sum) = tracked_sum([self.loss].into_iter().chain(injected)) else {
            return Ok(());
        };
        let mut gradients = sum.backward();
        for (block, leaves) in self.past.into_iter().enumerate() {
            let of_past = leaves.map(|leaf| leaf.grad_remove(&mut gradients));
            self.inputs
                .past
                .add_gradients(&mut step.store, block, of_past)?;
        }
        step.add(gradients);
        Ok(())
    }
}
