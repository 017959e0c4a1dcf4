//! One line of token form: a JSON object with the fields of a trajectory.

use serde::de::DeserializeSeed;

use super::line::{Line, LineError};
use super::seeds::LineSeed;
use crate::trajectory::Trajectory;

/// Parses and validates one line.
pub fn parse_trajectory(json: &[u8], vocab_size: Option<u32>) -> Result<Trajectory, LineError> {
    let mut line = Line {
        vocab_size,
        ..Line::default()
    };
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let parsed = LineSeed(&mut line).deserialize(&mut deserializer);
    if let Err(error) = parsed.and_then(|()| deserializer.end()) {
        return Err(line.explain(json, &error));
    }
    let trajectory = line.into_trajectory().map_err(LineError::Field)?;
    trajectory.validate().map_err(LineError::Field)?;
    Ok(trajectory)
}
