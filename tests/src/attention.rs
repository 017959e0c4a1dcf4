//! `tree_attention` on packs compared with causal attention of each sequence in plain loops.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_tree_attn::{TreeAttentionOptions, TreeMask, tree_attention};
use proptest::prelude::*;
use tree_pack::{Pack, Trajectory, TreeLayout};

use crate::device::autodiff_device;
use crate::numbers::Numbers;
use crate::oracle::attention::{Heads, Settings, causal_attention};
use crate::oracle::trie::RowsByPath;

/// Sizes and options of one run of the operation.
#[derive(Clone, Debug)]
pub struct AttentionSetup {
    /// Heads of the query and the output.
    pub query_heads: usize,
    /// Heads of key and value.
    pub key_heads: usize,
    /// Features of a query or key head.
    pub dim: usize,
    /// Features of a value head.
    pub value_dim: usize,
    /// Options.
    pub options: Settings,
    /// Seed of the values.
    pub seed: u64,
}

/// Random sizes and options.
pub fn attention_setups() -> impl Strategy<Value = AttentionSetup> {
    let heads = prop_oneof![Just((1, 1)), Just((2, 2)), Just((4, 2)), Just((3, 1))];
    let options = (
        prop_oneof![3 => Just(None), 1 => (0.1..1.0).prop_map(Some)],
        prop_oneof![3 => Just(None), 1 => (0.5..4.0).prop_map(Some)],
        prop_oneof![2 => Just(None), 1 => (1_usize..20).prop_map(Some)],
    );
    (heads, 1_usize..6, 1_usize..6, options, any::<u64>()).prop_map(
        |((query_heads, key_heads), half_dim, value_dim, (scale, softcap, window), seed)| {
            AttentionSetup {
                query_heads,
                key_heads,
                dim: 2 * half_dim,
                value_dim,
                options: Settings {
                    scale,
                    softcap,
                    window,
                },
                seed,
            }
        },
    )
}

/// `[B, heads, N, dim]` values on the host.
struct Rows {
    shape: [usize; 4],
    values: Vec<f64>,
}

impl Rows {
    fn random(shape: [usize; 4], numbers: &mut Numbers) -> Self {
        Self {
            shape,
            values: numbers.take(shape.iter().product()),
        }
    }

    fn zeros(shape: [usize; 4]) -> Self {
        Self {
            shape,
            values: vec![0.0; shape.iter().product()],
        }
    }

    fn read(tensor: Tensor<4>) -> Self {
        let shape = tensor.dims();
        let values = tensor
            .into_data()
            .convert::<f64>()
            .try_into_vec()
            .expect("f64");
        Self { shape, values }
    }

    fn tensor(&self, device: &Device, dtype: DType) -> Tensor<4> {
        Tensor::from_data(
            TensorData::new(self.values.clone(), self.shape),
            (device, dtype),
        )
    }

    fn start(&self, (batch, row): (usize, usize), head: usize) -> usize {
        let [_, heads, rows, dim] = self.shape;
        ((batch * heads + head) * rows + row) * dim
    }

    /// The rows of one sequence.
    fn gather(&self, rows: &[(usize, usize)]) -> Heads {
        let [_, heads, _, dim] = self.shape;
        let mut sequence = Heads::zeros(heads, rows.len(), dim);
        for head in 0..heads {
            for (token, &row) in rows.iter().enumerate() {
                let start = self.start(row, head);
                sequence.add(head, token, 1.0, &self.values[start..start + dim]);
            }
        }
        sequence
    }

    /// Adds the rows of one sequence to their rows of the batch.
    fn scatter_add(&mut self, rows: &[(usize, usize)], sequence: &Heads) {
        for head in 0..sequence.heads {
            for (token, &row) in rows.iter().enumerate() {
                let start = self.start(row, head);
                for (sum, value) in self.values[start..]
                    .iter_mut()
                    .zip(sequence.row(head, token))
                {
                    *sum += value;
                }
            }
        }
    }

    /// Largest difference relative to the norm of the whole tensor.
    fn relative_distance(&self, expected: &Self) -> f64 {
        assert_eq!(self.shape, expected.shape);
        let norm =
            |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
        let difference = norm(&mut self.values.iter().zip(&expected.values).map(|(a, b)| a - b));
        // At least one, because sums that cancel have no relative precision.
        difference / norm(&mut expected.values.iter().copied()).max(0.1)
    }

    fn assert_zero_row(&self, row: (usize, usize), what: &str) {
        let [_, heads, _, dim] = self.shape;
        for head in 0..heads {
            let start = self.start(row, head);
            let values = &self.values[start..start + dim];
            assert!(
                values.iter().all(|&value| value == 0.0),
                "{what} of {row:?}: {values:?}"
            );
        }
    }
}

/// Tolerances of outputs (absolute) and gradients (relative). In f32 those of the project; in f64
/// rounding errors of sums of a few hundred terms stay far below 1e-10.
fn tolerances(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F64 => (1e-10, 1e-10),
        _ => (1e-5, 1e-4),
    }
}

/// Runs the packs as one batch and compares outputs and gradients with those of the sequences.
/// Padding gets random inputs and gradients, and must give exact zeros.
///
/// The tasks must not share a first token.
///
/// # Panics
/// If they differ.
pub fn check_attention(
    packs: &[Pack],
    trajectories: &[Trajectory],
    setup: &AttentionSetup,
    dtype: DType,
) {
    let device = autodiff_device();
    let batch = packs.len();
    let rows = packs
        .iter()
        .map(|pack| pack.padded_len)
        .max()
        .expect("at least one pack");
    let mut numbers = Numbers::new(setup.seed, dtype);
    let mut random = |heads, dim| Rows::random([batch, heads, rows, dim], &mut numbers);
    let query = random(setup.query_heads, setup.dim);
    let key = random(setup.key_heads, setup.dim);
    let value = random(setup.key_heads, setup.value_dim);
    let padding_grad = random(setup.query_heads, setup.value_dim);

    let mut expected_query_grad = Rows::zeros(query.shape);
    let mut expected_key_grad = Rows::zeros(key.shape);
    let mut expected_value_grad = Rows::zeros(value.shape);
    let mut grad = Rows::zeros(padding_grad.shape);
    let mut expected_outputs = Vec::new();
    let rows_by_path = RowsByPath::new(packs);
    for trajectory in trajectories {
        let path = rows_by_path.of(trajectory);
        let mut sequence_grad = Heads::zeros(setup.query_heads, path.len(), setup.value_dim);
        sequence_grad.values = numbers.take(sequence_grad.values.len());
        let result = causal_attention(
            &query.gather(&path),
            &key.gather(&path),
            &value.gather(&path),
            &sequence_grad,
            setup.options,
        );
        grad.scatter_add(&path, &sequence_grad);
        expected_query_grad.scatter_add(&path, &result.query_grad);
        expected_key_grad.scatter_add(&path, &result.key_grad);
        expected_value_grad.scatter_add(&path, &result.value_grad);
        expected_outputs.push((path, result.output));
    }
    let padding: Vec<_> = (0..batch)
        .flat_map(|index| (packs[index].layout.len()..rows).map(move |row| (index, row)))
        .collect();
    grad.scatter_add(&padding, &padding_grad.gather(&padding));

    let layouts: Vec<TreeLayout> = packs.iter().map(|pack| pack.layout.clone()).collect();
    let mask = TreeMask::from_layouts(&layouts, rows, &device);
    let options = TreeAttentionOptions {
        scale: setup.options.scale,
        softcap: setup.options.softcap,
        sliding_window: setup.options.window,
        ..Default::default()
    };
    let [query, key, value] =
        [&query, &key, &value].map(|rows| rows.tensor(&device, dtype).require_grad());
    let output = tree_attention(query.clone(), key.clone(), value.clone(), &mask, options);
    let gradients = (output.clone() * grad.tensor(&device, dtype))
        .sum()
        .backward();
    let gradient = |tensor: &Tensor<4>| Rows::read(tensor.grad(&gradients).expect("a gradient"));

    let (output_tolerance, gradient_tolerance) = tolerances(dtype);
    let output = Rows::read(output);
    for (path, expected) in &expected_outputs {
        let found = output.gather(path);
        for (found, expected) in found.values.iter().zip(&expected.values) {
            assert!(
                (found - expected).abs() <= output_tolerance,
                "output {found} {expected}"
            );
        }
    }
    let gradients = [
        ("query gradient", gradient(&query), expected_query_grad),
        ("key gradient", gradient(&key), expected_key_grad),
        ("value gradient", gradient(&value), expected_value_grad),
    ];
    for (name, found, expected) in &gradients {
        let distance = found.relative_distance(expected);
        assert!(
            distance <= gradient_tolerance,
            "{name} differs by {distance:e}"
        );
    }
    for &row in &padding {
        output.assert_zero_row(row, "output");
        for (name, found, _) in &gradients {
            found.assert_zero_row(row, name);
        }
    }
}
