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

use super::super::arguments::{Plan, Sizes};
use super::super::barrier::*;
use super::super::copies::copy_rows_of_both;
use super::super::products::*;
use super::arguments::*;
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

/// Gradients of the keys and values of one tile of keys and one key head.
///
/// * `plan`: by key tiles
/// * `splits`: number of cubes that share a tile, a divisor of the group
///
/// Cubes: x = for each tile in the plan's order, the key heads, for each of them the splits.
#[cube(launch_unchecked)]
pub(crate) fn tree_attention_backward_key_value<E: Float>(
    tensors: &BackwardTensors<E>,
    plan: &Plan,
    gradients: &mut KeyGradients,
    sizes: &Sizes,
    splits: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
    #[define(E)] _dtype: ElemType,
) {
    let (dim, blocks) = comptime!((config.head_dim, config.blocks));
    let key_tile_bytes = comptime!(tile_bytes(KEY_ROWS, dim) as u32);
    let query_tile_bytes = comptime!(tile_bytes(QUERY_ROWS, dim) as u32);
    let stage_bytes = comptime!(config.query_stage_bytes() as u32);
    let layout = comptime!(config.key_layout());
    let tile = key_tile(&plan.lists, sizes, splits);
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
        let (units, planes) = comptime!((config.key_units(), config.key_planes()));
        init_stage_barriers(filled, emptied, units, planes);
    }
    sync_cube();

    let side = query_side::<E>(tensors, &tile, sizes, dim);
    copy_keys::<E>(tensors, &tile, sizes, shared, config);
    let mut steps = steps_of(&tile);
    if tile.steps > 0 {
        steps.start(&plan.lists);
        copy_stage(&side, &steps, stages, filled, config);
        steps.advance(&tile, &plan.lists);
    }
    wait_copies(0usize);
    sync_cube();

    // Each plane reads the keys or the values, then stages its sums there.
    let rows = shared + role * key_tile_bytes + plane_row * comptime!(row_stride(dim) as u32);
    let left_address = rows + lane_offset_by_rows(lane, dim);
    let product_lane = lane_offset_by_columns(lane, dim) + role * query_tile_bytes;
    let sum_lane = lane_offset_by_rows(lane, dim) + (1 - role) * query_tile_bytes;
    let statistics_lane = 2 * query_tile_bytes + lane % 4 * 8;
    let exchange = shared
        + comptime!(layout.probabilities as u32)
        + plane_row * comptime!(2 * QUERY_ROWS as u32)
        + lane * CHUNK as u32;
    let mut sums = zero_sums(comptime!(blocks * dim / 8));

    for step in 0..tile.steps {
        let slot = step % 2;
        let stage = stages + slot * stage_bytes;
        let statistics = stage + statistics_lane;
        wait_barrier(filled + slot * BARRIER_BYTES as u32, step / 2 % 2);

        let mut products = first_products(role, statistics, config);
        multiply_blocks::<E>(
            &mut products,
            left_address,
            stage + product_lane,
            dim,
            blocks,
            QUERY_ROWS,
        );

        // The other stage is refilled once all planes have left it. In the last step, too, they
        // must have: the probabilities of the step before have been read.
        let other = 1 - slot;
        if step > 0 {
            wait_barrier(emptied + other * BARRIER_BYTES as u32, (step - 1) / 2 % 2);
        }
        if step + 1 < tile.steps {
            let barrier = filled + other * BARRIER_BYTES as u32;
            copy_stage(&side, &steps, stages + other * stage_bytes, barrier, config);
        }

        let mut left = Array::<Fragment>::new(comptime!(blocks * QUERY_ROWS / 16));
        if role == 0 {
            exponents_of_keys(&mut products, statistics, scores, config);
            if steps.entry & 1 == 1 {
                hide_of_keys(
                    &mut products,
                    &plan.mask,
                    tile.batch,
                    tile.first_key + plane_row + lane / 4,
                    (steps.entry >> 1) * comptime!(QUERY_ROWS as u32) + lane % 4 * 2,
                    sizes,
                    scores.window,
                    config,
                );
            }
            send_probabilities::<E>(&mut left, &products, statistics, exchange, scores, config);
            signal_units(pair + 1, comptime!(2 * PLANE));
        } else {
            wait_for_units(pair + 1, comptime!(2 * PLANE));
            receive_probabilities::<E>(&mut left, &products, exchange, config);
        }

        // P^T dO, or dS^T Q.
        add_blocks::<E>(&mut sums, &left, stage + sum_lane, dim, blocks, QUERY_ROWS);
        sync_plane();
        if lane == 0 {
            arrive(emptied + slot * BARRIER_BYTES as u32);
        }
        steps.advance(&tile, &plan.lists);
    }

    let factor = select(role == 0, 1.0f32, scores.scale);
    let mut to = output_address(&mut gradients.value);
    if role == 1 {
        to = output_address(&mut gradients.key);
    }
    store_key_sums::<E>(&sums, to, rows, factor, plane_row, &tile, sizes, config);
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
    let (dim, units) = comptime!((config.head_dim, config.key_units()));
    let offset = first_key_row(tile, sizes) * comptime!(2 * dim as u64);
    copy_rows_of_both(
        global_address::<E>(&tensors.key) + offset,
        global_address::<E>(&tensors.value) + offset,
        shared,
        sizes.n_keys - tile.first_key,
        KEY_ROWS,
        dim,
        units,
        true,
    );
    commit_copies();
}

/// Starts the copies of the next step's query tile into a stage, after which units arrive at
/// `barrier`.
#[cube]
fn copy_stage(
    side: &QuerySide,
    steps: &Steps,
    stage: u32,
    barrier: u32,
    #[comptime] config: BackwardConfig,
) {
    let (dim, units) = comptime!((config.head_dim, config.key_units()));
    let rows = query_rows(side, steps, dim);
    let (query, gradient, valid) = (rows.query, rows.grad_output, side.n_queries - rows.first);
    if valid >= comptime!(QUERY_ROWS as u32) {
        copy_rows_of_both(query, gradient, stage, valid, QUERY_ROWS, dim, units, false);
    } else {
        copy_rows_of_both(query, gradient, stage, valid, QUERY_ROWS, dim, units, true);
    }
    let statistics = stage + comptime!(2 * tile_bytes(QUERY_ROWS, dim) as u32);
    copy_statistics(side, rows.first, steps.next_head, statistics);
    arrive_after_copies(barrier);
}

/// What the products of a step start from: zero for `K Q^T` (role 0), minus the row's sum of output
/// times gradient for `V dO^T`. `statistics`: those of the lane's first columns.
#[cube]
fn first_products(
    role: u32,
    statistics: u32,
    #[comptime] config: BackwardConfig,
) -> Array<Accumulator> {
    // 8-column tiles of the products of a key and a query tile.
    let (blocks, product_tiles) = comptime!((config.blocks, QUERY_ROWS / 8));
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
            let (first, second) = statistics_of_pair(statistics, offset);
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
    products
}

/// Turns exponents into probabilities, packed as left operands, and leaves them for the other plane
/// of the pair at `exchange`; if scores are softcapped, times the slope of the cap.
#[cube]
fn send_probabilities<E: Float>(
    left: &mut Array<Fragment>,
    exponents: &Array<Accumulator>,
    statistics: u32,
    exchange: u32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) {
    let product_tiles = comptime!(QUERY_ROWS / 8);
    #[unroll]
    for i in 0..comptime!(config.blocks * product_tiles / 2) {
        let (first, second) = (exponents[2 * i], exponents[2 * i + 1]);
        let (first_power, second_power) = (powers(first), powers(second));
        let probabilities = pack_left::<E>(first_power, second_power);
        left[i] = probabilities;
        if comptime!(config.capped) {
            let offset = comptime!(2 * i % product_tiles * 32);
            let next = comptime!(offset + 32);
            let slopes = pack_left::<E>(
                cap_slopes_of_keys(first_power, first, statistics, offset, scores),
                cap_slopes_of_keys(second_power, second, statistics, next, scores),
            );
            store_chunk(exchange, comptime!(i * PLANE * CHUNK), slopes);
        } else {
            store_chunk(exchange, comptime!(i * PLANE * CHUNK), probabilities);
        }
    }
}

/// Turns products into derivatives of the scores with what the other plane of the pair left at
/// `exchange`, packed as left operands.
#[cube]
fn receive_probabilities<E: Float>(
    left: &mut Array<Fragment>,
    products: &Array<Accumulator>,
    exchange: u32,
    #[comptime] config: BackwardConfig,
) {
    #[unroll]
    for i in 0..comptime!(config.blocks * QUERY_ROWS / 16) {
        let probabilities = load_chunk(exchange, comptime!(i * PLANE * CHUNK));
        left[i] = pack_products::<E>(probabilities, products[2 * i], products[2 * i + 1]);
    }
}
