//! Faults that other implementations of the same job had, each by name, and the example of the
//! documentation. `tests/README.md` lists which test stands for which fault.

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
