//! Forward pass: online softmax over blocks of keys, a tile of query rows at a time.

use burn_tree_kit::cpu::{DisjointMut, Matrix, Real, Storage, multiply};
use rayon::prelude::*;

use super::blocks::{KeyBlock, key_blocks};
use super::problem::{HeadTile, Problem, block_keys, computed, tile_rows};
use super::softmax::{OnlineRow, absorb_block};

/// Results of the forward pass.
pub(crate) struct Forward<E: Storage> {
    /// `[B, Hq, N, Dv]`
    pub output: Vec<E>,
    /// `[B, Hq, N]`
    pub log_sum_exp: Vec<E::Compute>,
}

/// Buffers of a worker, reused from tile to tile.
#[derive(Default)]
struct Scratch<T> {
    query: Vec<T>,
    keys: Vec<T>,
    values: Vec<T>,
    scores: Vec<T>,
    hidden: Vec<T>,
    output: Vec<T>,
    softmax: Vec<OnlineRow<T>>,
}

/// Tree attention.
pub(crate) fn forward<E: Storage>(problem: &Problem<'_, E>) -> Forward<E> {
    #[cfg(test)]
    crate::calls::record("forward");
    let dims = problem.dims;
    let (key, value) = (computed(problem.key), computed(problem.value));
    let plan = problem
        .visibility
        .plan(tile_rows(&dims), problem.settings.sliding_window);
    let rows = dims.batch * dims.query_heads * dims.queries;
    let mut output = vec![E::default(); rows * dims.value_dim];
    let mut log_sum_exp = vec![E::Compute::ZERO; rows];
    {
        let output = DisjointMut::new(&mut output);
        let log_sum_exp = DisjointMut::new(&mut log_sum_exp);
        // Head after head, so that its keys and values stay in the cache.
        let tiles_per_row = plan.tiles().len() / dims.batch;
        let tasks = (0..plan.tiles().len() * dims.kv_heads).into_par_iter();
        tasks.for_each_init(Scratch::default, |scratch, task| {
            let kv_index = task / tiles_per_row;
            let batch = kv_index / dims.kv_heads;
            let tile = &plan.tiles()[batch * tiles_per_row + task % tiles_per_row];
            let spans = plan.spans(tile);
            let blocks = key_blocks(spans, tile.rows.start, tile.batch, problem.visibility);
            let tile = HeadTile {
                dims,
                batch: tile.batch,
                kv_index,
                rows: tile.rows.clone(),
            };
            tile_forward(problem, &tile, &blocks, &key, &value, scratch);
            let width = dims.value_dim;
            tile.for_each_row(width, |index, range| {
                let row = &scratch.softmax[index];
                let factor = if row.sum > E::Compute::ZERO {
                    E::Compute::ONE / row.sum
                } else {
                    E::Compute::ZERO
                };
                // SAFETY: no two tiles share a (head, query row).
                let (out, log_sum_exp) = unsafe {
                    let at = range.start / width;
                    (output.slice(range), &mut log_sum_exp.slice(at..at + 1)[0])
                };
                *log_sum_exp = row.log_sum_exp();
                for (out, &sum) in out.iter_mut().zip(&scratch.output[index * width..]) {
                    *out = E::narrow(sum * factor);
                }
            });
        });
    }
    Forward {
        output,
        log_sum_exp,
    }
}

/// Leaves unnormalised outputs and softmax sums of a tile in `scratch`.
fn tile_forward<E: Storage>(
    problem: &Problem<'_, E>,
    tile: &HeadTile,
    blocks: &[KeyBlock],
    key: &[E::Compute],
    value: &[E::Compute],
    scratch: &mut Scratch<E::Compute>,
) {
    let dims = &problem.dims;
    let (head_dim, value_dim) = (dims.head_dim, dims.value_dim);
    let key = &key[tile.kv_index * dims.keys * head_dim..][..dims.keys * head_dim];
    let value = &value[tile.kv_index * dims.keys * value_dim..][..dims.keys * value_dim];
    let Scratch {
        query,
        keys,
        values,
        scores,
        hidden,
        output,
        softmax,
    } = scratch;
    softmax.clear();
    softmax.resize(tile.matrix_rows(), OnlineRow::EMPTY);
    output.clear();
    output.resize(tile.matrix_rows() * value_dim, E::Compute::ZERO);
    if blocks.is_empty() {
        return;
    }
    tile.load(
        query,
        problem.query,
        head_dim,
        E::Compute::from_f64(problem.settings.scale),
    );
    for block in blocks {
        let rows = tile.block_rows(block);
        let n_keys = block.n_keys;
        scores.resize(scores.len().max(rows.len() * n_keys), E::Compute::ZERO);
        let scores = &mut scores[..rows.len() * n_keys];
        let query = Matrix::new(&query[rows.start * head_dim..], rows.len(), head_dim);
        multiply(
            scores,
            query,
            block_keys(block, key, head_dim, keys).transposed(),
            false,
        );
        tile.cap_and_hide(scores, hidden, block, problem.visibility, &problem.settings);
        let output = &mut output[rows.start * value_dim..rows.end * value_dim];
        absorb_block(
            &mut softmax[rows.clone()],
            scores,
            n_keys,
            output,
            value_dim,
        );
        let probabilities = Matrix::new(scores, rows.len(), n_keys);
        multiply(
            output,
            probabilities,
            block_keys(block, value, value_dim, values),
            true,
        );
    }
}
