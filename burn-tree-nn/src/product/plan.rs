//! The host's side of a launch: tiles, and how its last tiles are divided among the cubes.

/// Rows of a tile of the result.
pub(super) const TILE_ROWS: usize = 128;
/// Columns of a tile of the result.
pub(super) const TILE_COLUMNS: usize = 256;
/// Length of the part of the sums that one stage holds.
pub(super) const STEP: usize = 64;

/// How the tiles that do not fill all cubes are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Ending {
    /// Not at all: a cube computes whole tiles.
    Whole,
    /// Each into four of 64 columns.
    Narrow,
    /// Along the sums: cubes compute equal numbers of steps, and the cube with the last steps of a
    /// tile adds the parts of the others, in order.
    Split,
}

/// The tiles of a result and the steps of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Steps of 64 summed numbers, over all terms of a sum.
    pub(super) steps: usize,
}

impl Tiles {
    pub(super) fn count(self) -> usize {
        self.rows * self.columns
    }

    /// How a launch on `cubes` cubes ends, and the number of tiles that this concerns: the last ones
    /// with [`Ending::Narrow`], the first ones with [`Ending::Split`]. Tiles are divided if whole
    /// ones would waste more than 4 % of the time and more than 8 steps. `narrow` says whether the
    /// kernel with narrow tiles takes these operands.
    pub(super) fn ending(self, cubes: usize, narrow: bool) -> (Ending, usize) {
        let (tiles, steps) = (self.count(), self.steps);
        let rest = tiles % cubes;
        let wasted = tiles.div_ceil(cubes) * steps * cubes - tiles * steps;
        let worth_it = wasted > 8 * cubes && 25 * wasted > tiles * steps;
        if !worth_it {
            return (Ending::Whole, 0);
        }
        // Parts of 128 KB are written and read: too much for short sums.
        let shared = if tiles >= cubes { rest + cubes } else { rest };
        // The kernel counts steps of all cubes in 32 bits.
        let countable = (shared * steps + 1)
            .checked_mul(cubes)
            .is_some_and(|n| n < 1 << 32);
        if narrow && tiles > cubes && rest <= cubes / 2 {
            (Ending::Narrow, rest)
        } else if !narrow && tiles * steps >= 3 * cubes && countable {
            (Ending::Split, shared)
        } else {
            (Ending::Whole, 0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ending(rows: usize, columns: usize, summed: usize, narrow: bool) -> (Ending, usize) {
        let tiles = Tiles {
            rows: rows.div_ceil(TILE_ROWS),
            columns: columns.div_ceil(TILE_COLUMNS),
            steps: summed.div_ceil(STEP),
        };
        tiles.ending(132, narrow)
    }

    #[test]
    fn full_waves_are_not_divided() {
        // 3280 tiles: 24.8 waves.
        assert_eq!(ending(26_240, 4096, 1024, true), (Ending::Whole, 0));
        // 132 tiles: one wave.
        assert_eq!(ending(128 * 132, 256, 65_536, false), (Ending::Whole, 0));
        // Few tiles of short sums waste little time.
        assert_eq!(ending(1000, 256, 512, false), (Ending::Whole, 0));
    }

    #[test]
    fn few_last_tiles_become_narrow() {
        // 820 tiles: 28 beyond six waves.
        assert_eq!(ending(26_240, 1024, 2048, true), (Ending::Narrow, 28));
        // 656 tiles: 128 beyond four waves keep nearly all cubes busy.
        assert_eq!(ending(20_920, 1024, 2048, true), (Ending::Whole, 0));
    }

    #[test]
    fn long_sums_are_split() {
        // 64 tiles of 512 steps for 132 cubes.
        assert_eq!(ending(2048, 1024, 32_768, false), (Ending::Split, 64));
        // 192 tiles: 60 beyond one wave, divided together with that wave.
        assert_eq!(ending(1024, 6144, 32_768, false), (Ending::Split, 192));
        // More steps than 32 bits count.
        assert_eq!(ending(2048, 1024, 1 << 38, false), (Ending::Whole, 0));
    }
}
