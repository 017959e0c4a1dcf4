//! A `Batcher` for Burn's `DataLoader`.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, FloatDType};

use super::tree_batch::TreeBatch;
use crate::packs::{Pack, PackedStep};

/// Collects packs into [`TreeBatch`]es for Burn's `DataLoader`.
///
/// The packs of a batch must belong to one optimizer step, because their weights contain its
/// denominator. If the items of the data loader are packs, every step must have the same number of
/// packs, and the batch size must be this number: with a larger one, batches contain packs of two
/// steps; with a smaller one, an update of the learner is only a part of a step. If steps have
/// different numbers of packs, use whole steps as items, as the program `learner` of the examples
/// does.
///
/// # Panics
/// As [`TreeBatch::new`]: with "pack 1 is of another optimizer step than pack 0: its weights have
/// another denominator" if a batch has packs of two steps, and with "row 0 of pack 1 begins at
/// depth 7, expected 0: its pack continues another one (see step_gradients)" if a pack is a part of
/// a larger tree, which a batch cannot contain.
///
/// # Example
/// ```
/// use burn::data::dataloader::DataLoaderBuilder;
/// use burn::data::dataset::InMemDataset;
/// use burn::tensor::Device;
/// use tree_pack::{PackOptions, PrefixForest, Trajectory, TreeBatch, TreeBatcher, pack_step};
///
/// /// The packs of one step as one batch, whose loss is the loss of the step.
/// fn step_batch(
///     trajectories: &[Trajectory],
///     tasks: &[PrefixForest],
///     device: Device,
/// ) -> Result<TreeBatch, Box<dyn std::error::Error>> {
///     let step = pack_step(trajectories, tasks, &PackOptions::new(8192))?;
///     let loader = DataLoaderBuilder::new(TreeBatcher::default())
///         .batch_size(step.packs.len())
///         .set_device(device)
///         .build(InMemDataset::new(step.packs));
///     let batch = loader.iter().next().ok_or("a step without packs")?;
///     Ok(batch?)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct TreeBatcher {
    /// Type of weights, advantages and log-probabilities.
    pub dtype: FloatDType,
}

impl Default for TreeBatcher {
    fn default() -> Self {
        Self {
            dtype: FloatDType::F32,
        }
    }
}

impl Batcher<Pack, TreeBatch> for TreeBatcher {
    fn batch(&self, packs: Vec<Pack>, device: &Device) -> TreeBatch {
        TreeBatch::with_dtype(&packs, device, self.dtype)
    }
}

/// Batches whole steps: with a batch size of 1, each batch is one optimizer step.
impl Batcher<PackedStep, TreeBatch> for TreeBatcher {
    fn batch(&self, steps: Vec<PackedStep>, device: &Device) -> TreeBatch {
        let packs: Vec<Pack> = steps.into_iter().flat_map(|step| step.packs).collect();
        TreeBatch::with_dtype(&packs, device, self.dtype)
    }
}
