//! The training programs, run as a user runs them.

mod dpo;
mod families;
mod fine_tune;
mod grpo;
mod interruption;
mod support;
