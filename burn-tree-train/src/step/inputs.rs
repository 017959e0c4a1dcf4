//! A pack on the device, with its past context.

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Int, Tensor};
use tree_pack::{IndexMemory, OccurrenceBatch, Pack, TreeBatch};

use super::error::StepError;
use super::output_store::{Kept, OutputStore, Storage};
use super::pack_tree::PackTree;
use super::past::PastSources;
use super::rows::{BlockRows, Rows, left_by, past_of};
use crate::{BlockContext, BlockOutputs, TreeModel};
use burn_tree_nn::{GatherPlan, LmHeadOptions, TokenLogProbs};

/// The inputs of a forward pass over one pack.
pub(super) struct PackInputs {
    /// Index of the pack in the step.
    pub(super) index: usize,
    /// `[1, N]`
    pub(super) tokens: Tensor<2, Int>,
    pub(super) context: BlockContext,
    pub(super) occurrences: OccurrenceBatch,
    /// `[N]` number of trajectories that contain each row, 0 in padding.
    pub(super) multiplicities: Vec<f32>,
    pub(super) past: PastSources,
    /// The rows whose keys and values later packs see; `None` without such packs.
    pub(super) kept_rows: Option<Arc<GatherPlan>>,
    /// Number of rows whose states later packs start from.
    requested: usize,
    /// Bytes of the batch's indices.
    batch_memory: IndexMemory,
}

impl PackInputs {
    /// Uploads the pack; the floats of its occurrences get the dtype `dtype`.
    pub(super) fn new(
        packs: &[Pack],
        tree: &PackTree,
        index: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, StepError> {
        let pack = &packs[index];
        let (past, left) = (tree.past(index), tree.left(index));
        let batch =
            TreeBatch::try_part(pack, device, dtype).map_err(|source| StepError::Batch {
                pack: index,
                source,
            })?;
        let mask = std::slice::from_ref(&past.mask);
        let requested = left.requested.clone();
        let context = BlockContext::continuing(&batch, mask, past.root_states, requested).map_err(
            |source| StepError::Mask {
                pack: index,
                source,
            },
        )?;
        let counts = pack.trajectory_counts.iter().map(|&count| count as f32);
        let mut multiplicities: Vec<f32> = counts.collect();
        multiplicities.resize(pack.padded_len, 0.0);
        let kept_rows = (left.kept.len() > 0).then(|| {
            let plan = GatherPlan::new(left.kept.rows().collect(), pack.padded_len);
            Arc::new(plan.expect("rows of the layout"))
        });
        let rows_left = |pack: usize| {
            let left = tree.left(pack);
            (left.kept.len(), left.requested.len())
        };
        Ok(Self {
            index,
            batch_memory: batch.index_memory(),
            tokens: batch.tokens,
            context,
            occurrences: batch.occurrences,
            multiplicities,
            requested: left.requested.len(),
            past: PastSources::new(&past.keys, past.states.as_ref(), rows_left, device),
            kept_rows,
        })
    }

    /// Bytes of masks, plans and indices built so far.
    pub(super) fn index_memory(&self) -> IndexMemory {
        let kept = self.kept_rows.as_deref().map(GatherPlan::index_memory);
        self.batch_memory
            + self.context.index_memory()
            + self.past.index_memory()
            + kept.unwrap_or_default()
    }

    /// The log-probabilities of the pack's occurrences, from the hidden states after the last
    /// block.
    pub(super) fn log_probs<M: TreeModel>(
        &self,
        model: &M,
        x: Tensor<3>,
        options: LmHeadOptions,
    ) -> Result<TokenLogProbs, StepError> {
        let hidden = model.final_norm(x);
        let (head, occurrences) = (model.head_weight(), &self.occurrences);
        let context = &self.context;
        let log_probs = context.try_token_log_probs(hidden, head, occurrences, options);
        log_probs.map_err(|source| StepError::Head {
            pack: self.index,
            source,
        })
    }

    /// Runs a block of `model` in `context` and checks that it returns the outputs that later packs
    /// need.
    pub(super) fn run_block<M: TreeModel>(
        &self,
        model: &M,
        block: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: BlockRows<Rows>,
    ) -> Result<(Tensor<3>, BlockOutputs), StepError> {
        let failed = |source| StepError::Block {
            block,
            pack: self.index,
            source,
        };
        context.take_asked();
        let output = model.block(block, x, context, past_of(past).as_ref());
        let (y, outputs) = output.map_err(failed)?;
        let asked = context.take_asked();
        if self.kept_rows.is_some() {
            let [_, rows] = self.tokens.dims();
            let checked = outputs.check(asked, rows, self.requested);
            checked.map_err(|error| failed(error.into()))?;
        }
        Ok((y, outputs))
    }

    /// Runs all blocks of a frozen model on `x [1, N, hidden]` and puts the outputs for later packs
    /// into the store. `each` gets the input and the outputs of each block.
    pub(super) fn run_blocks<M: TreeModel>(
        &self,
        model: &M,
        mut x: Tensor<3>,
        store: &mut OutputStore,
        storage: Storage,
        mut each: impl FnMut(Tensor<3>, &BlockOutputs) -> Result<(), StepError>,
    ) -> Result<Tensor<3>, StepError> {
        let autodiff = x.is_autodiff();
        let mut kept = Vec::new();
        for block in 0..model.n_blocks() {
            let past = self.past.gather(store, block);
            let past = past.map(|rows| rows.with_autodiff(autodiff));
            let (y, outputs) = self.run_block(model, block, x.clone(), &self.context, past)?;
            each(std::mem::replace(&mut x, y), &outputs)?;
            if let Some(rows) = &self.kept_rows {
                kept.push(left_by(outputs, rows).try_map(|rows| Kept::new(rows, storage))?);
            }
        }
        store.put(self.index, kept);
        Ok(x)
    }
}

/// Dot products of the outputs of a block with the gradients that arrived for them.
pub(super) fn injections(
    left: BlockRows<Tensor<4>>,
    kept: &mut BlockRows<Kept>,
    device: &Device,
) -> Vec<Tensor<1>> {
    let pairs = left.into_vec().into_iter().zip(kept.as_mut().into_vec());
    pairs
        .filter_map(|(left, kept)| {
            let gradient = kept.take_gradient(device)?;
            Some((left.cast(gradient.dtype()) * gradient).sum())
        })
        .collect()
}

/// The sum of the terms that depend on a trained parameter. `None` without any.
pub(super) fn tracked_sum(terms: impl IntoIterator<Item = Tensor<1>>) -> Option<Tensor<1>> {
    let tracked = terms.into_iter().filter(Tensor::is_tracked);
    tracked.reduce(|sum, term| {
        let term = term.cast(sum.dtype());
        sum + term
    })
}
