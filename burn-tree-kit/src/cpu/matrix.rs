//! Matrix products on slices with the `gemm` crate, which Flex uses as well.

use super::scalar::Real;

/// A read-only matrix whose rows or columns are contiguous.
#[derive(Clone, Copy)]
pub struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// The matrix `[rows, columns]` of the first numbers of `data`, row by row.
    ///
    /// # Panics
    /// If `data` has fewer numbers.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert!(
            data.len() >= rows * columns,
            "a matrix lies within its data"
        );
        Self {
            data,
            rows,
            columns,
            row_stride: columns,
            column_stride: 1,
        }
    }

    /// The transposed matrix, without a copy.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = lhs rhs`, or `out += lhs rhs` if `add`, on one thread: `lhs [m, k]`, `rhs [k, n]`; the
/// first `m * n` numbers of `out` are the result, row by row.
///
/// # Panics
/// If the inner dimensions differ or `out` is too short.
pub fn multiply<T: Real>(out: &mut [T], lhs: Matrix<'_, T>, rhs: Matrix<'_, T>, add: bool) {
    assert_eq!(lhs.columns, rhs.rows, "inner dimensions of a product");
    assert!(out.len() >= lhs.rows * rhs.columns, "the product fits");
    // SAFETY: the three matrices lie within their slices (asserted here and in `Matrix::new`, and
    // unchanged by transposing), and `out`, borrowed mutably, overlaps neither operand.
    unsafe {
        gemm::gemm(
            lhs.rows,
            rhs.columns,
            lhs.columns,
            out.as_mut_ptr(),
            1,
            rhs.columns as isize,
            add,
            lhs.data.as_ptr(),
            lhs.column_stride as isize,
            lhs.row_stride as isize,
            rhs.data.as_ptr(),
            rhs.column_stride as isize,
            rhs.row_stride as isize,
            T::ONE,
            T::ONE,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiplies_and_adds() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0f64]; // 2 x 3
        let b = [1.0, 0.0, 2.0, 0.0, 1.0, 2.0]; // 2 x 3
        let mut out = [10.0; 4];
        multiply(
            &mut out,
            Matrix::new(&a, 2, 3),
            Matrix::new(&b, 2, 3).transposed(),
            false,
        );
        assert_eq!(out, [7.0, 8.0, 16.0, 17.0]);
        multiply(
            &mut out,
            Matrix::new(&a, 2, 3),
            Matrix::new(&b, 2, 3).transposed(),
            true,
        );
        assert_eq!(out, [14.0, 16.0, 32.0, 34.0]);
    }
}
