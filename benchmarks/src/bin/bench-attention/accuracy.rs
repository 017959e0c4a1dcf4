//! Errors relative to a computation in f64 on the host, for some rows and keys of every head.

use std::num::NonZero;
use std::thread::available_parallelism;

use burn::tensor::{DType, Tensor};
use burn_tree_attn::Visibility;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tree_training_benchmarks::attention::{AttentionInputs, AttentionOutput, Heads};

/// `||x - reference|| / ||reference||` over the checked rows or keys. NaN counts as large.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Errors {
    /// Of the output.
    pub output: f64,
    /// Of the output, the largest error of one row of one head. Rounding probabilities and output
    /// to bfloat16 causes about 4e-3; an error in a single row does not show in `output`.
    pub worst_output_row: f64,
    /// Of the gradients of query, key and value.
    pub gradients: [f64; 3],
}

impl Errors {
    /// The largest error of the gradients; NaN if one is NaN.
    pub fn worst_gradient(&self) -> f64 {
        self.gradients.into_iter().fold(0.0, worse)
    }
}

/// The larger value; NaN if one is NaN.
fn worse(a: f64, b: f64) -> f64 {
    if b > a || b.is_nan() { b } else { a }
}

/// Checks `count` rows and keys of batch row 0 in all heads: one from each of `count` equal ranges,
/// selected by `seed`.
///
/// The reference of the gradients of keys and values uses output and log-sum-exp of the forward
/// pass, which is checked separately.
pub fn errors(
    inputs: &AttentionInputs,
    forward: &AttentionOutput,
    gradients: &[Tensor<4>; 3],
    visibility: &Visibility,
    heads: Heads,
    count: usize,
    seed: u64,
) -> Errors {
    let host = Host::new(inputs, forward, visibility, heads);
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let [grad_query, grad_key, grad_value] = gradients.each_ref().map(read);
    let mut drawn = |n: usize, heads: usize| -> Vec<(usize, usize)> {
        let parts = count.min(n);
        let drawn =
            (0..parts).map(|part| generator.random_range(part * n / parts..(part + 1) * n / parts));
        drawn
            .flat_map(|at| (0..heads).map(move |head| (head, at)))
            .collect()
    };
    let rows = drawn(host.rows, heads.query);
    let keys = drawn(host.keys, heads.key_value);

    let mut errors = [Difference::default(); 4];
    let mut worst_output_row = 0.0;
    let of_rows = on_all_cores(&rows, |&(head, row)| {
        let (output, gradient) = host.row(head, row);
        [
            Difference::new(host.vector(&host.output, head, row), &output),
            Difference::new(host.vector(&grad_query, head, row), &gradient),
        ]
    });
    for [output, gradient] in of_rows {
        worst_output_row = worse(worst_output_row, output.relative());
        errors[0].add(output);
        errors[1].add(gradient);
    }
    let of_keys = on_all_cores(&keys, |&(head, key)| {
        let (of_key, of_value) = host.key_gradients(head, key);
        [
            Difference::new(host.key_value(&grad_key, head, key), &of_key),
            Difference::new(host.key_value(&grad_value, head, key), &of_value),
        ]
    });
    for [of_key, of_value] in of_keys {
        errors[2].add(of_key);
        errors[3].add(of_value);
    }
    let [output, gradients @ ..] = errors.map(Difference::relative);
    Errors {
        output,
        worst_output_row,
        gradients,
    }
}

/// The results of all items, in order.
fn on_all_cores<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let cores = available_parallelism().map_or(1, NonZero::get);
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items
            .chunks(items.len().div_ceil(cores).max(1))
            .map(|chunk| scope.spawn(move || chunk.iter().map(work).collect::<Vec<R>>()))
            .collect();
        let results = threads.into_iter().flat_map(|thread| match thread.join() {
            Ok(results) => results,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        results.collect()
    })
}

/// Squared norms of a difference and of the reference.
#[derive(Clone, Copy, Default)]
struct Difference {
    difference: f64,
    reference: f64,
}

impl Difference {
    fn new(values: &[f32], reference: &[f64]) -> Self {
        let mut sums = Self::default();
        for (&value, &expected) in values.iter().zip(reference) {
            sums.difference += (f64::from(value) - expected).powi(2);
            sums.reference += expected.powi(2);
        }
        sums
    }

    fn add(&mut self, other: Self) {
        self.difference += other.difference;
        self.reference += other.reference;
    }

    /// Zero if there is no difference, for example for rows that see no keys.
    fn relative(self) -> f64 {
        if self.difference == 0.0 {
            0.0
        } else {
            (self.difference / self.reference).sqrt()
        }
    }
}

/// Batch row 0 on the host.
struct Host<'a> {
    heads: Heads,
    rows: usize,
    keys: usize,
    scale: f64,
    query: Vec<f32>,
    key: Vec<f32>,
    value: Vec<f32>,
    grad_output: Vec<f32>,
    output: Vec<f32>,
    log_sum_exp: Vec<f32>,
    key_start: &'a [u32],
    key_end: &'a [u32],
}

impl<'a> Host<'a> {
    fn new(
        inputs: &AttentionInputs,
        forward: &AttentionOutput,
        visibility: &'a Visibility,
        heads: Heads,
    ) -> Self {
        Self {
            heads,
            rows: visibility.n_queries(),
            keys: visibility.n_keys(),
            scale: inputs.scale(),
            query: read(&inputs.query),
            key: read(&inputs.key),
            value: read(&inputs.value),
            grad_output: read(&inputs.grad_output),
            output: read(&forward.output),
            log_sum_exp: read(&forward.log_sum_exp),
            key_start: visibility.key_start(),
            key_end: visibility.key_end(),
        }
    }

    fn vector<'b>(&self, tensor: &'b [f32], head: usize, row: usize) -> &'b [f32] {
        let at = (head * self.rows + row) * self.heads.dim;
        &tensor[at..at + self.heads.dim]
    }

    fn key_value<'b>(&self, tensor: &'b [f32], head: usize, key: usize) -> &'b [f32] {
        let at = (head * self.keys + key) * self.heads.dim;
        &tensor[at..at + self.heads.dim]
    }

    fn sees(&self, row: usize, key: usize) -> bool {
        let row = row as u32;
        self.key_start[key] <= row && row < self.key_end[key]
    }

    /// Query heads per key/value head.
    fn group(&self) -> usize {
        self.heads.query / self.heads.key_value
    }

    /// Output of a row and gradient of its query.
    fn row(&self, head: usize, row: usize) -> (Vec<f64>, Vec<f64>) {
        let kv_head = head / self.group();
        let query = self.vector(&self.query, head, row);
        let grad_output = self.vector(&self.grad_output, head, row);
        let keys: Vec<usize> = (0..self.keys).filter(|&key| self.sees(row, key)).collect();
        let scores: Vec<f64> = keys
            .iter()
            .map(|&key| self.scale * dot(query, self.key_value(&self.key, kv_head, key)))
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
        let mut output = vec![0.0; self.heads.dim];
        let mut gradient = vec![0.0; self.heads.dim];
        for (&key, score) in keys.iter().zip(&scores) {
            let value = self.key_value(&self.value, kv_head, key);
            add_scaled(&mut output, (score - max).exp() / sum, value);
        }
        let delta: f64 = output
            .iter()
            .zip(grad_output)
            .map(|(o, &g)| o * f64::from(g))
            .sum();
        for (&key, score) in keys.iter().zip(&scores) {
            let probability = (score - max).exp() / sum;
            let of_probability = dot(grad_output, self.key_value(&self.value, kv_head, key));
            let of_score = self.scale * probability * (of_probability - delta);
            add_scaled(
                &mut gradient,
                of_score,
                self.key_value(&self.key, kv_head, key),
            );
        }
        (output, gradient)
    }

    /// Gradients of a key and its value.
    fn key_gradients(&self, kv_head: usize, key: usize) -> (Vec<f64>, Vec<f64>) {
        let key_vector = self.key_value(&self.key, kv_head, key);
        let value = self.key_value(&self.value, kv_head, key);
        let mut of_key = vec![0.0; self.heads.dim];
        let mut of_value = vec![0.0; self.heads.dim];
        let rows = self.key_start[key]..self.key_end[key];
        for head in kv_head * self.group()..(kv_head + 1) * self.group() {
            for row in rows.clone().map(|row| row as usize) {
                let query = self.vector(&self.query, head, row);
                let grad_output = self.vector(&self.grad_output, head, row);
                let score = self.scale * dot(query, key_vector);
                let log_sum_exp = f64::from(self.log_sum_exp[head * self.rows + row]);
                let probability = (score - log_sum_exp).exp();
                let delta = dot(grad_output, self.vector(&self.output, head, row));
                add_scaled(&mut of_value, probability, grad_output);
                let of_score = self.scale * probability * (dot(grad_output, value) - delta);
                add_scaled(&mut of_key, of_score, query);
            }
        }
        (of_key, of_value)
    }
}

fn read<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    let first = tensor.clone().slice_dim(0, 0..1).cast(DType::F32);
    first.into_data().iter::<f32>().collect()
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
    products.sum()
}

fn add_scaled(sum: &mut [f64], factor: f64, vector: &[f32]) {
    for (sum, &value) in sum.iter_mut().zip(vector) {
        *sum += factor * f64::from(value);
    }
}
