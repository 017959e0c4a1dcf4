//! Backends, and what each overrides.

mod autodiff;
#[cfg(feature = "cubecl-backend")]
mod cubecl;
#[cfg(feature = "flex")]
mod flex;

#[cfg(feature = "ndarray")]
impl crate::ops::TreeNnOps for burn::backend::NdArray {}
#[cfg(feature = "tch")]
impl crate::ops::TreeNnOps for burn::backend::LibTorch {}
