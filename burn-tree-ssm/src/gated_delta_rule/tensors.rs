//! The tensors of a call, as [`TreeSsmOps`](crate::TreeSsmOps) passes them to a backend.
//!
//! Sizes: `R` rows of the flattened batch, `HK` key heads, `HV` value heads, `DK` and `DV` their
//! dimensions, `C` rows of a window, `S` slots, `X` requested rows and `G` initial states of the
//! recurrence.

use burn::backend::{Backend, ExtensionType, tensor::FloatTensor};

/// The inputs of the gated delta rule that have gradients.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct GatedDeltaRuleInputs<B: Backend> {
    /// `[R, HK, DK]`
    pub query: FloatTensor<B>,
    /// `[R, HK, DK]` in the dtype of the query.
    pub key: FloatTensor<B>,
    /// `[R, HV, DV]` in the dtype of the query.
    pub value: FloatTensor<B>,
    /// `[R, HV]` in f32 (f64 if the value is). Below -104 (-750) it counts as that.
    pub log_decay: FloatTensor<B>,
    /// `[R, HV]` in f32 (f64).
    pub beta: FloatTensor<B>,
    /// `[max(G, 1), HV, DK, DV]` in f32 (f64).
    pub initial_states: FloatTensor<B>,
}

/// What the forward pass keeps for the backward pass.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct GatedDeltaRuleSaved<B: Backend> {
    /// `[max(S, 1), HV, DK, DV]` in f32 (f64): the states of all slots. The first `X`, those after
    /// the requested rows, are results too and differentiable.
    pub states: FloatTensor<B>,
    /// `[R, HV, C]` in the dtype of the value: `T0`, the inverse of `I + diag(beta) K K^T`
    /// (strictly below the diagonal, between a row and its ancestors in the window), row `i` of the
    /// batch with column `j` of its window. Padding rows and columns past the window's length are
    /// undefined.
    pub inverse: FloatTensor<B>,
}

/// The gradients of [`GatedDeltaRuleInputs`], each in the shape and dtype of its input.
#[derive(Clone, Debug, ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct GatedDeltaRuleGradients<B: Backend> {
    /// `[R, HK, DK]`
    pub query: FloatTensor<B>,
    /// `[R, HK, DK]`
    pub key: FloatTensor<B>,
    /// `[R, HV, DV]`
    pub value: FloatTensor<B>,
    /// `[R, HV]`
    pub log_decay: FloatTensor<B>,
    /// `[R, HV]`
    pub beta: FloatTensor<B>,
    /// `[max(G, 1), HV, DK, DV]`
    pub initial_states: FloatTensor<B>,
}

impl<B: Backend> GatedDeltaRuleInputs<B> {
    /// From tensors in the order of the fields.
    pub(crate) fn from_array(tensors: [FloatTensor<B>; 6]) -> Self {
        let [query, key, value, log_decay, beta, initial_states] = tensors;
        Self {
            query,
            key,
            value,
            log_decay,
            beta,
            initial_states,
        }
    }

    /// The tensors in the order of the fields.
    pub(crate) fn into_array(self) -> [FloatTensor<B>; 6] {
        [
            self.query,
            self.key,
            self.value,
            self.log_decay,
            self.beta,
            self.initial_states,
        ]
    }
}

impl<B: Backend> GatedDeltaRuleGradients<B> {
    /// From tensors in the order of the fields.
    pub(crate) fn from_array(tensors: [FloatTensor<B>; 6]) -> Self {
        let [query, key, value, log_decay, beta, initial_states] = tensors;
        Self {
            query,
            key,
            value,
            log_decay,
            beta,
            initial_states,
        }
    }

    /// The tensors in the order of the fields.
    pub(crate) fn into_array(self) -> [FloatTensor<B>; 6] {
        [
            self.query,
            self.key,
            self.value,
            self.log_decay,
            self.beta,
            self.initial_states,
        ]
    }
}
