//! The backend extension: what a backend may implement itself, with bodies that work on every one.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn_tree_kit::implementation::Implementation;

use crate::generic;
use crate::visibility::Visibility;

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

/// Which way [`TreeAttentionOps::rope`] turns.
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

/// Resolved settings of one call of [`TreeAttentionOps::rope`].
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
}

impl RopeSettings {
    /// `theta^(-2 i / rotary_dim)` for the pairs `i < rotary_dim / 2`.
    pub(crate) fn inverse_frequencies(self) -> impl Iterator<Item = f64> {
        let power = move |pair| -2.0 * pair as f64 / self.rotary_dim as f64;
        (0..self.rotary_dim / 2).map(move |pair| self.theta.powf(power(pair)))
    }
}

/// Tree attention and rotary embeddings as backend operations.
///
/// Arguments are checked by [`tree_attention`](crate::tree_attention) and [`rope`](crate::rope),
/// not here. The four integer tensors and `visibility` hold the same intervals, on the device and
/// on the host: kernels use the one, blocked implementations the other.
#[backend_extension(
    Cube: cfg(feature = "cubecl-backend"),
    Flex: cfg(feature = "flex"),
    LibTorch: cfg(feature = "tch"),
    NdArray: cfg(feature = "ndarray"),
    Autodiff,
    Fusion: cfg(feature = "fusion"),
)]
pub trait TreeAttentionOps: Backend {
    /// Output `[B, Hq, N, Dv]` in the query's dtype, and the log-sum-exp `[B, Hq, N]` of each
    /// row's scores in f32 (f64 for f64 inputs); rows that see nothing get 0 in both.
    #[fusion(meta = specs::tree_attention)]
    fn tree_attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        key_start: IntTensor<Self>,
        key_end: IntTensor<Self>,
        key_position: IntTensor<Self>,
        query_position: IntTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        generic::attention_forward::<Self>(
            query,
            key,
            value,
            key_start,
            key_end,
            key_position,
            query_position,
            &visibility,
            settings,
        )
    }

    /// [`tree_attention`](Self::tree_attention) to past keys and values, followed by the others;
    /// neither part is empty.
    #[fusion(default)]
    fn tree_attention_with_past(
        query: FloatTensor<Self>,
        past_key: FloatTensor<Self>,
        past_value: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        key_start: IntTensor<Self>,
        key_end: IntTensor<Self>,
        key_position: IntTensor<Self>,
        query_position: IntTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        Self::tree_attention(
            query,
            join::<Self>(past_key, key),
            join::<Self>(past_value, value),
            key_start,
            key_end,
            key_position,
            query_position,
            visibility,
            settings,
        )
    }

    /// Gradients of query, key and value from the gradient of the output, given output and
    /// log-sum-exp of the forward pass.
    #[fusion(meta = specs::tree_attention_backward)]
    fn tree_attention_backward(
        grad_output: FloatTensor<Self>,
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        output: FloatTensor<Self>,
        log_sum_exp: FloatTensor<Self>,
        key_start: IntTensor<Self>,
        key_end: IntTensor<Self>,
        key_position: IntTensor<Self>,
        query_position: IntTensor<Self>,
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        generic::attention_backward::<Self>(
            grad_output,
            query,
            key,
            value,
            output,
            log_sum_exp,
            key_start,
            key_end,
            key_position,
            query_position,
            &visibility,
            settings,
        )
    }

    /// Rotates pair `i` of the leading `rotary_dim` dimensions of `x [B, H, N, D]` by
    /// `position * theta^(-2 i / rotary_dim)`, positions `[B, N]`.
    #[fusion(meta = specs::rope)]
    fn rope(
        x: FloatTensor<Self>,
        position_ids: IntTensor<Self>,
        settings: RopeSettings,
    ) -> FloatTensor<Self> {
        generic::rope::<Self>(x, position_ids, settings)
    }
}

/// Rows of keys or values `[B, Hkv, _, D]`, the past first.
pub(crate) fn join<B: Backend>(past: FloatTensor<B>, own: FloatTensor<B>) -> FloatTensor<B> {
    B::float_cat(vec![past, own], 2)
}

/// Shapes and dtypes of the outputs, told to Fusion before anything runs.
#[cfg(feature = "fusion")]
mod specs {
    use super::*;
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use crate::generic::accumulation_dtype;

    pub(super) fn tree_attention(
        query: &TensorSpec,
        _key: &TensorSpec,
        value: &TensorSpec,
        _key_start: &TensorSpec,
        _key_end: &TensorSpec,
        _key_position: &TensorSpec,
        _query_position: &TensorSpec,
        _visibility: &Arc<Visibility>,
        _settings: &AttentionSettings,
    ) -> (TensorSpec, TensorSpec) {
        let [batch, heads, rows] = [query.shape[0], query.shape[1], query.shape[2]];
        let output = TensorSpec::new(
            Shape::from([batch, heads, rows, value.shape[3]]),
            query.dtype,
        );
        let log_sum_exp = TensorSpec::new(
            Shape::from([batch, heads, rows]),
            accumulation_dtype(query.dtype).into(),
        );
        (output, log_sum_exp)
    }

    pub(super) fn tree_attention_backward(
        _grad_output: &TensorSpec,
        query: &TensorSpec,
        key: &TensorSpec,
        value: &TensorSpec,
        _output: &TensorSpec,
        _log_sum_exp: &TensorSpec,
        _key_start: &TensorSpec,
        _key_end: &TensorSpec,
        _key_position: &TensorSpec,
        _query_position: &TensorSpec,
        _visibility: &Arc<Visibility>,
        _settings: &AttentionSettings,
    ) -> (TensorSpec, TensorSpec, TensorSpec) {
        (query.clone(), key.clone(), value.clone())
    }

    pub(super) fn rope(
        x: &TensorSpec,
        _position_ids: &TensorSpec,
        _settings: &RopeSettings,
    ) -> TensorSpec {
        x.clone()
    }
}
