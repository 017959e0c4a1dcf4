//! Buffers that are reused, and matrices in them.

use burn_tree_kit::cpu::{Matrix, Real};

/// A matrix `[rows, rows]`.
pub(super) fn square<T: Real>(values: &[T], rows: usize) -> Matrix<'_, T> {
    Matrix::new(values, rows, rows)
}

/// `values` with `length` numbers, of which all are zero.
pub(super) fn zeroed<T: Real>(values: &mut Vec<T>, length: usize) -> &mut [T] {
    values.clear();
    values.resize(length, T::ZERO);
    values
}

/// `values` with `length` numbers, of any value.
pub(super) fn sized<T: Real>(values: &mut Vec<T>, length: usize) -> &mut [T] {
    values.resize(length, T::ZERO);
    values
}
