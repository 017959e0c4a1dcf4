//! The inputs that all blocks of a forward pass share.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use burn::tensor::{Int, Tensor};
use burn_tree_attn::{PastKeys, TreeMask, TreeMaskError};
use burn_tree_ssm::{RecurrenceError, TreeRecurrence};
use thiserror::Error;
use tree_pack::{BatchId, IndexMemory, OccurrenceBatch, TreeBatch, TreeLayout};

use super::block::Asked;
use burn_tree_nn::{LmHeadError, LmHeadOptions, TokenLogProbs, try_token_log_probs};

/// A recurrence that does not match the batch of a [`BlockContext`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrenceMismatch {
    /// The number of rows differs.
    #[error("the recurrence is for [B, N] = {found:?} rows, expected {expected:?} as in the batch")]
    Shape {
        /// `[B, N]` of the recurrence.
        found: [usize; 2],
        /// `[B, N]` of the batch.
        expected: [usize; 2],
    },
    /// A parent row differs.
    #[error(
        "row {row} of batch row {batch} has parent {found:?} in the recurrence, expected \
         {expected:?} as in the layout (-1 at roots, None in padding)"
    )]
    Parent {
        /// The batch row.
        batch: usize,
        /// The row in it.
        row: usize,
        /// Its parent in the recurrence, -1 at roots; `None` in padding.
        found: Option<i32>,
        /// Its parent in the layout.
        expected: Option<i32>,
    },
}

/// The inputs that all blocks of a forward pass share: positions, mask and recurrence of one batch.
#[derive(Clone, Debug)]
pub struct BlockContext {
    batch: BatchId,
    position_ids: Tensor<2, Int>,
    mask: TreeMask,
    host_tokens: Arc<Vec<u32>>,
    layouts: Arc<Vec<TreeLayout>>,
    cuts: Arc<Cuts>,
    recurrence: Arc<OnceLock<TreeRecurrence>>,
    routing: Option<(usize, Tensor<2, Int>)>,
    asked: Arc<AskedCell>,
}

/// The parts that the current block has read, to check its outputs.
#[derive(Debug, Default)]
struct AskedCell {
    mask: AtomicBool,
    recurrence: AtomicBool,
}

/// How the trees of a batch that are parts of larger ones continue others and are continued.
#[derive(Debug, Default)]
struct Cuts {
    /// The index of the initial state of each root; empty if all start from zero.
    root_states: Vec<Option<u32>>,
    /// Rows of the flattened batch whose states later parts start from.
    requested_rows: Vec<u32>,
}

impl BlockContext {
    /// The context of a batch that continues no other packs.
    ///
    /// # Panics
    /// If [`try_new`](Self::try_new) refuses the batch.
    pub fn new(batch: &TreeBatch) -> Self {
        Self::try_new(batch).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The context of a batch that continues no other packs.
    ///
    /// # Errors
    /// If a layout is inconsistent, or is a part that continues rows of another pack, which
    /// [`step_gradients`](crate::step_gradients) handles.
    pub fn try_new(batch: &TreeBatch) -> Result<Self, TreeMaskError> {
        let past = vec![PastKeys::default(); batch.layouts.len()];
        Self::with_cuts(batch, &past, Cuts::default())
    }

    /// The context of a batch that continues rows of earlier packs, or is continued. `past` are the
    /// past keys of each batch row, `root_states` the index of the initial state of each root in
    /// row order (empty if all start from zero), and `requested_rows` the rows of the flattened
    /// batch whose states later packs need.
    ///
    /// Blocks then need a [`BlockPast`] with these keys and states. [`step_gradients`] handles all
    /// of this.
    ///
    /// [`BlockPast`]: crate::BlockPast
    /// [`step_gradients`]: crate::step_gradients
    ///
    /// # Errors
    /// If a layout and its past keys are inconsistent. Root states and requested rows are checked
    /// when the [recurrence](Self::try_recurrence) is built.
    pub fn continuing(
        batch: &TreeBatch,
        past: &[PastKeys],
        root_states: Vec<Option<u32>>,
        requested_rows: Vec<u32>,
    ) -> Result<Self, TreeMaskError> {
        let cuts = Cuts {
            root_states,
            requested_rows,
        };
        Self::with_cuts(batch, past, cuts)
    }

    fn with_cuts(batch: &TreeBatch, past: &[PastKeys], cuts: Cuts) -> Result<Self, TreeMaskError> {
        let [_, rows] = batch.tokens.dims();
        let device = batch.tokens.device();
        Ok(Self {
            batch: batch.id(),
            position_ids: batch.position_ids.clone(),
            mask: TreeMask::with_past_keys(&batch.layouts, rows, past, &device)?,
            host_tokens: Arc::new(batch.host_tokens()),
            layouts: batch.layouts.clone(),
            cuts: Arc::new(cuts),
            recurrence: Arc::default(),
            routing: None,
            asked: Arc::default(),
        })
    }

    /// `[B, N]` depth on the path, 0 in padding: the positions for RoPE.
    pub fn position_ids(&self) -> Tensor<2, Int> {
        self.position_ids.clone()
    }

    /// The visibility mask, for [`burn_tree_attn::tree_attention`].
    pub fn mask(&self) -> &TreeMask {
        self.asked.mask.store(true, Ordering::Relaxed);
        &self.mask
    }

    /// `[B * N]` token ids on the host, 0 in padding: they let an embedding plan its gradient
    /// without waiting for the device.
    pub fn host_tokens(&self) -> &Arc<Vec<u32>> {
        &self.host_tokens
    }

    /// [`token_log_probs`](burn_tree_nn::token_log_probs) of the batch of this context.
    ///
    /// # Panics
    /// If [`try_token_log_probs`](Self::try_token_log_probs) refuses the arguments.
    pub fn token_log_probs(
        &self,
        hidden: Tensor<3>,
        head_weight: Tensor<2>,
        occurrences: &OccurrenceBatch,
        options: LmHeadOptions,
    ) -> TokenLogProbs {
        self.try_token_log_probs(hidden, head_weight, occurrences, options)
            .unwrap_or_else(|error| panic!("token_log_probs: {error}"))
    }

    /// [`try_token_log_probs`](burn_tree_nn::try_token_log_probs) of the batch of this context.
    ///
    /// # Errors
    /// As there, and [`LmHeadError::OtherBatch`] if the occurrences are those of another batch.
    pub fn try_token_log_probs(
        &self,
        hidden: Tensor<3>,
        head_weight: Tensor<2>,
        occurrences: &OccurrenceBatch,
        options: LmHeadOptions,
    ) -> Result<TokenLogProbs, LmHeadError> {
        if occurrences.batch.is_some_and(|batch| batch != self.batch) {
            return Err(LmHeadError::OtherBatch);
        }
        try_token_log_probs(hidden, head_weight, occurrences, options)
    }

    /// The parts read since the last call.
    pub(crate) fn take_asked(&self) -> Asked {
        Asked {
            mask: self.asked.mask.swap(false, Ordering::Relaxed),
            recurrence: self.asked.recurrence.swap(false, Ordering::Relaxed),
        }
    }

    /// A copy of this context in which block `block` must choose the experts `[B * N, K]` again
    /// when it is recomputed.
    pub fn with_routing(self, block: usize, experts: Tensor<2, Int>) -> Self {
        Self {
            routing: Some((block, experts)),
            ..self
        }
    }

    /// The experts `[B * N, K]` that block `block` must choose if it is recomputed, because
    /// rounding could change its choice. Every block with a router must call this.
    pub fn routing(&self, block: usize) -> Option<Tensor<2, Int>> {
        let (of, experts) = self.routing.as_ref()?;
        (*of == block).then(|| experts.clone())
    }

    /// The same context with another recurrence over the same trees, with initial states or
    /// requested states.
    ///
    /// # Panics
    /// If [`try_with_recurrence`](Self::try_with_recurrence) refuses the recurrence.
    pub fn with_recurrence(self, recurrence: TreeRecurrence) -> Self {
        self.try_with_recurrence(recurrence)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`with_recurrence`](Self::with_recurrence).
    ///
    /// # Errors
    /// If a row continues another row than in the layouts of the batch, or the shapes differ.
    pub fn try_with_recurrence(
        self,
        recurrence: TreeRecurrence,
    ) -> Result<Self, RecurrenceMismatch> {
        self.check_parents(&recurrence)?;
        Ok(Self {
            recurrence: Arc::new(recurrence.into()),
            ..self
        })
    }

    fn check_parents(&self, recurrence: &TreeRecurrence) -> Result<(), RecurrenceMismatch> {
        let expected = self.position_ids.dims();
        let found = [recurrence.batch_size(), recurrence.row_length()];
        if found != expected {
            return Err(RecurrenceMismatch::Shape { found, expected });
        }
        let length = recurrence.row_length();
        for (index, &parent) in recurrence.parents().iter().enumerate() {
            let (batch, row) = (index / length, index % length);
            let in_batch_row = |parent: i32| (parent - (batch * length) as i32).max(-1);
            let found = (!recurrence.is_padding(index)).then(|| in_batch_row(parent));
            let expected = self.layouts[batch].parents.get(row).copied();
            if found != expected {
                return Err(RecurrenceMismatch::Parent {
                    batch,
                    row,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }

    /// Bytes of the mask, of the recurrence if it was built, and of the token ids on the host.
    /// [`TreeBatch::index_memory`] counts the rest of the batch.
    pub fn index_memory(&self) -> IndexMemory {
        let recurrence = self.recurrence.get().map(TreeRecurrence::index_memory);
        let tokens = IndexMemory {
            host_bytes: size_of_val(self.host_tokens.as_slice()) as u64,
            device_bytes: 0,
        };
        self.mask.index_memory() + recurrence.unwrap_or_default() + tokens
    }

    /// The recurrence over parent rows, for recurrent blocks. It is built on first use and shared
    /// by all blocks, so a model with attention only does not build it.
    ///
    /// # Panics
    /// If [`try_recurrence`](Self::try_recurrence) gives an error.
    pub fn recurrence(&self) -> &TreeRecurrence {
        self.try_recurrence()
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`recurrence`](Self::recurrence).
    ///
    /// # Errors
    /// If the layouts of the batch are inconsistent, or the batch has no rows or too many.
    pub fn try_recurrence(&self) -> Result<&TreeRecurrence, RecurrenceError> {
        self.asked.recurrence.store(true, Ordering::Relaxed);
        if let Some(recurrence) = self.recurrence.get() {
            return Ok(recurrence);
        }
        let [_, rows] = self.position_ids.dims();
        let Cuts {
            root_states,
            requested_rows,
        } = &*self.cuts;
        let mut recurrence = match root_states.is_empty() {
            true => TreeRecurrence::try_from_layouts(&self.layouts, rows)?,
            false => TreeRecurrence::try_continuing(&self.layouts, rows, root_states)?,
        };
        if !requested_rows.is_empty() {
            recurrence = recurrence.try_with_requested_rows(requested_rows)?;
        }
        Ok(self.recurrence.get_or_init(|| recurrence))
    }
}
