//! The time of a step on this machine, predicted from counts.
//!
//! The [step bound](crate::StepBound) counts floating-point operations as if all were equally fast.
//! The time of a step depends on more: attention tiles that are computed for a few visible pairs,
//! padding of recurrent windows, sequential dependencies, and fixed times of every pack and every
//! step. [`StepWork`] counts these, and [`StepTime`] holds the seconds per unit of each, fitted to
//! [a few measured steps](calibrate).

mod calibration;
mod least_squares;

use std::iter::Sum;
use std::ops::Add;
use std::slice::from_ref;

use burn_tree_attn::{PastKeys, Visibility};
use burn_tree_ssm::TreeRecurrence;
use thiserror::Error;
use tree_pack::Pack;

pub use calibration::{Calibration, CalibrationOptions, TimedStep, calibrate};

/// Rows and keys of the attention tiles in which pairs are counted. Kernels use other tile sizes,
/// too, but each computes whole tiles.
const BLOCK: usize = 64;

/// Rows of the tiles of recurrent windows.
const TILE_ROWS: usize = 16;

/// Number of kinds of work.
const KINDS: usize = 8;

/// The quantities that the time of an optimizer step depends on. Counts of packs and steps are
/// additive, and may be fractions for a tree's share of a pack.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepWork {
    /// Optimizer steps.
    pub steps: f64,
    /// Packs.
    pub packs: f64,
    /// Rows that pass through the blocks, with padding.
    pub rows: f64,
    /// Pairs in attention tiles of 64 rows and 64 keys with at least one visible pair, per head.
    pub block_pairs: f64,
    /// Rows projected on the vocabulary.
    pub projected_rows: f64,
    /// Rows of the windows of recurrent layers, each window rounded up to a multiple of 16.
    pub recurrent_rows: f64,
    /// Recurrent windows that must be computed one after another.
    pub recurrent_chain: f64,
    /// Past keys: rows of earlier packs that packs continue from.
    pub past_rows: f64,
}

impl StepWork {
    /// Names of the counts, in the order of the fields.
    pub const NAMES: [&str; KINDS] = [
        "steps",
        "packs",
        "rows",
        "pairs in visited blocks",
        "projected rows",
        "rows of recurrent windows",
        "recurrent windows in a chain",
        "rows of earlier packs",
    ];

    /// Counts the packs of one step. Recurrent work is counted only if the model has recurrent
    /// layers.
    ///
    /// # Panics
    /// If a layout is inconsistent, which those of [`tree_pack`] are not.
    pub fn of_step<'a>(packs: impl IntoIterator<Item = &'a Pack>, recurrent: bool) -> Self {
        let packs: Self = packs
            .into_iter()
            .map(|pack| Self::of_pack(pack, recurrent))
            .sum();
        Self {
            steps: 1.0,
            ..packs
        }
    }

    /// Counts one pack.
    ///
    /// # Panics
    /// As [`of_step`](Self::of_step).
    pub fn of_pack(pack: &Pack, recurrent: bool) -> Self {
        let layout = from_ref(&pack.layout);
        let rows = pack.padded_len.max(1);
        let past = pack
            .gateway
            .as_ref()
            .map(PastKeys::from)
            .unwrap_or_default();
        let past_rows = past.start.len();
        let visibility = Visibility::from_layouts(layout, rows, &[past])
            .unwrap_or_else(|error| panic!("{error}"));
        let blocks = visibility.visited_blocks(BLOCK, BLOCK, None);
        let (recurrent_rows, recurrent_chain) = match recurrent {
            true => {
                let recurrence = TreeRecurrence::try_continuing(layout, rows, &root_states(pack))
                    .unwrap_or_else(|error| panic!("{error}"));
                (recurrence.tiled_rows(TILE_ROWS), recurrence.longest_chain())
            }
            false => (0, 0),
        };
        Self {
            steps: 0.0,
            packs: 1.0,
            rows: rows as f64,
            block_pairs: blocks as f64 * (BLOCK * BLOCK) as f64,
            projected_rows: pack.occurrences.distinct_rows() as f64,
            recurrent_rows: recurrent_rows as f64,
            recurrent_chain: recurrent_chain as f64,
            past_rows: past_rows as f64,
        }
    }

    fn values(&self) -> [f64; KINDS] {
        [
            self.steps,
            self.packs,
            self.rows,
            self.block_pairs,
            self.projected_rows,
            self.recurrent_rows,
            self.recurrent_chain,
            self.past_rows,
        ]
    }
}

impl From<[f64; KINDS]> for StepWork {
    /// From counts in the order of [`StepWork::NAMES`].
    fn from(counts: [f64; KINDS]) -> Self {
        let [
            steps,
            packs,
            rows,
            block_pairs,
            projected_rows,
            recurrent_rows,
            recurrent_chain,
            past_rows,
        ] = counts;
        Self {
            steps,
            packs,
            rows,
            block_pairs,
            projected_rows,
            recurrent_rows,
            recurrent_chain,
            past_rows,
        }
    }
}

impl Add for StepWork {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            steps: self.steps + other.steps,
            packs: self.packs + other.packs,
            rows: self.rows + other.rows,
            block_pairs: self.block_pairs + other.block_pairs,
            projected_rows: self.projected_rows + other.projected_rows,
            recurrent_rows: self.recurrent_rows + other.recurrent_rows,
            recurrent_chain: self.recurrent_chain + other.recurrent_chain,
            past_rows: self.past_rows + other.past_rows,
        }
    }
}

impl Sum for StepWork {
    fn sum<I: Iterator<Item = Self>>(work: I) -> Self {
        work.fold(Self::default(), Add::add)
    }
}

/// Times that cannot be fitted, or invalid calibration options.
#[derive(Clone, Copy, Debug, PartialEq, Error)]
pub enum FitError {
    /// No timed steps were given.
    #[error("no timed steps to fit to")]
    NoSamples,
    /// A time is not a positive number.
    #[error("timed step {index} took {seconds} s: expected more than 0")]
    Seconds {
        /// The step, counted from 0.
        index: usize,
        /// The measured seconds.
        seconds: f64,
    },
    /// A calibration option is invalid.
    #[error("{option} is {value}, expected {expected}")]
    Option {
        /// A field of [`CalibrationOptions`].
        option: &'static str,
        /// The value.
        value: f64,
        /// The valid range.
        expected: &'static str,
    },
}

/// Seconds per unit of each kind of work, on one machine with one model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTime {
    seconds: [f64; KINDS],
}

impl StepTime {
    /// Fits non-negative seconds per unit to measured steps, by the least squares of the *relative*
    /// errors.
    ///
    /// Kinds of work that no step has get the cost 0.
    ///
    /// # Errors
    /// [`FitError`] if there are no steps, or a time is not a positive number.
    ///
    /// ```
    /// use burn_tree_train::{StepTime, StepWork};
    ///
    /// let work = |rows| StepWork { steps: 1.0, rows, ..StepWork::default() };
    /// let time = StepTime::fit([(work(100.0), 0.3), (work(400.0), 0.6)]).unwrap();
    /// assert!((time.seconds(&work(1000.0)) - 1.2).abs() < 1e-9);
    /// ```
    pub fn fit(steps: impl IntoIterator<Item = (StepWork, f64)>) -> Result<Self, FitError> {
        let mut rows = Vec::new();
        for (index, (work, seconds)) in steps.into_iter().enumerate() {
            if !(seconds.is_finite() && seconds > 0.0) {
                return Err(FitError::Seconds { index, seconds });
            }
            rows.push(work.values().map(|count| count / seconds));
        }
        if rows.is_empty() {
            return Err(FitError::NoSamples);
        }
        let ones = vec![1.0; rows.len()];
        Ok(Self {
            seconds: least_squares::non_negative(&rows, &ones),
        })
    }

    /// A step time with given seconds per unit of each kind of work.
    pub fn new(seconds_of_one: StepWork) -> Self {
        Self {
            seconds: seconds_of_one.values(),
        }
    }

    /// Predicted seconds of the work.
    pub fn seconds(&self, work: &StepWork) -> f64 {
        self.parts(work).iter().sum()
    }

    /// Predicted seconds by kind of work, in the order of [`StepWork::NAMES`].
    pub fn parts(&self, work: &StepWork) -> [f64; KINDS] {
        let mut parts = work.values();
        for (part, seconds) in parts.iter_mut().zip(self.seconds) {
            *part *= seconds;
        }
        parts
    }

    /// Seconds of one unit of each kind, in the order of [`StepWork::NAMES`].
    pub fn seconds_of_one(&self) -> [f64; KINDS] {
        self.seconds
    }
}

/// A separate initial state for each root that continues rows of an earlier pack.
fn root_states(pack: &Pack) -> Vec<Option<u32>> {
    let rows = pack.layout.parents.iter().zip(&pack.layout.position_ids);
    let depths = rows.filter_map(|(&parent, &depth)| (parent < 0).then_some(depth));
    (0..)
        .zip(depths)
        .map(|(root, depth)| (depth > 0).then_some(root))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tree_pack::{PackOptions, Partitioning, Trajectory, build_forests, pack_step};

    fn one_pack(trajectories: &[Trajectory], pad_to_multiple: usize) -> Pack {
        let forests = build_forests(trajectories).unwrap();
        let options = PackOptions {
            pad_to_multiple,
            ..PackOptions::new(4096)
        };
        pack_step(trajectories, &forests, &options)
            .unwrap()
            .packs
            .remove(0)
    }

    /// A prompt of 128 tokens and two answers of 64, the last 32 of each trained.
    fn fork() -> Vec<Trajectory> {
        let path = |answer: u32| {
            let tokens = (0..128).chain((0..64).map(|index| 1000 * answer + index));
            let mask = (0..192).map(|index| index >= 160).collect();
            Trajectory::new("fork", answer.to_string(), tokens.collect(), mask)
        };
        vec![path(1), path(2)]
    }

    #[test]
    fn work_is_counted_as_it_is_computed() {
        let pack = one_pack(&fork(), 100);
        let work = StepWork::of_pack(&pack, true);
        // 256 tokens in 300 rows. Rows 0..64, 64..128, 128..192 and 192..256 see 1, 2, 3 and 3
        // tiles of keys: the second answer does not see the first.
        let expected = StepWork {
            steps: 0.0,
            packs: 1.0,
            rows: 300.0,
            block_pairs: 9.0 * 4096.0,
            projected_rows: 64.0,
            // Two windows of the prompt, and one of each answer after them.
            recurrent_rows: 256.0,
            recurrent_chain: 3.0,
            past_rows: 0.0,
        };
        assert_eq!(work, expected);
        let without = StepWork::of_pack(&pack, false);
        assert_eq!(
            (without.recurrent_rows, without.recurrent_chain),
            (0.0, 0.0)
        );
        let step = StepWork::of_step([&pack, &pack], true);
        assert_eq!((step.steps, step.packs, step.rows), (1.0, 2.0, 600.0));
    }

    /// One path of 192 tokens in packs of 64: the second continues 64 rows, the third 128.
    #[test]
    fn rows_of_earlier_packs_are_counted() {
        let path = Trajectory::new("path", "0", (0..192).collect(), vec![true; 192]);
        let forests = build_forests(from_ref(&path)).unwrap();
        let options = PackOptions {
            partitioning: Partitioning::Connected,
            ..PackOptions::new(64)
        };
        let step = pack_step(from_ref(&path), &forests, &options).unwrap();
        let work = StepWork::of_step(&step.packs, true);
        assert_eq!((work.packs, work.rows, work.past_rows), (3.0, 192.0, 192.0));
        assert_eq!(work.block_pairs, (1.0 + 2.0 + 3.0) * 4096.0);
        assert_eq!((work.recurrent_rows, work.recurrent_chain), (192.0, 3.0));
    }

    #[test]
    fn times_that_are_none_are_refused() {
        assert_eq!(StepTime::fit([]), Err(FitError::NoSamples));
        let work = StepWork::default();
        for seconds in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error = StepTime::fit([(work, 1.0), (work, seconds)]).unwrap_err();
            assert!(
                error.to_string().starts_with("timed step 1 took"),
                "{error}"
            );
        }
    }

    /// Noise can make a kind of work seem to have a negative cost.
    #[test]
    fn nothing_takes_less_than_no_time() {
        let work = |rows, block_pairs| StepWork {
            rows,
            block_pairs,
            ..StepWork::default()
        };
        let steps = [
            (work(10.0, 1.0), 1.0),
            (work(20.0, 90.0), 1.9),
            (work(30.0, 1.0), 3.0),
        ];
        let time = StepTime::fit(steps).unwrap();
        assert!(time.seconds_of_one().iter().all(|&seconds| seconds >= 0.0));
        assert_eq!(time.seconds(&work(0.0, 100.0)), 0.0);
        assert!((time.seconds(&work(10.0, 0.0)) - 1.0).abs() < 0.05);
    }
}
