//! A way of making the steps of a run: its plan and its own model and optimizer.

use std::time::Instant;

use burn::module::Module;
use burn::optim::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn_tree_train::{ModelCost, StepBound, StepCounts, StepTime, StepWork, TreeModel};
use thiserror::Error;
use tree_pack::PackError;

use crate::objective::Objective;
use crate::optim::optimizer_step::{StepError, Trainer};
use crate::plan::{Sharing, StepPlan};
use crate::report::metrics::{ComparisonRecord, PassRecord, StepRecord};
use crate::run::log_probs::{self, LogProbs};

/// A step that could not be made.
#[derive(Debug, Error)]
pub enum PassError {
    /// Its trajectories cannot be packed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// Log-probabilities of its trajectories cannot be computed.
    #[error(transparent)]
    LogProbs(#[from] burn_tree_train::StepError),
    /// Its numbers are not finite.
    #[error("step {step}: {error}", step = step + 1)]
    Step {
        /// The step, counted from 0.
        step: usize,
        /// What went wrong.
        error: StepError,
    },
}

/// A plan, the objective of its steps, and the trainer that follows them.
pub struct Pass<M, O> {
    /// The model, its optimizer and their device.
    pub trainer: Trainer<M>,
    /// The steps and their data.
    pub plan: StepPlan,
    objective: O,
    cost: ModelCost,
    prediction: Option<Prediction>,
    /// Of the last step.
    without_gradient: Vec<String>,
}

/// What the time of steps is predicted from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// What work takes.
    pub time: StepTime,
    /// Whether the model has recurrent layers.
    pub recurrent: bool,
}

impl<M: Module + TreeModel, O: Objective> Pass<M, O> {
    /// A pass over the steps of `plan`, whose FLOPs are counted with `cost`.
    pub fn new(plan: StepPlan, objective: O, trainer: Trainer<M>, cost: ModelCost) -> Self {
        Self {
            trainer,
            plan,
            objective,
            cost,
            prediction: None,
            without_gradient: Vec::new(),
        }
    }

    /// Module paths of trained parameters that got no gradient in the last step.
    pub fn without_gradient(&self) -> &[String] {
        &self.without_gradient
    }

    /// The same pass, which records what was predicted for each step.
    pub fn with_prediction(self, prediction: Option<Prediction>) -> Self {
        Self { prediction, ..self }
    }

    /// Whether it shares prefixes.
    pub fn sharing(&self) -> Sharing {
        self.plan.sharing()
    }

    /// Computes the reference log-probabilities of all data under the model of `reference`, and
    /// returns the seconds that it took.
    ///
    /// # Errors
    /// [`PassError`] if the trajectories cannot be packed.
    pub fn compute_reference(&mut self, reference: &Trainer<M>) -> Result<f64, PassError> {
        let start = Instant::now();
        let steps = self.plan.in_steps();
        log_probs::compute(LogProbs::Reference, &mut self.plan, &steps, reference)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Packs and makes step `step`, counted from 0. Packing is not part of the measured time: it
    /// takes milliseconds and can be done while the step before is computed.
    ///
    /// # Errors
    /// [`PassError`]; the model is then unchanged.
    pub fn step(
        &mut self,
        step: usize,
        learning_rate: ModuleLearningRate,
    ) -> Result<PassRecord, PassError> {
        let place = self.plan.place(step);
        let mut log_prob_seconds = None;
        if place.begins_batch() && self.objective.computes_old_log_probs() {
            let start = Instant::now();
            log_probs::compute(LogProbs::Old, &mut self.plan, &place.batch, &self.trainer)?;
            log_prob_seconds = Some(start.elapsed().as_secs_f64());
        }
        let packed = self.plan.packs(step)?;
        let outcome = self
            .trainer
            .step(&packed, &self.objective, learning_rate)
            .map_err(|error| PassError::Step { step, error })?;
        self.without_gradient = outcome.without_gradient;
        let counts = StepCounts::of_packs(&packed.packs);
        let mut metrics = outcome.metrics;
        metrics.extend(self.objective.describe(&packed, self.plan.trajectories()));
        let pool = self.trainer.device.clone().inner().memory_pool_usage();
        Ok(PassRecord {
            loss: outcome.loss,
            loss_scale: self.objective.scale(&packed),
            gradient_norm: outcome.gradient_norm,
            seconds: outcome.seconds,
            reserved_bytes: pool.map(|pool| pool.bytes_reserved),
            predicted_seconds: self.prediction.map(|Prediction { time, recurrent }| {
                time.seconds(&StepWork::of_step(&packed.packs, recurrent))
            }),
            packs: packed.packs.len(),
            tokens: counts.tokens,
            visible_pairs: counts.visible_pairs,
            projected_rows: counts.projected_rows,
            predictions: counts.predictions,
            flops: self.cost.step_flops(&counts),
            log_prob_seconds,
            metrics,
        })
    }
}

/// Compares the two passes of a step; `None` if it was made one way only.
pub fn compare(record: &StepRecord, cost: &ModelCost) -> Option<ComparisonRecord> {
    let (tree, flat) = (record.tree.as_ref()?, record.flat.as_ref()?);
    let scale = flat.loss_scale.unwrap_or(flat.loss.abs());
    let bound = StepBound::new(cost, &tree.counts(), &flat.counts())?;
    Some(ComparisonRecord {
        relative_loss_deviation: relative(tree.loss, flat.loss, scale),
        relative_gradient_deviation: relative(
            tree.gradient_norm,
            flat.gradient_norm,
            flat.gradient_norm,
        ),
        speedup: flat.seconds / tree.seconds,
        token_bound: bound.token_bound,
        step_bound: bound.step_bound,
    })
}

/// `|a - b| / scale`; equal numbers deviate by nothing, also where everything is 0.
fn relative(a: f64, b: f64, scale: f64) -> f64 {
    if a == b { 0.0 } else { (a - b).abs() / scale }
}
