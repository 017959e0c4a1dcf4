//! Forward and backward pass of the gated delta rule as single operations, without autodiff.

pub mod errors;
pub mod reference;

use burn::backend::Dispatch;
use burn::tensor::activation::{sigmoid, softplus};
use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use burn_tree_ssm::{
    ArgumentError, GatedDeltaRuleInputs, GatedDeltaRuleOptions, GatedDeltaRuleSaved,
    GatedDeltaRuleSettings, Implementation, TreeRecurrence, TreeSsmOps, try_tree_gated_delta_rule,
};

use burn_tree_models::LinearAttentionConfig;

/// Numbers of heads and their features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaRuleHeads {
    /// Query and key heads.
    pub key: usize,
    /// Value heads, a multiple of the key heads.
    pub value: usize,
    /// Features of a query or key.
    pub key_dim: usize,
    /// Features of a value.
    pub value_dim: usize,
}

impl From<&LinearAttentionConfig> for DeltaRuleHeads {
    fn from(layer: &LinearAttentionConfig) -> Self {
        Self {
            key: layer.num_key_heads,
            value: layer.num_value_heads,
            key_dim: layer.key_head_dim,
            value_dim: layer.value_head_dim,
        }
    }
}

/// Rows of a window for which products are counted.
const WINDOW_ROWS: f64 = 64.0;

impl DeltaRuleHeads {
    /// Model FLOPs of the forward pass on `rows` rows, in full windows of 64 rows `C`: three
    /// products `C x DK x DV` with the state (prediction, query, update) and four of `C x C x D`
    /// (`K K^T`, `Q K^T`, and two with values). 5.2 million multiply-adds per window and value head
    /// at 128 features.
    pub fn forward_flops(&self, rows: usize) -> f64 {
        self.flops(rows, 3.0, 2.0)
    }

    /// Model FLOPs of the backward pass, which recomputes states and mixed values: eight products
    /// `C x DK x DV` and fifteen of `C x C x D`. 16.3 million multiply-adds per window and value
    /// head at 128 features.
    pub fn backward_flops(&self, rows: usize) -> f64 {
        self.flops(rows, 8.0, 7.5)
    }

    /// With `of_pairs` products `C x C x D` for keys and as many for values.
    fn flops(&self, rows: usize, of_states: f64, of_pairs: f64) -> f64 {
        let (key, value) = (self.key_dim as f64, self.value_dim as f64);
        let of_row = of_states * key * value + of_pairs * WINDOW_ROWS * (key + value);
        2.0 * rows as f64 * self.value as f64 * of_row
    }
}

/// Random inputs of the gated delta rule, distributed as in a trained layer.
pub struct DeltaRuleInputs {
    /// `[R, HK, DK]`, of length 1.
    pub query: Tensor<3>,
    /// `[R, HK, DK]`, of length 1.
    pub key: Tensor<3>,
    /// `[R, HV, DV]`
    pub value: Tensor<3>,
    /// `[R, HV]` in f32 (f64 if the values are).
    pub log_decay: Tensor<2>,
    /// `[R, HV]` in f32 (f64).
    pub beta: Tensor<2>,
    /// `[R, HV, DV]`
    pub grad_output: Tensor<3>,
    /// `[1, HV, DK, DV]`, in place of the states that no tree starts from.
    no_states: Tensor<4>,
    recurrence: TreeRecurrence,
    settings: GatedDeltaRuleSettings,
}

/// The results of the forward pass.
#[derive(Clone)]
pub struct DeltaRuleOutput {
    /// `[R, HV, DV]`
    pub output: Tensor<3>,
    states: Tensor<4>,
    inverse: Tensor<3>,
}

/// Gradients of the inputs.
pub struct DeltaRuleGradients {
    /// `[R, HK, DK]`
    pub query: Tensor<3>,
    /// `[R, HK, DK]`
    pub key: Tensor<3>,
    /// `[R, HV, DV]`
    pub value: Tensor<3>,
    /// `[R, HV]`
    pub log_decay: Tensor<2>,
    /// `[R, HV]`
    pub beta: Tensor<2>,
}

impl DeltaRuleInputs {
    /// Draws normalised queries and keys, values and gradients from the standard normal
    /// distribution, `beta` as its sigmoid, and decays `-A softplus(a)`. The rates `A` increase
    /// geometrically from 0.05 to 16, over the heads of a group and then over groups, so that every
    /// group has slow and fast heads.
    ///
    /// # Errors
    /// If the implementation cannot run on the device.
    pub fn random(
        recurrence: &TreeRecurrence,
        heads: DeltaRuleHeads,
        dtype: DType,
        implementation: Implementation,
        device: &Device,
    ) -> Result<Self, ArgumentError> {
        let rows = recurrence.rows();
        let normal = Distribution::Normal(0.0, 1.0);
        let vectors =
            |heads: usize, dim: usize| Tensor::<3>::random([rows, heads, dim], normal, device);
        let numbers = || Tensor::<2>::random([rows, heads.value], normal, device);
        // With f64 inputs, decays, gates and states are f64, too.
        let wide = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let unit = |x: Tensor<3>| {
            let length = x.clone().square().sum_dim(2).sqrt();
            (x / length).cast(dtype)
        };
        let rates = Tensor::<2>::from_data(
            TensorData::new(decay_rates(heads), [1, heads.value]),
            device,
        );
        let inputs = Self {
            query: unit(vectors(heads.key, heads.key_dim)),
            key: unit(vectors(heads.key, heads.key_dim)),
            value: vectors(heads.value, heads.value_dim).cast(dtype),
            log_decay: -(softplus(numbers(), 1.0) * rates).cast(wide),
            beta: sigmoid(numbers()).cast(wide),
            grad_output: vectors(heads.value, heads.value_dim).cast(dtype),
            no_states: Tensor::zeros(
                [1, heads.value, heads.key_dim, heads.value_dim],
                (device, wide),
            ),
            recurrence: recurrence.clone(),
            settings: GatedDeltaRuleSettings {
                scale: (heads.key_dim as f64).sqrt().recip(),
                implementation,
            },
        };
        inputs.check(implementation)?;
        Ok(inputs)
    }

    /// Checks the arguments, because the operations do not.
    fn check(&self, implementation: Implementation) -> Result<(), ArgumentError> {
        let batch = self.recurrence.batch_size();
        let length = self.recurrence.row_length();
        let batched = |x: &Tensor<3>| {
            let [_, heads, dim] = x.dims();
            x.clone().reshape([batch, length, heads, dim])
        };
        let numbers = |x: &Tensor<2>| {
            let [_, heads] = x.dims();
            x.clone().reshape([batch, length, heads])
        };
        let options = GatedDeltaRuleOptions {
            implementation,
            ..Default::default()
        };
        try_tree_gated_delta_rule(
            batched(&self.query),
            batched(&self.key),
            batched(&self.value),
            numbers(&self.log_decay),
            numbers(&self.beta),
            &self.recurrence,
            None,
            options,
        )?;
        Ok(())
    }

    /// Scale of the queries.
    pub fn scale(&self) -> f64 {
        self.settings.scale
    }

    /// The recurrence.
    pub fn recurrence(&self) -> &TreeRecurrence {
        &self.recurrence
    }

    /// The tensors as primitives of the backend.
    fn inputs(&self) -> GatedDeltaRuleInputs<Dispatch> {
        GatedDeltaRuleInputs {
            query: self.query.clone().into_dispatch(),
            key: self.key.clone().into_dispatch(),
            value: self.value.clone().into_dispatch(),
            log_decay: self.log_decay.clone().into_dispatch(),
            beta: self.beta.clone().into_dispatch(),
            initial_states: self.no_states.clone().into_dispatch(),
        }
    }

    /// The forward pass.
    pub fn forward(&self) -> DeltaRuleOutput {
        let (output, saved) = <Dispatch as TreeSsmOps>::gated_delta_rule(
            self.inputs(),
            self.recurrence.clone(),
            self.settings,
        );
        DeltaRuleOutput {
            output: Tensor::from_dispatch(output),
            states: Tensor::from_dispatch(saved.states),
            inverse: Tensor::from_dispatch(saved.inverse),
        }
    }

    /// Gradients of the inputs.
    pub fn backward(&self, forward: &DeltaRuleOutput) -> DeltaRuleGradients {
        let saved = GatedDeltaRuleSaved {
            states: forward.states.clone().into_dispatch(),
            inverse: forward.inverse.clone().into_dispatch(),
        };
        let gradients = <Dispatch as TreeSsmOps>::gated_delta_rule_backward(
            self.inputs(),
            saved,
            self.grad_output.clone().into_dispatch(),
            self.no_states.clone().into_dispatch(),
            self.recurrence.clone(),
            self.settings,
        );
        DeltaRuleGradients {
            query: Tensor::from_dispatch(gradients.query),
            key: Tensor::from_dispatch(gradients.key),
            value: Tensor::from_dispatch(gradients.value),
            log_decay: Tensor::from_dispatch(gradients.log_decay),
            beta: Tensor::from_dispatch(gradients.beta),
        }
    }
}

/// The slowest and the fastest decay rate.
const RATES: [f64; 2] = [0.05, 16.0];

/// `[HV]` geometrically increasing rates: the first value head of each group, then the second, and
/// so on.
fn decay_rates(heads: DeltaRuleHeads) -> Vec<f32> {
    let group = heads.value / heads.key;
    let last = (heads.value - 1).max(1) as f64;
    let rate = |head: usize| {
        let at = (head % group) * heads.key + head / group;
        (RATES[0] * (RATES[1] / RATES[0]).powf(at as f64 / last)) as f32
    };
    (0..heads.value).map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::errors::Errors;
    use super::*;
    use tree_pack::{Segment, TreeLayout};

    const QWEN3_NEXT: DeltaRuleHeads = DeltaRuleHeads {
        key: 16,
        value: 32,
        key_dim: 128,
        value_dim: 128,
    };

    #[test]
    fn products_of_a_window() {
        let heads = DeltaRuleHeads {
            value: 1,
            ..QWEN3_NEXT
        };
        let million_multiply_adds = |flops: f64| (flops / 2e5).round() / 10.0;
        assert_eq!(million_multiply_adds(heads.forward_flops(64)), 5.2);
        assert_eq!(million_multiply_adds(heads.backward_flops(64)), 16.3);
    }

    #[test]
    fn groups_have_slow_and_fast_heads() {
        let rates = decay_rates(QWEN3_NEXT);
        assert_eq!((rates[0], rates[31]), (0.05, 16.0));
        for group in rates.chunks(2) {
            assert!(group[1] > 10.0 * group[0], "{group:?}");
        }
    }

    /// Checks the token recurrence on the host, the reference of the measurements: it agrees with
    /// both implementations in f64, on a tree with forks, a single token and padding.
    #[test]
    fn reference_and_operation_agree() {
        let heads = DeltaRuleHeads {
            key: 2,
            value: 4,
            key_dim: 8,
            value_dim: 3,
        };
        let parents = [-1, 0, 1, 2, 2, 4, 1, 6, 0, 8, 9];
        let subtree_ends = [11, 8, 6, 4, 6, 6, 8, 8, 11, 11, 11];
        let layout = TreeLayout {
            tokens: vec![0; 11],
            position_ids: vec![0, 1, 2, 3, 3, 4, 2, 3, 1, 2, 3],
            parents: parents.to_vec(),
            subtree_ends: subtree_ends.to_vec(),
            segments: [
                (0, 1, None),
                (1, 2, Some(0)),
                (2, 3, Some(1)),
                (3, 4, Some(2)),
                (4, 6, Some(2)),
                (6, 8, Some(1)),
                (8, 11, Some(0)),
            ]
            .map(|(start, end, parent)| Segment { start, end, parent })
            .to_vec(),
        };
        let recurrence = TreeRecurrence::from_layouts(&[layout], 13).with_window_rows(3);
        let inputs = DeltaRuleInputs::random(
            &recurrence,
            heads,
            DType::F64,
            Implementation::Automatic,
            &Device::flex(),
        )
        .unwrap();
        let forward = inputs.forward();
        let errors = Errors::new(&inputs, &forward, &inputs.backward(&forward), &[0, 1]);
        // Sums of a few dozen terms in f64.
        assert!(errors.output < 1e-13, "{errors:?}");
        assert!(errors.worst_gradient() < 1e-12, "{errors:?}");
    }
}
