//! Checks of the packs of a batch.

use super::error::BatchError;
use crate::layout::TreeLayout;
use crate::occurrences::Occurrences;
use crate::packs::Pack;
use crate::packs::other_step;

/// A column that only some losses need.
pub(super) type OptionalColumn = (&'static str, fn(&Occurrences) -> Option<&Vec<f32>>);

/// Names and columns of advantages and of the three kinds of log-probabilities.
pub(super) const OPTIONAL_COLUMNS: [OptionalColumn; 4] = [
    ("advantages", |columns| columns.advantages.as_ref()),
    ("old log-probs", |columns| columns.old_log_probs.as_ref()),
    ("reference log-probs", |columns| {
        columns.ref_log_probs.as_ref()
    }),
    ("sampling log-probs", |columns| {
        columns.sampling_log_probs.as_ref()
    }),
];

/// Checks everything except whether packs continue others; returns the length of the rows.
pub(super) fn check(packs: &[Pack]) -> Result<usize, BatchError> {
    let length = row_length(packs)?;
    for (number, pack) in packs.iter().enumerate() {
        check_lengths(number, &pack.layout)?;
        pack.occurrences
            .validate(pack.layout.len())
            .map_err(|source| BatchError::Occurrences {
                pack: number,
                source,
            })?;
    }
    if let Some((first, pack)) = other_step(packs) {
        return Err(BatchError::OtherStep { pack, first });
    }
    check_kinds(packs)?;
    Ok(length)
}

/// Checks that every path begins in its own pack.
pub(super) fn check_beginnings(packs: &[Pack]) -> Result<(), BatchError> {
    for (number, pack) in packs.iter().enumerate() {
        let rows = pack.layout.parents.iter().zip(&pack.layout.position_ids);
        let mut roots = rows.enumerate().filter(|&(_, (&parent, _))| parent < 0);
        let inner = roots.find(|&(_, (_, &depth))| depth != 0 || pack.gateway.is_some());
        if let Some((row, (_, &depth))) = inner {
            return Err(BatchError::Continues {
                pack: number,
                row,
                depth,
            });
        }
    }
    Ok(())
}

/// The largest `padded_len`, checked so that every index of the batch fits the tensors.
fn row_length(packs: &[Pack]) -> Result<usize, BatchError> {
    for (number, pack) in packs.iter().enumerate() {
        if pack.layout.len() > pack.padded_len {
            return Err(BatchError::PaddedLength {
                pack: number,
                tokens: pack.layout.len(),
                padded_len: pack.padded_len,
            });
        }
    }
    let length = packs.iter().map(|pack| pack.padded_len).max().unwrap_or(0);
    let size = packs.len().checked_mul(length);
    match size.is_some_and(|size| size <= i32::MAX as usize) {
        true => Ok(length),
        false => Err(BatchError::TooLarge {
            rows: packs.len(),
            length,
        }),
    }
}

fn check_lengths(pack: usize, layout: &TreeLayout) -> Result<(), BatchError> {
    for (column, found) in [
        ("position_ids", layout.position_ids.len()),
        ("parents", layout.parents.len()),
        ("subtree_ends", layout.subtree_ends.len()),
    ] {
        if found != layout.len() {
            return Err(BatchError::Layout {
                pack,
                column,
                found,
                expected: layout.len(),
            });
        }
    }
    Ok(())
}

/// Checks that all packs have one loss form and carry the same inputs.
fn check_kinds(packs: &[Pack]) -> Result<(), BatchError> {
    // An empty pack does not show which columns the step has.
    let packs = packs.iter().map(|pack| &pack.occurrences).enumerate();
    let trained: Vec<_> = packs.filter(|(_, columns)| !columns.is_empty()).collect();
    let Some(&(first, columns)) = trained.first() else {
        return Ok(());
    };
    let mut others = trained.iter();
    if let Some(&(pack, _)) = others.find(|(_, other)| other.loss_form != columns.loss_form) {
        return Err(BatchError::LossForm { pack, first });
    }
    for (column, of) in OPTIONAL_COLUMNS {
        let present = trained.iter().any(|(_, columns)| of(columns).is_some());
        let without = trained.iter().find(|(_, columns)| of(columns).is_none());
        if let (true, Some(&(pack, _))) = (present, without) {
            return Err(BatchError::MissingColumn { column, pack });
        }
    }
    Ok(())
}
