//! Dense feed-forward layer.

use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::Tensor;
use burn_tree_nn::swiglu;

use super::source::ParameterSource;
use super::{linear, project, project_all};

/// `down(silu(gate x) * up x)`
#[derive(Module, Debug)]
pub struct Mlp {
    /// `[hidden, intermediate]`
    pub gate_proj: Linear,
    /// `[hidden, intermediate]`
    pub up_proj: Linear,
    /// `[intermediate, hidden]`
    pub down_proj: Linear,
}

impl Mlp {
    pub(super) fn new<S: ParameterSource>(
        [hidden, inner]: [usize; 2],
        bias: bool,
        prefix: &str,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let mut projection =
            |name: &str, shape| linear(source, &format!("{prefix}.{name}"), shape, bias);
        Ok(Self {
            gate_proj: projection("gate_proj", [hidden, inner])?,
            up_proj: projection("up_proj", [hidden, inner])?,
            down_proj: projection("down_proj", [inner, hidden])?,
        })
    }

    pub(super) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [gate, up] = project_all([&self.gate_proj, &self.up_proj], x);
        project(&self.down_proj, swiglu(gate, up))
    }
}
