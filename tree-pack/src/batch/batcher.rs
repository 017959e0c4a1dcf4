//! A `Batcher` for Burn's `DataLoader`.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, FloatDType};

use super::tree_batch::TreeBatch;
use crate::packs::{Pack, PackedStep};

/// Collects packs into [`TreeBatch`]es for Burn's `DataLoader`.
///
/// The packs of a batch must be of one optimizer step, since their weights contain its
/// denominator. So if the items of the data loader are the packs of one step after the other, its
/// batch size is the number of packs that every step has: with any other, sooner or later a batch
/// has packs of two steps. And if it is smaller than that, what the learner calls a step is a part
/// of one. Where steps have different numbers of packs, let the items be whole steps, as the
/// program `learner` of the examples does.
///
/// # Panics
/// As [`TreeBatch::new`]: with "pack 1 is of another optimizer step than pack 0: its weights have
/// another denominator" if a batch has packs of two steps, and with "row 0 of pack 1 begins at
/// depth 7, expected 0: its pack continues another one (see step_gradients)" if a pack is a part of
/// a larger tree, which a batch cannot compute.
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

/// Items that are whole steps: a batch size of 1 makes each batch one optimizer step.
impl Batcher<PackedStep, TreeBatch> for TreeBatcher {
    fn batch(&self, steps: Vec<PackedStep>, device: &Device) -> TreeBatch {
        let packs: Vec<Pack> = steps.into_iter().flat_map(|step| step.packs).collect();
        TreeBatch::with_dtype(&packs, device, self.dtype)
    }
}
