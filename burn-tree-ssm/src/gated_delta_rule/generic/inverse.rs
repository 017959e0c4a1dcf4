//! Inverses of unit lower triangular matrices.

use burn::backend::{Backend, TensorMetadata};
use burn::tensor::FloatDType;

use super::array::Array;

/// `(I + lower)^-1` of `lower [.., .., C, C]`, strictly lower triangular, `C` a power of two.
///
/// By blocks of doubling width: with the inverses of the blocks on the diagonal,
/// `[[A, 0], [L, B]]^-1 = [[A', 0], [-B' L A', B']]`. As safe as substitution; a series in powers
/// of `lower` is not, since the powers of a matrix of similar keys grow before they vanish.
pub(super) fn unit_lower_inverse<B: Backend>(lower: Array<B>, dtype: FloatDType) -> Array<B> {
    let size = lower.size(3);
    let device = lower.0.device();
    let grid = |value: &dyn Fn(usize, usize) -> bool| {
        let values = (0..size * size)
            .map(|index| f32::from(u8::from(value(index / size, index % size))))
            .collect();
        Array::from_values(values, [1, 1, size, size], &device, dtype)
    };
    // Blocks of width 1.
    let below =
        |width: usize| grid(&|i, j| i / (2 * width) == j / (2 * width) && i / width > j / width);
    let identity = grid(&|i, j| i == j);
    if size == 1 {
        return lower.scale(0.0) + identity;
    }
    let mut inverse = identity - &lower * below(1);
    let mut width = 2;
    while width < size {
        let blocks = &lower * below(width);
        inverse = &inverse - inverse.dot(&blocks).dot(&inverse);
        width *= 2;
    }
    inverse
}
