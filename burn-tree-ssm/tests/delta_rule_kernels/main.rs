//! The kernels of the gated delta rule, asked for one by one, on the device of `BURN_DEVICE` if
//! that is one of CubeCL.
#![cfg(all(feature = "cubecl-backend", feature = "flex"))]

mod comparison;
mod kernels;
mod results;
mod selection;
mod shapes;

#[path = "../support/delta_rule.rs"]
mod delta_rule;
#[path = "../support/mod.rs"]
mod support;
