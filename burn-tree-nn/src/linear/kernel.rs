//! CubeCL runtimes: tensor-core kernels where the device and the tensors allow them, Burn's product
//! otherwise.

use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_tree_kit::implementation::{Kernels, announce};

use super::generic;
use super::tensors::InputGradientTerm;
use crate::product::{Form, Product};

const OP: &str = "linear";

/// See [`crate::TreeNnOps::linear_output`].
pub(crate) fn linear(x: CubeTensor, weight: CubeTensor) -> CubeTensor {
    let dtype = x.dtype;
    match Product::new(Form::Plain, vec![(x.clone(), weight.clone())], dtype) {
        Ok(product) => accelerated("forward", product),
        Err(_) => {
            announce(OP, "forward", GENERIC);
            generic::linear::<CubeBackend>(x, weight)
        }
    }
}

/// See [`crate::TreeNnOps::linear_grad_input`].
pub(crate) fn grad_input(terms: Vec<InputGradientTerm<CubeBackend>>) -> CubeTensor {
    let dtype = terms[0].grad.dtype;
    let operands = terms.iter().cloned().map(|term| (term.grad, term.weight));
    match Product::new(Form::RightTransposed, operands.collect(), dtype) {
        Ok(product) => accelerated("backward", product),
        Err(_) => {
            announce(OP, "backward", GENERIC);
            generic::grad_input::<CubeBackend>(terms)
        }
    }
}

/// See [`crate::TreeNnOps::linear_grad_weight`].
pub(crate) fn grad_weight(x: CubeTensor, grad: CubeTensor) -> CubeTensor {
    let dtype = x.dtype;
    match Product::new(Form::LeftTransposed, vec![(x.clone(), grad.clone())], dtype) {
        Ok(product) => accelerated("backward", product),
        Err(_) => {
            announce(OP, "backward", GENERIC);
            generic::grad_weight::<CubeBackend>(x, grad)
        }
    }
}

const GENERIC: &str = "generic";

fn accelerated(pass: &'static str, product: Product) -> CubeTensor {
    announce(OP, pass, Kernels::Accelerated.name());
    // A tensor map counts as read and written: the mark of a failed input passes to the result.
    product.launch()
}
