//! A small model as users write it, with Burn's layers initialised by their configs and tree
//! attention, and typical mistakes in such models.

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::tensor::{Device, Int, Tensor, activation};
use burn_tree_attn::{
    KeyValue, RopeConfig, TreeAttentionOptions, try_rope, try_tree_attention,
    try_tree_attention_with_past,
};
use burn_tree_train::{BlockContext, BlockError, BlockOutputs, BlockPast, TreeModel};

const HEADS: usize = 2;
const HEAD_DIM: usize = 8;
const HIDDEN: usize = HEADS * HEAD_DIM;

/// Two blocks of two heads.
#[derive(Module, Debug)]
pub struct SmallGpt {
    embedding: Embedding,
    blocks: Vec<GptBlock>,
    norm: RmsNorm,
    /// Stores `[hidden, vocab]`, like all linear layers of Burn.
    head: Linear,
    #[module(skip)]
    mistake: Mistake,
}

/// A mistake of the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mistake {
    /// No mistake.
    #[default]
    None,
    /// The second block returns no keys.
    LeavesNoKeys,
    /// The second block ignores past keys and values.
    IgnoresPast,
    /// The second block returns the keys of all rows but the last.
    LeavesFewerKeys,
}

#[derive(Module, Debug)]
struct GptBlock {
    attention_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    mlp_norm: RmsNorm,
    up: Linear,
    down: Linear,
}

impl SmallGpt {
    /// A new model whose parameters Burn has not yet initialised.
    pub fn fresh(vocabulary: usize, device: &Device) -> Self {
        Self::with_mistake(vocabulary, Mistake::None, device)
    }

    /// A new model with a mistake.
    pub fn with_mistake(vocabulary: usize, mistake: Mistake, device: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(vocabulary, HIDDEN).init(device),
            blocks: (0..2).map(|_| GptBlock::fresh(device)).collect(),
            norm: RmsNormConfig::new(HIDDEN).init(device),
            head: linear(HIDDEN, vocabulary, device),
            mistake,
        }
    }
}

fn linear(input: usize, output: usize, device: &Device) -> Linear {
    LinearConfig::new(input, output)
        .with_bias(false)
        .init(device)
}

impl GptBlock {
    fn fresh(device: &Device) -> Self {
        let square = || linear(HIDDEN, HIDDEN, device);
        let norm = || RmsNormConfig::new(HIDDEN).init(device);
        Self {
            attention_norm: norm(),
            query: square(),
            key: square(),
            value: square(),
            output: square(),
            mlp_norm: norm(),
            up: linear(HIDDEN, 2 * HIDDEN, device),
            down: linear(2 * HIDDEN, HIDDEN, device),
        }
    }

    fn forward(
        &self,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<(Tensor<3>, BlockOutputs), BlockError> {
        let [batch, rows, _] = x.dims();
        let heads = |x: Tensor<3>| x.reshape([batch, rows, HEADS, HEAD_DIM]).swap_dims(1, 2);
        let normed = self.attention_norm.forward(x.clone());
        let rope = RopeConfig::new(1e4);
        let rotate = |x: Tensor<3>| try_rope(heads(x), context.position_ids(), &rope);
        let query = rotate(self.query.forward(normed.clone()))?;
        let own = KeyValue {
            key: rotate(self.key.forward(normed.clone()))?,
            value: heads(self.value.forward(normed)),
        };
        let outputs = BlockOutputs {
            key: Some(own.key.clone()),
            value: Some(own.value.clone()),
            ..BlockOutputs::default()
        };
        let options = TreeAttentionOptions::default();
        let mask = context.mask();
        let attended = match past {
            Some(BlockPast::Attention(past)) => {
                try_tree_attention_with_past(query, past.clone(), own, mask, options)?
            }
            _ => try_tree_attention(query, own.key, own.value, mask, options)?,
        };
        let attended = attended.swap_dims(1, 2).reshape([batch, rows, HIDDEN]);
        let x = x + self.output.forward(attended);
        let normed = self.mlp_norm.forward(x.clone());
        let up = activation::gelu(self.up.forward(normed));
        Ok((x + self.down.forward(up), outputs))
    }
}

impl TreeModel for SmallGpt {
    fn embed(&self, tokens: Tensor<2, Int>, _: &BlockContext) -> Tensor<3> {
        self.embedding.forward(tokens)
    }

    fn n_blocks(&self) -> usize {
        self.blocks.len()
    }

    fn block(
        &self,
        index: usize,
        x: Tensor<3>,
        context: &BlockContext,
        past: Option<&BlockPast>,
    ) -> Result<(Tensor<3>, BlockOutputs), BlockError> {
        let mistake = match index {
            1 => self.mistake,
            _ => Mistake::None,
        };
        let past = past.filter(|_| mistake != Mistake::IgnoresPast);
        let (y, mut outputs) = self.blocks[index].forward(x, context, past)?;
        match mistake {
            Mistake::LeavesNoKeys => outputs = BlockOutputs::default(),
            Mistake::LeavesFewerKeys => {
                let rows = y.dims()[1];
                let fewer = |tensor: Tensor<4>| tensor.slice_dim(2, 0..rows - 1);
                outputs.key = outputs.key.map(fewer);
                outputs.value = outputs.value.map(fewer);
            }
            Mistake::None | Mistake::IgnoresPast => {}
        }
        Ok((y, outputs))
    }

    fn final_norm(&self, x: Tensor<3>) -> Tensor<3> {
        self.norm.forward(x)
    }

    fn head_weight(&self) -> Tensor<2> {
        self.head.weight.val().transpose()
    }
}

/// Number of float parameters of a module that require a gradient.
pub fn trained_parameters<M: Module>(module: &M) -> usize {
    struct Count(usize);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0 += usize::from(param.val().is_require_grad());
        }
    }
    let mut count = Count(0);
    module.visit(&mut count);
    count.0
}
