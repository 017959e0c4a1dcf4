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
use super::output_store::{OutputStore, Storage};
use super::pack_tree::{PackTree, Visit};
use super::state::{check_counts, occurrence_dtype};
#[cfg(doc)]
use super::{RouterLossOptions, step_gradients};
use crate::device_failure::check_parameters;
use crate::model::{BlockOutputs, TreeModel, frozen};
use crate::router_loss::RouterLoad;

/// The forward pass of [`step_gradients`] without gradients: for evaluation, for log-probabilities
/// of an old or a reference policy, or for the first pass of a trajectory loss. Calls `each` with
/// the index of a pack, the log-probabilities of its occurrences, and the occurrences; returns the
/// results in the order of the packs.
///
/// If the backend is deterministic, the log-probabilities are bit for bit those of
/// [`step_gradients`] with the same model and packs: the ratio of the first update is exactly 1.
///
/// `each` is called once per pack; packs that continue a pack follow it, depth-first. The outputs
/// of a pack that these need are kept until they are done, all others are dropped block by block.
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

/// Runs the blocks of all packs without recording a graph. `each_block` gets the pack and the
/// outputs of a block; `last` gets the model, the hidden states after the last block, and the pack,
/// and returns the result.
fn forward_blocks<M: Module + TreeModel, T>(
    model: &M,
    packed: &PackedStep,
    options: &StepOptions,
    device: &Device,
    mut each_block: impl FnMut(&PackInputs, &BlockOutputs),
    mut last: impl FnMut(&M, Tensor<3>, &PackInputs) -> Result<T, StepError>,
) -> Result<Vec<T>, StepError> {
    let packs = packed.packs.as_slice();
    let tree = PackTree::new(packs)?;
    packed.check_vocabulary(model.vocabulary_size())?;
    check_parameters(model)?;
    // Not `valid`: with autodiff the operations, and so the results, are those of a step.
    let model = frozen(model);
    let mut store = OutputStore::new(packs.len(), Storage::Device, device);
    let dtype = occurrence_dtype(&model);
    let mut results: Vec<Option<T>> = packs.iter().map(|_| None).collect();
    for &visit in &tree.visits {
        match visit {
            Visit::Enter(pack) => {
                let inputs = PackInputs::new(packs, &tree, pack, dtype, device)?;
                let x = model.embed(inputs.tokens.clone(), &inputs.context);
                let storage = options.storage();
                let x = inputs.run_blocks(&model, x, &mut store, storage, |_, outputs| {
                    each_block(&inputs, outputs);
                    Ok(())
                })?;
                results[pack] = Some(last(&model, x, &inputs)?);
            }
            Visit::Leave(pack) => drop(store.remove(pack)),
        }
    }
    let results = results.into_iter();
    Ok(results
        .map(|result| result.expect("every pack is entered"))
        .collect())
}

/// Counts how often each expert is chosen over the packs of an optimizer step, for
/// [`RouterLossOptions`], in a forward pass without gradients. A token counts once per trajectory
/// that contains it ([`Pack::trajectory_counts`]).
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

/// Bytes of masks, plans and indices of each pack of an optimizer step, on the device and on the
/// host, after a forward pass without gradients. The first backward pass adds a second plan of
/// attention, and lists for the sums of gathered rows.
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
