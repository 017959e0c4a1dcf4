//! One recorded sequence of tokens, its training data and its validation.

use std::fmt;

/// Largest token id: tensors store rows and ids as signed 32-bit integers.
pub const MAX_TOKEN_ID: u32 = i32::MAX as u32;

/// A sampled or recorded sequence of tokens: one path of a task's tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Trajectory {
    /// The task. Trajectories of one task share a prefix forest.
    pub task_id: String,
    /// The rollout (one run of the agent).
    pub rollout_id: String,
    /// Index of this sequence in its rollout. A rollout has several if its context was rewritten.
    pub segment: u32,
    /// Number of sequences of the rollout.
    pub segments: u32,
    /// Reward of the rollout.
    pub reward: Option<f32>,
    /// `[T]` token ids.
    pub tokens: Vec<u32>,
    /// `[T]` whether the token is a trained target. No token predicts the first one, so its entry
    /// has no effect.
    pub loss_mask: Vec<bool>,
    /// Advantage of the sampled tokens.
    pub advantage: Option<Advantage>,
    /// `[T - 1]` log-probabilities under the policy before this round of updates, as the trainer
    /// computes them; entry `t` belongs to token `t + 1`.
    pub old_log_probs: Option<Vec<f32>>,
    /// `[T - 1]` log-probabilities under the reference policy; entry `t` belongs to token `t + 1`.
    pub ref_log_probs: Option<Vec<f32>>,
    /// `[T - 1]` log-probabilities that the inference engine reported while it sampled; entry `t`
    /// belongs to token `t + 1`. They differ from `old_log_probs` because of the engine's
    /// arithmetic and because of updates that the engine had not yet received.
    pub sampling_log_probs: Option<Vec<f32>>,
    /// Weight of the trajectory in [`crate::Aggregation::WeightedTokenMean`]; 1 by default.
    pub weight: f64,
}

/// Advantage of a trajectory.
#[derive(Clone, Debug, PartialEq)]
pub enum Advantage {
    /// One value for all tokens.
    Trajectory(f32),
    /// `[T - 1]` values; entry `t` belongs to token `t + 1`.
    Token(Vec<f32>),
}

impl Default for Trajectory {
    /// No tokens, the only segment of its rollout, weight 1.
    fn default() -> Self {
        Self {
            task_id: String::new(),
            rollout_id: String::new(),
            segment: 0,
            segments: 1,
            reward: None,
            tokens: Vec::new(),
            loss_mask: Vec::new(),
            advantage: None,
            old_log_probs: None,
            ref_log_probs: None,
            sampling_log_probs: None,
            weight: 1.0,
        }
    }
}

impl Trajectory {
    /// A trajectory of weight 1 with tokens and their mask only.
    pub fn new(
        task_id: impl Into<String>,
        rollout_id: impl Into<String>,
        tokens: Vec<u32>,
        loss_mask: Vec<bool>,
    ) -> Self {
        Self {
            task_id: task_id.into(),
            rollout_id: rollout_id.into(),
            tokens,
            loss_mask,
            ..Self::default()
        }
    }

    /// Number of tokens, `T`.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no tokens, which [`Trajectory::validate`] refuses.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether token `index` is a trained target. The first token never is.
    pub fn is_trained(&self, index: usize) -> bool {
        index > 0 && self.loss_mask[index]
    }

    /// Number of trained targets.
    pub fn trained_tokens(&self) -> usize {
        self.loss_mask
            .iter()
            .skip(1)
            .filter(|&&trained| trained)
            .count()
    }

    /// Advantage of token `index >= 1`.
    pub fn advantage_of(&self, index: usize) -> Option<f32> {
        match self.advantage.as_ref()? {
            Advantage::Trajectory(value) => Some(*value),
            Advantage::Token(values) => Some(values[index - 1]),
        }
    }

    /// Log-probability of token `index >= 1` under the policy before the updates.
    pub fn old_log_prob_of(&self, index: usize) -> Option<f32> {
        Some(self.old_log_probs.as_ref()?[index - 1])
    }

    /// Log-probability of token `index >= 1` under the reference policy.
    pub fn ref_log_prob_of(&self, index: usize) -> Option<f32> {
        Some(self.ref_log_probs.as_ref()?[index - 1])
    }

    /// Log-probability of token `index >= 1` that the inference engine reported.
    pub fn sampling_log_prob_of(&self, index: usize) -> Option<f32> {
        Some(self.sampling_log_probs.as_ref()?[index - 1])
    }

    /// Checks lengths and values.
    ///
    /// Advantages and log-probabilities of untrained tokens are ignored everywhere, but must be
    /// finite.
    ///
    /// # Errors
    /// [`FieldError`] with the first wrong field, its value and the expected value.
    pub fn validate(&self) -> Result<(), FieldError> {
        let length = self.tokens.len();
        if length == 0 {
            return Err(FieldError::new("tokens", "0 tokens", "at least one token"));
        }
        if let Some(index) = self.tokens.iter().position(|&token| token > MAX_TOKEN_ID) {
            return Err(FieldError::new(
                format!("tokens[{index}]"),
                self.tokens[index],
                format!("a token id of at most {MAX_TOKEN_ID}"),
            ));
        }
        check_length(
            "loss_mask",
            self.loss_mask.len(),
            length,
            "one for each token",
        )?;
        if self.segment >= self.segments {
            return Err(FieldError::new(
                "segment",
                self.segment,
                format!("less than segments = {}", self.segments),
            ));
        }
        if !self.weight.is_finite() || self.weight < 0.0 {
            return Err(FieldError::new(
                "weight",
                self.weight,
                "a finite number of at least 0",
            ));
        }
        if let Some(reward) = self.reward {
            check_finite("reward", None, reward)?;
        }
        match &self.advantage {
            Some(Advantage::Trajectory(value)) => check_finite("advantage", None, *value)?,
            Some(Advantage::Token(values)) => check_rows("advantages", values, length)?,
            None => {}
        }
        for (field, values) in [
            ("old_logps", &self.old_log_probs),
            ("ref_logps", &self.ref_log_probs),
            ("sampling_logps", &self.sampling_log_probs),
        ] {
            if let Some(values) = values {
                check_rows(field, values, length)?;
            }
        }
        Ok(())
    }
}

fn check_rows(field: &str, values: &[f32], length: usize) -> Result<(), FieldError> {
    check_length(
        field,
        values.len(),
        length - 1,
        "one for each token but the first",
    )?;
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => check_finite(field, Some(index), values[index]),
        None => Ok(()),
    }
}

fn check_length(field: &str, found: usize, expected: usize, why: &str) -> Result<(), FieldError> {
    if found == expected {
        return Ok(());
    }
    Err(FieldError::new(
        field,
        format!("{found} entries"),
        format!("{expected} ({why})"),
    ))
}

fn check_finite(field: &str, index: Option<usize>, value: f32) -> Result<(), FieldError> {
    if value.is_finite() {
        return Ok(());
    }
    let field = index.map_or(field.to_owned(), |index| format!("{field}[{index}]"));
    Err(FieldError::new(field, value, "a finite number (f32)"))
}

/// An invalid field of a trajectory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: got {value}, expected {expected}")]
pub struct FieldError {
    /// Name of the field in JSON, with the index of the entry in a list.
    pub field: String,
    /// What was found, shortened if long.
    pub value: String,
    /// What was expected.
    pub expected: String,
}

impl FieldError {
    pub(crate) fn new(
        field: impl Into<String>,
        value: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self {
            field: field.into(),
            value: value.to_string(),
            expected: expected.into(),
        }
    }
}
