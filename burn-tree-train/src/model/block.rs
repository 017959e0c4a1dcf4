//! The inputs of a block from earlier packs, and its outputs for later packs.

use burn::tensor::{Int, Tensor};
use burn_tree_attn::PastKeyValue;
use thiserror::Error;

/// The error of a block, of any type.
pub type BlockError = Box<dyn std::error::Error + Send + Sync>;

/// The past context of one block: results of earlier packs.
#[derive(Clone, Debug)]
pub enum BlockPast {
    /// Attention: keys after RoPE `[B, Hkv, P, D]` and values `[B, Hkv, P, Dv]`.
    Attention(PastKeyValue),
    /// Recurrence. The [recurrence](crate::BlockContext::recurrence) maps each root to one of the
    /// `G` entries.
    Recurrent {
        /// `[G, HV, DK, DV]` states.
        states: Tensor<4>,
        /// `[G, K - 1, C]` convolution inputs (the convolution tail); `None` if the kernel has one
        /// entry.
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

/// The outputs of a block for packs that continue its rows, and for auxiliary losses.
#[derive(Clone, Debug, Default)]
pub struct BlockOutputs {
    /// `[B, Hkv, N, D]` keys after RoPE of attention blocks.
    pub key: Option<Tensor<4>>,
    /// `[B, Hkv, N, Dv]` values of attention blocks.
    pub value: Option<Tensor<4>>,
    /// `[X, HV, DK, DV]` states of recurrent blocks after the rows requested by their
    /// [recurrence](crate::BlockContext::recurrence).
    pub states: Option<Tensor<4>>,
    /// `[X, K - 1, C]` convolution inputs of recurrent blocks up to and including these rows.
    pub conv_tails: Option<Tensor<3>>,
    /// Routing of mixture-of-experts blocks.
    pub router: Option<RouterOutput>,
}

/// A block did not return the outputs that later packs need.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockOutputsError {
    /// An attention block returned no keys or no values.
    #[error(
        "the block uses BlockContext::mask and other packs continue this one, but \
         BlockOutputs::{field} is None"
    )]
    Missing {
        /// `key` or `value`.
        field: &'static str,
    },
    /// A recurrent block returned no states.
    #[error(
        "the block uses BlockContext::recurrence and other packs continue this one, but \
         BlockOutputs::states is None"
    )]
    MissingStates,
    /// A tensor has the wrong number of rows.
    #[error("BlockOutputs::{field} has {found} rows, expected {expected}")]
    Rows {
        /// The tensor.
        field: &'static str,
        /// Number of rows.
        found: usize,
        /// Rows of the pack, or number of requested states.
        expected: usize,
    },
}

impl BlockOutputs {
    /// Checks the outputs of a block that read the mask or the recurrence (`asked`): `rows` rows of
    /// keys and values, and `requested` states.
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

/// The parts of its context that a block has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) mask: bool,
    pub(crate) recurrence: bool,
}
