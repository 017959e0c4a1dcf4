//! What the kernels share: a unit walks down rows with one vector of channels, and keeps the inputs
//! of the last taps in registers as long as each row follows on the one before.

use burn_tree_kit::cube::sigmoid;
use cubecl::prelude::*;

/// What a kernel is compiled for, besides its element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Convolution {
    /// `K`.
    pub taps: usize,
    pub silu: bool,
    /// Whether trees continue from incoming tails.
    pub tails: bool,
    pub approximate: bool,
}

/// Sizes of one call; channels are counted in vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Sizes {
    pub rows: usize,
    /// Positions of incoming tails.
    pub tail_rows: usize,
    /// All channels.
    pub width: usize,
    /// Channels before those of this call.
    pub first: usize,
    /// Channels of this call.
    pub part: usize,
    /// Where the runs of plain rows are in the lists.
    pub plain_runs: usize,
}

/// What taps read; see [`crate::ConvolutionPlan`].
#[derive(CubeType, CubeLaunch)]
pub(super) struct Sources<F: Float, N: Size> {
    /// `[R, C]`
    pub x: Box<[Vector<F, N>]>,
    /// `[tail_rows, C]`
    pub tails: Box<[Vector<F, N>]>,
    /// All lists of the plan, the sources first.
    pub lists: Box<[u32]>,
    pub sizes: Sizes,
}

/// Weights of the unit's channels, by tap: the last of `K` numbers of a channel is tap 0.
#[cube]
pub(super) fn load_weights<W: Float, N: Size>(
    weight: &[Vector<W, N>],
    channel: usize,
    #[comptime] convolution: Convolution,
) -> Array<Vector<f32, N>> {
    let taps = convolution.taps;
    let numbers = N::value();
    let mut loaded = Array::<Vector<W, N>>::new(taps);
    #[unroll]
    for i in 0..taps {
        loaded[i] = weight[channel * taps + i];
    }
    let mut weights = Array::<Vector<f32, N>>::new(taps);
    #[unroll]
    for tap in 0..taps {
        let mut values = Vector::<f32, N>::zeroed();
        #[unroll]
        for n in 0..numbers {
            let at = comptime!(n * taps + taps - 1 - tap);
            let number = loaded[comptime!(at / numbers)].extract(comptime!(at % numbers));
            values.insert(n, f32::cast_from(number));
        }
        weights[tap] = values;
    }
    weights
}

/// The value of a source.
#[cube]
pub(super) fn read_source<F: Float, N: Size>(
    sources: &Sources<F, N>,
    source: usize,
    channel: usize,
    #[comptime] convolution: Convolution,
) -> Vector<f32, N> {
    let sizes = &sources.sizes;
    let mut value = Vector::<f32, N>::zeroed();
    if source < sizes.rows {
        value = Vector::cast_from(sources.x[source * sizes.width + channel]);
    }
    if comptime!(convolution.tails) {
        if source >= sizes.rows && source < sizes.rows + sizes.tail_rows {
            value = Vector::cast_from(sources.tails[(source - sizes.rows) * sizes.width + channel]);
        }
    }
    value
}

/// Lets each tap read what the one below it has read so far.
#[cube]
pub(super) fn shift<N: Size>(
    taps: &mut Array<Vector<f32, N>>,
    #[comptime] convolution: Convolution,
) {
    #[unroll]
    for step in 1..convolution.taps {
        let tap = comptime!(convolution.taps - step);
        taps[tap] = taps[comptime!(tap - 1)];
    }
}

/// Reads what all taps above the row itself read.
#[cube]
pub(super) fn reload<F: Float, N: Size>(
    taps: &mut Array<Vector<f32, N>>,
    sources: &Sources<F, N>,
    row: usize,
    channel: usize,
    #[comptime] convolution: Convolution,
) {
    #[unroll]
    for tap in 1..convolution.taps {
        let source = sources.lists[row * convolution.taps + tap] as usize;
        taps[tap] = read_source::<F, N>(sources, source, channel, convolution);
    }
}

/// What the taps above `row` itself read, given what those of the row before read.
#[cube]
pub(super) fn advance<F: Float, N: Size>(
    taps: &mut Array<Vector<f32, N>>,
    sources: &Sources<F, N>,
    row: usize,
    channel: usize,
    #[comptime] convolution: Convolution,
) {
    if comptime!(convolution.taps > 1) {
        if sources.lists[row * convolution.taps + 1] as usize + 1 == row {
            shift::<N>(taps, convolution);
        } else {
            reload::<F, N>(taps, sources, row, channel, convolution);
        }
    }
}

/// Whether a row holds a token. Padding reads nothing.
#[cube]
pub(super) fn is_token(lists: &[u32], row: usize, #[comptime] convolution: Convolution) -> bool {
    lists[row * convolution.taps] as usize == row
}

/// The sum over the taps, before the activation.
#[cube]
pub(super) fn convolve<N: Size>(
    taps: &Array<Vector<f32, N>>,
    weights: &Array<Vector<f32, N>>,
    #[comptime] convolution: Convolution,
) -> Vector<f32, N> {
    let mut sum = taps[0] * weights[0];
    #[unroll]
    for tap in 1..convolution.taps {
        sum += taps[tap] * weights[tap];
    }
    sum
}

/// The output from the sum over the taps.
#[cube]
pub(super) fn activate<N: Size>(
    y: Vector<f32, N>,
    #[comptime] convolution: Convolution,
) -> Vector<f32, N> {
    if comptime!(convolution.silu) {
        y * sigmoid::<N>(y, convolution.approximate)
    } else {
        y
    }
}

/// The gradient of the sum over the taps, `y`, from that of the activated one.
#[cube]
pub(super) fn activation_gradient<N: Size>(
    y: Vector<f32, N>,
    grad: Vector<f32, N>,
    #[comptime] convolution: Convolution,
) -> Vector<f32, N> {
    if comptime!(convolution.silu) {
        // d silu / d y = s + silu (1 - s)
        let one = Vector::<f32, N>::new(1.0f32);
        let open = sigmoid::<N>(y, convolution.approximate);
        grad * (open * (one + y * (one - open)))
    } else {
        grad
    }
}
