//! Compute dtypes of a model.

use burn::module::Module;
use burn::tensor::FloatDType;
use burn_tree_train::shadow;

/// The compute dtypes of a model. Norms, gate vectors, master parameters and optimizer keep their
/// dtypes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// The blocks.
    pub blocks: FloatDType,
    /// Embedding and head, which may share one matrix.
    pub head: FloatDType,
}

impl Precision {
    /// All in f32.
    pub const F32: Self = Self {
        blocks: FloatDType::F32,
        head: FloatDType::F32,
    };

    /// The compute copy of `master`. Parameters that already have their dtype are not copied.
    pub fn shadow<M: Module>(self, master: &M) -> M {
        let blocks = shadow(master, self.blocks, stays_wide);
        let head = |path: &str| is_vector(path) || is_in_block(path);
        shadow(&blocks, self.head, head)
    }
}

/// Whether a parameter, given by its module path, keeps its dtype in a copy with narrower blocks
/// (see [`burn_tree_train::shadow`]): norms, the gate vectors of recurrent layers, the embedding
/// and the head. The blocks compute in the dtype of their projections.
pub fn stays_wide(path: &str) -> bool {
    is_vector(path) || !is_in_block(path)
}

/// Whether a parameter is a vector of scales per feature or head: small, and more sensitive to
/// rounding than a matrix. (Biases of projections are not: they are added in the dtype of the
/// product.)
pub fn is_vector(path: &str) -> bool {
    ["norm.weight", "a_log", "dt_bias"]
        .iter()
        .any(|name| path.ends_with(name))
}

/// Whether a parameter belongs to a block, not to the embedding or the head.
fn is_in_block(path: &str) -> bool {
    !(path.contains("lm_head") || path.contains("embed_tokens"))
}
