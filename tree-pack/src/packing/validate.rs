//! Whether a step is one that could have been packed.

use super::PackedStep;
use crate::gateway::GatewayError;
use crate::layout::LayoutError;
use crate::pack::Pack;

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
}

/// Checks the packs of a step: that layouts are trees in depth-first order, and that the past keys
/// of every [`crate::Gateway`] are the ancestors of its pack's roots, each visible to exactly the
/// rows that descend from it. Linear in the size of the packs.
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
    }
    Ok(())
}

impl PackedStep {
    /// Checks the packs, as [`validate_packs`].
    ///
    /// # Errors
    /// The first contradiction.
    pub fn validate(&self) -> Result<(), PacksError> {
        validate_packs(&self.packs)
    }

    /// Most tokens that are held at once where each pack waits for those that continue it: the
    /// largest sum over a pack and all that it continues, without padding.
    pub fn retained_tokens(&self) -> usize {
        let mut chains: Vec<usize> = Vec::with_capacity(self.packs.len());
        for pack in &self.packs {
            let above = pack.gateway.as_ref();
            let above = above.map_or(0, |gateway| chains[gateway.parent as usize]);
            chains.push(above + pack.layout.len());
        }
        chains.into_iter().max().unwrap_or(0)
    }
}
