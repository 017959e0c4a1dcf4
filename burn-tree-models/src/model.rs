//! The language model.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::nn::Embedding;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};
use burn_tree_nn::{GatherPlan, gather_rows};
use burn_tree_train::{BlockContext, BlockError, BlockOutputs, BlockPast, TreeModel};

use crate::config::ModelConfig;
use crate::layers::source::{ParameterSource, RandomSource};
use crate::layers::{Block, RmsNorm};
use crate::precision;

/// A language model of any family.
///
/// Matrices of linear layers are those of a Hugging Face checkpoint, transposed. [`weights`]
/// defines the keys.
///
/// [`weights`]: crate::weights
///
/// ```
/// use burn::tensor::{Device, FloatDType};
/// use burn_tree_train::{BlockContext, TreeModel};
/// use tree_pack::{PackOptions, Trajectory, TreeBatch, build_forests, pack_step};
/// use burn_tree_models::{CausalLm, ModelConfig};
///
/// let device = Device::flex();
/// let config = ModelConfig { num_hidden_layers: 1, ..ModelConfig::named("tiny", 10)? };
/// let model = CausalLm::random(&config, 0, FloatDType::F32, &device);
/// let trajectories = [vec![1, 2, 3], vec![1, 2, 4]]
///     .map(|tokens| Trajectory::new("task", "run", tokens, vec![true; 3]));
/// let forests = build_forests(&trajectories)?;
/// let step = pack_step(&trajectories, &forests, &PackOptions::new(64))?;
/// let batch = TreeBatch::new(&step.packs, &device);
/// let context = BlockContext::new(&batch);
/// let hidden = model.hidden_states(batch.tokens.clone(), &context).unwrap();
/// assert_eq!(hidden.dims(), [1, 4, config.hidden_size]); // four tokens instead of six
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Module, Debug)]
pub struct CausalLm {
    /// `[vocab, hidden]`
    pub embed_tokens: Embedding,
    /// The blocks.
    pub layers: Vec<Block>,
    /// The final norm.
    pub norm: RmsNorm,
    /// The head; `None` if it shares the weight of the embedding.
    pub lm_head: Option<LmHead>,
}

/// A separate head.
#[derive(Module, Debug)]
pub struct LmHead {
    /// `[vocab, hidden]`
    pub weight: Param<Tensor<2>>,
}

impl CausalLm {
    /// A model with random weights, initialised as the reference models: matrices and convolutions
    /// from a normal distribution with standard deviation `initializer_range`, norms with scale
    /// one, decay rates between 0.01 and 16. The same seed gives the same weights on every device.
    pub fn random(config: &ModelConfig, seed: u64, dtype: FloatDType, device: &Device) -> Self {
        let mut source = RandomSource::new(config.initializer_range, seed, dtype, device);
        let Ok(model) = Self::build(config, &mut source);
        model
    }

    pub(crate) fn build<S: ParameterSource>(
        config: &ModelConfig,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embedding = source.table("model.embed_tokens.weight", vocab, hidden)?;
        let layers = (0..config.num_hidden_layers)
            .map(|layer| Block::new(config, layer, source))
            .collect::<Result<_, _>>()?;
        let norm = RmsNorm::new(config, "model.norm", hidden, source)?;
        let lm_head = match config.tie_word_embeddings {
            true => None,
            false => Some(LmHead {
                weight: Param::from_tensor(source.table("lm_head.weight", vocab, hidden)?),
            }),
        };
        Ok(Self {
            embed_tokens: Embedding {
                weight: Param::from_tensor(embedding),
            },
            layers,
            norm,
            lm_head,
        })
    }

    /// The argument `keep` of [`burn_tree_train::shadow`]: [`precision::stays_wide`].
    pub fn stays_wide(path: &str) -> bool {
        precision::stays_wide(path)
    }

    /// The compute dtype of the blocks: that of their projections.
    fn compute_dtype(&self) -> DType {
        match self.layers.first() {
            Some(block) => block.compute_dtype(),
            None => self.embed_tokens.weight.val().dtype(),
        }
    }
}

impl TreeModel for CausalLm {
    /// # Panics
    ///
    /// If a token id is not below the size of the vocabulary.
    fn embed(&self, tokens: Tensor<2, Int>, context: &BlockContext) -> Tensor<3> {
        let [batch, rows] = tokens.dims();
        let weight = self.embed_tokens.weight.val();
        let [vocab, hidden] = weight.dims();
        let plan = GatherPlan::new(context.host_tokens().to_vec(), vocab)
            .unwrap_or_else(|error| panic!("token ids outside the vocabulary: {error}"));
        gather_rows(weight, &Arc::new(plan))
            .reshape([batch, rows, hidden])
            .cast(self.compute_dtype())
    }

    fn n_blocks(&self) -> usize {
        self.layers.len()
    }

    fn block(
        &self,
        index: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<(Tensor<3>, BlockOutputs), BlockError> {
        self.layers[index].forward(x, context, past, context.routing(index))
    }

    fn final_norm(&self, x: Tensor<3>) -> Tensor<3> {
        self.norm.forward(x)
    }

    fn head_weight(&self) -> Tensor<2> {
        match &self.lm_head {
            Some(head) => head.weight.val(),
            None => self.embed_tokens.weight.val(),
        }
    }
}
