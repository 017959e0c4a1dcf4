//! Masks: visibility by definition, plans, past keys, and refused arguments.

mod arguments;
mod past;
mod visibility;

#[path = "../support/mod.rs"]
mod support;
