//! Forward and backward pass of tree attention as single operations, without autodiff.

use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_tree_attn::{
    ArgumentError, AttentionSettings, Implementation, TreeAttentionOps, TreeAttentionOptions,
    TreeMask, Visibility, try_tree_attention,
};

/// Numbers of heads and their features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads.
    pub key_value: usize,
    /// Features of a head.
    pub dim: usize,
}

impl Heads {
    /// Model FLOPs of the forward pass: `4 d` per visible pair and query head.
    pub fn forward_flops(&self, visible_pairs: u64) -> f64 {
        4.0 * self.dim as f64 * self.query as f64 * visible_pairs as f64
    }

    /// Model FLOPs of the backward pass: five products instead of two, one of them recomputed.
    pub fn backward_flops(&self, visible_pairs: u64) -> f64 {
        2.5 * self.forward_flops(visible_pairs)
    }
}

/// Random inputs of tree attention under a mask.
pub struct AttentionInputs {
    /// `[B, Hq, N, D]`
    pub query: Tensor<4>,
    /// `[B, Hkv, N, D]`
    pub key: Tensor<4>,
    /// `[B, Hkv, N, D]`
    pub value: Tensor<4>,
    /// `[B, Hq, N, D]`
    pub grad_output: Tensor<4>,
    visibility: Arc<Visibility>,
    settings: AttentionSettings,
}

/// The results of the forward pass.
#[derive(Clone)]
pub struct AttentionOutput {
    /// `[B, Hq, N, D]`
    pub output: Tensor<4>,
    /// `[B, Hq, N]`
    pub log_sum_exp: Tensor<3>,
}

impl AttentionInputs {
    /// Draws inputs from the standard normal distribution, on the device of the mask.
    ///
    /// # Errors
    /// If the implementation cannot run on the device.
    pub fn random(
        mask: &TreeMask,
        heads: Heads,
        dtype: DType,
        implementation: Implementation,
    ) -> Result<Self, ArgumentError> {
        let device = mask.device();
        let random = |count| {
            let shape = [mask.batch_size(), count, mask.n_queries(), heads.dim];
            Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), device).cast(dtype)
        };
        let (query, key, value) = (
            random(heads.query),
            random(heads.key_value),
            random(heads.key_value),
        );
        // Checks the arguments, because the operations do not.
        let options = TreeAttentionOptions {
            implementation,
            ..Default::default()
        };
        try_tree_attention(query.clone(), key.clone(), value.clone(), mask, options)?;
        Ok(Self {
            query,
            key,
            value,
            grad_output: random(heads.query),
            visibility: mask.visibility().clone(),
            settings: AttentionSettings {
                scale: (heads.dim as f64).sqrt().recip(),
                softcap: None,
                sliding_window: None,
                implementation,
            },
        })
    }

    /// The scale of the scores.
    pub fn scale(&self) -> f64 {
        self.settings.scale
    }

    /// The device of the inputs.
    pub fn device(&self) -> Device {
        self.query.device()
    }

    /// The forward pass.
    pub fn forward(&self) -> AttentionOutput {
        let (output, log_sum_exp) = <Dispatch as TreeAttentionOps>::tree_attention(
            self.query.clone().into_dispatch(),
            self.key.clone().into_dispatch(),
            self.value.clone().into_dispatch(),
            self.visibility.clone(),
            self.settings,
        );
        AttentionOutput {
            output: Tensor::from_dispatch(output),
            log_sum_exp: Tensor::from_dispatch(log_sum_exp),
        }
    }

    /// The gradients of query, key and value.
    pub fn backward(&self, forward: &AttentionOutput) -> [Tensor<4>; 3] {
        let (query, key, value) = <Dispatch as TreeAttentionOps>::tree_attention_backward(
            self.grad_output.clone().into_dispatch(),
            self.query.clone().into_dispatch(),
            self.key.clone().into_dispatch(),
            self.value.clone().into_dispatch(),
            forward.output.clone().into_dispatch(),
            forward.log_sum_exp.clone().into_dispatch(),
            self.visibility.clone(),
            self.settings,
        );
        [query, key, value].map(Tensor::from_dispatch)
    }
}
