//! `tree_gated_delta_rule` on packs compared with the recurrence of each sequence in plain loops.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_tree_ssm::{GatedDeltaRuleOptions, TreeRecurrence, tree_gated_delta_rule};
use proptest::prelude::*;
use tree_pack::{Pack, Trajectory, TreeLayout};

use crate::device::autodiff_device;
use crate::numbers::Numbers;
use crate::oracle::delta_rule::{Sequence, delta_rule};
use crate::oracle::trie::RowsByPath;

/// Sizes and options of one run of the operation.
#[derive(Clone, Debug)]
pub struct DeltaRuleSetup {
    /// Heads of query and key.
    pub key_heads: usize,
    /// Value heads per key head.
    pub group: usize,
    /// Features of a query or key head.
    pub key_dim: usize,
    /// Features of a value head.
    pub value_dim: usize,
    /// Largest decay of a row, `-g`. With slow decay, leaks between branches propagate far.
    pub decay: f64,
    /// Rows of a window.
    pub window_rows: usize,
    /// Seed of the values.
    pub seed: u64,
}

/// Random sizes and options.
pub fn delta_rule_setups() -> impl Strategy<Value = DeltaRuleSetup> {
    let heads = (1_usize..=2, 1_usize..=2, 1_usize..6, 1_usize..6);
    let decay = prop_oneof![Just(0.05), Just(5.0)];
    let window_rows = prop::sample::select(vec![1_usize, 2, 16, 64]);
    (heads, decay, window_rows, any::<u64>()).prop_map(
        |((key_heads, group, key_dim, value_dim), decay, window_rows, seed)| DeltaRuleSetup {
            key_heads,
            group,
            key_dim,
            value_dim,
            decay,
            window_rows,
            seed,
        },
    )
}

/// `[B, N, heads, dim]` values on the host.
struct Rows {
    shape: [usize; 4],
    values: Vec<f64>,
}

impl Rows {
    fn random(shape: [usize; 4], numbers: &mut Numbers) -> Self {
        let values = numbers.take(shape.iter().product());
        Self { shape, values }
    }

    fn zeros(shape: [usize; 4]) -> Self {
        let values = vec![0.0; shape.iter().product()];
        Self { shape, values }
    }

    fn read(tensor: Tensor<4>) -> Self {
        let shape = tensor.dims();
        let values = tensor.into_data().convert::<f64>();
        let values = values.try_into_vec().expect("f64");
        Self { shape, values }
    }

    fn map(mut self, function: impl Fn(f64) -> f64) -> Self {
        self.values.iter_mut().for_each(|x| *x = function(*x));
        self
    }

    /// Normalises each vector to length 1, as models normalise keys.
    fn normed(mut self) -> Self {
        for vector in self.values.chunks_mut(self.shape[3]) {
            let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
            vector.iter_mut().for_each(|x| *x /= norm + 1e-3);
        }
        self
    }

    /// Rounds the values to `dtype`.
    fn rounded(self, dtype: DType) -> Self {
        match dtype {
            DType::F64 => self,
            _ => self.map(|x| f64::from(x as f32)),
        }
    }

    fn tensor(&self, device: &Device, dtype: DType) -> Tensor<4> {
        let data = TensorData::new(self.values.clone(), self.shape);
        Tensor::from_data(data, (device, dtype))
    }

    fn vector(&mut self, (batch, row): (usize, usize), head: usize) -> &mut [f64] {
        let [_, rows, heads, dim] = self.shape;
        let start = ((batch * rows + row) * heads + head) * dim;
        &mut self.values[start..start + dim]
    }

    /// One head of a sequence.
    fn gather(&mut self, rows: &[(usize, usize)], head: usize) -> Vec<Vec<f64>> {
        let vectors = rows.iter().map(|&row| self.vector(row, head).to_vec());
        vectors.collect()
    }

    /// Adds one head of a sequence to its rows of the batch.
    fn scatter_add(&mut self, rows: &[(usize, usize)], head: usize, sequence: &[Vec<f64>]) {
        for (&row, vector) in rows.iter().zip(sequence) {
            for (sum, x) in self.vector(row, head).iter_mut().zip(vector) {
                *sum += x;
            }
        }
    }

    fn relative_distance(&self, expected: &Self) -> f64 {
        assert_eq!(self.shape, expected.shape);
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let difference = norm(&mut self.values.iter().zip(&expected.values).map(|(a, b)| a - b));
        // At least one, because sums that cancel have no relative precision.
        difference / norm(&mut expected.values.iter().copied()).max(0.1)
    }
}

/// Relative tolerances of outputs and gradients. In f32 those of the project for recurrent
/// operations; in f64 rounding errors of sums of a few hundred terms stay far below 1e-10.
fn tolerances(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-10, 1e-10),
        _ => (1e-5, 2e-5),
    }
}

/// Runs the packs as one batch and compares outputs and gradients with those of the sequences.
/// Padding gets random inputs and gradients, and must give exact zeros.
///
/// The tasks must not share a first token.
///
/// # Panics
/// If they differ.
pub fn check_gated_delta_rule(
    packs: &[Pack],
    trajectories: &[Trajectory],
    setup: &DeltaRuleSetup,
    dtype: DType,
) {
    let device = autodiff_device();
    let heads = setup.key_heads * setup.group;
    let longest = packs.iter().map(|pack| pack.padded_len).max();
    let rows = longest.expect("at least one pack");
    let shape = |heads, dim| [packs.len(), rows, heads, dim];
    let mut numbers = Numbers::new(setup.seed, dtype);
    let mut random = |heads, dim| Rows::random(shape(heads, dim), &mut numbers);
    let [mut query, mut key] = [(); 2].map(|()| {
        random(setup.key_heads, setup.key_dim)
            .normed()
            .rounded(dtype)
    });
    let mut value = random(heads, setup.value_dim);
    let decay = |x: f64| 0.5 * setup.decay * (x - 1.0);
    let mut log_decay = random(heads, 1).map(decay).rounded(dtype);
    let mut beta = random(heads, 1).map(|x| 0.5 * (x + 1.0)).rounded(dtype);
    let mut padding_grad = random(heads, setup.value_dim);

    let mut grad = Rows::zeros(padding_grad.shape);
    let [mut query_grad, mut key_grad] = [(); 2].map(|()| Rows::zeros(query.shape));
    let mut value_grad = Rows::zeros(value.shape);
    let [mut log_decay_grad, mut beta_grad] = [(); 2].map(|()| Rows::zeros(beta.shape));
    let mut expected_output = Rows::zeros(grad.shape);
    let rows_by_path = RowsByPath::new(packs);
    for trajectory in trajectories {
        let path = rows_by_path.of(trajectory);
        for head in 0..heads {
            let key_head = head / setup.group;
            let output_grad: Vec<_> = path.iter().map(|_| numbers.take(setup.value_dim)).collect();
            let flat = |vectors: Vec<Vec<f64>>| vectors.concat();
            let sequence = Sequence {
                query: query.gather(&path, key_head),
                key: key.gather(&path, key_head),
                value: value.gather(&path, head),
                log_decay: flat(log_decay.gather(&path, head)),
                beta: flat(beta.gather(&path, head)),
                scale: (setup.key_dim as f64).powf(-0.5),
            };
            let (output, grads) = delta_rule(&sequence, &output_grad);
            let columns = |values: &[f64]| values.iter().map(|&x| vec![x]).collect::<Vec<_>>();
            grad.scatter_add(&path, head, &output_grad);
            query_grad.scatter_add(&path, key_head, &grads.query);
            key_grad.scatter_add(&path, key_head, &grads.key);
            value_grad.scatter_add(&path, head, &grads.value);
            log_decay_grad.scatter_add(&path, head, &columns(&grads.log_decay));
            beta_grad.scatter_add(&path, head, &columns(&grads.beta));
            // The same for all trajectories that contain the row.
            for (&row, output) in path.iter().zip(&output) {
                expected_output.vector(row, head).copy_from_slice(output);
            }
        }
    }
    let padding: Vec<_> = (0..packs.len())
        .flat_map(|index| (packs[index].layout.len()..rows).map(move |row| (index, row)))
        .collect();
    for head in 0..heads {
        let random = padding_grad.gather(&padding, head);
        grad.scatter_add(&padding, head, &random);
    }
    // The loss is linear in the output, so the gradients of all trajectories are summed.
    let layouts: Vec<TreeLayout> = packs.iter().map(|pack| pack.layout.clone()).collect();
    let recurrence =
        TreeRecurrence::from_layouts(&layouts, rows).with_window_rows(setup.window_rows);
    let tensors = [&query, &key, &value, &log_decay, &beta];
    let tensors = tensors.map(|rows| rows.tensor(&device, dtype).require_grad());
    let [q, k, v, g, b] = tensors.clone();
    let output = tree_gated_delta_rule(
        q,
        k,
        v,
        g.squeeze_dim(3),
        b.squeeze_dim(3),
        &recurrence,
        None,
        GatedDeltaRuleOptions::default(),
    )
    .output;
    let loss = (output.clone() * grad.tensor(&device, dtype)).sum();
    let gradients = loss.backward();
    let found = tensors.map(|tensor| Rows::read(tensor.grad(&gradients).expect("a gradient")));

    let (output_tolerance, gradient_tolerance) = tolerances(dtype);
    let [query, key, value, log_decay, beta] = found;
    let comparisons = [
        (
            "output",
            Rows::read(output),
            expected_output,
            output_tolerance,
        ),
        ("query gradient", query, query_grad, gradient_tolerance),
        ("key gradient", key, key_grad, gradient_tolerance),
        ("value gradient", value, value_grad, gradient_tolerance),
        (
            "log_decay gradient",
            log_decay,
            log_decay_grad,
            gradient_tolerance,
        ),
        ("beta gradient", beta, beta_grad, gradient_tolerance),
    ];
    for (name, mut found, expected, tolerance) in comparisons {
        let distance = found.relative_distance(&expected);
        assert!(distance <= tolerance, "{name} differs by {distance:e}");
        for &row in &padding {
            for head in 0..found.shape[2] {
                let vector = found.vector(row, head);
                assert!(
                    vector.iter().all(|&x| x == 0.0),
                    "{name} of {row:?}: {vector:?}"
                );
            }
        }
    }
}
