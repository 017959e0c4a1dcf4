//! Forward passes over the packs of a step, without gradients.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_tree_nn::TokenLogProbs;
#[cfg(doc)]
use tree_pack::Pack;
use tree_pack::{IndexMemory, OccurrenceBatch, PackedStep};

use super::error::StepError;
use super::inputs::PackInputs;
use super::options::StepOptions;
use super::plan::{StepPlan, Visit};
use super::shelf::{Place, Shelf};
use super::state::{check_counts, occurrence_dtype};
#[cfg(doc)]
use super::{RouterLoss, step_gradients};
use crate::device_failure::check_parameters;
use crate::model::{BlockOutputs, TreeModel, frozen};
use crate::router_loss::RouterLoad;

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
