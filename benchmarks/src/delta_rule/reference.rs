//! The gated delta rule and its gradients in f64 on the host, token by token.
//!
//! The columns of a state (one per feature of a value) are independent, so each is computed
//! separately: forward along the tree with all states kept, then backward.

use rayon::prelude::*;

/// The inputs of one group: a key head and its value heads.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// `[R]` previous row of the path, negative at roots and in padding.
    pub parents: &'a [i32],
    /// `[R]` whether the row is padding.
    pub is_padding: &'a [bool],
    /// Scale of the queries.
    pub scale: f64,
    /// Features of a query or key.
    pub key_dim: usize,
    /// Features of a value.
    pub value_dim: usize,
    /// `[R, DK]`
    pub query: &'a [f64],
    /// `[R, DK]`
    pub key: &'a [f64],
    /// `[R, H, DV]`
    pub value: &'a [f64],
    /// `[R, H]`
    pub log_decay: &'a [f64],
    /// `[R, H]`
    pub beta: &'a [f64],
    /// `[R, H, DV]`
    pub grad_output: &'a [f64],
}

/// Output and gradients of a group, each in the shape of its input.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupResults {
    /// `[R, H, DV]`
    pub output: Vec<f64>,
    /// `[R, DK]`, summed over the value heads.
    pub query: Vec<f64>,
    /// `[R, DK]`, summed over the value heads.
    pub key: Vec<f64>,
    /// `[R, H, DV]`
    pub value: Vec<f64>,
    /// `[R, H]`
    pub log_decay: Vec<f64>,
    /// `[R, H]`
    pub beta: Vec<f64>,
}

/// Sums of one worker over its columns, and the results of each column.
struct Share {
    /// `[R, DK]`
    query: Vec<f64>,
    /// `[R, DK]`
    key: Vec<f64>,
    /// `[R, H]`
    log_decay: Vec<f64>,
    /// `[R, H]`
    beta: Vec<f64>,
    /// Output and gradient of the value of each column, `[R]`.
    columns: Vec<(usize, Vec<f64>, Vec<f64>)>,
}

impl Group<'_> {
    fn rows(&self) -> usize {
        self.parents.len()
    }

    fn heads(&self) -> usize {
        self.beta.len() / self.rows().max(1)
    }

    fn vector<'b>(&self, of_keys: &'b [f64], row: usize) -> &'b [f64] {
        &of_keys[row * self.key_dim..(row + 1) * self.key_dim]
    }

    /// Computes output and all gradients on all cores.
    pub fn results(&self) -> GroupResults {
        let (rows, heads) = (self.rows(), self.heads());
        let width = heads * self.value_dim;
        let columns: Vec<usize> = (0..width).collect();
        // One share per worker, because each holds several arrays as large as the keys.
        let of_worker = width.div_ceil(rayon::current_num_threads()).max(1);
        let shares: Vec<Share> = columns
            .par_chunks(of_worker)
            .map(|columns| self.share(columns))
            .collect();

        let mut results = GroupResults {
            output: vec![0.0; rows * width],
            value: vec![0.0; rows * width],
            query: vec![0.0; rows * self.key_dim],
            key: vec![0.0; rows * self.key_dim],
            log_decay: vec![0.0; rows * heads],
            beta: vec![0.0; rows * heads],
        };
        for share in shares {
            add(&mut results.query, &share.query);
            add(&mut results.key, &share.key);
            add(&mut results.log_decay, &share.log_decay);
            add(&mut results.beta, &share.beta);
            for (column, output, value) in share.columns {
                for row in 0..rows {
                    results.output[row * width + column] = output[row];
                    results.value[row * width + column] = value[row];
                }
            }
        }
        results
    }

    fn share(&self, columns: &[usize]) -> Share {
        let (rows, heads) = (self.rows(), self.heads());
        let mut share = Share {
            query: vec![0.0; rows * self.key_dim],
            key: vec![0.0; rows * self.key_dim],
            log_decay: vec![0.0; rows * heads],
            beta: vec![0.0; rows * heads],
            columns: Vec::with_capacity(columns.len()),
        };
        let mut scratch = Scratch {
            states: vec![0.0; rows * self.key_dim],
            grad_states: vec![0.0; rows * self.key_dim],
            residuals: vec![0.0; rows],
        };
        for &column in columns {
            let output = self.forward(column, &mut scratch);
            let value = self.backward(column, &mut scratch, &mut share);
            share.columns.push((column, output, value));
        }
        share
    }

    /// The outputs of a column.
    fn forward(&self, column: usize, scratch: &mut Scratch) -> Vec<f64> {
        let (dim, width) = (self.key_dim, self.heads() * self.value_dim);
        let head = column / self.value_dim;
        let mut output = vec![0.0; self.rows()];
        for row in (0..self.rows()).filter(|&row| !self.is_padding[row]) {
            let decay = self.log_decay[row * self.heads() + head].exp();
            let (before, rest) = scratch.states.split_at_mut(row * dim);
            let state = &mut rest[..dim];
            match usize::try_from(self.parents[row]) {
                Ok(parent) => {
                    let parent = &before[parent * dim..(parent + 1) * dim];
                    for (state, parent) in state.iter_mut().zip(parent) {
                        *state = decay * parent;
                    }
                }
                Err(_) => state.fill(0.0),
            }
            let key = self.vector(self.key, row);
            let residual = self.value[row * width + column] - dot(key, state);
            scratch.residuals[row] = residual;
            let update = self.beta[row * self.heads() + head] * residual;
            add_scaled(state, update, key);
            output[row] = self.scale * dot(self.vector(self.query, row), state);
        }
        output
    }

    /// Adds the contribution of a column to `share`; returns the gradients of the values.
    fn backward(&self, column: usize, scratch: &mut Scratch, share: &mut Share) -> Vec<f64> {
        let (dim, heads) = (self.key_dim, self.heads());
        let head = column / self.value_dim;
        let mut values = vec![0.0; self.rows()];
        scratch.grad_states.fill(0.0);
        let mut decayed = vec![0.0; dim];
        for row in (0..self.rows()).rev() {
            if self.is_padding[row] {
                continue;
            }
            let at = row * heads + head;
            let (decay, beta, residual) = (
                self.log_decay[at].exp(),
                self.beta[at],
                scratch.residuals[row],
            );
            let key = self.vector(self.key, row);
            let grad_output = self.scale * self.grad_output[row * heads * self.value_dim + column];
            let state = &scratch.states[row * dim..(row + 1) * dim];
            let (before, rest) = scratch.grad_states.split_at_mut(row * dim);
            let grad_state = &mut rest[..dim];
            let grad_key = &mut share.key[row * dim..(row + 1) * dim];

            // o = scale q . s
            add_scaled(
                &mut share.query[row * dim..(row + 1) * dim],
                grad_output,
                state,
            );
            add_scaled(grad_state, grad_output, self.vector(self.query, row));
            // s = e^g s_parent + k beta residual
            let grad_update = dot(key, grad_state);
            add_scaled(grad_key, beta * residual, grad_state);
            share.beta[at] += grad_update * residual;
            // residual = v - k . e^g s_parent
            let grad_residual = beta * grad_update;
            values[row] = grad_residual;
            let Ok(parent) = usize::try_from(self.parents[row]) else {
                continue;
            };
            let parent = parent * dim..(parent + 1) * dim;
            for (decayed, state) in decayed.iter_mut().zip(&scratch.states[parent.clone()]) {
                *decayed = decay * state;
            }
            add_scaled(grad_key, -grad_residual, &decayed);
            add_scaled(grad_state, -grad_residual, key);
            share.log_decay[at] += dot(&decayed, grad_state);
            add_scaled(&mut before[parent], decay, grad_state);
        }
        values
    }
}

/// The state of the computation of a column.
struct Scratch {
    /// `[R, DK]`
    states: Vec<f64>,
    /// `[R, DK]`
    grad_states: Vec<f64>,
    /// `[R]` value minus what the state before predicts.
    residuals: Vec<f64>,
}

/// In eight partial sums, which the compiler can vectorise.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    const LANES: usize = 8;
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a.remainder().iter().zip(b.remainder());
    let rest: f64 = rest.map(|(a, b)| a * b).sum();
    let mut sums = [0.0; LANES];
    for (a, b) in a.zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f64>() + rest
}

fn add(sum: &mut [f64], values: &[f64]) {
    add_scaled(sum, 1.0, values);
}

fn add_scaled(sum: &mut [f64], factor: f64, values: &[f64]) {
    for (sum, value) in sum.iter_mut().zip(values) {
        *sum += factor * value;
    }
}
