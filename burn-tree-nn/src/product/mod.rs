//! Matrix products of f16 and bf16 tensors with f32 sums, as tensor-core kernels for NVIDIA GPUs of
//! compute capability 9.0.

#[cfg(feature = "cuda")]
mod kernel;
#[cfg(feature = "cuda")]
mod launch;
#[cfg(feature = "cuda")]
mod plan;

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
#[cfg(feature = "cuda")]
use burn_tree_kit::cube::warpgroup::Major;
use burn_tree_kit::implementation::Unavailable;

/// Which operands of a product are transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// `[M, S] [S, N]`
    Plain,
    /// `[M, S] [N, S]ᵀ`
    RightTransposed,
    /// `[S, M]ᵀ [S, N]`
    LeftTransposed,
}

#[cfg(feature = "cuda")]
impl Form {
    /// The contiguous dimension of the left operand.
    fn left(self) -> Major {
        match self {
            Self::Plain | Self::RightTransposed => Major::Summed,
            Self::LeftTransposed => Major::Kept,
        }
    }

    /// The contiguous dimension of the right operand.
    fn right(self) -> Major {
        match self {
            Self::Plain | Self::LeftTransposed => Major::Kept,
            Self::RightTransposed => Major::Summed,
        }
    }

    /// `[M, N, S]` of a product of two tensors.
    fn sizes(self, left: &CubeTensor, right: &CubeTensor) -> [usize; 3] {
        let (left, right) = (left.meta.shape(), right.meta.shape());
        match self {
            Self::Plain => [left[0], right[1], left[1]],
            Self::RightTransposed => [left[0], right[0], left[1]],
            Self::LeftTransposed => [left[1], right[1], left[0]],
        }
    }
}

/// How several products become results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Joined {
    /// Their sum is the result.
    Sum,
    /// They have the left operand in common, and each has a result of its own.
    Columns,
}

/// One to three products that the kernel takes.
#[cfg_attr(
    not(feature = "cuda"),
    allow(dead_code, reason = "no product passes `check`")
)]
pub(crate) struct Products {
    form: Form,
    joined: Joined,
    /// One for each right operand, or one with [`Joined::Columns`].
    left: Vec<CubeTensor>,
    right: Vec<CubeTensor>,
    /// Of the results: that of the operands, or f32.
    dtype: DType,
}

impl Products {
    /// The sum of the products of `terms`, in `dtype`: that of the operands, or f32.
    ///
    /// # Errors
    /// If the kernel does not run on the device of the tensors, or does not take the tensors.
    pub(crate) fn sum(
        form: Form,
        terms: Vec<(CubeTensor, CubeTensor)>,
        dtype: DType,
    ) -> Result<Self, Unavailable> {
        let (left, right) = terms.into_iter().unzip();
        Self::new(form, Joined::Sum, left, right, dtype)
    }

    /// The products of `left` and each of `right`, in their dtype.
    ///
    /// # Errors
    /// As [`sum`](Self::sum).
    pub(crate) fn each(
        form: Form,
        left: CubeTensor,
        right: Vec<CubeTensor>,
    ) -> Result<Self, Unavailable> {
        let dtype = left.dtype;
        Self::new(form, Joined::Columns, vec![left], right, dtype)
    }

    fn new(
        form: Form,
        joined: Joined,
        left: Vec<CubeTensor>,
        right: Vec<CubeTensor>,
        dtype: DType,
    ) -> Result<Self, Unavailable> {
        let products = Self {
            form,
            joined,
            left,
            right,
            dtype,
        };
        products.check().map(|()| products)
    }

    #[cfg(not(feature = "cuda"))]
    fn check(&self) -> Result<(), Unavailable> {
        Err(Unavailable("the feature `cuda` is not enabled".into()))
    }

    /// Runs the kernel. Returns one result, or one for each right operand.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn launch(self) -> Vec<CubeTensor> {
        unreachable!("no product passes `check`")
    }
}
