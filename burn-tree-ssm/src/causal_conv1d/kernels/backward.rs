//! Backward kernels.
//!
//! The gradient of a row is the sum over the taps that read it. Those of the rows that follow it
//! directly are summed as the unit walks down; all others (below a branching, and the outgoing
//! tails) are in a list, and recomputed for each entry. Long lists have been summed in parts
//! before.

use burn_tree_kit::cube::RowGroups;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::backward_walk::{finish_row, place, store_weight_sums, walk, walk_plain_row, walk_row};
use super::readers::{Readers, gradient_of_unit};
use super::walk::{Convolution, Sources};

/// Rows of a cube, over which gradients of weights are summed first. Fixed, so that the order of
/// the sum is.
pub(super) const BLOCK_ROWS: usize = 256;

/// Rows whose inputs a unit loads at once.
const ROWS_AT_A_TIME: usize = 4;

/// The unit's vectors of rows from `first` on; some row where there is none.
#[cube]
fn load_rows<F: Float, N: Size>(
    values: &[Vector<F, N>],
    first: usize,
    width: usize,
    column: usize,
    rows: usize,
) -> Array<Vector<F, N>> {
    let mut loaded = Array::<Vector<F, N>>::new(ROWS_AT_A_TIME);
    #[unroll]
    for step in 0..ROWS_AT_A_TIME {
        loaded[step] = values[min(first + step, rows - 1) * width + column];
    }
    loaded
}

/// The gradients of one part of the channels of `x`, and of the weights by block of rows.
///
/// `sums`: of the weights, `[blocks, C, K]`; of parts of lists, `[parts, C]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolution_kernel<F: Float, W: Float, N: Size>(
    sources: &Sources<F, N>,
    weight: &[Vector<W, N>],
    readers: &Readers<F, N>,
    grad_x: &mut [Vector<F, N>],
    sums: &mut [Vector<f32, N>],
    #[comptime] groups: RowGroups,
    #[comptime] convolution: Convolution,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let n_taps = convolution.taps;
    let sizes = &sources.sizes;
    let block = CUBE_POS / sizes.part.div_ceil(comptime!(groups.lanes as usize));
    if block * BLOCK_ROWS >= sizes.rows {
        terminate!();
    }
    let place = place::<F, N>(sources, block, groups, convolution);
    let (first, last) = (place.first, place.last);
    let (channel, column) = (place.channel, place.column);
    let mut walk = walk::<F, W, N>(sources, weight, &place, convolution);
    let mut own = load_rows::<F, N>(&sources.x, first, sizes.width, channel, sizes.rows);
    let mut grads = load_rows::<F, N>(&readers.grad, first, sizes.part, column, sizes.rows);
    for batch in 0..(place.end - first).div_ceil(ROWS_AT_A_TIME) {
        let batch_first = first + batch * ROWS_AT_A_TIME;
        let next = batch_first + ROWS_AT_A_TIME;
        let next_own = load_rows::<F, N>(&sources.x, next, sizes.width, channel, sizes.rows);
        let next_grads = load_rows::<F, N>(&readers.grad, next, sizes.part, column, sizes.rows);
        let plain = sources.lists[sizes.plain_runs + min(batch_first, sizes.rows)] as usize;
        if plain >= ROWS_AT_A_TIME && batch_first + 1 >= first + n_taps && next <= last {
            // Rows that follow each other, without branches.
            #[unroll]
            for step in 0..ROWS_AT_A_TIME {
                walk_plain_row::<F, N>(&mut walk, own[step], grads[step], convolution);
                if place.stores {
                    let done = batch_first + step + 1 - n_taps;
                    grad_x[done * sizes.width + channel] =
                        Vector::cast_from(walk.row_sums[comptime!(n_taps - 1)]);
                }
            }
        } else {
            #[unroll]
            for step in 0..ROWS_AT_A_TIME {
                let row = batch_first + step;
                walk_row::<F, N>(
                    &mut walk,
                    own[step],
                    grads[step],
                    row,
                    sources,
                    &place,
                    convolution,
                );
                finish_row::<F, N>(
                    &walk,
                    row,
                    sources,
                    readers,
                    &*sums,
                    grad_x,
                    &place,
                    convolution,
                );
            }
        }
        #[unroll]
        for step in 0..ROWS_AT_A_TIME {
            own[step] = next_own[step];
            grads[step] = next_grads[step];
        }
    }
    store_weight_sums::<N>(&mut walk, sums, &place, sizes.width, groups, convolution);
}

/// Sums over parts of long lists of readers.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn parts_kernel<F: Float, W: Float, N: Size>(
    sources: &Sources<F, N>,
    weight: &[Vector<W, N>],
    readers: &Readers<F, N>,
    sums: &mut [Vector<f32, N>],
    total: usize,
    #[comptime] convolution: Convolution,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let sizes = &sources.sizes;
    let sum = gradient_of_unit::<F, W, N>(sources, weight, readers, &*sums, convolution);
    let part = readers.parts + ABSOLUTE_POS / sizes.part;
    sums[part * sizes.width + sizes.first + ABSOLUTE_POS % sizes.part] = sum;
}

/// Gradients of the incoming tails, all of which are in lists.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn tails_kernel<F: Float, W: Float, N: Size>(
    sources: &Sources<F, N>,
    weight: &[Vector<W, N>],
    readers: &Readers<F, N>,
    sums: &[Vector<f32, N>],
    grad_tails: &mut [Vector<F, N>],
    total: usize,
    #[comptime] convolution: Convolution,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let sizes = &sources.sizes;
    let sum = gradient_of_unit::<F, W, N>(sources, weight, readers, sums, convolution);
    let source = ABSOLUTE_POS / sizes.part;
    grad_tails[source * sizes.width + sizes.first + ABSOLUTE_POS % sizes.part] =
        Vector::cast_from(sum);
}
