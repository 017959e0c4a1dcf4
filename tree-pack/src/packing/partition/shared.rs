//! Parts that continue the same part, put together.

use super::Partition;
use crate::counting_sort::counting_sort;
use crate::packing::bins::fill_bins;

/// From the first part downwards, puts parts that continue the same part into as few as best-fit
/// decreasing finds. What continues parts that were put together continues one part from then on.
pub fn share(mut partition: Partition, budget: u32) -> Partition {
    let sizes = partition.sizes();
    let count = partition.len();
    let (offsets, children) = counting_sort(count - 1, count, 1..count as u32, |part| {
        partition.parents[part as usize].map_or(0, |parent| parent as usize)
    });
    let children_of = |part: u32| {
        let [start, end] = [offsets[part as usize], offsets[part as usize + 1]];
        &children[start as usize..end as usize]
    };
    let mut parents = Vec::new();
    let mut renumbered = vec![0; count];
    // Parts to be put together, and the new number of what they continue; the next one last.
    let mut open: Vec<(Vec<u32>, Option<u32>)> = vec![(vec![0], None)];
    while let Some((group, parent)) = open.pop() {
        let number = parents.len() as u32;
        parents.push(parent);
        for &part in &group {
            renumbered[part as usize] = number;
        }
        // In depth-first order, as the parts are.
        let below: Vec<u32> = group
            .iter()
            .flat_map(|&part| children_of(part))
            .copied()
            .collect();
        let below_sizes: Vec<usize> = below.iter().map(|&part| sizes[part as usize]).collect();
        for bin in fill_bins(&below_sizes, budget as usize).into_iter().rev() {
            let group = bin.into_iter().map(|item| below[item as usize]).collect();
            open.push((group, Some(number)));
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
