//! Clipping by the global norm of all gradients. (Burn clips each parameter on its own, which
//! changes the direction of the step.)

use burn::backend::ExecutionError;
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

/// The L2 norm of all gradients as one vector, on the device, without waiting for it.
#[derive(Clone, Debug)]
pub struct GlobalNorm {
    /// `[1]`, in f32.
    pub norm: Tensor<1>,
    /// `[1]` each: the sum of squares of each gradient.
    squares: Vec<Tensor<1>>,
}

impl GlobalNorm {
    /// Reads the norm. Waits for the device.
    ///
    /// # Errors
    /// If the device could not compute the norm or one of its terms.
    pub fn read(self) -> Result<f64, ExecutionError> {
        // A kernel that writes part of a buffer clears failure marks: see
        // `burn_tree_train::check_device`.
        for square in self.squares {
            square.try_into_data()?;
        }
        let norm = self.norm.try_into_data()?.convert::<f64>();
        Ok(norm.iter::<f64>().sum())
    }
}

/// The L2 norm of all gradients of `module`; `None` without gradients. Squares are summed in f32.
pub fn global_norm<M: Module>(module: &M, gradients: &GradientsParams) -> Option<GlobalNorm> {
    let mut visitor = SquareSums {
        gradients,
        sums: Vec::new(),
    };
    module.visit(&mut visitor);
    let squares = visitor.sums;
    (!squares.is_empty()).then(|| GlobalNorm {
        norm: Tensor::cat(squares.clone(), 0).sum().sqrt(),
        squares,
    })
}

/// Scales all gradients by `max_norm / norm` if their global `norm` `[1]` is larger than
/// `max_norm`.
pub fn clip_global_norm<M: Module>(
    module: &M,
    gradients: GradientsParams,
    norm: &Tensor<1>,
    max_norm: f64,
) -> GradientsParams {
    let factor = norm.clone().recip().mul_scalar(max_norm).clamp_max(1.0);
    let mut visitor = Scale { gradients, factor };
    module.visit(&mut visitor);
    visitor.gradients
}

struct SquareSums<'a> {
    gradients: &'a GradientsParams,
    sums: Vec<Tensor<1>>,
}

impl ModuleVisitor for SquareSums<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.get::<D>(param.id) {
            let gradient = gradient.cast(DType::F32);
            self.sums.push(gradient.square().sum());
        }
    }
}

struct Scale {
    gradients: GradientsParams,
    /// `[1]`
    factor: Tensor<1>,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.gradients.remove::<D>(param.id) {
            let factor = self.factor.clone().cast(gradient.dtype());
            self.gradients
                .register(param.id, gradient * factor.reshape([1; D]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::module::Module;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    /// A layer with gradient 3 in one weight and 4 in one bias: the global norm is 5.
    fn layer_with_gradients() -> (Linear, GradientsParams) {
        let device = Device::flex();
        let layer = LinearConfig::new(2, 2).init(&device);
        let mut gradients = GradientsParams::new();
        let weight = Tensor::<2>::from_floats([[3.0, 0.0], [0.0, 0.0]], &device);
        let bias = Tensor::<1>::from_floats([0.0, 4.0], &device);
        gradients.register(layer.weight.id, weight);
        gradients.register(layer.bias.as_ref().unwrap().id, bias);
        (layer, gradients)
    }

    fn norm<M: Module>(module: &M, gradients: &GradientsParams) -> Option<f64> {
        global_norm(module, gradients).map(|norm| norm.read().unwrap())
    }

    fn values<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<f32> {
        struct Values<'a>(&'a GradientsParams, Vec<f32>);
        impl ModuleVisitor for Values<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let gradient = self.0.get::<D>(param.id).unwrap();
                self.1.extend(gradient.into_data().iter::<f32>());
            }
        }
        let mut visitor = Values(gradients, Vec::new());
        module.visit(&mut visitor);
        visitor.1
    }

    #[test]
    fn norm_is_taken_over_all_tensors_together() {
        let (layer, gradients) = layer_with_gradients();
        assert_eq!(norm(&layer, &gradients), Some(5.0));
    }

    #[test]
    fn clipping_keeps_the_direction() {
        let (layer, gradients) = layer_with_gradients();
        let norm = global_norm(&layer, &gradients).unwrap();
        let clipped = clip_global_norm(&layer, gradients, &norm.norm, 2.5);
        assert_eq!(values(&layer, &clipped), [1.5, 0.0, 0.0, 0.0, 0.0, 2.0]);
    }

    #[test]
    fn smaller_gradients_are_untouched() {
        let (layer, gradients) = layer_with_gradients();
        let norm = global_norm(&layer, &gradients).unwrap();
        let clipped = clip_global_norm(&layer, gradients, &norm.norm, 5.0);
        assert_eq!(values(&layer, &clipped), [3.0, 0.0, 0.0, 0.0, 0.0, 4.0]);
    }

    #[test]
    fn no_gradients_have_no_norm() {
        let (layer, _) = layer_with_gradients();
        assert_eq!(norm(&layer, &GradientsParams::new()), None);
    }
}
