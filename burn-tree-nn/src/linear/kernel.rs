//! CubeCL runtimes: tensor-core kernels where the device and the tensors allow them, Burn's product
//! otherwise.

use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_tree_kit::implementation::{Kernels, announce};

use super::generic;
use super::tensors::InputGradientTerm;
use crate::product::{Form, Products};

const OP: &str = "linear";

/// See [`crate::TreeNnOps::linear_output`].
pub(crate) fn linear(x: CubeTensor, weight: CubeTensor) -> CubeTensor {
    linears(x, [weight]).remove(0)
}

/// See [`crate::TreeNnOps::linear_pair`].
pub(crate) fn linears<const N: usize>(x: CubeTensor, weights: [CubeTensor; N]) -> Vec<CubeTensor> {
    let generic = generic::linear::<CubeBackend>;
    each("forward", Form::Plain, x, weights, generic)
}

/// See [`crate::TreeNnOps::linear_grad_input`].
pub(crate) fn grad_input(terms: Vec<InputGradientTerm<CubeBackend>>) -> CubeTensor {
    let dtype = terms[0].grad.dtype;
    let operands = terms.iter().cloned().map(|term| (term.grad, term.weight));
    match Products::sum(Form::RightTransposed, operands.collect(), dtype) {
        Ok(products) => accelerated("backward", products).remove(0),
        Err(_) => {
            announce(OP, "backward", GENERIC);
            generic::grad_input::<CubeBackend>(terms)
        }
    }
}

/// See [`crate::TreeNnOps::linear_grad_weight`].
pub(crate) fn grad_weights<const N: usize>(
    x: CubeTensor,
    grads: [CubeTensor; N],
) -> Vec<CubeTensor> {
    let generic = generic::grad_weight::<CubeBackend>;
    each("backward", Form::LeftTransposed, x, grads, generic)
}

/// Products of `left` and each of `right`.
fn each<const N: usize>(
    pass: &'static str,
    form: Form,
    left: CubeTensor,
    right: [CubeTensor; N],
    generic: impl Fn(CubeTensor, CubeTensor) -> CubeTensor,
) -> Vec<CubeTensor> {
    match Products::each(form, left.clone(), right.to_vec()) {
        Ok(products) => accelerated(pass, products),
        Err(_) => {
            announce(OP, pass, GENERIC);
            let right = right.into_iter();
            right.map(|right| generic(left.clone(), right)).collect()
        }
    }
}

const GENERIC: &str = "generic";

fn accelerated(pass: &'static str, products: Products) -> Vec<CubeTensor> {
    announce(OP, pass, Kernels::Accelerated.name());
    // A tensor map counts as read and written: the mark of a failed input passes to the results.
    products.launch()
}

/// Results as a tuple.
pub(crate) fn pair(results: Vec<CubeTensor>) -> (CubeTensor, CubeTensor) {
    let [first, second] = results.try_into().expect("two results");
    (first, second)
}

/// Results as a tuple.
pub(crate) fn triple(results: Vec<CubeTensor>) -> (CubeTensor, CubeTensor, CubeTensor) {
    let [first, second, third] = results.try_into().expect("three results");
    (first, second, third)
}
