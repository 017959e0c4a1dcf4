//! Bin packing.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Best-fit decreasing: the largest item first, each into the fullest bin that still holds it.
/// Bins are in order of their first items, items in order of their numbers.
pub fn fill_bins(sizes: &[usize], budget: usize) -> Vec<Vec<u32>> {
    fill_bins_beside(sizes, budget, 0).1
}

/// As [`fill_bins`], beside a bin that has some room already; what goes there comes first.
pub fn fill_bins_beside(sizes: &[usize], budget: usize, room: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
    order.sort_by_key(|&item| Reverse(sizes[item as usize]));
    let mut bins: Vec<Vec<u32>> = vec![Vec::new()];
    let mut open = BTreeSet::from([(room, 0)]);
    for item in order {
        let size = sizes[item as usize];
        let (room, bin) = open.range((size, 0)..).next().copied().unwrap_or_else(|| {
            bins.push(Vec::new());
            (budget, bins.len() - 1)
        });
        bins[bin].push(item);
        open.remove(&(room, bin));
        open.insert((room - size, bin));
    }
    bins.iter_mut().for_each(|bin| bin.sort_unstable());
    let beside = bins.swap_remove(0);
    bins.sort_unstable_by_key(|bin| bin[0]);
    (beside, bins)
}
