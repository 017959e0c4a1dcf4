//! The inputs of a run: device, model source and configuration, and data.

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

/// Rows of a pack that are enough for efficient matrix products.
const DEFAULT_BUDGET: usize = 8192;

/// The inputs of a run, before memory is allocated for the model.
pub struct Setup {
    /// The device, with autodiff.
    pub device: Device,
    /// The source of the model.
    pub source: ModelSource,
    /// The configuration of the model.
    pub config: ModelConfig,
    /// The sizes and costs of the model.
    pub size: ModelSize,
    /// The trajectories, selected and split by task.
    pub data: Data,
    /// The tokenizer's id of each token id of the model, if token ids were renumbered.
    pub original_ids: Option<Vec<u32>>,
}

impl Setup {
    /// Opens the device, reads the configuration of the model, and reads the data.
    ///
    /// # Errors
    /// If an option, the configuration or the data are invalid.
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

    /// The training data, to add columns.
    pub fn training_mut(&mut self) -> &mut Vec<Trajectory> {
        Arc::make_mut(&mut self.data.training)
    }

    /// The packing options common to all programs. The default token budget is 8192, or the largest
    /// tree if it is larger.
    ///
    /// # Errors
    /// If a trajectory is invalid or a task is too large.
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

    /// The plan of the validation tasks, if there are any.
    ///
    /// # Errors
    /// If a trajectory is invalid or a task is too large.
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

    /// The initial model: loaded, or random from the seed, with new adapters if adapters are
    /// trained.
    ///
    /// # Errors
    /// If the weights cannot be loaded.
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

    /// Exports the trained model, if `--export` is set.
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
        println!("Exported model: {}", folder.display());
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
        // Compact token ids are always below the vocabulary size.
        vocab_size: (!args.model.compact_vocab).then_some(vocab_size),
        tasks: data.tasks.clone(),
        selection,
        max_length: data.max_length.map(NonZeroUsize::get),
        too_long: data.too_long,
        validation_fraction: validation.validation_fraction,
        seed: args.steps.seed,
    }
}
