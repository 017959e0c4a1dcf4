//! The outputs of a block for the packs that continue its rows.

use std::sync::Arc;

use burn::tensor::Tensor;
use burn_tree_attn::PastKeyValue;

use crate::{BlockOutputs, BlockPast};
use burn_tree_nn::{GatherPlan, gather_rows};

/// One value for each output tensor of a block.
#[derive(Clone, Debug)]
pub(super) enum BlockRows<T> {
    /// Attention block: per row.
    Attention { key: T, value: T },
    /// Recurrent block: per requested row.
    Recurrent { states: T, conv_tails: Option<T> },
    /// Block without outputs for later packs.
    Nothing,
}

impl<T> BlockRows<T> {
    pub(super) fn try_map<U, E>(
        self,
        mut function: impl FnMut(T) -> Result<U, E>,
    ) -> Result<BlockRows<U>, E> {
        Ok(match self {
            Self::Attention { key, value } => BlockRows::Attention {
                key: function(key)?,
                value: function(value)?,
            },
            Self::Recurrent { states, conv_tails } => BlockRows::Recurrent {
                states: function(states)?,
                conv_tails: conv_tails.map(function).transpose()?,
            },
            Self::Nothing => BlockRows::Nothing,
        })
    }

    pub(super) fn map<U>(self, mut function: impl FnMut(T) -> U) -> BlockRows<U> {
        let Ok(mapped) = self.try_map(|value| Ok::<_, std::convert::Infallible>(function(value)));
        mapped
    }

    pub(super) fn as_ref(&self) -> BlockRows<&T> {
        match self {
            Self::Attention { key, value } => BlockRows::Attention { key, value },
            Self::Recurrent { states, conv_tails } => BlockRows::Recurrent {
                states,
                conv_tails: conv_tails.as_ref(),
            },
            Self::Nothing => BlockRows::Nothing,
        }
    }

    pub(super) fn as_mut(&mut self) -> BlockRows<&mut T> {
        match self {
            Self::Attention { key, value } => BlockRows::Attention { key, value },
            Self::Recurrent { states, conv_tails } => BlockRows::Recurrent {
                states,
                conv_tails: conv_tails.as_mut(),
            },
            Self::Nothing => BlockRows::Nothing,
        }
    }

    /// The tensors in a fixed order.
    pub(super) fn into_vec(self) -> Vec<T> {
        match self {
            Self::Attention { key, value } => vec![key, value],
            Self::Recurrent { states, conv_tails } => {
                [states].into_iter().chain(conv_tails).collect()
            }
            Self::Nothing => Vec::new(),
        }
    }
}

/// Rows of a tensor, `[1, heads, rows, width]` as in attention, so that keys and values need no
/// copies. States are rows of one head.
#[derive(Clone, Debug)]
pub(super) struct Rows {
    pub(super) tensor: Tensor<4>,
    /// For states, the dimensions whose product is `width`.
    pub(super) features: Vec<usize>,
}

/// The dimension of [`Rows::tensor`] that counts rows.
pub(super) const ROW_DIM: usize = 2;

impl Rows {
    /// From `[1, H, N, D]`.
    fn of_heads(tensor: Tensor<4>, plan: &Arc<GatherPlan>) -> Self {
        let [_, heads, rows, width] = tensor.dims();
        let kept = plan.indices().len();
        // Rows are distinct and ascend.
        let tensor = match kept == rows {
            true => tensor,
            false => {
                let matrix = tensor.swap_dims(1, 2).reshape([rows, heads * width]);
                let matrix = gather_rows(matrix, plan);
                matrix.reshape([1, kept, heads, width]).swap_dims(1, 2)
            }
        };
        Self {
            tensor,
            features: Vec::new(),
        }
    }

    /// From states `[X, ...]`.
    fn of_slots<const D: usize>(tensor: Tensor<D>) -> Self {
        let dims = tensor.dims();
        let features = dims[1..].to_vec();
        Self {
            tensor: tensor.reshape([1, 1, dims[0], features.iter().product()]),
            features,
        }
    }

    /// The same rows without autodiff, or as constants of the autodiff backend.
    pub(super) fn with_autodiff(self, autodiff: bool) -> Self {
        Self {
            tensor: match autodiff {
                true => self.tensor.autodiff(),
                false => self.tensor,
            },
            ..self
        }
    }

    /// The same rows as leaves of a graph.
    pub(super) fn into_leaves(self) -> Self {
        Self {
            tensor: self.tensor.autodiff().require_grad(),
            ..self
        }
    }

    /// Back to states `[G, ...]`.
    fn into_slots<const D: usize>(self) -> Tensor<D> {
        let slots = self.tensor.dims()[ROW_DIM];
        let dims: Vec<usize> = [slots].into_iter().chain(self.features).collect();
        self.tensor
            .reshape(<[usize; D]>::try_from(dims).expect("dimensions as they were"))
    }
}

/// The outputs of a block at the rows of `plan`, and at the rows whose states are requested.
pub(super) fn left_by(outputs: BlockOutputs, plan: &Arc<GatherPlan>) -> BlockRows<Rows> {
    match outputs {
        BlockOutputs {
            key: Some(key),
            value: Some(value),
            ..
        } => BlockRows::Attention {
            key: Rows::of_heads(key, plan),
            value: Rows::of_heads(value, plan),
        },
        BlockOutputs {
            states: Some(states),
            conv_tails,
            ..
        } => BlockRows::Recurrent {
            states: Rows::of_slots(states),
            conv_tails: conv_tails.map(Rows::of_slots),
        },
        _ => BlockRows::Nothing,
    }
}

/// The past context of a block.
pub(super) fn past_of(rows: BlockRows<Rows>) -> Option<BlockPast> {
    match rows {
        BlockRows::Attention { key, value } => Some(BlockPast::Attention(PastKeyValue {
            key: key.tensor,
            value: value.tensor,
        })),
        BlockRows::Recurrent { states, conv_tails } => Some(BlockPast::Recurrent {
            states: states.into_slots(),
            conv_tails: conv_tails.map(Rows::into_slots),
        }),
        BlockRows::Nothing => None,
    }
}
