//! The gated delta rule of one sequence and one head in plain loops, forward and backward.

/// Inputs of a head, row by row.
#[derive(Clone, Debug, Default)]
pub struct Sequence {
    /// `[T][DK]`
    pub query: Vec<Vec<f64>>,
    /// `[T][DK]`
    pub key: Vec<Vec<f64>>,
    /// `[T][DV]`
    pub value: Vec<Vec<f64>>,
    /// `[T]` log-decay `g`.
    pub log_decay: Vec<f64>,
    /// `[T]`
    pub beta: Vec<f64>,
    /// Scale of the query.
    pub scale: f64,
}

/// `[DK][DV]`
type Matrix = Vec<Vec<f64>>;

/// The output `[T][DV]`, and the gradients of the inputs for a given gradient of the output.
///
/// With `D = exp(g) S`: `r = v - D^T k`, `S' = D + k (beta r)^T`, `o = scale S'^T q`.
pub fn delta_rule(sequence: &Sequence, output_grad: &[Vec<f64>]) -> (Vec<Vec<f64>>, Sequence) {
    let (key_dim, value_dim) = (sequence.key[0].len(), sequence.value[0].len());
    let mut state: Matrix = vec![vec![0.0; value_dim]; key_dim];
    let mut decayed_states = Vec::new();
    let mut states = Vec::new();
    let mut residuals = Vec::new();
    let mut outputs = Vec::new();
    for (t, key) in sequence.key.iter().enumerate() {
        let decayed = scaled(&state, sequence.log_decay[t].exp());
        let recalled = rows_times(&decayed, key);
        let residual: Vec<_> = sequence.value[t]
            .iter()
            .zip(recalled)
            .map(|(v, r)| v - r)
            .collect();
        state = decayed.clone();
        add_outer(&mut state, sequence.beta[t], key, &residual);
        let output = rows_times(&state, &sequence.query[t]);
        outputs.push(output.iter().map(|o| sequence.scale * o).collect());
        decayed_states.push(decayed);
        states.push(state.clone());
        residuals.push(residual);
    }

    let rows = sequence.key.len();
    let mut grads = Sequence {
        query: vec![Vec::new(); rows],
        key: vec![Vec::new(); rows],
        value: vec![Vec::new(); rows],
        log_decay: vec![0.0; rows],
        beta: vec![0.0; rows],
        scale: 0.0,
    };
    let mut state_grad: Matrix = vec![vec![0.0; value_dim]; key_dim];
    for t in (0..rows).rev() {
        let (key, residual, beta) = (&sequence.key[t], &residuals[t], sequence.beta[t]);
        let query_grad = times_columns(&states[t], &output_grad[t]);
        grads.query[t] = query_grad.iter().map(|q| sequence.scale * q).collect();
        add_outer(
            &mut state_grad,
            sequence.scale,
            &sequence.query[t],
            &output_grad[t],
        );

        let update_grad = rows_times(&state_grad, key);
        grads.beta[t] = dot(&update_grad, residual);
        grads.value[t] = update_grad.iter().map(|u| beta * u).collect();
        let update: Vec<_> = residual.iter().map(|r| beta * r).collect();
        let from_update = times_columns(&state_grad, &update);
        let from_recall = times_columns(&decayed_states[t], &grads.value[t]);
        grads.key[t] = from_update
            .iter()
            .zip(from_recall)
            .map(|(u, r)| u - r)
            .collect();

        let mut decayed_grad = state_grad;
        add_outer(&mut decayed_grad, -1.0, key, &grads.value[t]);
        grads.log_decay[t] = decayed_grad
            .iter()
            .zip(&decayed_states[t])
            .map(|(a, b)| dot(a, b))
            .sum();
        state_grad = scaled(&decayed_grad, sequence.log_decay[t].exp());
    }
    (outputs, grads)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn scaled(matrix: &Matrix, factor: f64) -> Matrix {
    let scale = |row: &Vec<f64>| row.iter().map(|x| factor * x).collect();
    matrix.iter().map(scale).collect()
}

/// `matrix^T left`
fn rows_times(matrix: &Matrix, left: &[f64]) -> Vec<f64> {
    let mut product = vec![0.0; matrix[0].len()];
    for (row, factor) in matrix.iter().zip(left) {
        for (sum, x) in product.iter_mut().zip(row) {
            *sum += factor * x;
        }
    }
    product
}

/// `matrix right`
fn times_columns(matrix: &Matrix, right: &[f64]) -> Vec<f64> {
    matrix.iter().map(|row| dot(row, right)).collect()
}

/// `matrix += factor left right^T`
fn add_outer(matrix: &mut Matrix, factor: f64, left: &[f64], right: &[f64]) {
    for (row, left) in matrix.iter_mut().zip(left) {
        for (sum, right) in row.iter_mut().zip(right) {
            *sum += factor * left * right;
        }
    }
}
