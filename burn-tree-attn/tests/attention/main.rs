//! Tree attention against the dense reference: outputs and all gradients; with past keys; and with
//! wrong arguments.

mod arguments;
mod past;
mod reference;

#[path = "../support/mod.rs"]
mod support;
