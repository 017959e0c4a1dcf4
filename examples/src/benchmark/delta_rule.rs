//! Random inputs of the gated delta rule.

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_tree_ssm::{GatedDeltaRuleOptions, TreeRecurrence, l2_norm, tree_gated_delta_rule};

use crate::qwen3::LinearAttentionConfig;

/// Random inputs of the gated delta rule on trees, each a leaf that requires a gradient.
pub struct DeltaRuleInputs {
    /// `[B, N, HK, DK]`
    pub query: Tensor<4>,
    /// `[B, N, HK, DK]`
    pub key: Tensor<4>,
    /// `[B, N, HV, DV]`
    pub value: Tensor<4>,
    /// `[B, N, HV]`, in f32.
    pub log_decay: Tensor<3>,
    /// `[B, N, HV]`
    pub beta: Tensor<3>,
    recurrence: TreeRecurrence,
}

impl DeltaRuleInputs {
    /// Draws inputs for a batch: normalised queries and keys, and states that decay by 0 to 10 % a
    /// token.
    pub fn new(
        sizes: &LinearAttentionConfig,
        recurrence: TreeRecurrence,
        dtype: DType,
        device: &Device,
    ) -> Self {
        let rows = [recurrence.batch_size(), recurrence.row_length()];
        let uniform = |low: f64, high: f64| {
            let shape = [rows[0], rows[1], sizes.num_value_heads];
            Tensor::<3>::random(shape, Distribution::Uniform(low, high), device)
        };
        let normal = |heads: usize, dim: usize| {
            let shape = [rows[0], rows[1], heads, dim];
            Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), device).cast(dtype)
        };
        let key = || l2_norm(normal(sizes.num_key_heads, sizes.key_head_dim), 1e-6);
        let leaf4 = |tensor: Tensor<4>| tensor.autodiff().require_grad();
        let leaf3 = |tensor: Tensor<3>| tensor.autodiff().require_grad();
        Self {
            query: leaf4(key()),
            key: leaf4(key()),
            value: leaf4(normal(sizes.num_value_heads, sizes.value_head_dim)),
            log_decay: leaf3(uniform(-0.1, 0.0)),
            beta: leaf3(uniform(0.0, 1.0).cast(dtype)),
            recurrence,
        }
    }

    /// `[B, N, HV, DV]`
    pub fn forward(&self) -> Tensor<4> {
        let output = tree_gated_delta_rule(
            self.query.clone(),
            self.key.clone(),
            self.value.clone(),
            self.log_decay.clone(),
            self.beta.clone(),
            &self.recurrence,
            None,
            GatedDeltaRuleOptions::default(),
        );
        output.output
    }
}
