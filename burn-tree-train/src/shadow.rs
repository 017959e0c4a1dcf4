//! Mixed precision: master parameters in one dtype, computation in another.
//!
//! The optimizer holds a **master** module, usually in f32. Once per optimizer step, [`shadow`]
//! makes a copy for the forward and backward passes, usually in bf16, with the same parameter ids.
//! [`widen_gradients`] casts the gradients of each pack to f32 before they are accumulated, and the
//! optimizer applies their sum to the master.
//!
//! ```
//! use burn::module::Param;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::GradientsParams;
//! use burn::tensor::{DType, Device, FloatDType, Tensor};
//! use burn_tree_train::{shadow, widen_gradients};
//!
//! let device = Device::flex().autodiff();
//! let master = LinearConfig::new(4, 3).init(&device);
//! let copy = shadow(&master, FloatDType::BF16, |path| path == "bias");
//! assert_eq!(copy.weight.val().dtype(), DType::BF16);
//! assert_eq!(copy.bias.as_ref().unwrap().val().dtype(), DType::F32);
//!
//! let x = Tensor::<2>::ones([2, 4], (&device, DType::BF16));
//! let loss = x.matmul(copy.weight.val()).sum();
//! let gradients = widen_gradients(GradientsParams::from_grads(loss.backward(), &copy), &copy);
//! // The ids are those of the master.
//! let gradient = gradients.get::<2>(master.weight.id).unwrap();
//! assert_eq!(gradient.dtype(), DType::F32);
//! ```

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};

/// A copy of `master` that computes in `dtype`. Its parameters are separate leaves with the ids of
/// the master's; frozen parameters stay frozen.
///
/// Parameters whose module path (such as `layers.0.input_layernorm.weight`) satisfies `keep` are
/// not cast: norms and the head should be kept. They are not copied, nor are parameters that
/// already have `dtype`.
pub fn shadow<M: Module>(master: &M, dtype: FloatDType, keep: impl Fn(&str) -> bool) -> M {
    master.clone().map(&mut Caster {
        dtype: dtype.into(),
        keep,
        path: Vec::new(),
    })
}

struct Caster<F> {
    dtype: DType,
    keep: F,
    path: Vec<String>,
}

impl<F: Fn(&str) -> bool> ModuleMapper for Caster<F> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if (self.keep)(&self.path.join(".")) || param.val().dtype() == self.dtype {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let (autodiff, trained) = (value.is_autodiff(), value.is_require_grad());
        // Cast below autodiff: the packs of a step would share a cast in the graph.
        let mut value = value.without_autodiff().cast(self.dtype);
        if autodiff {
            value = value.autodiff().set_require_grad(trained);
        }
        Param::from_mapped_value(id, value, mapper)
    }
}

/// Casts the gradients of `module` to at least f32, so that sums of many of them keep precision.
pub fn widen_gradients<M: Module>(mut gradients: GradientsParams, module: &M) -> GradientsParams {
    module.visit(&mut Widener(&mut gradients));
    gradients
}

struct Widener<'a>(&'a mut GradientsParams);

impl ModuleVisitor for Widener<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = self.0.remove::<D>(param.id) {
            let gradient = match gradient.dtype() {
                DType::F64 => gradient,
                _ => gradient.cast(DType::F32),
            };
            self.0.register(param.id, gradient);
        }
    }
}
