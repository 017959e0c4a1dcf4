//! What a run starts from: the device, the model's source and shape, and the data.

use std::num::NonZeroUsize;
use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;
use tree_pack::{PackOptions, Trajectory, build_forests};

use crate::data::selection::Selection;
use crate::data::{self, Data, DataOptions, TextOptions};
use crate::device::device_by_name;
use crate::options::{LoraExport, RunArgs, ValidationArgs};
use crate::plan::{Sharing, StepOrder, StepPlan, largest_tree};
use crate::run::model_source::ModelSource;
use burn_tree_models::lora;
use burn_tree_models::weights::SaveOptions;
use burn_tree_models::{CausalLm, ModelConfig, ModelSize};

/// Tokens of a pack that keep matrix products efficient.
const DEFAULT_BUDGET: usize = 8192;

/// Everything that is known before any memory is taken for the model.
pub struct Setup {
    /// The device, with autodiff.
    pub device: Device,
    /// Where the model comes from.
    pub source: ModelSource,
    /// Its shape.
    pub config: ModelConfig,
    /// Sizes of it.
    pub size: ModelSize,
    /// The trajectories, selected and split by task.
    pub data: Data,
    /// The tokenizer's id of each of the model's, if they were renumbered.
    pub original_ids: Option<Vec<u32>>,
}

impl Setup {
    /// Finds the device and the model's shape, and reads the data.
    ///
    /// # Errors
    /// If an option, the model's configuration or the data cannot be used.
    pub fn new(args: &RunArgs, validation: &ValidationArgs, selection: Selection) -> Result<Self> {
        let device = device_by_name(&args.steps.device)?.autodiff();
        let source = ModelSource::find(&args.model.model);
        let mut config = source.config(None)?;
        let options = data_options(args, validation, selection, &source, config.vocab_size);
        let mut data = data::load(&options)?;
        let mut original_ids = None;
        if args.model.compact_vocab {
            let vocabulary = data.compact_vocabulary();
            config = source.config(Some(vocabulary.len()))?;
            original_ids = Some(vocabulary.original_ids);
        }
        Ok(Self {
            size: ModelSize::new(&config, args.model.lora_rank.map(Into::into)),
            device,
            source,
            config,
            data,
            original_ids,
        })
    }

    /// The training data, to fill in what is known about the tokens.
    pub fn training_mut(&mut self) -> &mut Vec<Trajectory> {
        Arc::make_mut(&mut self.data.training)
    }

    /// How steps are packed, as far as all programs agree: packs of the tokens given, or of those
    /// of the largest tree or 8192.
    ///
    /// # Errors
    /// If a trajectory is invalid or a task too large.
    pub fn pack_options(&self, args: &RunArgs) -> Result<PackOptions> {
        let largest = |trajectories: &[Trajectory]| -> Result<usize> {
            Ok(largest_tree(&build_forests(trajectories)?))
        };
        let token_budget = match args.steps.token_budget {
            Some(budget) => budget.get(),
            None => DEFAULT_BUDGET
                .max(largest(&self.data.training)?)
                .max(largest(&self.data.validation)?),
        };
        Ok(PackOptions {
            partitioning: args.steps.partitioning.into(),
            ..PackOptions::new(token_budget)
        })
    }

    /// The tasks held out as one plan, if there are any.
    ///
    /// # Errors
    /// If a trajectory is invalid or a task too large.
    pub fn validation_plan(
        &self,
        packs: PackOptions,
        order: StepOrder,
    ) -> Result<Option<StepPlan>> {
        let trajectories = &self.data.validation;
        if trajectories.is_empty() {
            return Ok(None);
        }
        let plan = StepPlan::new(trajectories.clone(), Sharing::Tree, packs, order)?;
        Ok(Some(plan))
    }

    /// The model as training begins: loaded or drawn from the seed, with fresh adapters if adapters
    /// are trained.
    ///
    /// # Errors
    /// If its weights cannot be loaded.
    pub fn model(&self, args: &RunArgs) -> Result<CausalLm> {
        let model = self
            .source
            .load(&self.config, args.steps.seed, &self.device)?;
        match args.model.lora() {
            None => Ok(model),
            Some(lora) => {
                self.device.seed(args.steps.seed);
                Ok(lora.apply(model)?)
            }
        }
    }

    /// Writes the trained model where `--export` says.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub fn export(&self, args: &RunArgs, model: &CausalLm) -> Result<()> {
        let Some(folder) = &args.output.export else {
            return Ok(());
        };
        match (args.model.lora(), args.model.lora_export) {
            (None, _) => model.save(&self.config, folder, SaveOptions::default())?,
            (Some(_), LoraExport::Merged) => {
                lora::merged(model).save(&self.config, folder, SaveOptions::default())?;
            }
            (Some(lora), LoraExport::Peft) => {
                lora.save_adapter(model, &self.source.name(), folder)?;
            }
        }
        println!("Model: {}", folder.display());
        Ok(())
    }
}

fn data_options(
    args: &RunArgs,
    validation: &ValidationArgs,
    selection: Selection,
    source: &ModelSource,
    vocab_size: usize,
) -> DataOptions {
    let data = &args.data;
    let template = || {
        source
            .file("chat_template.jinja")
            .or(source.file("tokenizer_config.json"))
    };
    DataOptions {
        files: data.data.clone(),
        text: TextOptions {
            template: data.template.clone().or_else(template),
            tokenizer: data
                .tokenizer
                .clone()
                .or_else(|| source.file("tokenizer.json")),
            tools: data.tools.clone(),
        },
        // Renumbered ids always fit.
        vocab_size: (!args.model.compact_vocab).then_some(vocab_size),
        tasks: data.tasks.clone(),
        selection,
        max_length: data.max_length.map(NonZeroUsize::get),
        too_long: data.too_long,
        validation_fraction: validation.validation_fraction,
        seed: args.steps.seed,
    }
}
