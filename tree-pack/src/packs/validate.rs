//! Checks of the packs of a step.

use super::derive_gateway::GatewayError;
use super::pack::Pack;
use super::step::PackedStep;
use crate::layout::LayoutError;
use crate::occurrences::ColumnError;

/// An inconsistency of the packs of a step.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PacksError {
    /// The layout of a pack.
    #[error("pack {pack}: {source}")]
    Layout {
        /// Index of the pack.
        pack: usize,
        /// The inconsistency.
        #[source]
        source: LayoutError,
    },
    /// The gateway of a pack.
    #[error("pack {pack}: {source}")]
    Gateway {
        /// Index of the pack.
        pack: usize,
        /// The inconsistency.
        #[source]
        source: GatewayError,
    },
    /// The predictions of a pack.
    #[error("pack {pack}: {source}")]
    Occurrences {
        /// Index of the pack.
        pack: usize,
        /// The inconsistency.
        #[source]
        source: ColumnError,
    },
    /// A pack with more tokens than its padded length.
    #[error("pack {pack}: padded_len: got {found}, expected at least {tokens}, its tokens")]
    PaddedLength {
        /// Index of the pack.
        pack: usize,
        /// Its `padded_len`.
        found: usize,
        /// Its tokens.
        tokens: usize,
    },
    /// Packs of different optimizer steps.
    #[error(
        "pack {pack} is of another optimizer step than pack {first}: its weights have another \
         denominator"
    )]
    OtherStep {
        /// Index of the pack.
        pack: usize,
        /// Index of the first pack whose step is known.
        first: usize,
    },
}

/// Checks the packs of a step in linear time. Layouts must be trees in depth-first order. The past
/// keys of every [`crate::Gateway`] must be the ancestors of its pack's roots, each visible to
/// exactly the rows that descend from it. The columns of predictions must have one length, and
/// their rows must ascend and exist. All packs with a known step ([`Pack::step`]) must have the
/// same one.
///
/// # Errors
/// [`PacksError`] for the first inconsistency.
pub fn validate_packs(packs: &[Pack]) -> Result<(), PacksError> {
    for (number, pack) in packs.iter().enumerate() {
        pack.layout
            .validate()
            .map_err(|source| PacksError::Layout {
                pack: number,
                source,
            })?;
        let checked = match &pack.gateway {
            Some(gateway) => gateway.validate(packs, number, &pack.layout),
            None => GatewayError::unless_roots_begin_paths(&pack.layout),
        };
        checked.map_err(|source| PacksError::Gateway {
            pack: number,
            source,
        })?;
        validate_row(number, pack)?;
    }
    match other_step(packs) {
        Some((first, pack)) => Err(PacksError::OtherStep { pack, first }),
        None => Ok(()),
    }
}

fn validate_row(number: usize, pack: &Pack) -> Result<(), PacksError> {
    let rows = pack.layout.len();
    pack.occurrences
        .validate(rows)
        .map_err(|source| PacksError::Occurrences {
            pack: number,
            source,
        })?;
    if pack.padded_len < rows {
        return Err(PacksError::PaddedLength {
            pack: number,
            found: pack.padded_len,
            tokens: rows,
        });
    }
    Ok(())
}

/// The first pack with a known step, and the first pack of another step.
pub(crate) fn other_step(packs: &[Pack]) -> Option<(usize, usize)> {
    let known = packs.iter().enumerate();
    let mut known = known.filter_map(|(number, pack)| Some((number, pack.step?)));
    let (first, step) = known.next()?;
    let (other, _) = known.find(|&(_, other)| other != step)?;
    Some((first, other))
}

impl PackedStep {
    /// Checks the packs as [`validate_packs`] does.
    ///
    /// # Errors
    /// [`PacksError`] for the first inconsistency.
    pub fn validate(&self) -> Result<(), PacksError> {
        validate_packs(&self.packs)
    }
}
