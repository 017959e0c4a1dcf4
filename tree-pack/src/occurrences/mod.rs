//! The original predictions of a pack, as parallel columns.

mod columns;
mod inputs;
mod validate;

pub use self::columns::Occurrences;
pub(crate) use self::inputs::{INPUT_NAMES, Inputs};
pub use self::validate::ColumnError;
