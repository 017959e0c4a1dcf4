//! Options of rope.

use super::scaling::RopeScaling;

/// Rotary embedding settings.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the angles.
    pub theta: f64,
    /// Leading dimensions that are rotated; all of them if `None`.
    pub rotary_dim: Option<usize>,
    /// Which of them turn together.
    pub pairing: RopePairing,
    /// How their angles are stretched.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// All dimensions, in [halves](RopePairing::Halves), by angles of the base `theta`.
    pub fn new(theta: f64) -> Self {
        Self {
            theta,
            rotary_dim: None,
            pairing: RopePairing::Halves,
            scaling: RopeScaling::None,
        }
    }
}

/// Which dimensions of a head turn together.
///
/// Query and key projections are trained for one of them: with the other, a model computes
/// something else, and nothing fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RopePairing {
    /// `(i, i + rotary_dim / 2)`: "rotate half" of Llama, Qwen and others in Hugging Face
    /// Transformers.
    #[default]
    Halves,
    /// `(2 i, 2 i + 1)`: the RoFormer paper, and Burn's `RotaryEncoding`.
    Interleaved,
}

/// Which way [`TreeAttentionOps::rope`](crate::TreeAttentionOps::rope) turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeDirection {
    /// By the angle of the position.
    Forward,
    /// By the negative angle: the transpose, and so the backward pass.
    Backward,
}

impl RopeDirection {
    /// The other one.
    pub fn reversed(self) -> Self {
        match self {
            Self::Forward => Self::Backward,
            Self::Backward => Self::Forward,
        }
    }
}

/// Resolved settings of one call of [`TreeAttentionOps::rope`](crate::TreeAttentionOps::rope).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeSettings {
    /// Base of the angles.
    pub theta: f64,
    /// Leading dimensions that are rotated: even, at least 2 and at most those of a head.
    pub rotary_dim: usize,
    /// Which of them are pairs.
    pub pairing: RopePairing,
    /// Which way they turn.
    pub direction: RopeDirection,
    /// How their angles are stretched.
    pub scaling: RopeScaling,
}

impl RopeSettings {
    /// What the pairs `i < rotary_dim / 2` turn by in one position.
    pub(crate) fn inverse_frequencies(self) -> impl Iterator<Item = f64> {
        let frequencies = self
            .scaling
            .inverse_frequencies(self.theta, self.rotary_dim);
        frequencies.into_iter()
    }
}
