//! The losses and gradients of a step.

use burn::backend::ExecutionError;
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{Device, Tensor};
use burn_tree_nn::TokenLogProbs;
use tree_pack::{OccurrenceBatch, PackedStep};

use super::error::{NoGradientsCause, StepError};
use super::graph::Graph;
use super::inputs::PackInputs;
use super::options::StepOptions;
use super::output_store::OutputStore;
use super::pack_tree::{PackTree, Visit};
use super::recompute::Checkpoint;
use super::state::{IntoPackLoss, PackLossFn, Step, check_counts, occurrence_dtype};
use crate::device_failure::check_parameters;
use crate::model::{Trainable, TreeModel, frozen, trainable_without_gradient, what_is_trainable};

/// The result of [`step_gradients`].
#[derive(Debug)]
pub struct StepGradients {
    /// Loss of each pack, `[1]`, without autodiff. Their sum is the loss of the step.
    pub losses: Vec<Tensor<1>>,
    /// Gradients of the sum of the losses, in at least f32.
    pub gradients: GradientsParams,
    /// Module paths of the parameters that require a gradient but got none, such as those of
    /// experts that no token chose. The optimizer does not change them.
    pub without_gradient: Vec<String>,
}

impl StepGradients {
    /// The loss of the step: the sum over its packs. Waits for the device.
    ///
    /// # Errors
    /// If the device could not compute it.
    pub fn loss(&self) -> Result<f64, ExecutionError> {
        let read = |loss: &Tensor<1>| {
            // Read one by one: concatenation would hide a loss that the device could not compute.
            let data = loss.clone().try_into_data()?.convert::<f64>();
            Ok(data.iter::<f64>().sum::<f64>())
        };
        self.losses.iter().map(read).sum()
    }
}

/// Computes the loss of each pack of an optimizer step, and the gradients of their sum.
///
/// `loss_of` gets the index of a pack of `packed`, the log-probabilities of its occurrences and the
/// occurrences. It returns the contribution of the pack to the loss of the step, `[1]`, with the
/// denominator of the whole step, or a `Result` with it. It is called once per pack; packs that
/// continue a pack follow it, depth-first.
///
/// If the device runs out of memory, this function may still return `Ok`: call
/// [`check_device`](crate::check_device) before using the gradients.
///
/// The model and `device` must have autodiff. Each pack is a batch of one row. The gradients equal
/// those without partitioning, up to rounding. On deterministic backends they are the same in every
/// run.
///
/// # Errors
/// [`StepError`]. Before the computation: the packs are inconsistent, a token id is not below
/// [`TreeModel::vocabulary_size`], or no parameter is trainable. During it: a block fails or does
/// not return the outputs that later packs need, `loss_of` fails, no loss depends on a trained
/// parameter, or the device fails.
///
/// # Panics
/// If the model or `loss_of` panics.
///
/// # Example
/// ```
/// # use burn::module::{Module, Param};
/// # use burn::tensor::{Device, Int, Tensor};
/// # use burn_tree_train::{BlockContext, BlockError, BlockOutputs, BlockPast, TreeModel};
/// use burn_tree_train::{StepOptions, sft_loss, step_gradients};
/// use tree_pack::{PackOptions, Trajectory, build_forests, pack_step};
/// # #[derive(Module, Debug)]
/// # struct Bigram { table: Param<Tensor<2>> }
/// # impl TreeModel for Bigram {
/// #     fn embed(&self, tokens: Tensor<2, Int>, _: &BlockContext) -> Tensor<3> {
/// #         let [batch, rows] = tokens.dims();
/// #         let rows_of = tokens.reshape([batch * rows]);
/// #         self.table.val().select(0, rows_of).reshape([batch, rows, 4])
/// #     }
/// #     fn n_blocks(&self) -> usize { 0 }
/// #     fn block(&self, _: usize, x: Tensor<3>, _: &BlockContext, _: Option<&BlockPast>)
/// #         -> Result<(Tensor<3>, BlockOutputs), BlockError> { Ok((x, BlockOutputs::default())) }
/// #     fn final_norm(&self, x: Tensor<3>) -> Tensor<3> { x }
/// #     fn head_weight(&self) -> Tensor<2> { self.table.val() }
/// # }
/// # let device = Device::flex().autodiff();
/// # let model = Bigram { table: Param::from_tensor(Tensor::ones([5, 4], &device)) };
///
/// let trajectories = [vec![1, 2, 3], vec![1, 2, 4]]
///     .map(|tokens| Trajectory::new("task", "run", tokens, vec![true; 3]));
/// let forests = build_forests(&trajectories)?;
/// let packed = pack_step(&trajectories, &forests, &PackOptions::new(64))?;
/// // `model` implements `TreeModel`.
/// let step = step_gradients(
///     &model,
///     &packed,
///     &StepOptions::default(),
///     &device,
///     |_, output, occurrences| sft_loss(output, occurrences),
/// )?;
/// assert!(step.loss()? > 0.0);
/// assert_eq!((step.losses.len(), step.gradients.len()), (1, 1));
/// assert!(step.without_gradient.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn step_gradients<M: Module + TreeModel, L: IntoPackLoss>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
    mut loss_of: impl FnMut(usize, TokenLogProbs, &OccurrenceBatch) -> L,
) -> Result<StepGradients, StepError> {
    let packs = packed.packs.as_slice();
    let tree = PackTree::new(packs)?;
    if options.router_loss.is_some() {
        check_counts(packs)?;
    }
    packed.check_vocabulary(model.vocabulary_size())?;
    check_trainable(model, packed)?;
    check_parameters(model)?;
    let mut step = Step {
        model,
        frozen: frozen(model),
        options,
        inner_device: device.clone().inner(),
        store: OutputStore::new(packs.len(), options.storage(), device),
        gradients: GradientsAccumulator::new(),
    };
    let dtype = occurrence_dtype(model);
    let mut losses: Vec<Option<Tensor<1>>> = vec![None; packs.len()];
    let mut waiting: Vec<Option<PendingBackward>> = (0..packs.len()).map(|_| None).collect();
    for &visit in &tree.visits {
        match visit {
            Visit::Enter(pack) => {
                let inputs = PackInputs::new(packs, &tree, pack, dtype, device)?;
                let entered = PendingBackward::enter(&mut step, inputs, &mut loss_of)?;
                losses[pack] = Some(entered.loss());
                waiting[pack] = Some(entered);
            }
            Visit::Leave(pack) => {
                let waiting = waiting[pack].take();
                waiting.expect("entered before").leave(&mut step)?;
            }
        }
    }
    let gradients = step.gradients.grads();
    let predicts = packs.iter().any(|pack| !pack.occurrences.is_empty());
    if gradients.is_empty() && predicts {
        return Err(StepError::NoGradients(NoGradientsCause::Detached));
    }
    let losses = losses
        .into_iter()
        .map(|loss| loss.expect("every pack is entered"));
    Ok(StepGradients {
        losses: losses.collect(),
        without_gradient: trainable_without_gradient(model, &gradients),
        gradients,
    })
}

/// Refuses a step that can have no gradients. With several ranks, the packs of one rank may have no
/// trained tokens, but the step must have some.
fn check_trainable<M: Module>(model: &M, packed: &PackedStep) -> Result<(), StepError> {
    let cause = match what_is_trainable(model) {
        Trainable {
            autodiff: false, ..
        } => NoGradientsCause::NoAutodiff,
        Trainable { trained: false, .. } => NoGradientsCause::Frozen,
        _ if is_untrained(packed) => NoGradientsCause::NothingTrained,
        _ => return Ok(()),
    };
    match packed.packs.is_empty() {
        true => Ok(()),
        false => Err(StepError::NoGradients(cause)),
    }
}

fn is_untrained(packed: &PackedStep) -> bool {
    let mut packs = packed.packs.iter();
    packed.totals.trained_tokens == 0 && packs.all(|pack| pack.occurrences.is_empty())
}

/// The state of a pack between its forward and its backward pass.
enum PendingBackward {
    Graph(Box<Graph>),
    Checkpoint(Box<Checkpoint>),
}

impl PendingBackward {
    fn enter<M: Module + TreeModel>(
        step: &mut Step<'_, M>,
        inputs: PackInputs,
        loss_of: &mut impl PackLossFn,
    ) -> Result<Self, StepError> {
        Ok(match step.options.recompute {
            false => Self::Graph(Box::new(Graph::forward(step, inputs, loss_of)?)),
            true => Self::Checkpoint(Box::new(Checkpoint::forward(step, inputs, loss_of)?)),
        })
    }

    fn loss(&self) -> Tensor<1> {
        match self {
            Self::Graph(graph) => graph.loss(),
            Self::Checkpoint(checkpoint) => checkpoint.loss(),
        }
    }

    fn leave<M: Module + TreeModel>(self, step: &mut Step<'_, M>) -> Result<(), StepError> {
        match self {
            Self::Graph(graph) => graph.backward(step),
            Self::Checkpoint(checkpoint) => checkpoint.backward(step),
        }
    }
}
