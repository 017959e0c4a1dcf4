//! The block-wise model interface that training on trees rests on.

use std::sync::{Arc, OnceLock};

use burn::tensor::{Int, Tensor};
use burn_tree_attn::{PastKeys, TreeMask, TreeMaskError};
use burn_tree_ssm::{RecurrenceError, TreeRecurrence};
use thiserror::Error;
use tree_pack::{IndexMemory, TreeBatch, TreeLayout};

/// A recurrence is not that of the batch of a [`BlockContext`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrenceMismatch {
    /// Another number of rows.
    #[error("the recurrence is for [B, N] = {found:?} rows, expected {expected:?} as in the batch")]
    Shape {
        /// `[B, N]` of the recurrence.
        found: [usize; 2],
        /// `[B, N]` of the batch.
        expected: [usize; 2],
    },
    /// A row that continues another one.
    #[error(
        "row {row} of batch row {batch} has parent {found:?} in the recurrence, expected {expected:?} as in the layout (-1 at roots, None in padding)"
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

/// What every block of a forward pass shares.
#[derive(Clone, Debug)]
pub struct BlockContext {
    /// `[B, N]` depth on the path.
    pub position_ids: Tensor<2, Int>,
    /// Who sees whom.
    pub mask: TreeMask,
    /// `[B * N]` the token ids on the host, 0 in padding: an embedding plans its gradient from them
    /// without waiting for the device.
    pub host_tokens: Arc<Vec<u32>>,
    layouts: Arc<Vec<TreeLayout>>,
    cuts: Arc<Cuts>,
    recurrence: Arc<OnceLock<TreeRecurrence>>,
    routing: Option<(usize, Tensor<2, Int>)>,
}

/// Where the trees of a batch begin and end that are parts of larger ones.
#[derive(Debug, Default)]
struct Cuts {
    /// Which initial state each root starts from; empty if all start from zero.
    root_states: Vec<Option<u32>>,
    /// Rows of the flattened batch whose states later parts start from.
    requested_rows: Vec<u32>,
}

impl BlockContext {
    /// The context of a batch on its own, without rows computed before.
    ///
    /// # Panics
    /// If a layout begins below the root of its tree: it continues rows of another pack, as
    /// [`step_gradients`](crate::step_gradients) knows. And if a layout contradicts itself.
    pub fn new(batch: &TreeBatch) -> Self {
        for (index, layout) in batch.layouts.iter().enumerate() {
            let mut rows = layout.parents.iter().zip(&layout.position_ids);
            let cut = rows.position(|(&parent, &position)| parent < 0 && position > 0);
            if let Some(row) = cut {
                panic!(
                    "row {row} of batch row {index} begins at depth {}, expected 0: its pack \
                     continues another one",
                    layout.position_ids[row]
                );
            }
        }
        let past = vec![PastKeys::default(); batch.layouts.len()];
        Self::with_cuts(batch, &past, Cuts::default()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The context of a batch that continues rows computed before, or is continued: `past` are the
    /// keys before those of each batch row, `root_states` the index of the initial state of each root
    /// in row order (empty if all start from zero), `requested_rows` the rows of the flattened batch
    /// after which states are asked for.
    ///
    /// Blocks then take a [`BlockPast`] with as many keys and states. [`step_gradients`] does all of
    /// this.
    ///
    /// [`step_gradients`]: crate::step_gradients
    ///
    /// # Errors
    /// If a layout and its past keys contradict each other. Whether root states and requested rows fit
    /// the layouts is found out with the [recurrence](Self::try_recurrence).
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
            position_ids: batch.position_ids.clone(),
            mask: TreeMask::with_past_keys(&batch.layouts, rows, past, &device)?,
            host_tokens: Arc::new(batch.host_tokens()),
            layouts: batch.layouts.clone(),
            cuts: Arc::new(cuts),
            recurrence: Arc::default(),
            routing: None,
        })
    }

    /// The same context for block `block` to be computed again with the experts `[B * N, K]` that it
    /// chose before.
    pub fn with_routing(self, block: usize, experts: Tensor<2, Int>) -> Self {
        Self {
            routing: Some((block, experts)),
            ..self
        }
    }

    /// The experts `[B * N, K]` that block `block` has to take, if it is computed again: rounding
    /// could make it choose others. A block that chooses must ask.
    pub fn routing(&self, block: usize) -> Option<Tensor<2, Int>> {
        let (of, experts) = self.routing.as_ref()?;
        (*of == block).then(|| experts.clone())
    }

    /// The same context with another recurrence of the same trees: one in which they start from
    /// states of rows computed before, or of which states are requested.
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

    /// Bytes of the mask, of the recurrence if a block has used it, and of the token ids on the host.
    /// What belongs to the batch is in [`TreeBatch::index_memory`].
    pub fn index_memory(&self) -> IndexMemory {
        let recurrence = self.recurrence.get().map(TreeRecurrence::index_memory);
        let tokens = IndexMemory {
            host_bytes: size_of_val(self.host_tokens.as_slice()) as u64,
            device_bytes: 0,
        };
        self.mask.index_memory() + recurrence.unwrap_or_default() + tokens
    }

    /// Who continues whom, for recurrent blocks. Built by the first of them and shared by all: a
    /// model with attention only does not pay for it.
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
    /// If the layouts of the batch contradict themselves, or the batch has no rows, or more than can
    /// be indexed.
    pub fn try_recurrence(&self) -> Result<&TreeRecurrence, RecurrenceError> {
        if let Some(recurrence) = self.recurrence.get() {
            return Ok(recurrence);
        }
        let [_, rows] = self.position_ids.dims();
        let mut recurrence = TreeRecurrence::try_from_layouts(&self.layouts, rows)?;
        let Cuts {
            root_states,
            requested_rows,
        } = &*self.cuts;
        if !root_states.is_empty() {
            recurrence = recurrence.try_with_initial_states(root_states)?;
        }
        if !requested_rows.is_empty() {
            recurrence = recurrence.try_with_requested_rows(requested_rows)?;
        }
        Ok(self.recurrence.get_or_init(|| recurrence))
    }
}

/// What one block continues from: rows computed before, in an ancestor partition.
#[derive(Clone, Debug)]
pub enum BlockPast {
    /// Of a block with attention.
    Attention {
        /// `[B, Hkv, P, D]` keys after RoPE.
        key: Tensor<4>,
        /// `[B, Hkv, P, Dv]` values.
        value: Tensor<4>,
    },
    /// Of a recurrent block. Which tree starts from which of the `G` entries is part of the
    /// [recurrence](BlockContext::with_recurrence).
    Recurrent {
        /// `[G, HV, DK, DV]` states.
        states: Tensor<4>,
        /// `[G, K - 1, C]` inputs of the convolution; `None` if it reads one token only.
        conv_tails: Option<Tensor<3>>,
    },
}

/// Routing of a mixture-of-experts block.
#[derive(Clone, Debug)]
pub struct RouterOutput {
    /// `[B * N, E]` softmax over all experts, in at least f32.
    pub probabilities: Tensor<2>,
    /// `[B * N, K]` chosen experts.
    pub experts: Tensor<2, Int>,
}

/// What a block leaves for descendants of its rows and for auxiliary losses.
#[derive(Clone, Debug, Default)]
pub struct BlockOutputs {
    /// `[B, Hkv, N, D]` keys after RoPE of attention blocks.
    pub key: Option<Tensor<4>>,
    /// `[B, Hkv, N, Dv]` values of attention blocks.
    pub value: Option<Tensor<4>>,
    /// `[X, HV, DK, DV]` states of recurrent blocks after the rows that their
    /// [recurrence](BlockContext::with_recurrence) requests.
    pub states: Option<Tensor<4>>,
    /// `[X, K - 1, C]` inputs of the convolution of recurrent blocks, of those rows and before.
    pub conv_tails: Option<Tensor<3>>,
    /// Routing of mixture-of-experts blocks.
    pub router: Option<RouterOutput>,
}

/// A causal language model as a sequence of blocks.
///
/// Blocks are separate so that a step can be cut between them.
pub trait TreeModel {
    /// `[B, N]` token ids -> `[B, N, hidden]`.
    fn embed(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3>;
    /// Number of blocks.
    fn n_blocks(&self) -> usize;
    /// Runs block `index` on `x [B, N, hidden]`.
    fn block(
        &self,
        index: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> (Tensor<3>, BlockOutputs);
    /// The normalisation before the head.
    fn final_norm(&self, x: Tensor<3>) -> Tensor<3>;
    /// `[vocab, hidden]` weight of the language-model head.
    fn head_weight(&self) -> Tensor<2>;

    /// Runs all blocks on `tokens [B, N]`: the hidden states `[B, N, hidden]` that the head reads,
    /// and what every block left.
    fn forward(
        &self,
        tokens: Tensor<2, Int>,
        context: &BlockContext,
    ) -> (Tensor<3>, Vec<BlockOutputs>) {
        let mut x = self.embed(tokens, context);
        let mut outputs = Vec::with_capacity(self.n_blocks());
        for index in 0..self.n_blocks() {
            let (y, output) = self.block(index, x, context, None);
            x = y;
            outputs.push(output);
        }
        (self.final_norm(x), outputs)
    }

    /// The hidden states of [`TreeModel::forward`] alone; keys and values are dropped block by
    /// block.
    fn hidden_states(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3> {
        let mut x = self.embed(tokens, context);
        for index in 0..self.n_blocks() {
            x = self.block(index, x, context, None).0;
        }
        self.final_norm(x)
    }
}
