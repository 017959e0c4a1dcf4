//! Whether a step is one that could have been packed.

use super::derive_gateway::GatewayError;
use super::pack::Pack;
use super::step::PackedStep;
use crate::layout::LayoutError;
use crate::occurrences::ColumnError;

/// What contradicts itself in the packs of a step.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PacksError {
    /// The layout of a pack.
    #[error("pack {pack}: {source}")]
    Layout {
        /// Index of the pack.
        pack: usize,
        /// The contradiction.
        #[source]
        source: LayoutError,
    },
    /// What a pack continues from.
    #[error("pack {pack}: {source}")]
    Gateway {
        /// Index of the pack.
        pack: usize,
        /// The contradiction.
        #[source]
        source: GatewayError,
    },
    /// The predictions of a pack.
    #[error("pack {pack}: {source}")]
    Occurrences {
        /// Index of the pack.
        pack: usize,
        /// The contradiction.
        #[source]
        source: ColumnError,
    },
    /// A pack with more tokens than its row has places.
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

/// Checks the packs of a step: that layouts are trees in depth-first order, and that the past keys
/// of every [`crate::Gateway`] are the ancestors of its pack's roots, each visible to exactly the
/// rows that descend from it, that the columns of predictions are of one length and their rows
/// ascend and are there, and that all packs are of one optimizer step as far as they tell
/// ([`Pack::step`]). Linear in the size of the packs.
///
/// # Errors
/// The first contradiction.
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

/// The first pack whose step is known, and the first one of another step.
pub(crate) fn other_step(packs: &[Pack]) -> Option<(usize, usize)> {
    let known = packs.iter().enumerate();
    let mut known = known.filter_map(|(number, pack)| Some((number, pack.step?)));
    let (first, step) = known.next()?;
    let (other, _) = known.find(|&(_, other)| other != step)?;
    Some((first, other))
}

impl PackedStep {
    /// Checks the packs, as [`validate_packs`].
    ///
    /// # Errors
    /// The first contradiction.
    pub fn validate(&self) -> Result<(), PacksError> {
        validate_packs(&self.packs)
    }
}
