//! Launches of the norms' kernels: a group of units per row, each with its part of the row in
//! registers.

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{RowLayout, vector_size};
use burn_tree_kit::implementation::Unavailable;
use cubecl::prelude::*;

/// The rows as kernels take them.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct NormProblem {
    /// Number of rows.
    pub rows: usize,
    /// Vectors per row.
    pub width: usize,
    /// Rows of a block of the backward pass.
    pub rows_per_block: usize,
    /// Added to the mean of the squares.
    pub epsilon: f32,
}

/// The rows of a tensor and their layout in kernels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Number of rows.
    pub(crate) count: usize,
    /// Elements per row.
    pub(crate) size: usize,
    /// Elements per vector.
    pub(crate) vector: usize,
    /// Vectors per row.
    pub(crate) width: usize,
    /// How the vectors of a row are distributed over units.
    pub(crate) layout: RowLayout,
}

impl Rows {
    /// The rows of `x [R, D]`, which kernels load together with `others`, tensors with the same
    /// last dimension. Only the dtypes of `others` matter.
    ///
    /// # Errors
    /// If a row does not fit into the registers of the units.
    pub(crate) fn new(x: &CubeTensor, others: &[&CubeTensor]) -> Result<Self, Unavailable> {
        let [count, size] = [x.meta.shape()[0], x.meta.shape()[1]];
        let mut dtypes = vec![x.dtype];
        dtypes.extend(others.iter().map(|tensor| tensor.dtype));
        let vector = vector_size(&x.client, &dtypes, size);
        let width = size / vector;
        match RowLayout::new(&x.client, width, vector) {
            Some(layout) => Ok(Self {
                count,
                size,
                vector,
                width,
                layout,
            }),
            None => Err(Unavailable(format!("rows of {size} numbers are too wide"))),
        }
    }

    /// [`new`](Self::new) for tensors that it has already accepted.
    pub(crate) fn checked(x: &CubeTensor, others: &[&CubeTensor]) -> Self {
        Self::new(x, others).expect("rows were checked before")
    }

    /// Number of cubes with one group of units per row.
    pub(crate) fn cubes(&self) -> usize {
        self.count.div_ceil(self.layout.groups.groups())
    }

    /// Divides the rows into at most `blocks` blocks of equal size, a multiple of the rows of a
    /// cube; returns the rows per block and the number of blocks. Gradients of weights are summed
    /// within blocks, then over blocks; the order depends only on the number of rows and the
    /// device.
    pub(crate) fn blocks(&self, blocks: usize) -> (usize, usize) {
        let rows = self.count.div_ceil(blocks);
        let rows = rows.next_multiple_of(self.layout.groups.groups());
        (rows, self.count.div_ceil(rows))
    }
}
