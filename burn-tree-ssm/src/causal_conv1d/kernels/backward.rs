//! Backward kernels.
//!
//! The gradient of a row is the sum over the taps that read it. Those of the rows that follow it
//! directly are summed as the unit walks down; all others (below a branching, and the outgoing
//! tails) are in a list, and recomputed for each entry. Long lists have been summed in parts
//! before.

use burn_tree_kit::cube::{RowGroups, group_sum};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::walk::{
    Convolution, Sizes, activation_gradient, advance, convolve, is_token, load_weights,
    read_source, shift,
};

/// Rows of a cube, over which gradients of weights are summed first. Fixed, so that the order of
/// the sum is.
pub(super) const BLOCK_ROWS: usize = 256;

/// Rows whose inputs a unit loads at once.
const ROWS_AT_A_TIME: usize = 4;

/// Where the readers of sources are in the lists, and the sums of parts in theirs.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct ReaderLists {
    pub offsets: usize,
    pub readers: usize,
    /// The sums of the first part.
    pub parts: usize,
}

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

/// The sum of the gradients that source `source` gets from the readers in its list.
#[cube]
fn listed_gradient<F: Float, N: Size>(
    x: &[Vector<F, N>],
    tails: &[Vector<F, N>],
    grad: &[Vector<F, N>],
    lists: &[u32],
    sums: &[Vector<f32, N>],
    weights: &Array<Vector<f32, N>>,
    source: usize,
    column: usize,
    sizes: &Sizes,
    readers: &ReaderLists,
    #[comptime] convolution: Convolution,
) -> Vector<f32, N> {
    let channel = sizes.first + column;
    let kinds = comptime!(convolution.taps + 2);
    let mut sum = Vector::<f32, N>::zeroed();
    let begin = lists[readers.offsets + source];
    let end = lists[readers.offsets + source + 1];
    for index in begin..end {
        let reader = lists[readers.readers + index as usize] as usize;
        let row = reader / kinds;
        let kind = reader % kinds;
        if kind == convolution.taps {
            // Gradients of the outgoing tails follow the incoming ones.
            let at = (sizes.tail_rows + row) * sizes.width + channel;
            sum += Vector::<f32, N>::cast_from(tails[at]);
        } else if kind == comptime!(convolution.taps + 1) {
            sum += sums[(readers.parts + row) * sizes.width + channel];
        } else {
            let own = Vector::<f32, N>::cast_from(x[row * sizes.width + channel]);
            let mut y = own * weights[0];
            #[unroll]
            for tap in 1..convolution.taps {
                let source = lists[row * convolution.taps + tap] as usize;
                let value = read_source::<F, N>(x, tails, source, channel, sizes, convolution);
                y += value * weights[tap];
            }
            let grad = Vector::<f32, N>::cast_from(grad[row * sizes.part + column]);
            let grad_y = activation_gradient::<N>(y, grad, convolution);
            #[unroll]
            for tap in 0..convolution.taps {
                if kind == tap {
                    sum += grad_y * weights[tap];
                }
            }
        }
    }
    sum
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn convolution_kernel<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    tails: &[Vector<F, N>],
    grad: &[Vector<F, N>],
    lists: &[u32],
    grad_x: &mut [Vector<F, N>],
    // Of the weights by block of rows, `[blocks, C, K]`; parts of lists, `[parts, C]`.
    sums: &mut [Vector<f32, N>],
    sizes: Sizes,
    readers: ReaderLists,
    #[comptime] groups: RowGroups,
    #[comptime] convolution: Convolution,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    let n_taps = convolution.taps;
    let lanes = comptime!(groups.lanes as usize);
    let columns = sizes.part.div_ceil(lanes);
    let block = CUBE_POS / columns;
    if block * BLOCK_ROWS >= sizes.rows {
        terminate!();
    }
    // Units beyond the last channel do as that one does, but store nothing.
    let own_column = CUBE_POS % columns * lanes + UNIT_POS as usize % lanes;
    let column = min(own_column, sizes.part - 1);
    let stores = own_column < sizes.part;
    let channel = sizes.first + column;
    // The rows of which the unit makes the gradients.
    let rows_per_group = comptime!(BLOCK_ROWS / groups.groups());
    let first = block * BLOCK_ROWS + UNIT_POS as usize / lanes * rows_per_group;
    let first = min(first, sizes.rows);
    let last = min(first + rows_per_group, sizes.rows);

    let weights = load_weights::<W, N>(weight, channel, convolution);
    let mut taps = Array::<Vector<f32, N>>::new(n_taps);
    let mut weight_sums = Array::<Vector<f32, N>>::new(n_taps);
    // What the row `tap` rows above has got so far.
    let mut row_sums = Array::<Vector<f32, N>>::new(n_taps);
    #[unroll]
    for tap in 0..n_taps {
        taps[tap] = Vector::zeroed();
        weight_sums[tap] = Vector::zeroed();
        row_sums[tap] = Vector::zeroed();
    }
    // As if the row before the first one were its parent and had been walked over.
    #[unroll]
    for tap in 1..n_taps {
        let source = lists[min(first, sizes.rows - 1) * n_taps + tap] as usize;
        taps[comptime!(tap - 1)] =
            read_source::<F, N>(x, tails, source, channel, &sizes, convolution);
    }
    let mut own = load_rows::<F, N>(x, first, sizes.width, channel, sizes.rows);
    let mut grads = load_rows::<F, N>(grad, first, sizes.part, column, sizes.rows);
    // The rows that follow have taps that read these.
    let mut end = last;
    if last > first {
        end = last + comptime!(n_taps - 1);
    }
    for batch in 0..(end - first).div_ceil(ROWS_AT_A_TIME) {
        let batch_first = first + batch * ROWS_AT_A_TIME;
        let next = batch_first + ROWS_AT_A_TIME;
        let next_own = load_rows::<F, N>(x, next, sizes.width, channel, sizes.rows);
        let next_grads = load_rows::<F, N>(grad, next, sizes.part, column, sizes.rows);
        let plain = lists[sizes.plain_runs + min(batch_first, sizes.rows)] as usize;
        if plain >= ROWS_AT_A_TIME && batch_first + 1 >= first + n_taps && next <= last {
            // Rows that follow each other, without branches.
            #[unroll]
            for step in 0..ROWS_AT_A_TIME {
                shift::<N>(&mut taps, convolution);
                shift::<N>(&mut row_sums, convolution);
                taps[0] = Vector::cast_from(own[step]);
                let y = convolve::<N>(&taps, &weights, convolution);
                let grad = Vector::<f32, N>::cast_from(grads[step]);
                let grad_y = activation_gradient::<N>(y, grad, convolution);
                row_sums[0] = grad_y * weights[0];
                weight_sums[0] += grad_y * taps[0];
                #[unroll]
                for tap in 1..n_taps {
                    row_sums[tap] += grad_y * weights[tap];
                    weight_sums[tap] += grad_y * taps[tap];
                }
                if stores {
                    let done = batch_first + step + 1 - n_taps;
                    grad_x[done * sizes.width + channel] =
                        Vector::cast_from(row_sums[comptime!(n_taps - 1)]);
                }
            }
        } else {
            #[unroll]
            for step in 0..ROWS_AT_A_TIME {
                let row = batch_first + step;
                shift::<N>(&mut row_sums, convolution);
                row_sums[0] = Vector::zeroed();
                if row < min(end, sizes.rows) {
                    if row == first {
                        shift::<N>(&mut taps, convolution);
                    } else {
                        advance::<F, N>(
                            &mut taps,
                            x,
                            tails,
                            lists,
                            row,
                            channel,
                            &sizes,
                            convolution,
                        );
                    }
                    taps[0] = Vector::zeroed();
                    // Padding reads nothing, whatever its gradient is.
                    if is_token(lists, row, convolution) {
                        taps[0] = Vector::cast_from(own[step]);
                        let y = convolve::<N>(&taps, &weights, convolution);
                        let grad = Vector::<f32, N>::cast_from(grads[step]);
                        let grad_y = activation_gradient::<N>(y, grad, convolution);
                        row_sums[0] = grad_y * weights[0];
                        #[unroll]
                        for tap in 1..n_taps {
                            if lists[row * n_taps + tap] as usize + tap == row {
                                row_sums[tap] += grad_y * weights[tap];
                            }
                        }
                        if row < last {
                            #[unroll]
                            for tap in 0..n_taps {
                                weight_sums[tap] += grad_y * taps[tap];
                            }
                        }
                    }
                }
                // The row to which no other row of the walk can add.
                if row + 1 >= first + n_taps && row < end {
                    let done = row + 1 - n_taps;
                    let sum = row_sums[comptime!(n_taps - 1)]
                        + listed_gradient::<F, N>(
                            x,
                            tails,
                            grad,
                            lists,
                            &*sums,
                            &weights,
                            done,
                            column,
                            &sizes,
                            &readers,
                            convolution,
                        );
                    if stores {
                        grad_x[done * sizes.width + channel] = Vector::cast_from(sum);
                    }
                }
            }
        }
        #[unroll]
        for step in 0..ROWS_AT_A_TIME {
            own[step] = next_own[step];
            grads[step] = next_grads[step];
        }
    }

    let mut shared = Shared::<[Vector<f32, N>]>::new_slice(comptime!(groups.units as usize));
    #[unroll]
    for tap in 0..n_taps {
        weight_sums[tap] = group_sum::<N>(weight_sums[tap], &mut shared, groups);
    }
    if stores && UNIT_POS < groups.lanes {
        let numbers = N::value();
        let at = (block * sizes.width + channel) * n_taps;
        #[unroll]
        for i in 0..n_taps {
            let mut values = Vector::<f32, N>::zeroed();
            #[unroll]
            for n in 0..numbers {
                let number = comptime!(i * numbers + n);
                let tap = comptime!(n_taps - 1 - number % n_taps);
                values.insert(n, weight_sums[tap].extract(comptime!(number / n_taps)));
            }
            sums[at + i] = values;
        }
    }
}

/// Sums over parts of long lists of readers.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn parts_kernel<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    tails: &[Vector<F, N>],
    grad: &[Vector<F, N>],
    lists: &[u32],
    sums: &mut [Vector<f32, N>],
    sizes: Sizes,
    readers: ReaderLists,
    total: usize,
    #[comptime] convolution: Convolution,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let column = ABSOLUTE_POS % sizes.part;
    let part = ABSOLUTE_POS / sizes.part;
    let channel = sizes.first + column;
    let weights = load_weights::<W, N>(weight, channel, convolution);
    let sum = listed_gradient::<F, N>(
        x,
        tails,
        grad,
        lists,
        &*sums,
        &weights,
        part,
        column,
        &sizes,
        &readers,
        convolution,
    );
    sums[(readers.parts + part) * sizes.width + channel] = sum;
}

/// Gradients of the incoming tails, all of which are in lists.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn tails_kernel<F: Float, W: Float, N: Size>(
    x: &[Vector<F, N>],
    weight: &[Vector<W, N>],
    tails: &[Vector<F, N>],
    grad: &[Vector<F, N>],
    lists: &[u32],
    sums: &[Vector<f32, N>],
    grad_tails: &mut [Vector<F, N>],
    sizes: Sizes,
    readers: ReaderLists,
    total: usize,
    #[comptime] convolution: Convolution,
    #[define(F, W)] _dtypes: [ElemType; 2],
) {
    if ABSOLUTE_POS >= total {
        terminate!();
    }
    let column = ABSOLUTE_POS % sizes.part;
    let source = ABSOLUTE_POS / sizes.part;
    let channel = sizes.first + column;
    let weights = load_weights::<W, N>(weight, channel, convolution);
    let sum = listed_gradient::<F, N>(
        x,
        tails,
        grad,
        lists,
        sums,
        &weights,
        source,
        column,
        &sizes,
        &readers,
        convolution,
    );
    grad_tails[source * sizes.width + channel] = Vector::cast_from(sum);
}
