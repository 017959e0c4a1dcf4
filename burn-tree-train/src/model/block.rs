//! What a block continues from, and what it leaves.

use burn::tensor::{Int, Tensor};
use burn_tree_attn::PastKeyValue;
use thiserror::Error;

/// What keeps a block from running: any error.
pub type BlockError = Box<dyn std::error::Error + Send + Sync>;

/// What one block continues from: rows computed before, in an ancestor partition.
#[derive(Clone, Debug)]
pub enum BlockPast {
    /// Of a block with attention: keys after RoPE `[B, Hkv, P, D]` and values `[B, Hkv, P, Dv]`.
    Attention(PastKeyValue),
    /// Of a recurrent block. Which tree starts from which of the `G` entries is part of the
    /// [recurrence](crate::BlockContext::recurrence).
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
    /// [recurrence](crate::BlockContext::recurrence) requests.
    pub states: Option<Tensor<4>>,
    /// `[X, K - 1, C]` inputs of the convolution of recurrent blocks, of those rows and before.
    pub conv_tails: Option<Tensor<3>>,
    /// Routing of mixture-of-experts blocks.
    pub router: Option<RouterOutput>,
}

/// A block does not leave what packs that continue this one need.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockOutputsError {
    /// A block with attention returned no keys or no values.
    #[error(
        "it attends with BlockContext::mask, and other packs continue this one, but \
         BlockOutputs::{field} is None"
    )]
    Missing {
        /// `key` or `value`.
        field: &'static str,
    },
    /// A block with a recurrence returned no states.
    #[error(
        "it uses BlockContext::recurrence, and other packs continue this one, but \
         BlockOutputs::states is None"
    )]
    MissingStates,
    /// A tensor with another number of rows than asked for.
    #[error("BlockOutputs::{field} has {found} rows, expected {expected}")]
    Rows {
        /// The tensor.
        field: &'static str,
        /// Its rows.
        found: usize,
        /// Rows of the pack, or requested states.
        expected: usize,
    },
}

impl BlockOutputs {
    /// Checks what a block that read the mask or the recurrence (`asked`) left, `rows` rows of keys
    /// and `requested` states.
    pub(crate) fn check(
        &self,
        asked: Asked,
        rows: usize,
        requested: usize,
    ) -> Result<(), BlockOutputsError> {
        for (field, tensor) in [("key", &self.key), ("value", &self.value)] {
            match tensor.as_ref().map(|tensor| tensor.dims()[2]) {
                None if asked.mask => return Err(BlockOutputsError::Missing { field }),
                Some(found) if found != rows => {
                    let expected = rows;
                    return Err(BlockOutputsError::Rows {
                        field,
                        found,
                        expected,
                    });
                }
                _ => {}
            }
        }
        match self.states.as_ref().map(|states| states.dims()[0]) {
            None if asked.recurrence && requested > 0 => Err(BlockOutputsError::MissingStates),
            Some(found) if found != requested => Err(BlockOutputsError::Rows {
                field: "states",
                found,
                expected: requested,
            }),
            _ => Ok(()),
        }
    }
}

/// What a block has read of its context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) mask: bool,
    pub(crate) recurrence: bool,
}
