//! `--sharing auto`: trees or separate trajectories for each task, by predicted time and memory.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use burn::module::Module;
use burn_tree_train::{
    Calibration, CalibrationOptions, MemoryLimit, SharingChoice, SharingGate, StepTime, StepWork,
    TaskSharing, TreeModel, calibrate,
};
use serde::{Deserialize, Serialize};
use tree_pack::{Pack, PackOptions};

use crate::loss::Supervised;
use crate::memory::{MemoryEstimate, MemoryOptions, StepRows, available_memory};
use crate::optim::optimizer_step::Trainer;
use crate::plan::{Plans, StepPlan};
use crate::report::metrics::StepRecord;
use crate::report::table;
use crate::report::timing::median;
use crate::run::atomic;
use burn_tree_models::{ModelConfig, ModelSize};

/// The choice for every task of a run. It is stored in the folder of the run, so that a resumed run
/// keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChosenSharing {
    /// Seconds per unit of each kind of work, in the order of [`StepWork::NAMES`].
    seconds_of_one: [f64; StepWork::NAMES.len()],
    /// In the order of the data.
    tasks: Vec<ChosenTask>,
}

/// The choice for one task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ChosenTask {
    task_id: String,
    #[serde(with = "SerdeTaskSharing")]
    sharing: TaskSharing,
    /// Predicted time as trees; absent if they do not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tree_seconds: Option<f64>,
    /// Predicted time as separate trajectories; absent if they do not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    flat_seconds: Option<f64>,
}

/// The serialised form of [`TaskSharing`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "TaskSharing", rename_all = "kebab-case")]
enum SerdeTaskSharing {
    Tree,
    Flat,
}

impl From<&SharingChoice> for ChosenTask {
    fn from(choice: &SharingChoice) -> Self {
        Self {
            task_id: choice.task_id.clone(),
            sharing: choice.sharing,
            tree_seconds: choice.tree.as_ref().ok().map(|cost| cost.seconds),
            flat_seconds: choice.flat.as_ref().ok().map(|cost| cost.seconds),
        }
    }
}

impl ChosenTask {
    fn seconds(&self) -> Option<f64> {
        match self.sharing {
            TaskSharing::Tree => self.tree_seconds,
            TaskSharing::Flat => self.flat_seconds,
        }
    }
}

/// The memory limit for the packs of a step.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// The model.
    pub config: &'a ModelConfig,
    /// Its sizes and costs.
    pub size: &'a ModelSize,
    /// How steps are computed.
    pub run: MemoryOptions,
    /// Bytes of the device for the whole run. If absent, the limit is the free system memory on
    /// devices that use system memory; there is none on other devices.
    pub device_bytes: Option<u64>,
}

impl Memory<'_> {
    /// Bytes of a step of these packs without the parameters, which are already allocated.
    fn of_step(&self, packs: &[Pack]) -> u64 {
        let step = StepRows::of_packs(packs, self.config.is_hybrid());
        let estimate = MemoryEstimate::new(self.config, self.size, &self.run, &step);
        estimate.total() - estimate.parameters
    }

    fn limit<M>(&self, trainer: &Trainer<M>) -> Option<u64> {
        if let Some(bytes) = self.device_bytes {
            let parameters =
                MemoryEstimate::new(self.config, self.size, &self.run, &StepRows::default())
                    .parameters;
            return Some(bytes.saturating_sub(parameters));
        }
        match trainer.device.clone().inner().memory_pool_usage() {
            Some(_) => None,
            None => available_memory(),
        }
    }
}

impl ChosenSharing {
    /// Times a few small steps with a copy of the trainer and chooses for every task.
    ///
    /// # Errors
    /// If a step fails, or a task fits neither as trees nor as separate trajectories.
    pub fn new<M: Module + TreeModel>(
        plans: &Plans,
        trainer: &Trainer<M>,
        memory: &Memory<'_>,
    ) -> Result<Self> {
        let start = Instant::now();
        let options = plans.tree.options();
        let calibration = calibrate_on(trainer, options, memory.config)?;
        println!(
            "Calibration: {} small steps in {:.1} s, predicted with an error of {:.0} % (root mean \
             square)",
            calibration.steps.len(),
            start.elapsed().as_secs_f64(),
            100.0 * calibration.relative_error(),
        );
        let bytes = |packs: &[Pack]| memory.of_step(packs);
        let gate = SharingGate {
            trajectories: plans.tree.trajectories(),
            options: *options,
            time: calibration.step_time,
            recurrent: memory.config.is_hybrid(),
            memory: memory.limit(trainer).map(|limit| MemoryLimit {
                bytes: &bytes,
                limit,
            }),
        };
        let forests = plans.tree.forests().iter().zip(plans.flat.forests());
        let choices = forests.map(|(tree, flat)| gate.choose(tree, flat));
        Ok(Self {
            seconds_of_one: calibration.step_time.seconds_of_one(),
            tasks: choices
                .map(|choice| Ok(ChosenTask::from(&choice?)))
                .collect::<Result<_>>()?,
        })
    }

    /// Reads the choice of the run in `folder`.
    ///
    /// # Errors
    /// If the file is missing, invalid, or lists other tasks.
    pub fn load(folder: &Path, plans: &Plans) -> Result<Self> {
        let file = folder.join(FILE);
        let context = || format!("{}", file.display());
        let bytes = std::fs::read(&file).with_context(context)?;
        let chosen: Self = serde_json::from_slice(&bytes).with_context(context)?;
        let ids = chosen.tasks.iter().map(|task| task.task_id.as_str());
        if !ids.eq(plans.tree.forests().iter().map(|forest| forest.task_id())) {
            bail!("{}: the tasks are not those of the data", file.display());
        }
        Ok(chosen)
    }

    /// Writes the choice into the folder of the run.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        Ok(atomic::write(
            &folder.join(FILE),
            &serde_json::to_vec_pretty(self)?,
        )?)
    }

    /// The plan of the run.
    pub fn plan(&self, plans: &Plans) -> StepPlan {
        let sharing: Vec<TaskSharing> = self.tasks.iter().map(|task| task.sharing).collect();
        plans.choose(&sharing)
    }

    /// Seconds per unit of each kind of work.
    pub fn step_time(&self) -> StepTime {
        StepTime::new(StepWork::from(self.seconds_of_one))
    }

    /// Prints a summary, and a table of the tasks if there are few.
    pub fn print(&self) {
        /// Largest number of tasks in the table.
        const FEW: usize = 24;
        let seconds = |seconds: Option<f64>| {
            seconds.map_or_else(|| "does not fit".to_owned(), |s| format!("{s:.3}"))
        };
        if self.tasks.len() <= FEW {
            let rows = self.tasks.iter().map(|task| {
                let speedup = task.flat_seconds.zip(task.tree_seconds);
                vec![
                    task.task_id.clone(),
                    seconds(task.tree_seconds),
                    seconds(task.flat_seconds),
                    speedup.map_or_else(
                        || "-".to_owned(),
                        |(flat, tree)| format!("{:.2}x", flat / tree),
                    ),
                    match task.sharing {
                        TaskSharing::Tree => "trees",
                        TaskSharing::Flat => "separate",
                    }
                    .to_owned(),
                ]
            });
            let header = ["task", "trees, s", "separate, s", "predicted", "chosen"];
            println!("{}", table(&header, rows.collect()));
        }
        let trees = self
            .tasks
            .iter()
            .filter(|task| task.sharing == TaskSharing::Tree);
        let chosen: f64 = self.tasks.iter().filter_map(ChosenTask::seconds).sum();
        let flat: Option<f64> = self.tasks.iter().map(|task| task.flat_seconds).sum();
        println!(
            "Sharing: {} of {} tasks as trees; predicted {chosen:.2} s per epoch without the fixed \
             time of each step{}",
            trees.count(),
            self.tasks.len(),
            flat.map_or_else(String::new, |flat| format!(
                ", {:.2}x faster than separate trajectories",
                flat / chosen
            )),
        );
    }
}

const FILE: &str = "sharing.json";

/// Calibrates the time of steps with a copy of this trainer.
///
/// # Errors
/// If a step fails.
pub fn calibrate_on<M: Module + TreeModel>(
    trainer: &Trainer<M>,
    packs: &PackOptions,
    config: &ModelConfig,
) -> Result<Calibration> {
    let options = CalibrationOptions {
        pad_to_multiple: packs.pad_to_multiple,
        recurrent: config.is_hybrid(),
        partitioning: packs.partitioning,
        ..CalibrationOptions::new(config.vocab_size, packs.token_budget)
    };
    let mut scratch = trainer.clone();
    calibrate(&options, |step| {
        // The learning rate is 0, so that only the copy's moments change.
        let outcome = scratch.step(step, &Supervised, 0.0.into())?;
        Ok(outcome.seconds)
    })
}

/// Prints predicted and measured times over the steps of a run. The first step is left out, because
/// allocators and caches warm up, unless it is the only one.
pub fn print_prediction(records: &[StepRecord]) {
    let timed = if records.len() > 1 {
        &records[1..]
    } else {
        records
    };
    for (name, of) in [
        (
            "as chosen",
            (|record: &StepRecord| record.tree.clone()) as fn(&StepRecord) -> _,
        ),
        ("separate trajectories", |record| record.flat.clone()),
    ] {
        let pairs: Vec<(f64, f64)> = timed
            .iter()
            .filter_map(of)
            .filter_map(|record| Some((record.predicted_seconds?, record.seconds)))
            .collect();
        if pairs.is_empty() {
            continue;
        }
        let sums = pairs
            .iter()
            .fold((0.0, 0.0), |(p, s), (predicted, seconds)| {
                (p + predicted, s + seconds)
            });
        let errors = pairs.iter().map(|(p, s)| (p / s - 1.0).abs()).collect();
        println!(
            "Steps {name}: predicted {:.2} s, measured {:.2} s, median error of a step {:.0} %",
            sums.0,
            sums.1,
            100.0 * median(errors),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::adamw::{AdamWOptions, adamw};
    use crate::plan::StepOrder;
    use burn::tensor::{Device, FloatDType};
    use burn_tree_models::{CausalLm, Precision};
    use std::num::NonZeroUsize;
    use std::sync::Arc;
    use tree_pack::Trajectory;

    const ADAMW: AdamWOptions = AdamWOptions {
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
    };

    fn config() -> ModelConfig {
        ModelConfig {
            hidden_size: 16,
            intermediate_size: 24,
            num_hidden_layers: 1,
            num_attention_heads: 2,
            num_key_value_heads: 1,
            head_dim: 8,
            rotary_dim: 8,
            initializer_range: 0.2,
            ..ModelConfig::named("tiny", 50).unwrap()
        }
    }

    fn trainer() -> Trainer<CausalLm> {
        let device = Device::flex().autodiff();
        let model = CausalLm::random(&config(), 1, FloatDType::F32, &device);
        Trainer {
            optimizer: adamw(&model, &ADAMW, &device),
            model,
            max_gradient_norm: None,
            precision: Precision::F32,
            options: Default::default(),
            device,
        }
    }

    /// Two tasks of three answers to a prompt: of 20 tokens, and of 60.
    fn plans(token_budget: usize) -> Plans {
        let trajectories = [(0, 20), (1, 60)].into_iter().flat_map(|(task, prompt)| {
            (0..3u32).map(move |answer| {
                let own = (0..8).map(move |index| (index * 3 + answer * 11 + 7) % 50);
                let tokens: Vec<u32> = (0..prompt).map(|t| (t + task) % 50).chain(own).collect();
                let mask = (0..tokens.len()).map(|index| index % 3 > 0).collect();
                Trajectory::new(format!("t{task}"), answer.to_string(), tokens, mask)
            })
        });
        let order = StepOrder::once(NonZeroUsize::new(2).unwrap(), 0);
        let trajectories = Arc::new(trajectories.collect());
        Plans::new(&trajectories, PackOptions::new(token_budget), order).unwrap()
    }

    fn choose(plans: &Plans) -> ChosenSharing {
        let config = config();
        let size = ModelSize::new(&config, None);
        let memory = Memory {
            config: &config,
            size: &size,
            run: MemoryOptions::F32,
            device_bytes: None,
        };
        ChosenSharing::new(plans, &trainer(), &memory).unwrap()
    }

    /// Of the larger task only separate trajectories fit.
    #[test]
    fn a_tree_that_does_not_fit_becomes_separate_trajectories() {
        let plans = plans(70);
        let chosen = choose(&plans);
        assert_eq!(chosen.tasks[1].sharing, TaskSharing::Flat);
        assert_eq!(chosen.tasks[1].tree_seconds, None);
        assert!(plans.tree.packs(0).is_err());
        assert!(chosen.plan(&plans).packs(0).is_ok());
    }

    #[test]
    fn what_was_chosen_is_found_again() {
        let plans = plans(70);
        let chosen = choose(&plans);
        let folder = tempfile::tempdir().unwrap();
        chosen.save(folder.path()).unwrap();
        assert_eq!(ChosenSharing::load(folder.path(), &plans).unwrap(), chosen);
        let mut other = chosen;
        other.tasks.pop();
        other.save(folder.path()).unwrap();
        let error = ChosenSharing::load(folder.path(), &plans).unwrap_err();
        assert!(
            error.to_string().contains("not those of the data"),
            "{error}"
        );
    }

    /// Whatever is chosen, loss and gradients' norm of the step are the same.
    #[test]
    fn every_choice_gives_the_same_step() {
        let plans = plans(128);
        let step = |sharing: [TaskSharing; 2]| {
            let step = plans.choose(&sharing).packs(0).unwrap();
            let rows: usize = step.packs.iter().map(|pack| pack.layout.len()).sum();
            let outcome = trainer().step(&step, &Supervised, 1e-3.into()).unwrap();
            (rows, outcome.loss, outcome.gradient_norm)
        };
        let (tree_rows, loss, norm) = step([TaskSharing::Tree, TaskSharing::Tree]);
        for sharing in [
            [TaskSharing::Tree, TaskSharing::Flat],
            [TaskSharing::Flat, TaskSharing::Tree],
            [TaskSharing::Flat, TaskSharing::Flat],
        ] {
            let (rows, other_loss, other_norm) = step(sharing);
            assert!(rows > tree_rows);
            // Sums in f32 in another order.
            assert!(
                (other_loss - loss).abs() < 1e-6 * loss,
                "{other_loss} {loss}"
            );
            assert!(
                (other_norm - norm).abs() < 1e-5 * norm,
                "{other_norm} {norm}"
            );
        }
    }
}
