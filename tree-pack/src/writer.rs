//! Writes trajectories in token form, one JSON object per line, for [`crate::read_trajectories`].

use std::io::{self, Write};

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

use crate::trajectory::{Advantage, Trajectory};

/// Writes one trajectory as a line. Optional fields that are not set are omitted, except the
/// reward, which is `null`.
///
/// # Example
/// ```
/// use tree_pack::{Trajectory, write_trajectory};
///
/// let mut file = Vec::new();
/// let trajectory = Trajectory::new("task", "run", vec![5, 6], vec![false, true]);
/// write_trajectory(&mut file, &trajectory)?;
/// assert_eq!(
///     String::from_utf8(file)?,
///     "{\"task_id\":\"task\",\"rollout_id\":\"run\",\"segment\":0,\"segments\":1,\
///      \"reward\":null,\"tokens\":[5,6],\"loss_mask\":[0,1]}\n"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write_trajectory(out: &mut impl Write, trajectory: &Trajectory) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Line::from(trajectory))?;
    out.write_all(b"\n")
}

#[derive(Serialize)]
struct Line<'a> {
    task_id: &'a str,
    rollout_id: &'a str,
    segment: u32,
    segments: u32,
    reward: Option<f32>,
    tokens: &'a [u32],
    #[serde(serialize_with = "zeros_and_ones")]
    loss_mask: &'a [bool],
    #[serde(skip_serializing_if = "Option::is_none")]
    advantage: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    advantages: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    old_logps: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ref_logps: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sampling_logps: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<f64>,
}

impl<'a> From<&'a Trajectory> for Line<'a> {
    fn from(trajectory: &'a Trajectory) -> Self {
        let (advantage, advantages) = match &trajectory.advantage {
            Some(Advantage::Trajectory(value)) => (Some(*value), None),
            Some(Advantage::Token(values)) => (None, Some(values.as_slice())),
            None => (None, None),
        };
        Self {
            task_id: &trajectory.task_id,
            rollout_id: &trajectory.rollout_id,
            segment: trajectory.segment,
            segments: trajectory.segments,
            reward: trajectory.reward,
            tokens: &trajectory.tokens,
            loss_mask: &trajectory.loss_mask,
            advantage,
            advantages,
            old_logps: trajectory.old_log_probs.as_deref(),
            ref_logps: trajectory.ref_log_probs.as_deref(),
            sampling_logps: trajectory.sampling_log_probs.as_deref(),
            weight: (trajectory.weight != 1.0).then_some(trajectory.weight),
        }
    }
}

fn zeros_and_ones<S: Serializer>(mask: &[bool], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(mask.len()))?;
    for &trained in mask {
        list.serialize_element(&u8::from(trained))?;
    }
    list.end()
}
