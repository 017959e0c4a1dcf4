//! Which implementation of an operation runs, and who is told.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

/// Which implementation of an operation is asked for. One that cannot run is an error before
/// dispatch, never replaced by another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// The fastest that device, dtype and shapes allow: on CubeCL runtimes accelerated kernels, else
    /// portable ones, else Burn's operations with a warning; Flex's own on Flex; Burn's operations
    /// elsewhere.
    #[default]
    Automatic,
    /// Burn's own operations: runs on every backend.
    Generic,
    /// CubeCL kernels for any of its runtimes.
    Portable,
    /// CubeCL kernels for tensor cores.
    Accelerated,
}

/// The kernels of an operation that are written in CubeCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// For any runtime.
    Portable,
    /// For tensor cores.
    Accelerated,
}

impl Kernels {
    /// As in [`announce`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Accelerated => "accelerated",
        }
    }
}

/// Why an implementation cannot run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Unavailable(pub String);

impl Implementation {
    /// The kernels that run; `None` for the generic bodies, if they are asked for. Automatic choice
    /// takes accelerated kernels before portable ones. `check` says whether kernels can run.
    ///
    /// # Errors
    /// If what is asked for cannot run; of automatic choice, if no kernels can.
    pub fn select(
        self,
        check: impl Fn(Kernels) -> Result<(), Unavailable>,
    ) -> Result<Option<Kernels>, Unavailable> {
        let check = |kernels| check(kernels).map(|()| Some(kernels));
        match self {
            Self::Generic => Ok(None),
            Self::Portable => check(Kernels::Portable),
            Self::Accelerated => check(Kernels::Accelerated),
            Self::Automatic => check(Kernels::Accelerated).or_else(|_| check(Kernels::Portable)),
        }
    }
}

/// Target of the events of this module.
pub const TARGET: &str = "burn_tree";

/// Tells subscribers which implementation of an operation runs: a `tracing` event of level debug and
/// target [`TARGET`].
pub fn announce(op: &'static str, pass: &'static str, implementation: &'static str) {
    tracing::debug!(target: TARGET, op, pass, implementation);
}

/// Warns subscribers, once for each operation and reason, that the generic body runs on a device that
/// has kernels.
pub fn announce_fallback(op: &'static str, reason: &Unavailable) {
    static TOLD: Mutex<BTreeSet<(&str, String)>> = Mutex::new(BTreeSet::new());
    let reason = format!("runs Burn's operations: {reason}");
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if !told.contains(&(op, reason.clone())) {
        tracing::warn!(target: TARGET, op, reason = reason.as_str());
        told.insert((op, reason));
    }
}
