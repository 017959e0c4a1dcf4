//! Sorting by small integers in linear time.

/// Sorts `items` stably by `key < keys`; returns the offset of each key, and the sorted items.
pub fn counting_sort(
    count: usize,
    keys: usize,
    items: impl Iterator<Item = u32> + Clone,
    key: impl Fn(u32) -> usize,
) -> (Vec<u32>, Vec<u32>) {
    let mut offsets = vec![0u32; keys + 2];
    for item in items.clone() {
        offsets[key(item) + 2] += 1;
    }
    for index in 2..offsets.len() {
        offsets[index] += offsets[index - 1];
    }
    let mut sorted = vec![0; count];
    for item in items {
        let next = &mut offsets[key(item) + 1];
        sorted[*next as usize] = item;
        *next += 1;
    }
    offsets.pop();
    (offsets, sorted)
}
