//! Calls of the gated delta rule with all their gradients.

use burn::tensor::{DType, Device, Tensor, activation::sigmoid};
use burn_tree_ssm::gated_delta_rule::reference;
use burn_tree_ssm::{
    GatedDeltaRuleOptions, GatedDeltaRuleOutput, Implementation, TreeRecurrence,
    tree_gated_delta_rule,
};

use super::support::{random, reference_device, relative_error, values};

/// Inputs of a call and the gradients of its outputs, in f64 on the reference device.
#[derive(Clone)]
pub struct Inputs {
    pub recurrence: TreeRecurrence,
    pub query: Tensor<4>,
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    pub log_decay: Tensor<3>,
    pub beta: Tensor<3>,
    pub initial_states: Option<Tensor<4>>,
    pub grad_output: Tensor<4>,
    pub grad_states: Option<Tensor<4>>,
}

/// Sizes of a call besides those of the recurrence.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    pub key_heads: usize,
    pub group: usize,
    pub key_dim: usize,
    pub value_dim: usize,
}

/// Outputs and gradients, in f64 on the reference device.
pub struct Results {
    pub output: Tensor<4>,
    pub states: Option<Tensor<4>>,
    pub query: Tensor<4>,
    pub key: Tensor<4>,
    pub value: Tensor<4>,
    pub log_decay: Tensor<3>,
    pub beta: Tensor<3>,
    pub initial_states: Option<Tensor<4>>,
}

/// How fast states decay, as the largest `-g` of a row: slow decay (models begin with rates around
/// 0.05) lets errors travel far, strong decay shows what overflows. (Sums of 64 log decays of up
/// to 5 are known to 64 * 5 * 2^-24 = 2e-5 in f32.)
pub const SLOW: f64 = 0.05;
/// See [`SLOW`].
pub const STRONG: f64 = 5.0;

impl Inputs {
    /// Random inputs: keys of length 1, as models give them, that resemble each other.
    pub fn random(recurrence: &TreeRecurrence, heads: Heads, decay: f64, seed: u64) -> Self {
        let Heads {
            key_heads,
            group,
            key_dim,
            value_dim,
        } = heads;
        let [b, n] = [recurrence.batch_size(), recurrence.row_length()];
        let value_heads = key_heads * group;
        let normed = |x: Tensor<4>| {
            let norm = x.clone().square().sum_dim(3).sqrt();
            x / (norm + 1e-3)
        };
        let state = |count, seed| random([count, value_heads, key_dim, value_dim], seed);
        let (initial, requested) = (
            recurrence.n_initial_states(),
            recurrence.requested_rows().len(),
        );
        Self {
            recurrence: recurrence.clone(),
            query: normed(random([b, n, key_heads, key_dim], seed + 1)),
            key: normed(random([b, n, key_heads, key_dim], seed + 2) + 0.5),
            value: random([b, n, value_heads, value_dim], seed + 3),
            log_decay: (random::<3>([b, n, value_heads], seed + 4) - 1.0) * (0.5 * decay),
            beta: sigmoid(random::<3>([b, n, value_heads], seed + 5) * 3.0),
            initial_states: (initial > 0).then(|| state(initial, seed + 6)),
            grad_output: random([b, n, value_heads, value_dim], seed + 7),
            grad_states: (requested > 0).then(|| state(requested, seed + 8)),
        }
    }

    /// The values that `dtype` represents, with gates and states in at least f32.
    pub fn rounded(mut self, dtype: DType) -> Self {
        let wide = if dtype == DType::F64 {
            dtype
        } else {
            DType::F32
        };
        let round = |x: Tensor<4>| x.cast(dtype).cast(DType::F64);
        self.query = round(self.query);
        self.key = round(self.key);
        self.value = round(self.value);
        self.grad_output = round(self.grad_output);
        self.log_decay = self.log_decay.cast(wide).cast(DType::F64);
        self.beta = self.beta.cast(wide).cast(DType::F64);
        let round = |x: Tensor<4>| x.cast(wide).cast(DType::F64);
        self.initial_states = self.initial_states.map(round);
        self.grad_states = self.grad_states.map(round);
        self
    }

    /// Outputs and gradients of the definition, in f64.
    pub fn expected(&self) -> Results {
        self.results(
            &reference_device(),
            DType::F64,
            reference::tree_gated_delta_rule,
        )
    }

    /// Outputs and gradients of an implementation.
    pub fn found(&self, device: &Device, dtype: DType, implementation: Implementation) -> Results {
        self.results(
            device,
            dtype,
            |q, k, v, g, beta, recurrence, states, options| {
                let options = GatedDeltaRuleOptions {
                    implementation,
                    ..options
                };
                tree_gated_delta_rule(q, k, v, g, beta, recurrence, states, options)
            },
        )
    }

    fn results(
        &self,
        device: &Device,
        dtype: DType,
        function: impl Fn(
            Tensor<4>,
            Tensor<4>,
            Tensor<4>,
            Tensor<3>,
            Tensor<3>,
            &TreeRecurrence,
            Option<Tensor<4>>,
            GatedDeltaRuleOptions,
        ) -> GatedDeltaRuleOutput,
    ) -> Results {
        let device = device.clone().autodiff();
        let wide = if dtype == DType::F64 {
            dtype
        } else {
            DType::F32
        };
        let leaf4 = |x: &Tensor<4>, dtype| on(x, &device, dtype).require_grad();
        let leaf3 = |x: &Tensor<3>| on(x, &device, wide).require_grad();
        let [query, key, value] = [&self.query, &self.key, &self.value].map(|x| leaf4(x, dtype));
        let [log_decay, beta] = [&self.log_decay, &self.beta].map(leaf3);
        let initial_states = self.initial_states.as_ref().map(|x| leaf4(x, wide));
        let result = function(
            query.clone(),
            key.clone(),
            value.clone(),
            log_decay.clone(),
            beta.clone(),
            &self.recurrence,
            initial_states.clone(),
            GatedDeltaRuleOptions::default(),
        );
        let (output, states) = (result.output, result.states);
        assert_eq!(output.dtype(), dtype);
        let grad_output = on(&self.grad_output, &device, dtype);
        let mut loss = (output.clone() * grad_output).sum().cast(wide);
        if let (Some(states), Some(grad)) = (&states, &self.grad_states) {
            assert_eq!(states.dtype(), wide);
            loss = loss + (states.clone() * on(grad, &device, wide)).sum();
        }
        let grads = loss.backward();
        let home4 = |x: Tensor<4>| home(x.inner());
        let grad4 = |x: &Tensor<4>| home(x.grad(&grads).expect("a gradient"));
        let grad3 = |x: &Tensor<3>| home(x.grad(&grads).expect("a gradient"));
        Results {
            output: home4(output),
            states: states.map(home4),
            query: grad4(&query),
            key: grad4(&key),
            value: grad4(&value),
            log_decay: grad3(&log_decay),
            beta: grad3(&beta),
            initial_states: initial_states.as_ref().map(grad4),
        }
    }
}

/// Relative errors by name.
pub type Errors = Vec<(&'static str, f64)>;

impl Results {
    /// Relative errors of outputs and of gradients, by name.
    pub fn errors(&self, expected: &Self) -> (Errors, Errors) {
        let mut outputs = vec![("output", relative_error(&self.output, &expected.output))];
        let mut gradients = vec![
            ("query", relative_error(&self.query, &expected.query)),
            ("key", relative_error(&self.key, &expected.key)),
            ("value", relative_error(&self.value, &expected.value)),
            (
                "log_decay",
                relative_error(&self.log_decay, &expected.log_decay),
            ),
            ("beta", relative_error(&self.beta, &expected.beta)),
        ];
        match (&self.states, &expected.states) {
            (Some(found), Some(expected)) => {
                outputs.push(("states", relative_error(found, expected)));
            }
            (found, expected) => assert_eq!(found.is_some(), expected.is_some()),
        }
        match (&self.initial_states, &expected.initial_states) {
            (Some(found), Some(expected)) => {
                gradients.push(("initial_states", relative_error(found, expected)));
            }
            (found, expected) => assert_eq!(found.is_some(), expected.is_some()),
        }
        (outputs, gradients)
    }

    /// Checks outputs and gradients against tolerances (relative L2 errors).
    pub fn assert_close(&self, expected: &Self, forward: f64, backward: f64) {
        let (outputs, gradients) = self.errors(expected);
        for (name, error) in outputs {
            assert!(error <= forward, "{name}: relative error {error:.2e}");
        }
        for (name, error) in gradients {
            assert!(
                error <= backward,
                "gradient of {name}: relative error {error:.2e}"
            );
        }
    }

    /// Checks that outputs and gradients of padding rows are exactly zero.
    pub fn assert_zero_padding(&self, recurrence: &TreeRecurrence) {
        let rows = recurrence.rows();
        let padding: Vec<_> = (0..rows)
            .filter(|&row| recurrence.is_padding(row))
            .collect();
        let assert_zero = |name: &str, values: Vec<f64>| {
            let width = values.len() / rows;
            for &row in &padding {
                let row_values = &values[row * width..(row + 1) * width];
                assert!(
                    row_values.iter().all(|&x| x == 0.0),
                    "{name} of padding row {row}"
                );
            }
        };
        assert_zero("output", values(&self.output));
        assert_zero("gradient of query", values(&self.query));
        assert_zero("gradient of key", values(&self.key));
        assert_zero("gradient of value", values(&self.value));
        assert_zero("gradient of log_decay", values(&self.log_decay));
        assert_zero("gradient of beta", values(&self.beta));
    }
}

fn on<const D: usize>(tensor: &Tensor<D>, device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::from_data(tensor.to_data().convert_dtype(dtype), (device, dtype))
}

fn home<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    let device = reference_device();
    Tensor::from_data(
        tensor.to_data().convert_dtype(DType::F64),
        (&device, DType::F64),
    )
}
