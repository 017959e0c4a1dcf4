//! Merges parts that continue the same part.

use super::connected::fewest_cuts;
use super::cut::all_or_none_cuts;
use super::parts::Partition;
use crate::counting_sort::counting_sort;
use crate::packing::bins::{fill_bins, fill_bins_beside};
use crate::packing::counted::TreeNodes;

/// Parts of at most `budget` tokens that share packs: the better of two partitions.
pub fn shared_parts(tree: &TreeNodes, budget: u32) -> Partition {
    let fewest = fewest_cuts(tree.nodes, budget);
    let all_or_none = all_or_none_cuts(tree.nodes, budget);
    let [one, other] =
        [fewest, all_or_none].map(|cuts| share(Partition::new(tree, budget, &cuts), budget));
    let order = |partition: &Partition| (partition.len(), partition.retained_tokens());
    if order(&other) < order(&one) {
        other
    } else {
        one
    }
}

/// Merges parts from the first one downwards. The parts that continue the same part are merged into
/// as few as best-fit decreasing finds; some of them are merged into that part itself if this makes
/// them fewer. Parts that continued merged parts then continue the merged part.
fn share(mut partition: Partition, budget: u32) -> Partition {
    let budget = budget as usize;
    let sizes = partition.sizes();
    let below = Below::new(&partition);
    let sizes_of = |parts: &[u32]| -> Vec<usize> {
        let sizes = parts.iter().map(|&part| sizes[part as usize]);
        sizes.collect()
    };
    let mut parents = Vec::new();
    let mut renumbered = vec![0; partition.len()];
    // Stack of groups of parts to be merged, each with the new number of the part that it
    // continues.
    let mut open: Vec<(Vec<u32>, Option<u32>)> = vec![(vec![0], None)];
    while let Some((mut group, parent)) = open.pop() {
        let mut continuing = below.of(&group);
        let mut bins = fill_bins(&sizes_of(&continuing), budget);
        let room = budget - sizes_of(&group).iter().sum::<usize>();
        let (taken_in, others) = fill_bins_beside(&sizes_of(&continuing), budget, room);
        if others.len() < bins.len() {
            group.extend(taken_in.into_iter().map(|item| continuing[item as usize]));
            group.sort_unstable();
            // Parts that continue a part of the group are in the group, or continue it.
            continuing = below.of(&group);
            continuing.retain(|part| group.binary_search(part).is_err());
            bins = fill_bins(&sizes_of(&continuing), budget);
        }
        let number = parents.len() as u32;
        parents.push(parent);
        for &part in &group {
            renumbered[part as usize] = number;
        }
        for bin in bins.into_iter().rev() {
            let group = bin.into_iter().map(|item| continuing[item as usize]);
            open.push((group.collect(), Some(number)));
        }
    }
    for piece in &mut partition.pieces {
        piece.part = renumbered[piece.part as usize];
    }
    Partition {
        parents,
        ..partition
    }
}

/// For each part, the parts that continue it.
struct Below {
    offsets: Vec<u32>,
    parts: Vec<u32>,
}

impl Below {
    fn new(partition: &Partition) -> Self {
        let count = partition.len();
        let (offsets, parts) = counting_sort(count - 1, count, 1..count as u32, |part| {
            partition.parents[part as usize].map_or(0, |parent| parent as usize)
        });
        Self { offsets, parts }
    }

    /// Parts that continue any part of a group, in depth-first order.
    fn of(&self, group: &[u32]) -> Vec<u32> {
        let mut continuing: Vec<u32> = group
            .iter()
            .flat_map(|&part| {
                let [start, end] = [self.offsets[part as usize], self.offsets[part as usize + 1]];
                &self.parts[start as usize..end as usize]
            })
            .copied()
            .collect();
        continuing.sort_unstable();
        continuing
    }
}
