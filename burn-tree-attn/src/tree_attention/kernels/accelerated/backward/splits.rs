//! Several cubes for one tile of keys, where there are few key heads.

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::blocks::*;
use burn_tree_kit::cube::matrix::*;

/// Query and key tiles that cubes of the key and value kernel go through.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyWork {
    /// Entries of the plan.
    pub entries: usize,
    /// Entries of the key tile that most query tiles see.
    pub longest: usize,
    /// Bytes of keys, in 16 bits: of all batch rows and heads.
    pub key_bytes: usize,
}

impl BackwardConfig {
    /// How many cubes should share a key tile, if `slots` cubes run at a time: the divisor of
    /// `group` with the shortest estimated time. Without sharing, few key heads or a short pack
    /// leave the last cubes of a few tiles to run alone.
    pub fn splits(&self, work: KeyWork, kv_heads: usize, group: usize, slots: usize) -> usize {
        // What an H200 multiplies while it moves a byte.
        const FLOPS_PER_BYTE: f64 = 150.0;
        let slots = slots as f64;
        let step = (4 * 2 * QUERY_ROWS * KEY_ROWS * self.head_dim) as f64 * slots / FLOPS_PER_BYTE;
        let even = (work.entries * kv_heads * group) as f64 / slots;
        let bytes = |splits: usize| {
            let longest = (work.longest * group / splits) as f64;
            // Partial gradients of keys and values are written and read in f32.
            let partial = if splits > 1 {
                2 * (4 * splits + 1) * work.key_bytes
            } else {
                0
            };
            even.max(longest) * step + partial as f64
        };
        (1..=group)
            .filter(|&splits| group.is_multiple_of(splits))
            .min_by(|&a, &b| bytes(a).total_cmp(&bytes(b)))
            .unwrap_or(1)
    }
}

/// Units of a cube of [`sum_partial_gradients`].
pub(crate) const SUM_UNITS: usize = 256;

/// Adds the f32 gradients of `splits` cubes, in order: `partial` `[splits, length]` and `gradient`
/// `[length]` in fours.
#[cube(launch_unchecked)]
pub(crate) fn sum_partial_gradients<E: Float>(
    partial: &[Vector<f32, Const<4>>],
    gradient: &mut [Vector<u32, Const<2>>],
    length: u32,
    splits: u32,
    #[define(E)] _dtype: ElemType,
) {
    let at = CUBE_POS_X * SUM_UNITS as u32 + UNIT_POS_X;
    if at < length {
        let mut sum = partial[at as usize];
        for split in 1..splits {
            sum += partial[split as usize * length as usize + at as usize];
        }
        let mut packed = Vector::<u32, Const<2>>::empty();
        packed.insert(0usize, pack::<E>(sum.extract(0usize), sum.extract(1usize)));
        packed.insert(1usize, pack::<E>(sum.extract(2usize), sum.extract(3usize)));
        gradient[at as usize] = packed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// N = 16384 with a prompt of 2048 that all see, d = 128: about 9400 pairs of tiles.
    fn splits(kv_heads: usize, group: usize) -> usize {
        let work = KeyWork {
            entries: 9400,
            longest: 256,
            key_bytes: 16384 * kv_heads * 128 * 2,
        };
        BackwardConfig::new(128, group, false, false).splits(work, kv_heads, group, 264)
    }

    #[test]
    fn tiles_are_shared_only_where_cubes_are_few() {
        // The longest tile takes 512 steps, an even share of all steps 570.
        assert_eq!(splits(8, 2), 1);
        assert_eq!(splits(8, 4), 1);
        // 2048 steps against 570.
        assert_eq!(splits(2, 8), 4);
        // A divisor of 7: all or nothing.
        assert_eq!(splits(4, 7), 7);
        assert_eq!(splits(1, 1), 1);
    }
}
