//! Trees larger than a pack, in parts.

mod connected;
mod cut;
mod part_packs;
mod parts;
mod piece;
mod shared;
mod smaller_tree_packs;
mod smaller_trees;

pub(super) use self::connected::fewest_cuts;
pub(super) use self::cut::node_cuts;
pub(super) use self::part_packs::packs_of_parts;
pub(super) use self::parts::Partition;
pub(super) use self::shared::shared_parts;
pub(super) use self::smaller_tree_packs::packs_of_smaller_trees;
pub(super) use self::smaller_trees::SmallerTrees;
