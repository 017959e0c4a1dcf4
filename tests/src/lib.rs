//! What the cross-crate tests share: the device under test, random forests, the fixtures of
//! reference models, runs of a step packed and separate, and oracles in plain loops.

pub mod attention;
pub mod device;
pub mod equality;
pub mod fixture;
pub mod forest;
pub mod gated_delta_rule;
pub mod logits;
pub mod models;
pub mod numbers;
pub mod oracle;
pub mod packing;
pub mod partition;
pub mod policy;
pub mod step;
pub mod tensors;

/// The README's example compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
pub struct Readme;

/// The example of the page on objectives compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/objectives.md")]
pub struct ObjectivesPage;
