//! The operations on each backend. Those without code of their own run the generic bodies.

mod autodiff;
#[cfg(feature = "cubecl-backend")]
mod cubecl;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "tch")]
mod libtorch;
#[cfg(feature = "ndarray")]
mod ndarray;
