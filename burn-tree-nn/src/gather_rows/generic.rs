//! Implementation from Burn's primitives, for every backend.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Shape;

use super::plan::GatherPlan;
use burn_tree_kit::dtype::at_least_f32;
use burn_tree_kit::primitive::int_tensor;

/// See [`crate::TreeNnOps::gather_rows`].
pub(crate) fn forward<B: Backend>(x: FloatTensor<B>, plan: &GatherPlan) -> FloatTensor<B> {
    let indices = int_tensor::<B>(plan.indices(), &x.device());
    B::float_select(x, 0, indices)
}

/// See [`crate::TreeNnOps::gather_rows_backward`].
///
/// Sums pairs of rows level by level, so that two values are never added to the same row at once.
pub(crate) fn backward<B: Backend>(grad: FloatTensor<B>, plan: &GatherPlan) -> FloatTensor<B> {
    let device = grad.device();
    let dtype = grad.dtype();
    let width = grad.shape()[1];
    let accumulation = at_least_f32(dtype);
    let zero = B::float_zeros(Shape::new([1, width]), &device, accumulation);
    let with_zero = |rows| B::float_cat(vec![rows, zero.clone()], 0);
    let select = |rows: &FloatTensor<B>, indices: &[u32]| {
        B::float_select(rows.clone(), 0, int_tensor::<B>(indices, &device))
    };
    let sum = plan.sum_levels();
    let mut rows = with_zero(B::float_cast(grad, accumulation));
    for (left, right) in &sum.levels {
        rows = with_zero(B::float_add(select(&rows, left), select(&rows, right)));
    }
    B::float_cast(select(&rows, &sum.last), dtype.into())
}
