//! The choice between the implementations of an operation, and its `tracing` events.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use thiserror::Error;

/// The implementation of an operation that the caller requests. If it cannot run, the operation
/// returns an error before dispatch; no other implementation replaces it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// The fastest one that device, dtype and shapes allow. On CubeCL runtimes: accelerated
    /// kernels, else portable ones, else Burn's operations with a warning. On Flex: loops for the
    /// CPU. Elsewhere: Burn's operations.
    #[default]
    Automatic,
    /// Burn's own operations, on every backend.
    Generic,
    /// CubeCL kernels that run on all of its runtimes.
    Portable,
    /// CubeCL kernels for the tensor cores of NVIDIA GPUs.
    Accelerated,
}

/// A set of CubeCL kernels of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernels {
    /// Kernels that run on all CubeCL runtimes.
    Portable,
    /// Kernels for the tensor cores of NVIDIA GPUs.
    Accelerated,
}

impl Kernels {
    /// The name in events ([`announce`]): `portable` or `accelerated`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Accelerated => "accelerated",
        }
    }
}

/// The reason why an implementation cannot run.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0}")]
pub struct Unavailable(pub String);

impl Implementation {
    /// Chooses the kernels that run. Returns `None` if the caller requests Burn's operations.
    /// `check` tests whether given kernels can run with these arguments on this device;
    /// [`Automatic`](Self::Automatic) tries accelerated kernels first, then portable ones.
    ///
    /// # Errors
    /// The error of `check` for the requested kernels; with `Automatic`, the error for portable
    /// kernels if neither kind can run.
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

/// Target of the `tracing` events of this module.
pub const TARGET: &str = "burn_tree";

/// Emits a `tracing` event of level debug and target [`TARGET`] for the implementation that runs:
/// the operation `op`, `pass` (`forward` or `backward`) and the name of the implementation.
pub fn announce(op: &'static str, pass: &'static str, implementation: &'static str) {
    tracing::debug!(target: TARGET, op, pass, implementation);
}

/// Emits a `tracing` event of level warn, once per process for each operation and reason: Burn's
/// operations run on a device that has kernels.
pub fn announce_fallback(op: &'static str, reason: &Unavailable) {
    static TOLD: Mutex<BTreeSet<(&str, String)>> = Mutex::new(BTreeSet::new());
    let reason = format!("runs Burn's operations: {reason}");
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    if !told.contains(&(op, reason.clone())) {
        tracing::warn!(target: TARGET, op, reason = reason.as_str());
        told.insert((op, reason));
    }
}

#[cfg(test)]
mod tests {
    use tree_training_devices::Events;

    use super::*;

    fn only(available: &'static [Kernels]) -> impl Fn(Kernels) -> Result<(), Unavailable> {
        move |kernels| match available.contains(&kernels) {
            true => Ok(()),
            false => Err(Unavailable(format!("no {} kernels", kernels.name()))),
        }
    }

    #[test]
    fn automatic_choice_prefers_accelerated_kernels() {
        use Kernels::{Accelerated, Portable};
        let select = |available| Implementation::Automatic.select(only(available));
        assert_eq!(select(&[Portable, Accelerated]), Ok(Some(Accelerated)));
        assert_eq!(select(&[Accelerated]), Ok(Some(Accelerated)));
        assert_eq!(select(&[Portable]), Ok(Some(Portable)));
        assert_eq!(select(&[]), Err(Unavailable("no portable kernels".into())));
    }

    #[test]
    fn what_is_asked_for_is_never_replaced() {
        use Kernels::{Accelerated, Portable};
        assert_eq!(Implementation::Generic.select(only(&[Portable])), Ok(None));
        assert_eq!(
            Implementation::Portable.select(only(&[Portable, Accelerated])),
            Ok(Some(Portable))
        );
        for (asked, other, reason) in [
            (
                Implementation::Portable,
                &[Accelerated],
                "no portable kernels",
            ),
            (
                Implementation::Accelerated,
                &[Portable],
                "no accelerated kernels",
            ),
        ] {
            assert_eq!(asked.select(only(other)), Err(Unavailable(reason.into())));
        }
    }

    #[test]
    fn runs_are_announced_each_time_and_reasons_once() {
        let events = Events::of(TARGET);
        tracing::subscriber::with_default(events.clone(), || {
            for _ in 0..2 {
                announce("op", "forward", Kernels::Portable.name());
                announce_fallback("op", &Unavailable("f64 tensors".into()));
            }
            announce_fallback("op", &Unavailable("wide rows".into()));
            announce_fallback("other", &Unavailable("wide rows".into()));
        });
        assert_eq!(
            events.take(),
            [
                "op forward portable",
                "op runs Burn's operations: f64 tensors",
                "op forward portable",
                "op runs Burn's operations: wide rows",
                "other runs Burn's operations: wide rows",
            ]
        );
    }
}
