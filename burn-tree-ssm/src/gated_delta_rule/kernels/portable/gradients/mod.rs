//! The gradients of the inputs of a window, from those of its updates and of the state after it.
//!
//! With `Tg = E . T0`, the inverse of `I + E . A`, the updates solve
//! `(I + E . A) U = diag(beta) (V - diag(e^G) K H)`. So `X = Tg^T dU` is the gradient of the right
//! side, and `-X U^T`, strictly below the diagonal, that of `E . A`.
//!
//! The log decay of a row scales everything that passes from above it, the state before the window
//! and the rows there, to itself and the rows below: its gradient is the sum of what passes. What
//! does not pass is not part of any sum: it would cancel only up to rounding, which is large beside
//! what passes under strong decay.

mod pairs;
mod queries;
mod states;
mod values;

pub(super) use pairs::*;
pub(super) use queries::*;
pub(super) use states::*;
pub(super) use values::*;
