//! Errors against a computation in f64 on the host, on some rows and keys of every head.

use burn::tensor::{DType, Tensor};
use burn_tree_attn::Visibility;
use tree_training_examples::benchmark::attention::{AttentionInputs, AttentionOutput, Heads};

/// `||x - reference|| / ||reference||` over the checked rows or keys; NaN never passes for small.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Errors {
    /// Of the output.
    pub output: f64,
    /// Of the gradients of query, key and value.
    pub gradients: [f64; 3],
}

impl Errors {
    /// The largest of the gradients' errors, NaN if one is.
    pub fn worst_gradient(&self) -> f64 {
        let worse = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
        self.gradients.into_iter().fold(0.0, worse)
    }
}

/// Checks `count` rows and keys of batch row 0, spread over all of them.
///
/// The reference of gradients of keys and values takes output and log-sum-exp of all rows from the
/// forward pass, which is checked itself.
pub fn errors(
    inputs: &AttentionInputs,
    forward: &AttentionOutput,
    gradients: &[Tensor<4>; 3],
    visibility: &Visibility,
    heads: Heads,
    count: usize,
) -> Errors {
    let host = Host::new(inputs, forward, visibility, heads);
    let [grad_query, grad_key, grad_value] = gradients.each_ref().map(read);
    let spread = |n: usize| (0..count.min(n)).map(move |i| (i * n + n / 2) / count.min(n));
    let mut errors = [Difference::default(); 4];
    for row in spread(host.rows) {
        for head in 0..heads.query {
            let (output, gradient) = host.row(head, row);
            errors[0].add(host.vector(&host.output, head, row), &output);
            errors[1].add(host.vector(&grad_query, head, row), &gradient);
        }
    }
    for key in spread(host.keys) {
        for head in 0..heads.key_value {
            let (of_key, of_value) = host.key_gradients(head, key);
            let at = (head * host.keys + key) * heads.dim;
            errors[2].add(&grad_key[at..at + heads.dim], &of_key);
            errors[3].add(&grad_value[at..at + heads.dim], &of_value);
        }
    }
    let [output, gradients @ ..] = errors.map(Difference::relative);
    Errors { output, gradients }
}

/// Squared norms of a difference and of the reference.
#[derive(Clone, Copy, Default)]
struct Difference {
    difference: f64,
    reference: f64,
}

impl Difference {
    fn add(&mut self, values: &[f32], reference: &[f64]) {
        for (&value, &expected) in values.iter().zip(reference) {
            self.difference += (f64::from(value) - expected).powi(2);
            self.reference += expected.powi(2);
        }
    }

    fn relative(self) -> f64 {
        (self.difference / self.reference).sqrt()
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
    visibility: &'a Visibility,
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
            visibility,
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
        self.visibility.key_start()[key] <= row && row < self.visibility.key_end()[key]
    }

    /// Query heads that use a key/value head.
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
        let rows = self.visibility.key_start()[key]..self.visibility.key_end()[key];
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
