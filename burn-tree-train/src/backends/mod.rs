//! Backends, and what each overrides.

mod autodiff;
#[cfg(feature = "flex")]
mod flex;

#[cfg(feature = "ndarray")]
impl crate::TreeTrainOps for burn::backend::NdArray {}
#[cfg(feature = "tch")]
impl crate::TreeTrainOps for burn::backend::LibTorch {}
#[cfg(feature = "cubecl-backend")]
impl crate::TreeTrainOps for burn_cubecl::CubeBackend {}
