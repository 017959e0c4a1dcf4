//! How a norm uses its weight.

/// The factor of the normalised values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormScale {
    /// The weight, as in Llama and Qwen3. The normalised values are rounded to the dtype of the
    /// input first.
    Weight,
    /// One plus the weight, as in Gemma and Qwen3-Next. Nothing is rounded before the product.
    OnePlusWeight,
}

impl NormScale {
    /// The flag for the kernels.
    #[cfg(feature = "cubecl-backend")]
    pub(crate) fn adds_one(self) -> bool {
        match self {
            Self::Weight => false,
            Self::OnePlusWeight => true,
        }
    }
}
