//! Backward pass: probabilities recomputed from the log-sum-exp, tile by tile.

use burn_tree_kit::cpu::{DisjointMut, Matrix, Real, Storage, multiply};
use rayon::prelude::*;

use super::blocks::{KeyBlock, key_blocks};
use super::problem::{HeadTile, Problem, block_keys, computed, tile_rows};
use super::softmax::{differentiate_block, row_products};

/// Gradients of the inputs, in their dims.
pub(crate) struct Gradients<E> {
    pub query: Vec<E>,
    pub key: Vec<E>,
    pub value: Vec<E>,
}

/// Buffers of a worker, reused from tile to tile.
#[derive(Default)]
struct Scratch<T> {
    query: Vec<T>,
    output: Vec<T>,
    grad_output: Vec<T>,
    grad_query: Vec<T>,
    delta: Vec<T>,
    log_sum_exp: Vec<T>,
    keys: Vec<T>,
    values: Vec<T>,
    scores: Vec<T>,
    grad_scores: Vec<T>,
    hidden: Vec<T>,
    gathered: Vec<T>,
}

/// Gradients of tree attention. Those of keys and values are summed in one order, tile after
/// tile, so that a repeated call gives the same bits (with as many threads: more threads than
/// key/value heads share a head's tiles out and sum in another order).
pub(crate) fn backward<E: Storage>(
    problem: &Problem<'_, E>,
    output: &[E],
    log_sum_exp: &[E::Compute],
    grad_output: &[E],
) -> Gradients<E> {
    #[cfg(test)]
    crate::calls::record("backward");
    let dims = problem.dims;
    let (key, value) = (computed(problem.key), computed(problem.value));
    let plan = problem
        .visibility
        .plan(tile_rows(&dims), problem.settings.sliding_window);
    let heads = dims.batch * dims.kv_heads;
    let tiles_per_row = plan.tiles().len() / dims.batch;
    let parts = rayon::current_num_threads()
        .div_ceil(heads)
        .clamp(1, tiles_per_row.max(1));
    let (key_len, value_len) = (dims.keys * dims.head_dim, dims.keys * dims.value_dim);

    let mut grad_query = vec![E::default(); problem.query.len()];
    let mut grad_key = vec![E::Compute::ZERO; parts * heads * key_len];
    let mut grad_value = vec![E::Compute::ZERO; parts * heads * value_len];
    {
        let grad_query = DisjointMut::new(&mut grad_query);
        let sums = grad_key
            .par_chunks_exact_mut(key_len)
            .zip(grad_value.par_chunks_exact_mut(value_len));
        sums.enumerate().for_each_init(
            Scratch::default,
            |scratch, (task, (grad_key, grad_value))| {
                let (part, kv_index) = (task / heads, task % heads);
                let batch = kv_index / dims.kv_heads;
                let first = batch * tiles_per_row;
                // Interleaved, since later tiles of a tree see more.
                for tile in plan.tiles()[first..first + tiles_per_row]
                    .iter()
                    .skip(part)
                    .step_by(parts)
                {
                    let spans = plan.spans(tile);
                    let blocks = key_blocks(spans, tile.rows.start, batch, problem.visibility);
                    if blocks.is_empty() {
                        continue;
                    }
                    let tile = HeadTile {
                        dims,
                        batch,
                        kv_index,
                        rows: tile.rows.clone(),
                    };
                    scratch.load(problem, &tile, output, log_sum_exp, grad_output);
                    for block in &blocks {
                        let key = &key[kv_index * key_len..][..key_len];
                        let value = &value[kv_index * value_len..][..value_len];
                        scratch.add_block(problem, &tile, block, key, value, grad_key, grad_value);
                    }
                    let scale = E::Compute::from_f64(problem.settings.scale);
                    let width = dims.head_dim;
                    tile.for_each_row(width, |index, range| {
                        // SAFETY: no two tiles share a (head, query row).
                        let out = unsafe { grad_query.slice(range) };
                        for (out, &sum) in out.iter_mut().zip(&scratch.grad_query[index * width..])
                        {
                            *out = E::narrow(sum * scale);
                        }
                    });
                }
            },
        );
    }
    Gradients {
        query: grad_query,
        key: E::from_compute(sum_parts(grad_key, heads * key_len)),
        value: E::from_compute(sum_parts(grad_value, heads * value_len)),
    }
}

/// Adds the parts `[parts, len]` in order.
fn sum_parts<T: Real>(mut parts: Vec<T>, len: usize) -> Vec<T> {
    let (sum, others) = parts.split_at_mut(len);
    for part in others.chunks_exact(len.max(1)) {
        for (sum, &part) in sum.iter_mut().zip(part) {
            *sum += part;
        }
    }
    parts.truncate(len);
    parts
}

impl<T: Real> Scratch<T> {
    /// Loads what all blocks of a tile need.
    fn load<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        tile: &HeadTile,
        output: &[E],
        log_sum_exp: &[T],
        grad_output: &[E],
    ) {
        let (head_dim, width) = (problem.dims.head_dim, problem.dims.value_dim);
        tile.load(
            &mut self.query,
            problem.query,
            head_dim,
            T::from_f64(problem.settings.scale),
        );
        tile.load(&mut self.output, output, width, T::ONE);
        tile.load(&mut self.grad_output, grad_output, width, T::ONE);
        let (delta, log_sums) = (&mut self.delta, &mut self.log_sum_exp);
        delta.clear();
        delta.resize(tile.matrix_rows(), T::ZERO);
        row_products(delta, &self.output, &self.grad_output, width);
        log_sums.clear();
        tile.for_each_row(1, |_, at| log_sums.push(log_sum_exp[at.start]));
        self.grad_query.clear();
        self.grad_query
            .resize(tile.matrix_rows() * head_dim, T::ZERO);
    }

    fn add_block<E: Storage<Compute = T>>(
        &mut self,
        problem: &Problem<'_, E>,
        tile: &HeadTile,
        block: &KeyBlock,
        key: &[T],
        value: &[T],
        grad_key: &mut [T],
        grad_value: &mut [T],
    ) {
        let (head_dim, value_dim) = (problem.dims.head_dim, problem.dims.value_dim);
        let rows = tile.block_rows(block);
        let n_keys = block.n_keys;
        let keys = block_keys(block, key, head_dim, &mut self.keys);
        let values = block_keys(block, value, value_dim, &mut self.values);
        let query = Matrix::new(&self.query[rows.start * head_dim..], rows.len(), head_dim);
        let grad_output = Matrix::new(
            &self.grad_output[rows.start * value_dim..],
            rows.len(),
            value_dim,
        );
        let size = rows.len() * n_keys;
        for buffer in [&mut self.scores, &mut self.grad_scores] {
            buffer.resize(buffer.len().max(size), T::ZERO);
        }
        let (scores, grad_scores) = (&mut self.scores[..size], &mut self.grad_scores[..size]);

        multiply(scores, query, keys.transposed(), false);
        tile.cap_and_hide(
            scores,
            &mut self.hidden,
            block,
            problem.visibility,
            &problem.settings,
        );
        multiply(grad_scores, grad_output, values.transposed(), false);
        let softcap = problem.settings.softcap.map(T::from_f64);
        let (log_sum_exp, delta) = (&self.log_sum_exp[rows.clone()], &self.delta[rows.clone()]);
        differentiate_block(scores, grad_scores, n_keys, log_sum_exp, delta, softcap);

        let probabilities = Matrix::new(scores, rows.len(), n_keys).transposed();
        let grad_scores = Matrix::new(grad_scores, rows.len(), n_keys);
        let gathered = &mut self.gathered;
        add_product(
            block,
            grad_value,
            probabilities,
            grad_output,
            value_dim,
            gathered,
        );
        add_product(
            block,
            grad_key,
            grad_scores.transposed(),
            query,
            head_dim,
            gathered,
        );
        let grad_query = &mut self.grad_query[rows.start * head_dim..rows.end * head_dim];
        multiply(grad_query, grad_scores, keys, true);
    }
}

/// Adds `lhs rhs` to the block's rows of `sums [keys, width]`.
fn add_product<T: Real>(
    block: &KeyBlock,
    sums: &mut [T],
    lhs: Matrix<'_, T>,
    rhs: Matrix<'_, T>,
    width: usize,
    gathered: &mut Vec<T>,
) {
    if let [keys] = block.keys.as_slice() {
        multiply(
            &mut sums[keys.start * width..keys.end * width],
            lhs,
            rhs,
            true,
        );
        return;
    }
    gathered.resize(gathered.len().max(block.n_keys * width), T::ZERO);
    multiply(gathered, lhs, rhs, false);
    let mut parts = &gathered[..];
    for keys in &block.keys {
        let (part, rest) = parts.split_at(keys.len() * width);
        let sums = &mut sums[keys.start * width..keys.end * width];
        for (sum, &part) in sums.iter_mut().zip(part) {
            *sum += part;
        }
        parts = rest;
    }
}
