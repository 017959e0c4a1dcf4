//! Options and settings of a call.

use burn_tree_kit::implementation::Implementation;

/// Options of [`tree_attention`](super::tree_attention).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TreeAttentionOptions {
    /// Factor of the scores; `head_dim^-1/2` if `None`.
    pub scale: Option<f64>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f64>,
    /// A query at path position `p` sees keys at positions `> p - sliding_window`.
    pub sliding_window: Option<usize>,
    /// Which implementation runs: the fastest available unless told otherwise.
    pub implementation: Implementation,
}

/// Resolved options of one call of tree attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSettings {
    /// Factor of the scores.
    pub scale: f64,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f64>,
    /// A query at path position `p` sees keys at positions `> p - sliding_window`.
    pub sliding_window: Option<usize>,
    /// What is to run; checked before dispatch.
    pub implementation: Implementation,
}
