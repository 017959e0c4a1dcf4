//! An optimizer step over packs, some of which continue others.
//!
//! A tree that is larger than a pack is cut in parts. A part continues rows of earlier parts, its
//! ancestors: their keys and values, and the states after the rows at which it was cut off. It gets
//! copies of these as leaves of a graph of its own. What its backward pass gives for the leaves is
//! added, in at least f32, to a sum at the part that **owns** the row, however many levels up. When
//! all parts that continue a part are done, one backward pass of that part starts from its own loss
//! and from the sums. So every token is computed once and every graph walked once, and at any time
//! only the parts from a root to the current one are there.
//!
//! States, and the inputs of convolutions before a root, are those after a row of the parent. What they
//! owe to rows before the parent goes through it: a convolution's input of a row further up passes the
//! leaves of parts that are shorter than its kernel, and is rounded to their dtype in each.

mod error;
mod graph;
mod inputs;
mod kept;
mod plan;
mod recompute;
mod rows;

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Device, FloatDType, Gradients, Tensor};
use tree_pack::{IndexMemory, OccurrenceBatch, Pack, PackedStep};

use self::graph::Graph;
use self::inputs::PackInputs;
use self::kept::{Place, Shelf};
use self::plan::{StepPlan, Visit};
use self::recompute::Checkpoint;
use crate::model::{Trainable, trainable_without_gradient, what_is_trainable};
use crate::{
    BlockOutputs, RouterLoad, RouterOutput, TreeModel, check_parameters, frozen,
    load_balancing_loss, widen_gradients,
};
use burn_tree_nn::{LmHeadOptions, TokenLogProbs};

pub use error::{NoGradientsCause, StepError};

/// How a step is computed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOptions {
    /// How rows are projected on the vocabulary.
    pub head: LmHeadOptions,
    /// Whether only the inputs of blocks are kept from the forward to the backward pass of a pack,
    /// `[N, hidden]` each in the dtype of the blocks, and blocks are computed again, one at a time,
    /// for their backward pass. Saves what the blocks' operations keep, all but one block's, for one
    /// more forward pass.
    ///
    /// The model must compute the same twice: no dropout. Experts are not chosen again.
    pub recompute: bool,
    /// Whether what waits is in host memory: the sums of gradients for rows of ancestors, and with
    /// `recompute` also the inputs of blocks, and the keys, values and states that descendants
    /// continue from. (Without `recompute` the graphs hold the latter on the device.) Saves their
    /// place on the device for copies in both directions, which are waited for.
    pub offload: bool,
    /// The load-balancing loss of a mixture of experts, to be added to the losses of the packs.
    pub router_loss: Option<RouterLoss>,
}

/// The load-balancing loss of a mixture of experts over all packs of a step. It is not a sum over
/// packs: how often each expert was chosen must be known before ([`step_router_load`]).
#[derive(Clone, Debug, PartialEq)]
pub struct RouterLoss {
    /// Factor of the loss.
    pub coefficient: f64,
    /// How often each expert was chosen in the packs that the loss is over: all of the step, or the
    /// one pack.
    pub load: RouterLoad,
}

impl RouterLoss {
    /// The part of the loss that comes from one block of a pack, `[1]`.
    fn of_block(&self, inputs: &PackInputs, router: &RouterOutput) -> Tensor<1> {
        let routers = std::slice::from_ref(router);
        load_balancing_loss(routers, &inputs.multiplicities, &self.load) * self.coefficient
    }
}

impl StepOptions {
    fn place(&self) -> Place {
        match self.offload {
            true => Place::Host,
            false => Place::Device,
        }
    }
}

/// The loss of a pack, `[1]`, from its index, the log-probabilities of its occurrences, and these.
trait LossOf: FnMut(usize, TokenLogProbs, &OccurrenceBatch) -> Tensor<1> {}

impl<F: FnMut(usize, TokenLogProbs, &OccurrenceBatch) -> Tensor<1>> LossOf for F {}

/// What [`step_gradients`] returns.
#[derive(Debug)]
pub struct StepGradients {
    /// Loss of each pack, `[1]`, without autodiff. Their sum is the loss of the step.
    pub losses: Vec<Tensor<1>>,
    /// Gradients of the sum of the losses, in at least f32.
    pub gradients: GradientsParams,
    /// Module paths of the parameters that require a gradient and got none, such as experts that no
    /// token chose. The optimizer leaves them as they are.
    pub without_gradient: Vec<String>,
}

/// Loss of each pack of one optimizer step, and the gradients of their sum.
///
/// `loss_of` gets the index of a pack of `packed`, the log-probabilities of its occurrences and the
/// occurrences themselves, and returns the part of the step's loss that comes from them, `[1]`, with
/// the denominator of the whole step. It is called once per pack; packs that continue a pack follow
/// it, depth-first.
///
/// A device without enough memory need not fail here: ask [`check_device`](crate::check_device) before the
/// gradients are used.
///
/// Model and `device` have autodiff. Each pack is a batch of one row. The gradients are those that
/// the packs would have if nothing had been cut, up to rounding, and the same in every run on
/// backends that compute the same twice.
///
/// # Errors
/// [`StepError`], before anything is computed: the packs contradict themselves or each other, a token
/// id is not below [`TreeModel::vocabulary_size`], or nothing can be trained. Later: a block fails or
/// does not leave what other packs continue from, no loss depends on a trained parameter, or the
/// device fails.
///
/// # Panics
/// If the model or `loss_of` does.
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
/// assert_eq!((step.losses.len(), step.gradients.len()), (1, 1));
/// assert!(step.without_gradient.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn step_gradients<M: Module + TreeModel>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
    mut loss_of: impl FnMut(usize, TokenLogProbs, &OccurrenceBatch) -> Tensor<1>,
) -> Result<StepGradients, StepError> {
    let packs = packed.packs.as_slice();
    let plan = StepPlan::new(packs)?;
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
        shelf: Shelf::new(packs.len(), options.place(), device),
        gradients: GradientsAccumulator::new(),
    };
    let dtype = occurrence_dtype(model);
    let mut losses: Vec<Option<Tensor<1>>> = vec![None; packs.len()];
    let mut waiting: Vec<Option<Waiting>> = (0..packs.len()).map(|_| None).collect();
    for &visit in &plan.visits {
        match visit {
            Visit::Enter(pack) => {
                let inputs = PackInputs::new(packs, &plan, pack, dtype, device)?;
                let entered = Waiting::enter(&mut step, inputs, &mut loss_of)?;
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

/// Refuses a step of which no gradient can come. One rank of several may have no trained tokens, the
/// step must have some.
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

/// The forward pass of [`step_gradients`] without gradients: for evaluation, log-probabilities of an
/// old or a reference policy, or the first pass of an objective that needs sums over whole
/// trajectories. Returns what `each` makes of the index of a pack, the log-probabilities of its
/// occurrences, and the occurrences, in the order of the packs.
///
/// The log-probabilities are, bit for bit, those of [`step_gradients`] with the same model and packs,
/// where the backend computes the same twice: a first update's ratio of probabilities is exactly 1.
///
/// `each` is called once per pack; packs that continue a pack follow it, depth-first. What a pack
/// leaves for these is kept until they are done, everything else is dropped block by block.
///
/// # Errors
/// As [`step_gradients`].
pub fn step_forward<M: Module + TreeModel, T>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
    mut each: impl FnMut(usize, TokenLogProbs, &OccurrenceBatch) -> T,
) -> Result<Vec<T>, StepError> {
    let head = options.head;
    let last = |model: &M, x, inputs: &PackInputs| {
        let log_probs = inputs.log_probs(model, x, head)?;
        Ok(each(inputs.index, log_probs, &inputs.occurrences))
    };
    forward_blocks(model, packed, options, device, |_, _| (), last)
}

/// Runs the blocks of all packs without recording a graph. `each_block` gets the pack and what a
/// block returns besides; the result is what `last` makes of the model, what the last block
/// returns, and the pack.
fn forward_blocks<M: Module + TreeModel, T>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
    mut each_block: impl FnMut(&PackInputs, &BlockOutputs),
    mut last: impl FnMut(&M, Tensor<3>, &PackInputs) -> Result<T, StepError>,
) -> Result<Vec<T>, StepError> {
    let packs = packed.packs.as_slice();
    let plan = StepPlan::new(packs)?;
    packed.check_vocabulary(model.vocabulary_size())?;
    check_parameters(model)?;
    // Not `valid`: with autodiff the operations are those of a step, and so are the numbers.
    let model = frozen(model);
    let mut shelf = Shelf::new(packs.len(), Place::Device, device);
    let dtype = occurrence_dtype(&model);
    let mut results: Vec<Option<T>> = packs.iter().map(|_| None).collect();
    for &visit in &plan.visits {
        match visit {
            Visit::Enter(pack) => {
                let inputs = PackInputs::new(packs, &plan, pack, dtype, device)?;
                let x = model.embed(inputs.tokens.clone(), &inputs.context);
                let place = options.place();
                let x = inputs.run_blocks(&model, x, &mut shelf, place, |_, outputs| {
                    each_block(&inputs, outputs);
                    Ok(())
                })?;
                results[pack] = Some(last(&model, x, &inputs)?);
            }
            Visit::Leave(pack) => drop(shelf.remove(pack)),
        }
    }
    let results = results.into_iter();
    Ok(results
        .map(|result| result.expect("every pack is entered"))
        .collect())
}

/// How often each expert was chosen over the packs of one optimizer step, for [`RouterLoss`]: a
/// forward pass without gradients. A token counts as often as trajectories pass through it
/// ([`Pack::trajectory_counts`]).
///
/// # Errors
/// As [`step_gradients`].
pub fn step_router_load<M: Module + TreeModel>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
) -> Result<RouterLoad, StepError> {
    check_counts(&packed.packs)?;
    let mut load = RouterLoad::default();
    let count = |inputs: &PackInputs, outputs: &BlockOutputs| {
        load.add(outputs.router.as_slice(), &inputs.multiplicities);
    };
    forward_blocks(model, packed, options, device, count, |_, _, _| Ok(()))?;
    Ok(load)
}

/// Bytes of masks, plans and indices of each pack of one optimizer step, those on the device and the
/// lists on the host that they were made from, after a forward pass without gradients. Kernels make
/// more when the backward pass first runs: a second plan of attention, and lists for the sums of gathered rows.
///
/// # Errors
/// As [`step_gradients`].
pub fn step_index_memory<M: Module + TreeModel>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
) -> Result<Vec<IndexMemory>, StepError> {
    let memory = |_: &M, _, inputs: &PackInputs| Ok(inputs.index_memory());
    forward_blocks(model, packed, options, device, |_, _| (), memory)
}

/// Whether it is known how many trajectories pass through each row.
fn check_counts(packs: &[Pack]) -> Result<(), StepError> {
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
fn occurrence_dtype<M: TreeModel>(model: &M) -> FloatDType {
    match model.head_weight().dtype() {
        DType::F64 => FloatDType::F64,
        _ => FloatDType::F32,
    }
}

/// What the passes over the packs of a step share.
struct Step<'a, M> {
    model: &'a M,
    /// The model with nothing to train: the same operations as with autodiff, so the same numbers. (A
    /// backend may compute some in another way without.)
    frozen: M,
    options: &'a StepOptions,
    inner_device: Device,
    shelf: Shelf,
    gradients: GradientsAccumulator<M>,
}

impl<M: Module> Step<'_, M> {
    /// Adds gradients of parameters.
    fn add(&mut self, gradients: Gradients) {
        let gradients = GradientsParams::from_grads(gradients, self.model);
        self.gradients
            .accumulate(self.model, widen_gradients(gradients, self.model));
    }

    /// Where inputs of blocks wait that are computed again.
    fn waiting_place(&self) -> Place {
        self.options.place()
    }
}

/// What a pack leaves for its own backward pass.
enum Waiting {
    Graph(Box<Graph>),
    Checkpoint(Box<Checkpoint>),
}

impl Waiting {
    fn enter<M: Module + TreeModel>(
        step: &mut Step<'_, M>,
        inputs: PackInputs,
        loss_of: &mut impl LossOf,
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
