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

/// A sum of one to three products that the kernel takes.
pub(crate) struct Product {
    form: Form,
    terms: Vec<(CubeTensor, CubeTensor)>,
    /// Of the result: that of the operands, or f32.
    dtype: DType,
}

impl Product {
    /// The sum of the products of `terms`, in `dtype`: that of the operands, or f32.
    ///
    /// # Errors
    /// If the kernel does not run on the device of the tensors, or does not take the tensors.
    pub(crate) fn new(
        form: Form,
        terms: Vec<(CubeTensor, CubeTensor)>,
        dtype: DType,
    ) -> Result<Self, Unavailable> {
        let product = Self { form, terms, dtype };
        product.check().map(|()| product)
    }

    #[cfg(not(feature = "cuda"))]
    fn check(&self) -> Result<(), Unavailable> {
        Err(Unavailable("the feature `cuda` is not enabled".into()))
    }

    #[cfg(not(feature = "cuda"))]
    pub(crate) fn launch(self) -> CubeTensor {
        unreachable!("no product passes `check`")
    }
}
