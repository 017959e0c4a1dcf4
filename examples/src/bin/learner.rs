//! Trees of trajectories in Burn's own training loop: data loader, learner, metrics and, with the
//! feature `tui`, its terminal dashboard.
//!
//! One item of the data loader is one optimizer step: the packs of whole tasks, which become the
//! rows of one [`TreeBatch`]. Their weights contain the denominator of the step, so the loss of the
//! batch is the loss of the step.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::optim::AdamWConfig;
use burn::optim::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::tensor::{Device, FloatDType, Tensor};
use burn::train::metric::{Adaptor, LearningRateMetric, LossInput, LossMetric};
use burn::train::{InferenceStep, ItemLazy, Learner, SupervisedTraining, TrainOutput, TrainStep};
use burn_tree_models::{CausalLm, ModelConfig};
use burn_tree_nn::LmHeadOptions;
use burn_tree_train::{BlockContext, TreeModel, sft_loss};
use burn_tree_trainer::data::{self, DataOptions};
use burn_tree_trainer::device::device_by_name;
use burn_tree_trainer::plan::{Sharing, StepOrder, StepPlan};
use clap::Parser;
use tree_pack::{PackOptions, PackedStep, Trajectory, TreeBatch};

/// Trains a small Qwen3 with random weights on trees of trajectories with Burn's learner.
#[derive(Parser, Debug)]
#[command(version)]
struct Args {
    /// Trajectories in token form, one JSON object per line, optionally gzipped.
    #[arg(long, default_value = "data/tokens/toolbench_dfsdt.jsonl.gz")]
    data: PathBuf,
    /// Use only these tasks: ids separated by commas.
    #[arg(long, value_delimiter = ',', default_values = DEMO_TASKS)]
    tasks: Vec<String>,
    /// Fraction of the tasks held out for validation.
    #[arg(long, default_value_t = 0.25)]
    validation_fraction: f64,
    /// Passes over the data.
    #[arg(long, default_value_t = 3)]
    epochs: usize,
    /// Tasks per optimizer step.
    #[arg(long, default_value = "1")]
    tasks_per_step: NonZeroUsize,
    /// Token budget of a pack.
    #[arg(long, default_value_t = 8192)]
    token_budget: usize,
    /// Learning rate at the first step.
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
    /// Seed of weights, validation split and data order.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Device.
    #[arg(long, default_value = "flex")]
    device: String,
    /// Folder for logs and checkpoints.
    #[arg(long, default_value = "runs/learner")]
    output: PathBuf,
}

const DEMO_TASKS: [&str; 4] = [
    "toolbench/G1_57",
    "toolbench/G2_10",
    "toolbench/G2_119",
    "toolbench/G2_127",
];

/// The model for the learner.
#[derive(Module, Debug)]
struct TreeFineTuning {
    model: CausalLm,
}

/// The output of a step for the metrics.
struct LossOutput(Tensor<1>);

impl TreeFineTuning {
    /// Loss of an optimizer step, `[1]`.
    fn loss(&self, step: &TreeBatch) -> Tensor<1> {
        let context = BlockContext::new(step);
        let hidden = self.model.hidden_states(step.tokens.clone(), &context);
        // `TrainStep` returns no errors; a batch of whole trees causes none.
        let (hidden, head) = (hidden.expect("whole trees"), self.model.head_weight());
        let options = LmHeadOptions::default();
        let output = context.token_log_probs(hidden, head, &step.occurrences, options);
        sft_loss(output, &step.occurrences)
    }
}

impl TrainStep for TreeFineTuning {
    type Input = TreeBatch;
    type Output = LossOutput;

    fn step(&self, step: TreeBatch) -> TrainOutput<LossOutput> {
        let loss = self.loss(&step);
        TrainOutput::new(self, loss.backward(), LossOutput(loss))
    }
}

impl InferenceStep for TreeFineTuning {
    type Input = TreeBatch;
    type Output = LossOutput;

    fn step(&self, step: TreeBatch) -> LossOutput {
        LossOutput(self.loss(&step))
    }
}

impl ItemLazy for LossOutput {
    fn sync(self) -> Result<Self, burn::backend::ExecutionError> {
        self.0.device().flush()?;
        Ok(Self(self.0.without_autodiff()))
    }
}

impl Adaptor<LossInput> for LossOutput {
    fn adapt(&self) -> LossInput {
        LossInput::new(self.0.clone())
    }
}

/// Uploads the packs of one step. Each batch of the loader is one step.
struct StepBatcher;

impl Batcher<PackedStep, TreeBatch> for StepBatcher {
    fn batch(&self, steps: Vec<PackedStep>, device: &Device) -> TreeBatch {
        let packs: Vec<_> = steps.into_iter().flat_map(|step| step.packs).collect();
        TreeBatch::new(&packs, device)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = device_by_name(&args.device)?;

    let mut data = data::load(&DataOptions {
        files: vec![args.data.clone()],
        tasks: args.tasks.clone(),
        validation_fraction: args.validation_fraction,
        seed: args.seed,
        ..DataOptions::default()
    })?;
    let vocabulary = data.compact_vocabulary();

    let steps = |trajectories: Arc<Vec<Trajectory>>| -> Result<Vec<PackedStep>> {
        let options = PackOptions::new(args.token_budget);
        let order = StepOrder::once(args.tasks_per_step, args.seed);
        let plan = StepPlan::new(trajectories, Sharing::Tree, options, order)?;
        (0..plan.steps_per_epoch())
            .map(|step| Ok(plan.packs(step)?))
            .collect()
    };
    let (training, validation) = (steps(data.training)?, steps(data.validation)?);
    let schedule =
        CosineAnnealingLrSchedulerConfig::new(args.learning_rate, training.len() * args.epochs)
            .init()
            .map_err(anyhow::Error::msg)
            .context("--learning-rate")?;
    let training = DataLoaderBuilder::new(StepBatcher)
        .batch_size(1)
        .shuffle(args.seed)
        .build(InMemDataset::new(training));
    let validation = DataLoaderBuilder::new(StepBatcher)
        .batch_size(1)
        .build(InMemDataset::new(validation));

    let config = ModelConfig::named("tiny", vocabulary.len())?;
    let model = CausalLm::random(&config, args.seed, FloatDType::F32, &device.autodiff());
    let learner = Learner::new(
        TreeFineTuning { model },
        AdamWConfig::new().init(),
        schedule,
    );
    let result = SupervisedTraining::new(&args.output, training, validation)
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .metric_train_numeric(LearningRateMetric::new())
        .with_default_checkpointers()
        .num_epochs(args.epochs)
        .summary()
        .launch(learner);
    match result.error {
        None => Ok(()),
        Some(error) => Err(anyhow::Error::new(error)),
    }
}
