//! The id of a packed step.

use std::hash::{Hash, Hasher};

use rustc_hash::FxHasher;

use crate::ids::StepId;
use crate::objective::StepTotals;
use crate::occurrences::Occurrences;
use crate::packs::PackedStep;

/// The id of a step: a hash of its packs, totals and trajectories.
pub fn step_id(step: &PackedStep) -> StepId {
    let mut hasher = FxHasher::default();
    hash_totals(&step.totals, &mut hasher);
    step.packs.len().hash(&mut hasher);
    for pack in &step.packs {
        pack.layout.tokens.hash(&mut hasher);
        pack.layout.parents.hash(&mut hasher);
        hash_occurrences(&pack.occurrences, &mut hasher);
    }
    for trajectory in &step.trajectories {
        trajectory.data_index.hash(&mut hasher);
        trajectory.trained_tokens.hash(&mut hasher);
    }
    StepId::from_number(hasher.finish())
}

fn hash_totals(totals: &StepTotals, hasher: &mut FxHasher) {
    let StepTotals {
        trajectories,
        tokens,
        unique_tokens,
        rows,
        trained_tokens,
        unique_trained_tokens,
        weighted_trained_tokens,
    } = *totals;
    [
        trajectories,
        tokens,
        unique_tokens,
        rows,
        trained_tokens,
        unique_trained_tokens,
        weighted_trained_tokens.to_bits(),
    ]
    .hash(hasher);
}

fn hash_occurrences(occurrences: &Occurrences, hasher: &mut FxHasher) {
    (occurrences.loss_form as u8).hash(hasher);
    occurrences.rows.hash(hasher);
    occurrences.targets.hash(hasher);
    // Lists are hashed at once: Fx mixes the bytes of a list better than single numbers.
    let weights = occurrences.weights.iter().map(|weight| weight.to_bits());
    weights.collect::<Vec<u64>>().hash(hasher);
    occurrences.trajectories.hash(hasher);
    occurrences.token_indices.hash(hasher);
    for column in [
        &occurrences.advantages,
        &occurrences.old_log_probs,
        &occurrences.ref_log_probs,
        &occurrences.sampling_log_probs,
    ] {
        let bits = column.as_ref().map(|values| {
            let bits = values.iter().map(|value| value.to_bits());
            bits.collect::<Vec<u32>>()
        });
        bits.hash(hasher);
    }
}
