//! What the passes over the packs of a step share.

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor};
use burn_tree_nn::TokenLogProbs;
use tree_pack::{OccurrenceBatch, Pack};

use super::error::StepError;
use super::options::StepOptions;
use super::shelf::{Place, Shelf};
use crate::model::{BlockError, TreeModel};
use crate::shadow::widen_gradients;

/// What the closure of [`step_gradients`](crate::step_gradients) returns: the loss of a pack `[1]`,
/// or a `Result` with it.
pub trait PackLoss {
    /// The loss.
    ///
    /// # Errors
    /// That of the closure.
    fn into_loss(self) -> Result<Tensor<1>, BlockError>;
}

impl PackLoss for Tensor<1> {
    fn into_loss(self) -> Result<Tensor<1>, BlockError> {
        Ok(self)
    }
}

impl<E: Into<BlockError>> PackLoss for Result<Tensor<1>, E> {
    fn into_loss(self) -> Result<Tensor<1>, BlockError> {
        self.map_err(Into::into)
    }
}

/// The loss of a pack, `[1]`, from its index, the log-probabilities of its occurrences, and these.
pub(super) trait LossOf {
    fn of_pack(
        &mut self,
        pack: usize,
        output: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Result<Tensor<1>, StepError>;
}

impl<L, F> LossOf for F
where
    L: PackLoss,
    F: FnMut(usize, TokenLogProbs, &OccurrenceBatch) -> L,
{
    fn of_pack(
        &mut self,
        pack: usize,
        output: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Result<Tensor<1>, StepError> {
        let loss = self(pack, output, occurrences).into_loss();
        loss.map_err(|source| StepError::Loss { pack, source })
    }
}

/// What the passes over the packs of a step share.
pub(super) struct Step<'a, M> {
    pub(super) model: &'a M,
    /// The model with nothing to train: the same operations as with autodiff, so the same numbers. (A
    /// backend may compute some in another way without.)
    pub(super) frozen: M,
    pub(super) options: &'a StepOptions,
    pub(super) inner_device: Device,
    pub(super) shelf: Shelf,
    pub(super) gradients: GradientsAccumulator<M>,
}

impl<M: Module> Step<'_, M> {
    /// Adds gradients of parameters.
    pub(super) fn add(&mut self, gradients: Gradients) {
        let gradients = GradientsParams::from_grads(gradients, self.model);
        self.gradients
            .accumulate(self.model, widen_gradients(gradients, self.model));
    }

    /// Where inputs of blocks wait that are recomputed.
    pub(super) fn waiting_place(&self) -> Place {
        self.options.place()
    }
}

/// Whether it is known how many trajectories pass through each row.
pub(super) fn check_counts(packs: &[Pack]) -> Result<(), StepError> {
    for (index, pack) in packs.iter().enumerate() {
        let (found, expected) = (pack.trajectory_counts.len(), pack.layout.len());
        if found != expected {
            return Err(StepError::TrajectoryCounts {
                pack: index,
                found,
                expected,
            });
        }
    }
    Ok(())
}

/// Floats of occurrences, in which the loss is computed: f32, or f64 if the model is.
pub(super) fn occurrence_dtype<M: TreeModel>(model: &M) -> FloatDType {
    match model.head_weight().dtype() {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
