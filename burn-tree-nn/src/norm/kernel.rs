//! How kernels of norms are launched: a group of units per row, which keep their part of it in
//! registers.

use burn_cubecl::tensor::CubeTensor;
use burn_tree_kit::cube::{RowLayout, vector_size};
use burn_tree_kit::implementation::Unavailable;

/// The rows of a tensor, as kernels read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Number of rows.
    pub(crate) count: usize,
    /// Numbers of a row.
    pub(crate) size: usize,
    /// Numbers of a vector.
    pub(crate) vector: usize,
    /// Vectors of a row.
    pub(crate) width: usize,
    /// How the vectors of a row are spread over units.
    pub(crate) layout: RowLayout,
}

impl Rows {
    /// The rows of `x [R, D]`, which are loaded together with `others`, tensors whose last
    /// dimension is `D`, too. Reads only their dtypes.
    ///
    /// # Errors
    /// If a row does not fit in the registers of the units.
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

    /// [`new`](Self::new) for tensors that were checked with it before.
    pub(crate) fn checked(x: &CubeTensor, others: &[&CubeTensor]) -> Self {
        Self::new(x, others).expect("rows were checked before")
    }

    /// Cubes that have a group of units for each row.
    pub(crate) fn cubes(&self) -> usize {
        self.count.div_ceil(self.layout.groups.groups())
    }

    /// The rows as at most `blocks` blocks of equal size, a multiple of the rows of a cube: rows of
    /// a block, and number of blocks. Gradients of weights are summed within blocks, then over
    /// blocks; the order depends only on the number of rows and the device.
    pub(crate) fn blocks(&self, blocks: usize) -> (usize, usize) {
        let rows = self.count.div_ceil(blocks);
        let rows = rows.next_multiple_of(self.layout.groups.groups());
        (rows, self.count.div_ceil(rows))
    }
}
