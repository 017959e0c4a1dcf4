//! Bin packing.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

/// Best-fit decreasing: puts the items, in descending order of size, each into the fullest bin with
/// enough room. Bins are in the order of their first items, items in ascending order.
pub fn fill_bins(sizes: &[usize], budget: usize) -> Vec<Vec<u32>> {
    fill_bins_beside(sizes, budget, 0).1
}

/// As [`fill_bins`], but the number of bins is a multiple of `ranks` if there are enough items, and
/// their sizes are even: items, in descending order of size, each go into the emptiest bin.
pub fn fill_bins_evenly(sizes: &[usize], budget: usize, ranks: usize) -> Vec<Vec<u32>> {
    let fewest = fill_bins(sizes, budget);
    let count = fewest.len().next_multiple_of(ranks).min(sizes.len());
    if count == fewest.len() {
        return fewest;
    }
    let mut bins: Vec<Vec<u32>> = vec![Vec::new(); count];
    let mut filled: BinaryHeap<_> = (0..count).map(|bin| Reverse((0, bin))).collect();
    for item in largest_first(sizes) {
        let size = sizes[item as usize];
        let emptiest = filled
            .peek()
            .map_or((budget, 0), |&Reverse(emptiest)| emptiest);
        let (fill, bin) = match emptiest.0 + size <= budget {
            true => {
                filled.pop();
                emptiest
            }
            false => {
                bins.push(Vec::new());
                (0, bins.len() - 1)
            }
        };
        bins[bin].push(item);
        filled.push(Reverse((fill + size, bin)));
    }
    in_order(bins)
}

fn largest_first(sizes: &[usize]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..sizes.len() as u32).collect();
    order.sort_by_key(|&item| Reverse(sizes[item as usize]));
    order
}

/// Sorts non-empty bins by their first items.
fn in_order(mut bins: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
    bins.iter_mut().for_each(|bin| bin.sort_unstable());
    bins.sort_unstable_by_key(|bin| bin[0]);
    bins
}

/// As [`fill_bins`], with one more bin that has `room` left. Returns its items first.
pub fn fill_bins_beside(sizes: &[usize], budget: usize, room: usize) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut bins: Vec<Vec<u32>> = vec![Vec::new()];
    let mut open = BTreeSet::from([(room, 0)]);
    for item in largest_first(sizes) {
        let size = sizes[item as usize];
        let (room, bin) = open.range((size, 0)..).next().copied().unwrap_or_else(|| {
            bins.push(Vec::new());
            (budget, bins.len() - 1)
        });
        bins[bin].push(item);
        open.remove(&(room, bin));
        open.insert((room - size, bin));
    }
    let mut beside = bins.swap_remove(0);
    beside.sort_unstable();
    (beside, in_order(bins))
}
