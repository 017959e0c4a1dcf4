//! State shared by the passes over the packs of a step.

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor};
use burn_tree_nn::TokenLogProbs;
use tree_pack::{OccurrenceBatch, Pack};

use super::error::StepError;
use super::options::StepOptions;
use super::output_store::{OutputStore, Storage};
use crate::model::{BlockError, TreeModel};
use crate::shadow::widen_gradients;

/// The return type of the closure of [`step_gradients`](crate::step_gradients): the loss of a pack
/// `[1]`, or a `Result` with it.
pub trait IntoPackLoss {
    /// The loss.
    ///
    /// # Errors
    /// The error of the closure.
    fn into_loss(self) -> Result<Tensor<1>, BlockError>;
}

impl IntoPackLoss for Tensor<1> {
    fn into_loss(self) -> Result<Tensor<1>, BlockError> {
        Ok(self)
    }
}

impl<E: Into<BlockError>> IntoPackLoss for Result<Tensor<1>, E> {
    fn into_loss(self) -> Result<Tensor<1>, BlockError> {
        self.map_err(Into::into)
    }
}

/// Computes the loss of a pack, `[1]`, from its index, its log-probabilities and its occurrences.
pub(super) trait PackLossFn {
    fn of_pack(
        &mut self,
        pack: usize,
        output: TokenLogProbs,
        occurrences: &OccurrenceBatch,
    ) -> Result<Tensor<1>, StepError>;
}

impl<L, F> PackLossFn for F
where
    L: IntoPackLoss,
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

/// State shared by the passes over the packs of a step.
pub(super) struct Step<'a, M> {
    pub(super) model: &'a M,
    /// The frozen model. It runs the same operations as the trained one, so the results are the
    /// same; without autodiff, a backend may use other operations.
    pub(super) frozen: M,
    pub(super) options: &'a StepOptions,
    pub(super) inner_device: Device,
    pub(super) store: OutputStore,
    pub(super) gradients: GradientsAccumulator<M>,
}

impl<M: Module> Step<'_, M> {
    /// Adds the gradients of a pack to those of the step.
    pub(super) fn add(&mut self, gradients: Gradients) {
        let gradients = GradientsParams::from_grads(gradients, self.model);
        self.gradients
            .accumulate(self.model, widen_gradients(gradients, self.model));
    }

    /// Where the inputs of recomputed blocks are stored.
    pub(super) fn storage(&self) -> Storage {
        self.options.storage()
    }
}

/// Checks that every pack has one trajectory count per row.
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

/// The dtype of the occurrences and of the loss: f32, or f64 if the model is f64.
pub(super) fn occurrence_dtype<M: TreeModel>(model: &M) -> FloatDType {
    match model.head_weight().dtype() {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}
