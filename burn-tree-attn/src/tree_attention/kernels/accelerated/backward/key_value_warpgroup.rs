//! Gradients of keys and values with warpgroups.
//!
//! As [`key_value`](super::key_value), but a cube is one warpgroup that does everything for its 64
//! keys: right operands come straight from shared memory and cost nothing to share, so
//! that neither pairs of planes nor an exchange of probabilities are needed. While one cube of a
//! multiprocessor is at its exponentials, the other one is at its products.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Plan, Sizes};
use super::super::copies::copy_panels_of_both;
use super::super::warpgroup::*;
use super::arguments::*;
use super::blocks::*;
use super::by_key::*;
use burn_tree_kit::cube::matrix::*;

/// Units of a cube.
pub(crate) const UNITS: usize = PLANES * PLANE;

impl BackwardConfig {
    /// Bytes of queries or of gradients of the output in a stage.
    fn panel_bytes(&self) -> usize {
        panel_tile_bytes(QUERY_ROWS, self.head_dim)
    }

    /// Where the statistics of the stages start in shared memory, after keys, values, and two
    /// stages of queries and gradients.
    fn warpgroup_statistics(&self) -> usize {
        6 * self.panel_bytes()
    }

    /// Bytes of the statistics of a stage.
    fn statistics_bytes(&self) -> usize {
        2 * 4 * QUERY_ROWS
    }

    /// Bytes of shared memory of a cube of the key and value kernel of warpgroups.
    pub fn warpgroup_key_shared_bytes(&self) -> usize {
        self.warpgroup_statistics() + 2 * self.statistics_bytes()
    }
}

/// Arguments and cubes as those of
/// [`tree_attention_backward_key_value`](super::key_value::tree_attention_backward_key_value).
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_key_value_warpgroup<E: Float>(
    tensors: &BackwardTensors<E>,
    plan: &Plan,
    gradients: &mut KeyGradients,
    sizes: &Sizes,
    splits: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let dim = config.head_dim;
    let panel_bytes = comptime!(config.panel_bytes() as u32);
    let size!(ProductSize) = comptime!(QUERY_ROWS / 2);
    let size!(LeftSize) = comptime!(QUERY_ROWS / 4);
    let size!(SumSize) = comptime!(dim / 2);

    let tile = key_tile(&plan.lists, sizes, splits);
    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * 16;
    let memory = Shared::<[u32]>::new_aligned_slice(
        comptime!(config.warpgroup_key_shared_bytes() / 4),
        1024usize,
    );
    let shared = shared_address(&memory);

    let side = query_side::<E>(tensors, &tile, sizes, dim);
    copy_keys::<E>(tensors, &tile, sizes, shared, config);
    let mut steps = steps_of(&tile);
    if tile.steps > 0 {
        steps.start(&plan.lists);
        copy_stage(&side, &steps, shared, 0u32, config);
        steps.advance(&tile, &plan.lists);
    }

    let keys = describe_by_rows(shared);
    let values = describe_by_rows(shared + panel_bytes);
    let mut key_sums = Vector::<f32, SumSize>::new(0.0f32);
    let mut value_sums = Vector::<f32, SumSize>::new(0.0f32);

    for step in 0..tile.steps {
        let slot = step % 2;
        let stage = shared + 2 * panel_bytes + slot * 2 * panel_bytes;
        let statistics = statistics_at(shared, slot, config) + lane % 4 * 8;
        // This stage has landed, and no plane reads the other one any more.
        wait_copies(0usize);
        fence_products();
        sync_cube();
        if step + 1 < tile.steps {
            copy_stage(&side, &steps, shared, 1 - slot, config);
        }

        let products = multiply_panel_rows::<E, ProductSize>(
            keys,
            describe_by_rows(stage),
            dim,
            KEY_ROWS,
            QUERY_ROWS,
        );
        let value_products = multiply_panel_rows::<E, ProductSize>(
            values,
            describe_by_rows(stage + panel_bytes),
            dim,
            KEY_ROWS,
            QUERY_ROWS,
        );
        let mut exponents = tiles_of::<ProductSize>(products, comptime!(QUERY_ROWS / 8));
        exponents_of_keys(&mut exponents, statistics, scores, config);
        if steps.entry & 1 == 1 {
            hide_of_keys(
                &mut exponents,
                &plan.mask,
                tile.batch,
                tile.first_key + plane_row + lane / 4,
                (steps.entry >> 1) * comptime!(QUERY_ROWS as u32) + lane % 4 * 2,
                sizes,
                scores.window,
                config,
            );
        }
        let (probabilities, derivatives) = left_operands::<E, ProductSize, LeftSize>(
            &exponents,
            value_products,
            statistics,
            scores,
            config,
        );
        value_sums = multiply_add_panel_columns::<E, SumSize, LeftSize>(
            probabilities,
            describe_by_columns(stage + panel_bytes, QUERY_ROWS),
            value_sums,
            QUERY_ROWS,
            dim,
        );
        key_sums = multiply_add_panel_columns::<E, SumSize, LeftSize>(
            derivatives,
            describe_by_columns(stage, QUERY_ROWS),
            key_sums,
            QUERY_ROWS,
            dim,
        );
        steps.advance(&tile, &plan.lists);
    }

    // Each plane stages its rows where keys, values and stages were.
    wait_copies(0usize);
    sync_cube();
    let row_bytes = comptime!(row_stride(dim) as u32);
    let rows = shared + plane_row * row_bytes;
    let sums = tiles_of::<SumSize>(value_sums, comptime!(dim / 8));
    let to = output_address(&mut gradients.value);
    store_key_sums::<E>(&sums, to, rows, 1.0f32, plane_row, &tile, sizes, config);
    let rows = rows + comptime!((KEY_ROWS * row_stride(dim)) as u32);
    let sums = tiles_of::<SumSize>(key_sums, comptime!(dim / 8));
    let to = output_address(&mut gradients.key);
    store_key_sums::<E>(
        &sums,
        to,
        rows,
        scores.scale,
        plane_row,
        &tile,
        sizes,
        config,
    );
}

/// Starts the copies of a tile's keys and values.
#[cube]
fn copy_keys<E: Float>(
    tensors: &BackwardTensors<E>,
    tile: &KeyTile,
    sizes: &Sizes,
    shared: u32,
    #[comptime] config: BackwardConfig,
) {
    let dim = config.head_dim;
    let offset = first_key_row(tile, sizes) * comptime!(2 * dim as u64);
    let key = global_address::<E>(&tensors.key) + offset;
    let value = global_address::<E>(&tensors.value) + offset;
    copy_panels_of_both(
        key,
        value,
        shared,
        sizes.n_keys - tile.first_key,
        KEY_ROWS,
        dim,
        true,
    );
    commit_copies();
}

/// Starts the copies of the next step's query tile into the stage with number `slot`.
#[cube]
fn copy_stage(
    side: &QuerySide,
    steps: &Steps,
    shared: u32,
    slot: u32,
    #[comptime] config: BackwardConfig,
) {
    let dim = config.head_dim;
    let panel_bytes = comptime!(config.panel_bytes() as u32);
    let stage = shared + 2 * panel_bytes + slot * 2 * panel_bytes;
    let rows = query_rows(side, steps, dim);
    let (query, gradient) = (rows.query, rows.grad_output);
    let valid = side.n_queries - rows.first;
    if valid >= comptime!(QUERY_ROWS as u32) {
        copy_panels_of_both(query, gradient, stage, valid, QUERY_ROWS, dim, false);
    } else {
        copy_panels_of_both(query, gradient, stage, valid, QUERY_ROWS, dim, true);
    }
    let statistics = statistics_at(shared, slot, config);
    copy_statistics(side, rows.first, steps.next_head, statistics);
    commit_copies();
}

/// Where the statistics of a stage start in shared memory.
#[cube]
fn statistics_at(shared: u32, slot: u32, #[comptime] config: BackwardConfig) -> u32 {
    shared
        + comptime!(config.warpgroup_statistics() as u32)
        + slot * comptime!(config.statistics_bytes() as u32)
}

/// Probabilities and derivatives of the scores, packed as left operands, from exponents and
/// products of values and gradients of the output.
#[cube]
fn left_operands<E: Float, N: Size, K: Size>(
    exponents: &Array<Accumulator>,
    products: Vector<f32, N>,
    statistics: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) -> (Vector<u32, K>, Vector<u32, K>) {
    let mut probabilities = Vector::<u32, K>::empty();
    let mut derivatives = Vector::<u32, K>::empty();
    #[unroll]
    for n in 0..comptime!(QUERY_ROWS / 8) {
        let exponent = exponents[n];
        let power = powers(exponent);
        let mut slope = power;
        if comptime!(config.capped) {
            slope = cap_slopes_of_keys(power, exponent, statistics, comptime!(n * 32), scores);
        }
        let start = load_pair(statistics, comptime!(4 * QUERY_ROWS + n * 32));
        #[unroll]
        for half in 0..2usize {
            let low = power.extract(comptime!(2 * half));
            let high = power.extract(comptime!(2 * half + 1));
            probabilities.insert(comptime!(2 * n + half), pack::<E>(low, high));
            let at = comptime!(4 * n + 2 * half);
            let first = products.extract(at) + f32::reinterpret(start.extract(0usize));
            let second =
                products.extract(comptime!(at + 1)) + f32::reinterpret(start.extract(1usize));
            let low = slope.extract(comptime!(2 * half)) * first;
            let high = slope.extract(comptime!(2 * half + 1)) * second;
            derivatives.insert(comptime!(2 * n + half), pack::<E>(low, high));
        }
    }
    (probabilities, derivatives)
}
