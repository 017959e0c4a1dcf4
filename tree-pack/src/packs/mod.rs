//! Packs of an optimizer step as data, and their checks.

mod derive_gateway;
mod gateway;
mod pack;
mod step;
mod validate;
mod validate_gateway;

pub use self::derive_gateway::GatewayError;
pub use self::gateway::{Gateway, PastRun};
pub use self::pack::Pack;
pub use self::step::{PackedStep, StepTrajectory};
#[cfg(feature = "burn")]
pub(crate) use self::validate::other_step;
pub use self::validate::{PacksError, validate_packs};
