//! What both backward kernels are made of.

use cubecl::prelude::*;

use super::arguments::Scores;
use burn_tree_kit::cube::matrix::*;

/// Query rows of a tile of the plan.
pub(crate) const QUERY_ROWS: usize = 64;
/// Keys of a tile of the plan.
pub(crate) const KEY_ROWS: usize = 64;

/// Compile-time shape of the backward kernels: it depends on the head dimension, the number of
/// query heads per key head and the options, not on the sizes of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BackwardConfig {
    /// Numbers per row of query, key and value.
    pub head_dim: usize,
    /// 16-row blocks of a plane.
    pub blocks: usize,
    /// Query heads of a key head that a cube of the query kernel works on.
    pub heads: usize,
    /// Whether scores are softcapped.
    pub capped: bool,
    /// Whether there is a sliding window.
    pub window: bool,
}

impl BackwardConfig {
    /// The sums of a plane take `blocks * head_dim / 2` of the 255 registers of a unit.
    pub fn new(head_dim: usize, group: usize, capped: bool, window: bool) -> Self {
        Self {
            head_dim,
            blocks: if head_dim <= 128 { 2 } else { 1 },
            heads: if group.is_multiple_of(2) { 2 } else { 1 },
            capped,
            window,
        }
    }

    /// For the warpgroup kernels, whose planes have 16 rows of one head.
    pub fn of_warpgroups(self) -> Self {
        Self {
            blocks: 1,
            heads: 1,
            ..self
        }
    }
}

/// Exponent of a probability as a power of two, from the product of query and key and the row's
/// log-sum-exp to base 2.
#[cube]
pub(crate) fn exponent(
    product: f32,
    log_sum_exp: f32,
    scores: &Scores,
    #[comptime] config: BackwardConfig,
) -> f32 {
    if comptime!(config.capped) {
        tanh(product * scores.cap_scale) * scores.scale_log2 - log_sum_exp
    } else {
        product * scores.scale_log2 - log_sum_exp
    }
}

/// Derivative of a softcapped score by the score before, from its [`exponent`]; finite if that is
/// minus infinity.
#[cube]
pub(crate) fn cap_slope(exponent: f32, log_sum_exp: f32, scores: &Scores) -> f32 {
    let tanh = max((exponent + log_sum_exp) / scores.scale_log2, -1.0f32);
    1.0 - tanh * tanh
}

/// Powers of two.
#[cube]
pub(crate) fn powers(exponents: Accumulator) -> Accumulator {
    let mut powers = Accumulator::empty();
    #[unroll]
    for i in 0..4usize {
        powers.insert(i, exp2(exponents.extract(i)));
    }
    powers
}

/// The `count` 8-column blocks of a warpgroup's products.
#[cube]
pub(crate) fn tiles_of<N: Size>(
    products: Vector<f32, N>,
    #[comptime] count: usize,
) -> Array<Accumulator> {
    let mut tiles = Array::<Accumulator>::new(count);
    #[unroll]
    for n in 0..count {
        tiles[n] = tile_of::<N>(products, n);
    }
    tiles
}

/// The `n`th 8-column block of a warpgroup's products.
#[cube]
fn tile_of<N: Size>(products: Vector<f32, N>, #[comptime] n: usize) -> Accumulator {
    let mut tile = Accumulator::empty();
    #[unroll]
    for i in 0..4usize {
        tile.insert(i, products.extract(comptime!(4 * n + i)));
    }
    tile
}

/// Whether a query sees a key as far as the window is concerned.
#[cube]
pub(crate) fn within_window(query_position: u32, key_position: u32, window: u32) -> bool {
    i32::cast_from(query_position) - i32::cast_from(key_position) < i32::cast_from(window)
}

/// Two neighbouring accumulators times numbers that are already packed as a left operand, packed
/// as a left operand.
#[cube]
pub(crate) fn pack_products<E: Float>(
    factors: Fragment,
    first: Accumulator,
    second: Accumulator,
) -> Fragment {
    let mut fragment = Fragment::empty();
    #[unroll]
    for i in 0..4usize {
        let factor = factors.extract(i);
        let tile = if comptime!(i < 2) { first } else { second };
        let low = unpack_low::<E>(factor) * tile.extract(comptime!(2 * (i % 2)));
        let high = unpack_high::<E>(factor) * tile.extract(comptime!(2 * (i % 2) + 1));
        fragment.insert(i, pack::<E>(low, high));
    }
    fragment
}

/// Writes a plane's sums times `factor`, rounded, to rows of a tile in shared memory, which the
/// plane alone uses.
#[cube]
pub(crate) fn stage_sums<E: Float>(
    sums: &Array<Accumulator>,
    rows: u32,
    lane: u32,
    factor: f32,
    #[comptime] head_dim: usize,
    #[comptime] blocks: usize,
) {
    let stride = comptime!(row_stride(head_dim));
    let tiles = comptime!(head_dim / 8);
    let address = rows + lane / 4 * comptime!(stride as u32) + lane % 4 * 4;
    sync_plane();
    #[unroll]
    for row in 0..comptime!(2 * blocks) {
        let (block, half) = comptime!((row / 2, row % 2));
        #[unroll]
        for n in 0..tiles {
            let sum = sums[comptime!(block * tiles + n)];
            let word = pack::<E>(
                sum.extract(comptime!(2 * half)) * factor,
                sum.extract(comptime!(2 * half + 1)) * factor,
            );
            store_word(
                address,
                comptime!((block * 16 + half * 8) * stride + n * 16),
                word,
            );
        }
    }
    sync_plane();
}

/// Writes the first `valid` rows of a plane's sums times `factor` as contiguous f32 rows.
#[cube]
pub(crate) fn store_sums(
    sums: &Array<Accumulator>,
    global: u64,
    lane: u32,
    factor: f32,
    valid: i32,
    #[comptime] head_dim: usize,
    #[comptime] blocks: usize,
) {
    let tiles = comptime!(head_dim / 8);
    let row_of_lane = lane / 4;
    let address =
        global + u64::cast_from(row_of_lane * comptime!(4 * head_dim as u32) + lane % 4 * 8);
    #[unroll]
    for row in 0..comptime!(2 * blocks) {
        let (block, half) = comptime!((row / 2, row % 2));
        let first = comptime!(block * 16 + half * 8);
        if i32::cast_from(row_of_lane) + comptime!(first as i32) < valid {
            #[unroll]
            for n in 0..tiles {
                let sum = sums[comptime!(block * tiles + n)];
                let offset = comptime!(first * 4 * head_dim + n * 32);
                store_pair_global(
                    address,
                    offset,
                    sum.extract(comptime!(2 * half)) * factor,
                    sum.extract(comptime!(2 * half + 1)) * factor,
                );
            }
        }
    }
}

/// Writes two neighbouring f32 numbers of global memory; the address is a multiple of 8.
#[cube]
fn store_pair_global(address: u64, #[comptime] offset: usize, first: f32, second: f32) {
    gpu_asm!(
        "st.global.v2.f32 [{address}+{offset}], {{{first}, {second}}};",
        address = in(_) read::<u64>(address), first = in(_) read::<f32>(first),
        second = in(_) read::<f32>(second),
    );
}

/// Writes the first `valid` of `n_rows` rows of a tile in shared memory to contiguous rows in
/// global memory, by one plane.
#[cube]
pub(crate) fn store_rows(
    rows: u32,
    global: u64,
    lane: u32,
    valid: i32,
    #[comptime] head_dim: usize,
    #[comptime] n_rows: usize,
) {
    let row_chunks = comptime!((2 * head_dim / CHUNK) as u32);
    #[unroll]
    for pass in 0..comptime!(n_rows * 2 * head_dim / CHUNK / PLANE) {
        let chunk = lane + comptime!((pass * PLANE) as u32);
        let row = chunk / row_chunks;
        if i32::cast_from(row) < valid {
            // 16 bytes of padding per row.
            let from = rows + (chunk + row) * CHUNK as u32;
            let to = global + u64::cast_from(chunk * CHUNK as u32);
            store_chunk_global(to, load_chunk(from, 0usize));
        }
    }
}

/// The 64-bit address of the start of a tensor in global memory that is written to.
#[cube]
pub(crate) fn output_address(tensor: &mut [Vector<u32, Const<4>>]) -> u64 {
    let pointer = tensor.as_mut_ptr();
    let address: u64;
    gpu_asm!(
        "cvta.to.global.u64 {address}, {pointer};",
        pointer = in(_) pointer, address = out(_) address, options(nomem),
    );
    address
}
