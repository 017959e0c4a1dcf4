//! Causal attention of one sequence and its gradients, in plain loops.

/// Values of one sequence: `heads x length x dim`, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    /// Number of heads.
    pub heads: usize,
    /// Number of tokens.
    pub length: usize,
    /// Features of a head.
    pub dim: usize,
    /// The values.
    pub values: Vec<f64>,
}

impl Heads {
    /// All zeros.
    pub fn zeros(heads: usize, length: usize, dim: usize) -> Self {
        Self {
            heads,
            length,
            dim,
            values: vec![0.0; heads * length * dim],
        }
    }

    /// The row of one head and token.
    pub fn row(&self, head: usize, token: usize) -> &[f64] {
        let start = (head * self.length + token) * self.dim;
        &self.values[start..start + self.dim]
    }

    /// The row of one head and token, mutable.
    pub fn row_mut(&mut self, head: usize, token: usize) -> &mut [f64] {
        let start = (head * self.length + token) * self.dim;
        &mut self.values[start..start + self.dim]
    }

    /// Adds `factor * row` to a row.
    pub fn add(&mut self, head: usize, token: usize, factor: f64, row: &[f64]) {
        for (sum, value) in self.row_mut(head, token).iter_mut().zip(row) {
            *sum += factor * value;
        }
    }
}

/// Options of attention.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Scale of the scores; `dim^-1/2` if `None`.
    pub scale: Option<f64>,
    /// Scores become `softcap * tanh(score / softcap)`.
    pub softcap: Option<f64>,
    /// Token `i` sees the tokens `j` with `i - window < j <= i`.
    pub window: Option<usize>,
}

/// Output and, for the gradient `grad` of the output, the gradients of query, key and value.
#[derive(Clone, Debug)]
pub struct Attention {
    /// Output, `query heads x length x value dim`.
    pub output: Heads,
    /// Gradient of the query.
    pub query_grad: Heads,
    /// Gradient of the key.
    pub key_grad: Heads,
    /// Gradient of the value.
    pub value_grad: Heads,
    /// `probabilities[head][i][j]`, zero where `j` is not visible to `i`.
    pub probabilities: Vec<Vec<Vec<f64>>>,
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Causal attention of one sequence; query head `h` reads key head `h / (query heads / key heads)`.
pub fn causal_attention(
    query: &Heads,
    key: &Heads,
    value: &Heads,
    grad: &Heads,
    settings: Settings,
) -> Attention {
    let (length, group) = (query.length, query.heads / key.heads);
    let scale = settings.scale.unwrap_or((query.dim as f64).powf(-0.5));
    let mut result = Attention {
        output: Heads::zeros(query.heads, length, value.dim),
        query_grad: Heads::zeros(query.heads, length, query.dim),
        key_grad: Heads::zeros(key.heads, length, key.dim),
        value_grad: Heads::zeros(value.heads, length, value.dim),
        probabilities: vec![vec![vec![0.0; length]; length]; query.heads],
    };
    for head in 0..query.heads {
        let kv = head / group;
        for i in 0..length {
            let first = settings
                .window
                .map_or(0, |window| (i + 1).saturating_sub(window));
            // Scores, and their derivative in the scaled product (1 without a softcap).
            let (scores, slopes): (Vec<f64>, Vec<f64>) = (first..=i)
                .map(|j| {
                    let product = scale * dot(query.row(head, i), key.row(kv, j));
                    settings.softcap.map_or((product, 1.0), |cap| {
                        let tanh = (product / cap).tanh();
                        (cap * tanh, 1.0 - tanh * tanh)
                    })
                })
                .unzip();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            for (j, score) in (first..=i).zip(&scores) {
                let p = (score - max).exp() / sum;
                result.probabilities[head][i][j] = p;
                result.output.add(head, i, p, value.row(kv, j));
            }
            let delta = dot(grad.row(head, i), result.output.row(head, i));
            for (j, slope) in (first..=i).zip(slopes) {
                let p = result.probabilities[head][i][j];
                let score_grad = p * (dot(grad.row(head, i), value.row(kv, j)) - delta);
                let product_grad = score_grad * slope * scale;
                result.query_grad.add(head, i, product_grad, key.row(kv, j));
                result.key_grad.add(kv, j, product_grad, query.row(head, i));
                result.value_grad.add(kv, j, p, grad.row(head, i));
            }
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(heads: usize, length: usize, dim: usize, seed: f64) -> Heads {
        let values = (0..heads * length * dim)
            .map(|i| ((i as f64 + 1.0) * seed).sin())
            .collect();
        Heads {
            heads,
            length,
            dim,
            values,
        }
    }

    /// Compares the gradients with central differences of the forward pass: error h^2 ~ 1e-10.
    #[test]
    fn gradients_are_derivatives() {
        let inputs = [
            heads(4, 5, 3, 0.7),
            heads(2, 5, 3, 1.3),
            heads(2, 5, 2, 2.1),
        ];
        let grad = heads(4, 5, 2, 0.9);
        for settings in [
            Settings::default(),
            Settings {
                scale: Some(0.4),
                softcap: Some(0.8),
                window: Some(2),
            },
        ] {
            let run = |[q, k, v]: &[Heads; 3]| causal_attention(q, k, v, &grad, settings);
            let objective = |inputs: &[Heads; 3]| dot(&run(inputs).output.values, &grad.values);
            let result = run(&inputs);
            let grads = [&result.query_grad, &result.key_grad, &result.value_grad];
            for (tensor, expected) in grads.into_iter().enumerate() {
                for index in 0..expected.values.len() {
                    let h = 1e-5;
                    let [plus, minus] = [h, -h].map(|step| {
                        let mut moved = inputs.clone();
                        moved[tensor].values[index] += step;
                        objective(&moved)
                    });
                    let numeric = (plus - minus) / (2.0 * h);
                    assert!(
                        (numeric - expected.values[index]).abs() < 1e-8,
                        "{settings:?} tensor {tensor} [{index}]: {numeric} {}",
                        expected.values[index]
                    );
                }
            }
        }
    }
}
