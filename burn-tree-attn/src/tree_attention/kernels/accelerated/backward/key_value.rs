//! Gradients of keys and values on tensor cores.
//!
//! A cube owns a tile of keys and walks over the query tiles that see it, for every query head of
//! the group: sums stay in registers, so nothing is added in memory and the order is fixed. Where
//! that leaves too few cubes, several share a tile, each with some of the heads; their sums, in
//! f32, are added by [`sum_partial_gradients`](super::splits::sum_partial_gradients).
//!
//! Two planes share 32 (or 16) keys. With keys as rows, the one computes the scores `K Q^T`, from
//! them the probabilities `P^T`, and sums `P^T dO` to the gradient of the values; the other
//! computes `V dO^T`, gets the probabilities through shared memory, and sums `dS^T Q` to the
//! gradient of the keys. So both have the same products of matrices to do, each holds one
//! gradient of twice as many keys as a plane that does everything could (and reads every right
//! operand half as often), and accumulators become left operands in place.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::arguments::{Lists, Mask};
use super::super::barrier::*;
use super::super::copies::copy_rows_of_both;
use super::blocks::*;
use super::by_key::*;
use burn_tree_kit::cube::matrix::*;

/// Bytes of the shared memory of a cube, from its start: keys, values, stages, probabilities on
/// their way from plane to plane, barriers.
#[derive(Clone, Copy, Debug)]
struct Layout {
    stages: usize,
    probabilities: usize,
    barriers: usize,
    end: usize,
}

impl BackwardConfig {
    /// Planes of a cube of the key and value kernel.
    fn key_planes(&self) -> usize {
        2 * self.pairs()
    }

    /// Pairs of planes, each with its own keys.
    fn pairs(&self) -> usize {
        KEY_ROWS / 16 / self.blocks
    }

    /// Units of a cube of the key and value kernel.
    pub fn key_units(&self) -> usize {
        self.key_planes() * PLANE
    }

    /// Bytes of one stage: queries, gradients of the output, statistics of the rows.
    fn query_stage_bytes(&self) -> usize {
        2 * tile_bytes(QUERY_ROWS, self.head_dim) + 2 * 4 * QUERY_ROWS
    }

    fn key_layout(&self) -> Layout {
        let stages = 2 * tile_bytes(KEY_ROWS, self.head_dim);
        let probabilities = stages + 2 * self.query_stage_bytes();
        let barriers = probabilities + 2 * KEY_ROWS * QUERY_ROWS;
        Layout {
            stages,
            probabilities,
            barriers,
            end: barriers + 4 * BARRIER_BYTES,
        }
    }

    /// Bytes of shared memory of a cube of the key and value kernel.
    pub fn key_shared_bytes(&self) -> usize {
        self.key_layout().end
    }
}

/// Starts the copies of a query tile of a head into a stage, after which units arrive at `barrier`.
#[cube]
fn copy_stage(
    side: &QuerySide,
    entry: u32,
    head: u32,
    stage: u32,
    barrier: u32,
    #[comptime] config: BackwardConfig,
) {
    let (dim, units) = comptime!((config.head_dim, config.key_units()));
    let tile_bytes = comptime!(tile_bytes(QUERY_ROWS, dim) as u32);
    let rows = query_rows(side, entry, head, dim);
    let (query, gradient, valid) = (rows.query, rows.grad_output, side.n_queries - rows.first);
    if valid >= comptime!(QUERY_ROWS as u32) {
        copy_rows_of_both(query, gradient, stage, valid, QUERY_ROWS, dim, units, false);
    } else {
        copy_rows_of_both(query, gradient, stage, valid, QUERY_ROWS, dim, units, true);
    }
    copy_statistics(side, rows.first, head, stage + 2 * tile_bytes);
    arrive_after_copies(barrier);
}

/// Gradients of the keys and values of one tile of keys and one key head.
///
/// * `query`, `grad_output` `[B, Hq, N, D]`, `key`, `value`, `grad_key`, `grad_value`
///   `[B, Hkv, M, D]`, contiguous
/// * `statistics`: of [`row_statistics`](super::statistics::row_statistics)
/// * `lists`: the plan by key tiles
/// * `splits`: number of cubes that share a tile, a divisor of `group`; if it is not 1, gradients
///   are `[splits, B, Hkv, M, D]` in f32
///
/// Cubes: x = for each tile in `order`, the key heads, for each of them the splits.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_key_value<E: Float>(
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
    let (dim, blocks) = comptime!((config.head_dim, config.blocks));
    let stride = comptime!(row_stride(dim));
    let key_tile_bytes = comptime!(tile_bytes(KEY_ROWS, dim) as u32);
    let query_tile_bytes = comptime!(tile_bytes(QUERY_ROWS, dim) as u32);
    let layout = comptime!(config.key_layout());
    // 8-column tiles of the products of a key and a query tile, and of the gradients.
    let product_tiles = comptime!(QUERY_ROWS / 8);
    let sum_tiles = comptime!(dim / 8);

    let tile = key_tile(&lists, &sizes, splits);
    let steps = tile.steps;

    let lane = UNIT_POS_X % 32;
    let plane = UNIT_POS_X / 32;
    let pair = plane % comptime!(config.pairs() as u32);
    // 0: probabilities and values, 1: keys.
    let role = plane / comptime!(config.pairs() as u32);
    let plane_row = pair * comptime!((16 * blocks) as u32);

    let memory = Shared::<[u32]>::new_aligned_slice(comptime!(layout.end / 4), 16usize);
    let shared = shared_address(&memory);
    let stages = shared + comptime!(layout.stages as u32);
    let filled = shared + comptime!(layout.barriers as u32);
    let emptied = filled + comptime!(2 * BARRIER_BYTES as u32);
    if UNIT_POS_X == 0 {
        init_stage_barriers(
            filled,
            emptied,
            comptime!(config.key_units()),
            comptime!(config.key_planes()),
        );
    }
    sync_cube();

    let side = query_side::<E>(query, grad_output, statistics, &tile, &sizes, dim);
    let key_row = first_key_row(&tile, &sizes);
    let key_offset = key_row * comptime!(2 * dim as u64);
    let valid_keys = sizes.n_keys - tile.first_key;
    let units = comptime!(config.key_units());
    copy_rows(
        global_address::<E>(key) + key_offset,
        shared,
        UNIT_POS_X,
        valid_keys,
        KEY_ROWS,
        dim,
        units,
        true,
    );
    copy_rows(
        global_address::<E>(value) + key_offset,
        shared + key_tile_bytes,
        UNIT_POS_X,
        valid_keys,
        KEY_ROWS,
        dim,
        units,
        true,
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
        copy_stage(&side, entry, 0u32, stages, filled, config);
        next.advance(&tile);
        next_entry = lists.entries[next.index as usize];
    }
    wait_copies(0usize);
    sync_cube();

    let left_address = shared
        + role * key_tile_bytes
        + plane_row * comptime!(stride as u32)
        + lane_offset_by_rows(lane, dim);
    let product_lane = lane_offset_by_columns(lane, dim) + role * query_tile_bytes;
    let sum_lane = lane_offset_by_rows(lane, dim) + (1 - role) * query_tile_bytes;
    let statistics_lane = 2 * query_tile_bytes + lane % 4 * 8;
    let exchange = shared
        + comptime!(layout.probabilities as u32)
        + plane_row * comptime!(2 * QUERY_ROWS as u32)
        + lane * CHUNK as u32;

    let mut sums = Array::<Accumulator>::new(comptime!(blocks * sum_tiles));
    #[unroll]
    for i in 0..comptime!(blocks * sum_tiles) {
        sums[i] = Accumulator::new(0.0f32);
    }

    for step in 0..steps {
        let slot = step % 2;
        let parity = step / 2 % 2;
        let stage = stages + slot * comptime!(config.query_stage_bytes() as u32);
        wait_barrier(filled + slot * BARRIER_BYTES as u32, parity);

        // K Q^T, or V dO^T minus the row's sum of output times gradient.
        let mut products = Array::<Accumulator>::new(comptime!(blocks * product_tiles));
        if role == 0 {
            #[unroll]
            for i in 0..comptime!(blocks * product_tiles) {
                products[i] = Accumulator::new(0.0f32);
            }
        } else {
            #[unroll]
            for n in 0..product_tiles {
                let offset = comptime!(4 * QUERY_ROWS + n * 32);
                let pair = load_pair(stage + statistics_lane, offset);
                let (first, second) = (
                    f32::reinterpret(pair.extract(0usize)),
                    f32::reinterpret(pair.extract(1usize)),
                );
                #[unroll]
                for block in 0..blocks {
                    let mut start = Accumulator::empty();
                    start.insert(0usize, first);
                    start.insert(1usize, second);
                    start.insert(2usize, first);
                    start.insert(3usize, second);
                    products[comptime!(block * product_tiles + n)] = start;
                }
            }
        }
        multiply_blocks::<E>(
            &mut products,
            left_address,
            stage + product_lane,
            dim,
            blocks,
            QUERY_ROWS,
        );

        // The other stage is refilled once all planes have left it. In the last step, too, they must
        // have: the probabilities of the step before have been read.
        let other = 1 - slot;
        if step > 0 {
            wait_barrier(emptied + other * BARRIER_BYTES as u32, (step - 1) / 2 % 2);
        }
        if step + 1 < steps {
            copy_stage(
                &side,
                next_entry,
                next.head,
                stages + other * comptime!(config.query_stage_bytes() as u32),
                filled + other * BARRIER_BYTES as u32,
                config,
            );
        }

        let mut left = Array::<Fragment>::new(comptime!(blocks * product_tiles / 2));
        if role == 0 {
            exponents_of_keys(&mut products, stage + statistics_lane, &scores, config);
            if entry & 1 == 1 {
                hide_of_keys(
                    &mut products,
                    &mask,
                    tile.batch,
                    tile.first_key + plane_row + lane / 4,
                    (entry >> 1) * comptime!(QUERY_ROWS as u32) + lane % 4 * 2,
                    &sizes,
                    scores.window,
                    config,
                );
            }
            #[unroll]
            for i in 0..comptime!(blocks * product_tiles / 2) {
                let (first, second) = (products[2 * i], products[2 * i + 1]);
                let (first_power, second_power) = (powers(first), powers(second));
                let probabilities = pack_left::<E>(first_power, second_power);
                left[i] = probabilities;
                if comptime!(config.capped) {
                    let offset = comptime!(2 * i % product_tiles * 32);
                    let slopes = pack_left::<E>(
                        cap_slopes_of_keys(
                            first_power,
                            first,
                            stage + statistics_lane,
                            offset,
                            &scores,
                        ),
                        cap_slopes_of_keys(
                            second_power,
                            second,
                            stage + statistics_lane,
                            comptime!(offset + 32),
                            &scores,
                        ),
                    );
                    store_chunk(exchange, comptime!(i * PLANE * CHUNK), slopes);
                } else {
                    store_chunk(exchange, comptime!(i * PLANE * CHUNK), probabilities);
                }
            }
            signal_units(pair + 1, comptime!(2 * PLANE));
        } else {
            wait_for_units(pair + 1, comptime!(2 * PLANE));
            #[unroll]
            for i in 0..comptime!(blocks * product_tiles / 2) {
                let probabilities = load_chunk(exchange, comptime!(i * PLANE * CHUNK));
                left[i] = pack_products::<E>(probabilities, products[2 * i], products[2 * i + 1]);
            }
        }

        // P^T dO, or dS^T Q.
        add_blocks::<E>(&mut sums, &left, stage + sum_lane, dim, blocks, QUERY_ROWS);
        sync_plane();
        if lane == 0 {
            arrive(emptied + slot * BARRIER_BYTES as u32);
        }

        entry = next_entry;
        next.advance(&tile);
        next_entry = lists.entries[next.index as usize];
    }

    let factor = select(role == 0, 1.0f32, scores.scale);
    let mut to = output_address(grad_value);
    if role == 1 {
        to = output_address(grad_key);
    }
    // Signed, since all rows of the plane may overhang.
    let valid = i32::cast_from(valid_keys) - i32::cast_from(plane_row);
    let row = key_row + u64::cast_from(plane_row);
    if splits > 1 {
        let rows = u64::cast_from(sizes.batches * sizes.kv_heads) * u64::cast_from(sizes.n_keys);
        let row = row + u64::cast_from(tile.split) * rows;
        store_sums(
            &sums,
            to + row * comptime!(4 * dim as u64),
            lane,
            factor,
            valid,
            dim,
            blocks,
        );
    } else {
        // Each plane stages its sums where its keys or values were: no other plane reads them.
        let rows = shared + role * key_tile_bytes + plane_row * comptime!(stride as u32);
        stage_sums::<E>(&sums, rows, lane, factor, dim, blocks);
        let to = to + row * comptime!(2 * dim as u64);
        store_rows(rows, to, lane, valid, dim, comptime!(16 * blocks));
    }
}
