//! Burn's AdamW as configured for the training programs.

use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::optim::{
    AdamWConfig, DynOptimizer, DynState, LearningRate, ModuleOptimizer, StateSink, StateSource,
};
use burn::tensor::kind::BridgeTensor;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

/// The options of AdamW.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWOptions {
    /// Decay rate of the first moment.
    pub beta1: f64,
    /// Decay rate of the second moment.
    pub beta2: f64,
    /// Term added to the square root of the second moment.
    pub epsilon: f64,
    /// Decoupled weight decay of matrices. Other parameters, such as norm weights, are not decayed.
    pub weight_decay: f64,
}

/// Burn's AdamW for the parameters of `model`, matched by their current ids. Loaded states are
/// moved to `device`.
pub fn adamw<M: Module>(model: &M, options: &AdamWOptions, device: &Device) -> ModuleOptimizer {
    let config = AdamWConfig::new()
        .with_beta_1(options.beta1 as f32)
        .with_beta_2(options.beta2 as f32)
        .with_epsilon(options.epsilon as f32);
    let decayed = config
        .clone()
        .with_weight_decay(options.weight_decay as f32);
    let mut vectors = Vectors(Vec::new());
    model.visit(&mut vectors);
    let on_device = |optimizer| OnDevice {
        optimizer,
        device: device.clone().inner(),
    };
    ModuleOptimizer::from(decayed.build())
        .with_group(ParamGroup::all(), on_device(decayed.build()), None)
        .with_group(
            ParamGroup::from_ids(vectors.0),
            on_device(config.with_weight_decay(0.0).build()),
            None,
        )
}

/// Collects the ids of parameters that are not matrices.
struct Vectors(Vec<burn::module::ParamId>);

impl ModuleVisitor for Vectors {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D < 2 {
            self.0.push(param.id);
        }
    }
}

/// An optimizer that loads states onto a given device. (Burn loads them onto the default device,
/// which may not exist, and moves them in the first step.)
struct OnDevice<O> {
    optimizer: O,
    device: Device,
}

impl<O: DynOptimizer> DynOptimizer for OnDevice<O> {
    fn step_dyn(
        &self,
        rank: usize,
        learning_rate: LearningRate,
        tensor: BridgeTensor,
        gradient: BridgeTensor,
        state: Option<DynState>,
    ) -> (BridgeTensor, Option<DynState>) {
        self.optimizer
            .step_dyn(rank, learning_rate, tensor, gradient, state)
    }

    fn to_device_dyn(&self, state: DynState, device: &Device) -> DynState {
        self.optimizer.to_device_dyn(state, device)
    }

    fn state_flatten(&self, prefix: &str, state: &DynState, out: &mut StateSink) {
        self.optimizer.state_flatten(prefix, state, out);
    }

    fn state_unflatten(
        &self,
        rank: usize,
        prefix: &str,
        source: &mut StateSource,
        _default: &Device,
    ) -> Option<DynState> {
        self.optimizer
            .state_unflatten(rank, prefix, source, &self.device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::LinearConfig;
    use burn::optim::GradientsParams;

    const ADAMW: AdamWOptions = AdamWOptions {
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.5,
    };

    #[test]
    fn matrices_decay_and_vectors_do_not() {
        let device = Device::flex().autodiff();
        let layer = LinearConfig::new(1, 1).init(&device);
        let mut gradients = GradientsParams::new();
        let plain = device.clone().inner();
        let bias = layer.bias.as_ref().unwrap();
        gradients.register(layer.weight.id, Tensor::<2>::zeros([1, 1], &plain));
        gradients.register(bias.id, Tensor::<1>::zeros([1], &plain));
        let before = (layer.weight.val(), bias.val());
        let layer = adamw(&layer, &ADAMW, &device).step(0.1, layer, gradients);
        let ratio = (layer.weight.val() / before.0).into_scalar::<f64>();
        assert!((ratio - 0.95).abs() < 1e-6, "{ratio}");
        assert_eq!(
            layer.bias.unwrap().val().into_scalar::<f64>(),
            before.1.into_scalar::<f64>()
        );
    }
}
