//! Bin packing.

use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Best-fit decreasing: the largest item first, each into the fullest bin that still holds it.
/// Bins are in order of their first items, items in order of their numbers.
pub fn fill_bins(sizes: &[usize], budget: usize) -> Vec<Vec<u32>> {
    let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
    order.sort_by_key(|&item| Reverse(sizes[item as usize]));
    let mut bins: Vec<Vec<u32>> = Vec::new();
    let mut open: BTreeSet<(usize, usize)> = BTreeSet::new();
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
    bins.sort_unstable_by_key(|bin| bin[0]);
    bins
}
