//! The backend extension: what a backend may implement itself, with bodies that work on every one.

use std::sync::Arc;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};

use crate::mask::Visibility;
use crate::primitive::join;
use crate::rope::generic::rope;
use crate::rope::settings::RopeSettings;
use crate::tree_attention::generic;
use crate::tree_attention::options::AttentionSettings;

/// Tree attention and rotary embeddings as backend operations.
///
/// The public functions [`tree_attention()`](crate::tree_attention()) and [`rope()`](crate::rope())
/// check the arguments; these methods do not.
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
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        generic::forward::<Self>(query, key, value, &visibility, settings)
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
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        Self::tree_attention(
            query,
            join::<Self>(past_key, key),
            join::<Self>(past_value, value),
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
        visibility: Arc<Visibility>,
        settings: AttentionSettings,
    ) -> (FloatTensor<Self>, FloatTensor<Self>, FloatTensor<Self>) {
        generic::backward::<Self>(
            grad_output,
            query,
            key,
            value,
            output,
            log_sum_exp,
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
        rope::<Self>(x, position_ids, settings)
    }
}

/// Shapes and dtypes of the outputs, told to Fusion before anything runs.
#[cfg(feature = "fusion")]
mod specs {
    use super::*;
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use burn_tree_kit::dtype::at_least_f32;

    pub(super) fn tree_attention(
        query: &TensorSpec,
        _key: &TensorSpec,
        value: &TensorSpec,
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
            at_least_f32(query.dtype).into(),
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
