//! Token ids outside the vocabulary of a model.

use std::fmt;

use crate::packs::Pack;
use crate::packs::PackedStep;

/// A token id outside the vocabulary of the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{place}: token {token} at position {position}, expected an id below {size}, the size of the \
     vocabulary"
)]
pub struct VocabularyError {
    /// The token id.
    pub token: u32,
    /// The size of the vocabulary.
    pub size: usize,
    /// Index of the token in its trajectory.
    pub position: usize,
    /// The place of the token.
    pub place: TokenPlace,
}

/// The place of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenPlace {
    /// In a trajectory of a step.
    Trajectory {
        /// The task.
        task_id: String,
        /// The rollout of a trajectory with the token, if known.
        rollout_id: Option<String>,
        /// The segment of this rollout, 0 if unknown.
        segment: u32,
    },
    /// In a batch, which has no names of trajectories.
    Row {
        /// Index of the pack in the batch.
        pack: usize,
        /// Row of the pack.
        row: usize,
        /// Whether the token is the target of the row instead of its own token.
        is_target: bool,
    },
}

impl fmt::Display for TokenPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trajectory {
                task_id,
                rollout_id,
                segment,
            } => {
                write!(formatter, "task {task_id:?}")?;
                if let Some(rollout_id) = rollout_id {
                    write!(formatter, ", rollout {rollout_id:?}")?;
                }
                match segment {
                    0 => Ok(()),
                    _ => write!(formatter, ", segment {segment}"),
                }
            }
            Self::Row {
                pack,
                row,
                is_target,
            } => {
                let what = if *is_target { "target of row" } else { "row" };
                write!(formatter, "{what} {row} of pack {pack}")
            }
        }
    }
}

/// Index of the first id that is not below `size`.
pub(crate) fn first_outside(tokens: &[u32], size: usize) -> Option<usize> {
    tokens.iter().position(|&token| token as usize >= size)
}

impl PackedStep {
    /// Checks that every token and every target is below `size`, the number of rows of the model's
    /// embedding and head. For a larger id, devices return an arbitrary embedding or zeros, or fail
    /// without naming it.
    ///
    /// # Errors
    /// [`VocabularyError`] with the task, a rollout and the position of the first token that is
    /// not.
    pub fn check_vocabulary(&self, size: usize) -> Result<(), VocabularyError> {
        for pack in &self.packs {
            if let Some(row) = first_outside(&pack.layout.tokens, size) {
                let entry = entry_through(pack, row);
                return Err(VocabularyError {
                    token: pack.layout.tokens[row],
                    size,
                    position: pack.layout.position_ids[row] as usize,
                    place: self.place(pack, row, entry),
                });
            }
            if let Some(entry) = first_outside(&pack.occurrences.targets, size) {
                let row = pack.occurrences.rows[entry] as usize;
                return Err(VocabularyError {
                    token: pack.occurrences.targets[entry],
                    size,
                    position: pack.occurrences.token_indices[entry] as usize,
                    place: self.place(pack, row, Some(entry)),
                });
            }
        }
        Ok(())
    }

    /// The place of a row; `entry` is an occurrence of a trajectory through the row.
    fn place(&self, pack: &Pack, row: usize, entry: Option<usize>) -> TokenPlace {
        let trajectory = entry.and_then(|entry| {
            let index = *pack.occurrences.trajectories.get(entry)?;
            self.trajectories.get(index as usize)
        });
        match trajectory {
            Some(trajectory) => TokenPlace::Trajectory {
                task_id: trajectory.task_id.clone(),
                rollout_id: Some(trajectory.rollout_id.clone()),
                segment: trajectory.segment,
            },
            None => {
                let root = pack
                    .layout
                    .roots()
                    .position(|rows| rows.contains(&(row as u32)));
                let task_id = root.and_then(|root| pack.task_ids.get(root));
                TokenPlace::Trajectory {
                    task_id: task_id.cloned().unwrap_or_default(),
                    rollout_id: None,
                    segment: 0,
                }
            }
        }
    }
}

/// An occurrence of a trajectory through a row: one from the row or its subtree, otherwise one
/// whose target is the row.
fn entry_through(pack: &Pack, row: usize) -> Option<usize> {
    let columns = &pack.occurrences;
    let first_from = |row: u32| columns.rows.partition_point(|&other| other < row);
    let below = first_from(row as u32)..first_from(pack.layout.subtree_ends[row]);
    if !below.is_empty() {
        return Some(below.start);
    }
    let parent = u32::try_from(pack.layout.parents[row]).ok()?;
    let token = pack.layout.tokens[row];
    let mut before = first_from(parent)..first_from(parent + 1);
    before.find(|&entry| columns.targets[entry] == token)
}
