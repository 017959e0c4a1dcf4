//! Regression tests for faults of similar implementations, and the example of the documentation.
//! `tests/README.md` maps faults to tests.

mod fresh_models;
mod golden;
mod labels;
mod loss;
mod misuse;
mod model_files;
mod packing;
mod recurrence;
mod sequences;
mod visibility;
