//! Gradients of keys and values with warpgroups.
//!
//! As [`key_value`](super::key_value), but a cube is one warpgroup that does everything for its 64
//! keys: right operands come straight from shared memory and cost nothing to share, so
//! that neither pairs of planes nor an exchange of probabilities are needed. While one cube of a
//! multiprocessor is at its exponentials, the other one is at its products.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Lists, Mask};
use super::super::copies::copy_panels_of_both;
use super::super::warpgroup::*;
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

    /// Bytes of shared memory of a cube of the key and value kernel of warpgroups.
    pub fn warpgroup_key_shared_bytes(&self) -> usize {
        self.warpgroup_statistics() + 2 * 2 * 4 * QUERY_ROWS
    }
}

/// Starts the copies of a query tile of a head into a stage.
#[cube]
fn copy_stage(
    side: &QuerySide,
    entry: u32,
    head: u32,
    stage: u32,
    statistics: u32,
    #[comptime] config: BackwardConfig,
) {
    let dim = config.head_dim;
    let rows = query_rows(side, entry, head, dim);
    let (query, gradient) = (rows.query, rows.grad_output);
    let to = stage + comptime!(config.panel_bytes() as u32);
    let valid = side.n_queries - rows.first;
    if valid >= comptime!(QUERY_ROWS as u32) {
        copy_panels_of_both(
            query, gradient, stage, to, valid, QUERY_ROWS, dim, UNITS, false,
        );
    } else {
        copy_panels_of_both(
            query, gradient, stage, to, valid, QUERY_ROWS, dim, UNITS, true,
        );
    }
    copy_statistics(side, rows.first, head, statistics);
    commit_copies();
}

/// Arguments and cubes as those of
/// [`tree_attention_backward_key_value`](super::key_value::tree_attention_backward_key_value).
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_key_value_warpgroup<E: Float>(
    query: &[E],
    key: &[E],
    value: &[E],
    grad_output: &[E],
    statistics: &[f32],
    mask: Mask,
    lists: Lists,
    grad_key: &mut [Vector<u32, Const<4>>],
    grad_value: &mut [Vector<u32, Const<4>>],
    sizes: Sizes,
    splits: u32,
    scores: Scores,
    #[comptime] config: BackwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let dim = config.head_dim;
    let panel_bytes = comptime!(config.panel_bytes() as u32);
    let product_tiles = comptime!(QUERY_ROWS / 8);
    let size!(ProductSize) = comptime!(QUERY_ROWS / 2);
    let size!(LeftSize) = comptime!(QUERY_ROWS / 4);
    let size!(SumSize) = comptime!(dim / 2);

    let tile = key_tile(&lists, &sizes, splits);
    let steps = tile.steps;

    let lane = UNIT_POS_X % 32;
    let plane_row = UNIT_POS_X / 32 * 16;

    let memory = Shared::<[u32]>::new_aligned_slice(
        comptime!(config.warpgroup_key_shared_bytes() / 4),
        1024usize,
    );
    let shared = shared_address(&memory);
    let stages = shared + 2 * panel_bytes;
    let stage_statistics = shared + comptime!(config.warpgroup_statistics() as u32);
    let statistics_bytes = comptime!((2 * 4 * QUERY_ROWS) as u32);

    let side = query_side::<E>(query, grad_output, statistics, &tile, &sizes, dim);
    let key_row = first_key_row(&tile, &sizes);
    let key_offset = key_row * comptime!(2 * dim as u64);
    let valid_keys = sizes.n_keys - tile.first_key;
    let from = global_address::<E>(key) + key_offset;
    copy_panel_rows(
        from, shared, UNIT_POS_X, valid_keys, KEY_ROWS, KEY_ROWS, dim, UNITS, true,
    );
    let from = global_address::<E>(value) + key_offset;
    let to = shared + panel_bytes;
    copy_panel_rows(
        from, to, UNIT_POS_X, valid_keys, KEY_ROWS, KEY_ROWS, dim, UNITS, true,
    );
    commit_copies();

    let mut next = Steps {
        index: tile.begin,
        head: 0u32,
    };
    let mut entry = 0u32;
    let mut next_entry = 0u32;
    if steps > 0 {
        entry = lists.entries[tile.begin as usize];
        copy_stage(&side, entry, 0u32, stages, stage_statistics, config);
        next.advance(&tile);
        next_entry = lists.entries[next.index as usize];
    }

    let keys = describe_by_rows(shared);
    let values = describe_by_rows(shared + panel_bytes);
    let mut key_sums = Vector::<f32, SumSize>::new(0.0f32);
    let mut value_sums = Vector::<f32, SumSize>::new(0.0f32);

    for step in 0..steps {
        let slot = step % 2;
        let stage = stages + slot * 2 * panel_bytes;
        let words = stage_statistics + slot * statistics_bytes + lane % 4 * 8;
        // This stage has landed, and no plane reads the other one any more.
        wait_copies(0usize);
        fence_products();
        sync_cube();
        if step + 1 < steps {
            let other = 1 - slot;
            copy_stage(
                &side,
                next_entry,
                next.head,
                stages + other * 2 * panel_bytes,
                stage_statistics + other * statistics_bytes,
                config,
            );
        }

        let products = multiply_panel_rows::<E, ProductSize>(
            keys,
            describe_by_rows(stage),
            dim,
            KEY_ROWS,
            QUERY_ROWS,
        );
        let gradients = multiply_panel_rows::<E, ProductSize>(
            values,
            describe_by_rows(stage + panel_bytes),
            dim,
            KEY_ROWS,
            QUERY_ROWS,
        );

        let mut exponents = Array::<Accumulator>::new(product_tiles);
        #[unroll]
        for n in 0..product_tiles {
            exponents[n] = tile_of::<ProductSize>(products, n);
        }
        exponents_of_keys(&mut exponents, words, &scores, config);
        if entry & 1 == 1 {
            hide_of_keys(
                &mut exponents,
                &mask,
                tile.batch,
                tile.first_key + plane_row + lane / 4,
                (entry >> 1) * comptime!(QUERY_ROWS as u32) + lane % 4 * 2,
                &sizes,
                scores.window,
                config,
            );
        }
        let mut probabilities = Vector::<u32, LeftSize>::empty();
        let mut derivatives = Vector::<u32, LeftSize>::empty();
        #[unroll]
        for n in 0..product_tiles {
            let exponent = exponents[n];
            let power = powers(exponent);
            let mut slope = power;
            if comptime!(config.capped) {
                slope = cap_slopes_of_keys(power, exponent, words, comptime!(n * 32), &scores);
            }
            let start = load_pair(words, comptime!(4 * QUERY_ROWS + n * 32));
            #[unroll]
            for half in 0..2usize {
                let low = power.extract(comptime!(2 * half));
                let high = power.extract(comptime!(2 * half + 1));
                probabilities.insert(comptime!(2 * n + half), pack::<E>(low, high));
                let at = comptime!(4 * n + 2 * half);
                let first = gradients.extract(at) + f32::reinterpret(start.extract(0usize));
                let second =
                    gradients.extract(comptime!(at + 1)) + f32::reinterpret(start.extract(1usize));
                let low = slope.extract(comptime!(2 * half)) * first;
                let high = slope.extract(comptime!(2 * half + 1)) * second;
                derivatives.insert(comptime!(2 * n + half), pack::<E>(low, high));
            }
        }

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

        entry = next_entry;
        next.advance(&tile);
        next_entry = lists.entries[next.index as usize];
    }

    // Signed, since all rows of the plane may overhang.
    let valid = i32::cast_from(valid_keys) - i32::cast_from(plane_row);
    let row = key_row + u64::cast_from(plane_row);
    let rows = u64::cast_from(sizes.batches * sizes.kv_heads) * u64::cast_from(sizes.n_keys);
    wait_copies(0usize);
    sync_cube();
    #[unroll]
    for side in 0..2usize {
        let mut sums = Array::<Accumulator>::new(comptime!(dim / 8));
        #[unroll]
        for n in 0..comptime!(dim / 8) {
            if comptime!(side == 0) {
                sums[n] = tile_of::<SumSize>(value_sums, n);
            } else {
                sums[n] = tile_of::<SumSize>(key_sums, n);
            }
        }
        let to = if comptime!(side == 0) {
            output_address(grad_value)
        } else {
            output_address(grad_key)
        };
        let factor = if comptime!(side == 0) {
            1.0f32.runtime()
        } else {
            scores.scale
        };
        if splits > 1 {
            let row = row + u64::cast_from(tile.split) * rows;
            store_sums(
                &sums,
                to + row * comptime!(4 * dim as u64),
                lane,
                factor,
                valid,
                dim,
                1usize,
            );
        } else {
            // Each plane stages its rows where keys, values and stages were.
            let rows = shared
                + (comptime!((side * KEY_ROWS) as u32) + plane_row)
                    * comptime!(row_stride(dim) as u32);
            stage_sums::<E>(&sums, rows, lane, factor, dim, 1usize);
            store_rows(
                rows,
                to + row * comptime!(2 * dim as u64),
                lane,
                valid,
                dim,
                16usize,
            );
        }
    }
}
