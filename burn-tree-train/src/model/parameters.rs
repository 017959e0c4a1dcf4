//! Initialising, freezing and inspecting the parameters of a module.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{Bool, Int, Tensor};

/// A copy of `module` that requires no gradients, for example as a reference policy. `module` is
/// not changed.
///
/// `module.clone().freeze()` is not the same. Parameters that Burn initialises lazily, as all
/// `Config::init` do, share their state with their clones until they are first read: freezing a
/// clone then freezes the original (Burn 0.22.1).
///
/// ```
/// use burn::nn::LinearConfig;
/// use burn::tensor::Device;
/// use burn_tree_train::frozen;
///
/// let policy = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
/// let reference = frozen(&policy);
/// assert!(policy.weight.val().is_require_grad());
/// assert!(!reference.weight.val().is_require_grad());
/// ```
pub fn frozen<M: Module>(module: &M) -> M {
    initialize(module);
    module.clone().freeze()
}

/// Initialises all lazy parameters, so that clones no longer share their state.
fn initialize<M: Module>(module: &M) {
    struct Initialize;
    impl ModuleVisitor for Initialize {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            param.base();
        }
        fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
            param.base();
        }
        fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
            param.base();
        }
    }
    module.visit(&mut Initialize);
}

/// Whether the float parameters of a module can get gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trainable {
    /// Whether a parameter is on a device with autodiff.
    pub(crate) autodiff: bool,
    /// Whether a parameter requires a gradient.
    pub(crate) trained: bool,
}

impl ModuleVisitor for Trainable {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.base();
        self.autodiff |= value.is_autodiff();
        self.trained |= value.is_require_grad();
    }
}

pub(crate) fn what_is_trainable<M: Module>(module: &M) -> Trainable {
    let mut trainable = Trainable::default();
    module.visit(&mut trainable);
    trainable
}

/// Module paths of the parameters that require a gradient but have none.
pub(crate) fn trainable_without_gradient<M: Module>(
    module: &M,
    gradients: &GradientsParams,
) -> Vec<String> {
    struct Search<'a> {
        gradients: &'a GradientsParams,
        path: Vec<String>,
        found: Vec<String>,
    }
    impl ModuleVisitor for Search<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let trained = param.base().is_require_grad();
            if trained && self.gradients.get::<D>(param.id).is_none() {
                self.found.push(self.path.join("."));
            }
        }
    }
    let mut search = Search {
        gradients,
        path: Vec::new(),
        found: Vec::new(),
    };
    module.visit(&mut search);
    search.found
}
