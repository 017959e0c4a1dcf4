//! The kernel: one unit copies operands to shared memory, two warpgroups multiply.
//!
//! A cube runs on each multiprocessor and computes one tile of the result after the other. Three or
//! four *stages* in shared memory hold 64 summed numbers of the operands of a tile. The first unit
//! of the third warpgroup fills them (TMA); warpgroups 0 and 1 compute 64 rows of the tile each,
//! 128 sums a unit. Each stage has two barriers: *filled* counts the bytes that have arrived,
//! *emptied* the warpgroups that have multiplied. The results of a tile leave through panels in
//! shared memory while the next tile is computed.

// CubeCL has no `is_multiple_of`, and branches at compile time stay apart from those at run time.
#![allow(clippy::manual_is_multiple_of, clippy::collapsible_if)]

mod arguments;
mod config;
mod exchange;
mod multiply;
mod producer;
mod results;
mod stages;
#[cfg(test)]
mod transpiled;
mod work;

use burn_tree_kit::cube::matrix::{global_address, shared_address};
use burn_tree_kit::cube::warpgroup::*;
use cubecl::ir::ElemType;
use cubecl::prelude::*;

pub(super) use arguments::{Exchange, ExchangeLaunch, Problem, ProblemLaunch, Right, RightLaunch};
pub(super) use config::{Output, ProductConfig};

use exchange::ExchangeAddresses;
use multiply::{multiply_narrow_tiles, multiply_tiles};
use producer::{load_narrow_tiles, load_tiles};
use results::Destinations;
pub(super) use results::DestinationsLaunch;
use stages::init_stages;

use super::plan::Ending;

/// Units of a cube: two warpgroups that multiply, and one of which one unit copies.
pub(super) const UNITS: usize = 3 * WARPGROUP;
/// Units that multiply.
const MULTIPLYING: usize = 2 * WARPGROUP;

/// Products of `left` and `right` operands: their sum, or one after the other along the columns, as
/// [`Joined`](super::Joined) says. With a sum there are as many left as right operands, otherwise
/// there is one. `exchange` is given with [`Ending::Split`].
#[cube(launch_unchecked)]
pub(super) fn matrix_product<E: Float>(
    left: Sequence<TensorMap<E, Tiled>>,
    right: Sequence<Right<E>>,
    destinations: Destinations<E>,
    exchange: Sequence<Exchange>,
    problem: Problem,
    #[comptime] config: ProductConfig,
    #[define(E)] _dtype: ElemType,
) {
    let memory =
        Shared::<[u32]>::new_aligned_slice(comptime!(config.shared_bytes() / 4), 1024usize);
    let shared = shared_address(&memory);
    let barriers = shared + comptime!(config.barriers_at() as u32);
    if UNIT_POS_X == 0 {
        init_stages(barriers, config);
    }
    sync_cube();

    let exchange = exchange_addresses(&exchange, config);
    if UNIT_POS_X >= MULTIPLYING as u32 {
        if UNIT_POS_X == MULTIPLYING as u32 {
            let step = load_tiles::<E>(&left, &right, &problem, &exchange, shared, config);
            if comptime!(config.ending == Ending::Narrow) {
                load_narrow_tiles::<E>(&left, &right, &problem, shared, step, config);
            }
        }
    } else {
        let step = multiply_tiles::<E>(&problem, &destinations, &exchange, shared, config);
        if comptime!(config.ending == Ending::Narrow) {
            multiply_narrow_tiles::<E>(&problem, &destinations, shared, step, config);
        }
        if comptime!(config.output == Output::Rounded) {
            // Shared memory must outlive the copies from it.
            if UNIT_POS_X % WARPGROUP as u32 == 0 {
                wait_stores_read();
            }
        }
    }
}

#[cube]
fn exchange_addresses(
    exchange: &Sequence<Exchange>,
    #[comptime] config: ProductConfig,
) -> ExchangeAddresses {
    if comptime!(config.ending == Ending::Split) {
        ExchangeAddresses {
            parts: global_address(&exchange.index(0usize).parts),
            flags: global_address(&exchange.index(0usize).flags),
        }
    } else {
        ExchangeAddresses {
            parts: 0u64,
            flags: 0u64,
        }
    }
}
