//! Dtypes in which a model computes, and which of its parameters keep theirs.

use burn::module::Module;
use burn::tensor::FloatDType;
use burn_tree_train::shadow;

/// Dtypes in which a model computes; its norms, the vectors of its gates, parameters and optimizer
/// stay as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// The blocks.
    pub blocks: FloatDType,
    /// Embedding and head, which may be one matrix.
    pub head: FloatDType,
}

impl Precision {
    /// Everything in f32.
    pub const F32: Self = Self {
        blocks: FloatDType::F32,
        head: FloatDType::F32,
    };

    /// The copy of `master` that computes; nothing is copied for what has its dtype already.
    pub fn shadow<M: Module>(self, master: &M) -> M {
        let blocks = shadow(master, self.blocks, stays_wide);
        let head = |path: &str| is_vector(path) || is_in_block(path);
        shadow(&blocks, self.head, head)
    }
}

/// Whether a parameter of this crate's modules, by its module path, keeps its dtype in a copy whose
/// blocks compute in a narrower one (see [`burn_tree_train::shadow`]): norms, the gates' vectors of
/// recurrent layers, the embedding and the head. The blocks then compute in the dtype of their
/// projections.
pub fn stays_wide(path: &str) -> bool {
    is_vector(path) || !is_in_block(path)
}

/// Whether a parameter is one number per feature or head by which others are scaled: small, and of
/// more effect than a matrix's entry. (Biases of projections are not: they are added in the dtype
/// of the product.)
pub fn is_vector(path: &str) -> bool {
    ["norm.weight", "a_log", "dt_bias"]
        .iter()
        .any(|name| path.ends_with(name))
}

/// Whether a parameter belongs to a block, not to the embedding or the head.
fn is_in_block(path: &str) -> bool {
    !(path.contains("lm_head") || path.contains("embed_tokens"))
}
