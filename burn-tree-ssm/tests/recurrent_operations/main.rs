//! Recurrent operations on trees against their definitions, in one program: each program of tests
//! links all of Burn. Those that count kernels or listen to the whole process have their own.

mod gated_delta_rule;
mod layer_parts;
mod tree_recurrence;

#[path = "../support/delta_rule.rs"]
mod delta_rule;
#[path = "../support/mod.rs"]
mod support;
