//! What a Gated DeltaNet layer consists of besides the delta rule, on the device of `BURN_DEVICE`.

mod causal_conv1d;
mod convolution;
mod errors;
