//! A pack on the device, with what it continues from.

use std::sync::Arc;

use burn::tensor::{Device, FloatDType, Int, Tensor};
use tree_pack::{IndexMemory, OccurrenceBatch, Pack, TreeBatch};

use super::error::StepError;
use super::past::PastSources;
use super::plan::StepPlan;
use super::rows::{BlockRows, Rows, left_by, past_of};
use super::shelf::{Kept, Place, Shelf};
use crate::{BlockContext, BlockOutputs, TreeModel};
use burn_tree_nn::{GatherPlan, LmHeadOptions, TokenLogProbs};

/// What one pass over a pack needs.
pub(super) struct PackInputs {
    /// Index of the pack in the step.
    pub(super) index: usize,
    /// `[1, N]`
    pub(super) tokens: Tensor<2, Int>,
    pub(super) context: BlockContext,
    pub(super) occurrences: OccurrenceBatch,
    /// `[N]` number of trajectories through each row, 0 in padding.
    pub(super) multiplicities: Vec<f32>,
    pub(super) past: PastSources,
    /// The rows whose keys and values descendants see, out of `N`; `None` without descendants.
    pub(super) kept_rows: Option<Arc<GatherPlan>>,
    /// Number of rows whose states descendants start from.
    requested: usize,
    /// Of the batch.
    batch_memory: IndexMemory,
}

impl PackInputs {
    /// Floats of the occurrences are uploaded as `dtype`.
    pub(super) fn new(
        packs: &[Pack],
        plan: &StepPlan,
        index: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Self, StepError> {
        let pack = &packs[index];
        let (past, left) = (plan.past(index), plan.left(index));
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
            let left = plan.left(pack);
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

    /// Bytes of everything that says how rows hang together, as far as it has been made.
    pub(super) fn index_memory(&self) -> IndexMemory {
        let kept = self.kept_rows.as_deref().map(GatherPlan::index_memory);
        self.batch_memory
            + self.context.index_memory()
            + self.past.index_memory()
            + kept.unwrap_or_default()
    }

    /// The log-probabilities of the pack's occurrences, from what the last block returns.
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

    /// Runs a block of `model` in `context`, that of the pack, and checks that it leaves what
    /// descendants need.
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

    /// Runs all blocks of a model in which nothing is trained on `x [1, N, hidden]`, and puts what
    /// descendants continue from on the shelf; `each` gets the input of each block and what it returns besides.
    pub(super) fn run_blocks<M: TreeModel>(
        &self,
        model: &M,
        mut x: Tensor<3>,
        shelf: &mut Shelf,
        place: Place,
        mut each: impl FnMut(Tensor<3>, &BlockOutputs) -> Result<(), StepError>,
    ) -> Result<Tensor<3>, StepError> {
        let autodiff = x.is_autodiff();
        let mut kept = Vec::new();
        for block in 0..model.n_blocks() {
            let past = self.past.gather(shelf, block);
            let past = past.map(|rows| rows.with_autodiff(autodiff));
            let (y, outputs) = self.run_block(model, block, x.clone(), &self.context, past)?;
            each(std::mem::replace(&mut x, y), &outputs)?;
            if let Some(rows) = &self.kept_rows {
                kept.push(left_by(outputs, rows).try_map(|rows| Kept::new(rows, place))?);
            }
        }
        shelf.put(self.index, kept);
        Ok(x)
    }
}

/// Sums of products of what a block leaves with the gradients that arrived for it.
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

/// The sum of those parts of an objective that depend on something that is trained.
pub(super) fn objective(parts: impl IntoIterator<Item = Tensor<1>>) -> Option<Tensor<1>> {
    let tracked = parts.into_iter().filter(Tensor::is_tracked);
    tracked.reduce(|sum, part| {
        let part = part.cast(sum.dtype());
        sum + part
    })
}
