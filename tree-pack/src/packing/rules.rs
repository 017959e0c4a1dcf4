//! The rules by which a step's predictions become occurrences.

use super::counted::CountedStep;
use super::error::PackError;
use super::inputs::step_inputs;
use super::merging::find_unmergeable;
use super::options::PackOptions;
use crate::objective::{Coefficients, LossForm, Objective};
use crate::occurrences::Inputs;

/// What is the same for all occurrences of a step.
pub struct StepRules {
    pub objective: Objective,
    pub loss: LossForm,
    pub coefficients: Coefficients,
    pub inputs: Inputs,
    /// Whether all occurrences of a `(row, target)` are merged into one entry.
    pub merge: bool,
}

impl StepRules {
    /// # Errors
    /// [`PackError`]: the objective is undefined, inputs are missing, or the objective merges
    /// occurrences that the loss distinguishes.
    pub fn new(step: &CountedStep, options: &PackOptions) -> Result<Self, PackError> {
        let &PackOptions {
            objective,
            aggregation,
            loss,
            ..
        } = options;
        let coefficients = Coefficients::new(objective, aggregation, loss, &step.totals)?;
        let inputs = step_inputs(step, loss)?;
        let merges_equal_inputs = loss.carries_inputs() && objective != Objective::Unique;
        let unmergeable = merges_equal_inputs
            .then(|| find_unmergeable(step, loss, inputs))
            .flatten();
        let merge = match unmergeable {
            None => true,
            Some(error) if objective == Objective::PerPath => return Err(error),
            Some(_) => false,
        };
        Ok(Self {
            objective,
            loss,
            coefficients,
            inputs,
            merge,
        })
    }
}
