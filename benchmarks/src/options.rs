//! Option values shared by the programs.

use std::str::FromStr;

use burn::tensor::DType;
use burn_tree_attn as operations;
use clap::ValueEnum;

/// Dtype of the inputs of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    /// 32-bit floats.
    F32,
    /// 16-bit floats.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// The dtype of tensors.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }
}

/// Implementation of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Implementation {
    /// The fastest available one.
    Automatic,
    /// Composed of Burn's operations.
    Generic,
    /// Portable CubeCL kernels.
    Portable,
    /// Tensor-core kernels.
    Accelerated,
}

impl From<Implementation> for operations::Implementation {
    fn from(implementation: Implementation) -> Self {
        match implementation {
            Implementation::Automatic => Self::Automatic,
            Implementation::Generic => Self::Generic,
            Implementation::Portable => Self::Portable,
            Implementation::Accelerated => Self::Accelerated,
        }
    }
}

/// Two numbers of heads, one a multiple of the other: `16/8` query and key/value heads of
/// attention, `16/32` key and value heads of the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadCounts(pub usize, pub usize);

impl FromStr for HeadCounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = |text: &str| text.parse::<usize>().ok().filter(|&count| count > 0);
        text.split_once('/')
            .and_then(|(first, second)| Some(Self(count(first)?, count(second)?)))
            .filter(|Self(first, second)| first % second == 0 || second % first == 0)
            .ok_or_else(|| {
                format!("{text:?}: expected two counts such as 16/8, one a multiple of the other")
            })
    }
}
