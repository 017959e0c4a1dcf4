//! Whole Gated DeltaNet layers on a tree and on separate trajectories.

use anyhow::{Context, Result, bail};
use burn::module::Module;
use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_tree_models::layers::{GatedDeltaNet, Mixer};
use burn_tree_models::{CausalLm, LayerType, LinearAttentionConfig, ModelConfig, ProjectionLayout};
use burn_tree_train::BlockContext;
use burn_tree_trainer::report::timing::{Repetitions, seconds};
use clap::ValueEnum;
use serde::Serialize;
use tree_pack::{
    Pack, PackOptions, PrefixForest, TreeBatch, build_forests, flat_forests, pack_step,
};
use tree_training_benchmarks::packs::PAD_TO_MULTIPLE;
use tree_training_benchmarks::trees::{LEAVES, TreeShape};

/// Tokens of the trajectories per token of the tree. Below this ratio, layers on trees have been
/// reported to be slower than on trajectories.
const OVERLAP: f64 = 0.2;

/// The shape of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LayerShape {
    /// Hidden 2048, 16 key and 32 value heads.
    #[value(name = "qwen3-next")]
    Qwen3Next,
    /// Hidden 1024, 16 key and 16 value heads.
    #[value(name = "qwen3.5-0.8b")]
    Qwen35_0_8b,
}

/// The times of a layer.
#[derive(Clone, Debug, Serialize)]
pub struct MeasuredLayer {
    /// The shape.
    pub layer: String,
    /// The compute dtype.
    pub dtype: String,
    /// Tokens of the tree.
    pub tree_tokens: usize,
    /// Tokens of the trajectories.
    pub flat_tokens: usize,
    /// Seconds of the forward pass on the tree.
    pub tree_forward_seconds: f64,
    /// Seconds of forward and backward on the tree.
    pub tree_seconds: f64,
    /// Seconds of the forward pass on the trajectories.
    pub flat_forward_seconds: f64,
    /// Seconds of forward and backward on the trajectories.
    pub flat_seconds: f64,
}

impl LayerShape {
    fn name(self) -> String {
        let value = self.to_possible_value().expect("no variant is skipped");
        value.get_name().to_owned()
    }

    /// A model with one recurrent block and minimal other parts.
    fn config(self) -> Result<ModelConfig> {
        let (hidden_size, num_value_heads) = match self {
            Self::Qwen3Next => (2048, 32),
            Self::Qwen35_0_8b => (1024, 16),
        };
        let layer = LinearAttentionConfig {
            num_key_heads: 16,
            num_value_heads,
            key_head_dim: 128,
            value_head_dim: 128,
            conv_kernel_dim: 4,
            projections: ProjectionLayout::Split,
        };
        Ok(ModelConfig {
            hidden_size,
            intermediate_size: 1,
            num_hidden_layers: 1,
            layer_types: vec![LayerType::LinearAttention(layer)],
            ..ModelConfig::named("tiny-hybrid", 1)?
        })
    }

    /// Times the layer on a tree of 16 trajectories of `length` tokens, and on these trajectories.
    pub fn measure(
        self,
        length: usize,
        dtype: DType,
        device: &Device,
        repetitions: Repetitions,
    ) -> Result<MeasuredLayer> {
        let config = self.config()?;
        let device = device.clone().autodiff();
        let model = CausalLm::random(&config, 0, dtype.into(), &device);
        let Mixer::GatedDeltaNet(layer) = &model.layers[0].mixer else {
            bail!("the block is not recurrent");
        };
        let trajectories = TreeShape::two_forks(OVERLAP, length)
            .with_context(|| format!("trajectories of {length} tokens are too short for a tree"))?
            .trajectories("layer", LEAVES);
        let pack = |forests: Vec<PrefixForest>| -> Result<Pack> {
            let options = PackOptions {
                pad_to_multiple: PAD_TO_MULTIPLE,
                ..PackOptions::new((LEAVES * length).next_multiple_of(PAD_TO_MULTIPLE))
            };
            let step = pack_step(&trajectories, &forests, &options)?;
            step.packs.into_iter().next().context("no pack")
        };
        let tree = pack(build_forests(&trajectories)?)?;
        let flat = pack(flat_forests(&trajectories)?)?;
        let time =
            |pack: &Pack| forward_and_both(layer, &config, pack, dtype, &device, repetitions);
        let [tree_forward_seconds, tree_seconds] = time(&tree);
        let [flat_forward_seconds, flat_seconds] = time(&flat);
        Ok(MeasuredLayer {
            layer: self.name(),
            dtype: format!("{dtype:?}").to_lowercase(),
            tree_tokens: tree.layout.len(),
            flat_tokens: flat.layout.len(),
            tree_forward_seconds,
            tree_seconds,
            flat_forward_seconds,
            flat_seconds,
        })
    }
}

/// Seconds of the forward pass, and of forward and backward from a gradient of ones, with gradients
/// of the input and of all parameters.
fn forward_and_both(
    layer: &GatedDeltaNet,
    config: &ModelConfig,
    pack: &Pack,
    dtype: DType,
    device: &Device,
    repetitions: Repetitions,
) -> [f64; 2] {
    let plain = device.clone().inner();
    let context = BlockContext::new(&TreeBatch::new(std::slice::from_ref(pack), device));
    let normal = Distribution::Normal(0.0, 1.0);
    let x = Tensor::<3>::random([1, pack.padded_len, config.hidden_size], normal, &plain);
    let x = x.cast(dtype);
    let inference = layer.clone().valid();
    let forward = seconds(&plain, repetitions, || {
        let output = inference.forward(x.clone(), &context, None);
        output.expect("a layer of the model").hidden
    });
    let x = x.autodiff().require_grad();
    let both = seconds(&plain, repetitions, || {
        let output = layer.forward(x.clone(), &context, None);
        output.expect("a layer of the model").hidden.backward()
    });
    [forward, both]
}
