//! Calibration: timed synthetic steps to which the cost of each kind of work is fitted.

use tree_pack::{
    MAX_ROWS, MAX_TOKEN_ID, PackOptions, PackedStep, Partitioning, PrefixForest, Trajectory,
    build_forests, flat_forests, pack_step,
};

use super::{FitError, StepTime, StepWork};

/// Options of a [calibration](calibrate).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationOptions {
    /// Upper bound (exclusive) of the token ids.
    pub vocab_size: usize,
    /// Largest number of rows of a pack, as in the steps to be predicted.
    pub max_pack_rows: usize,
    /// Packs are padded to a multiple of this, as in the steps to be predicted.
    pub pad_to_multiple: usize,
    /// Whether the model has recurrent layers.
    pub recurrent: bool,
    /// Partitioning of trees over the budget. If it produces parts that continue each other, steps
    /// of such parts are timed, too.
    pub partitioning: Partitioning,
    /// Approximate duration of the calibration in seconds. Determines the size of its packs.
    pub seconds: f64,
}

impl CalibrationOptions {
    /// A calibration of about four seconds, without recurrent layers, padding and parts.
    pub fn new(vocab_size: usize, max_pack_rows: usize) -> Self {
        Self {
            vocab_size,
            max_pack_rows,
            pad_to_multiple: 1,
            recurrent: false,
            partitioning: Partitioning::Refuse,
            seconds: 4.0,
        }
    }
}

impl CalibrationOptions {
    fn check(&self) -> Result<(), FitError> {
        let count = |option, value: usize, most: usize, expected| match (1..=most).contains(&value)
        {
            true => Ok(()),
            false => Err(FitError::Option {
                option,
                value: value as f64,
                expected,
            }),
        };
        let rows = "1 to 2^31 - 1, after padding, too";
        let ids = MAX_TOKEN_ID as usize + 1;
        count(
            "vocab_size",
            self.vocab_size,
            ids,
            "1 to the largest token id and one",
        )?;
        count("max_pack_rows", self.max_pack_rows, MAX_ROWS, rows)?;
        count("pad_to_multiple", self.pad_to_multiple, MAX_ROWS, rows)?;
        let padded = self.max_pack_rows.next_multiple_of(self.pad_to_multiple);
        let most = if padded > MAX_ROWS { 0 } else { MAX_ROWS };
        count("pad_to_multiple", self.pad_to_multiple, most, rows)?;
        match self.seconds.is_finite() && self.seconds > 0.0 {
            true => Ok(()),
            false => Err(FitError::Option {
                option: "seconds",
                value: self.seconds,
                expected: "a positive number",
            }),
        }
    }
}

/// A timed step.
#[derive(Clone, Debug, PartialEq)]
pub struct TimedStep {
    /// The work of the step.
    pub name: &'static str,
    /// The counts of the step.
    pub work: StepWork,
    /// The measured seconds.
    pub seconds: f64,
}

/// The result of a calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    /// The fitted seconds per unit of each kind of work.
    pub step_time: StepTime,
    /// The timed steps.
    pub steps: Vec<TimedStep>,
}

impl Calibration {
    /// Root mean square of the relative errors at the timed steps.
    pub fn relative_error(&self) -> f64 {
        let error = |step: &TimedStep| self.step_time.seconds(&step.work) / step.seconds - 1.0;
        let squares = self.steps.iter().map(|step| error(step).powi(2));
        (squares.sum::<f64>() / self.steps.len() as f64).sqrt()
    }
}

/// Rows of the first pack, whose time determines the size of the others.
const FIRST_ROWS: usize = 256;

/// Total rows of all packs, as a multiple of the rows of the largest pack.
const TOTAL_ROWS: f64 = 7.0;

/// The same for the steps of parts.
const ROWS_IN_PARTS: f64 = 1.75;

/// Runs of each step. The first is not counted: kernels are compiled and tuned in it.
const RUNS: usize = 3;

/// Times a few synthetic steps and fits the cost of each kind of work to them.
///
/// `time_step` computes one optimizer step (forward, backward, update) without lasting effects,
/// waits for the device, and returns the elapsed seconds. Each step runs three times; the faster of
/// the last two counts, since other load on the machine can only slow a step down.
///
/// # Errors
/// The error of `time_step`, or [`FitError`] if an option or a time is invalid.
pub fn calibrate<E: From<FitError>>(
    options: &CalibrationOptions,
    mut time_step: impl FnMut(&PackedStep) -> Result<f64, E>,
) -> Result<Calibration, E> {
    let mut seconds = |step: &PackedStep| -> Result<f64, E> {
        let mut fastest = f64::INFINITY;
        for run in 0..RUNS {
            let seconds = time_step(step)?;
            if run > 0 {
                fastest = fastest.min(seconds);
            }
        }
        Ok(fastest)
    };
    options.check()?;
    let largest = options.max_pack_rows;
    let first_rows = FIRST_ROWS.min(largest);
    let first = seconds(&one_path(first_rows, options))?;
    let total_rows = match has_parts(options) {
        true => TOTAL_ROWS + ROWS_IN_PARTS,
        false => TOTAL_ROWS,
    };
    let affordable = options.seconds / (total_rows * RUNS as f64 * first / first_rows as f64);
    let rows = (affordable as usize).clamp(first_rows, largest);
    let mut timed = Vec::new();
    for (name, step) in synthetic_steps(rows, options) {
        timed.push(TimedStep {
            name,
            work: StepWork::of_step(&step.packs, options.recurrent),
            seconds: seconds(&step)?,
        });
    }
    let step_time = StepTime::fit(timed.iter().map(|step| (step.work, step.seconds)))?;
    Ok(Calibration {
        step_time,
        steps: timed,
    })
}

fn has_parts(options: &CalibrationOptions) -> bool {
    match options.partitioning {
        Partitioning::Connected | Partitioning::Shared | Partitioning::PerNode => true,
        Partitioning::Refuse | Partitioning::RepeatedPrefixes => false,
    }
}

fn one_path(rows: usize, options: &CalibrationOptions) -> PackedStep {
    let path = star(0, [rows, 0, 0], 2, options.vocab_size);
    pack(&path, build_forests(&path), rows, options)
}

/// Steps of packs of at most `rows` rows, with different shares of each kind of work.
fn synthetic_steps(rows: usize, options: &CalibrationOptions) -> Vec<(&'static str, PackedStep)> {
    let part = |divisor: usize| (rows / divisor).max(1);
    let trees = |count: usize, sizes: [usize; 3], every: usize| -> Vec<Trajectory> {
        let trees = 0..count.max(1);
        trees
            .flat_map(|tree| star(tree, sizes, every, options.vocab_size))
            .collect()
    };
    let merged = |trajectories: Vec<Trajectory>, budget: usize| {
        pack(&trajectories, build_forests(&trajectories), budget, options)
    };
    let separate = |trajectories: Vec<Trajectory>, budget: usize| {
        pack(&trajectories, flat_forests(&trajectories), budget, options)
    };
    let mut steps = vec![
        (
            "one path, all trained",
            merged(trees(1, [rows, 0, 0], 1), rows),
        ),
        (
            "one path, few trained",
            merged(trees(1, [rows, 0, 0], 64), rows),
        ),
        (
            "one path of half the rows",
            merged(trees(1, [part(2), 0, 0], 2), rows),
        ),
        (
            "short paths",
            separate(trees(rows / 64, [rows.min(64), 0, 0], 2), rows),
        ),
        (
            "short answers",
            merged(trees(1, [part(4), (rows - part(4)) / 24, 24], 2), rows),
        ),
        (
            "four answers",
            merged(trees(1, [part(2), 4, rows / 8], 2), rows),
        ),
        (
            "six small packs",
            merged(trees(6, [part(8), 0, 0], 2), part(8)),
        ),
        ("one small pack", merged(trees(1, [part(8), 0, 0], 2), rows)),
    ];
    if has_parts(options) {
        steps.extend([
            (
                "one path in parts",
                merged(trees(1, [rows, 0, 0], 2), part(6)),
            ),
            (
                "answers in parts",
                merged(trees(1, [part(4), 4, rows / 8], 2), part(4)),
            ),
        ]);
    }
    steps
}

fn pack(
    trajectories: &[Trajectory],
    forests: Result<Vec<PrefixForest>, tree_pack::ForestError>,
    budget: usize,
    options: &CalibrationOptions,
) -> PackedStep {
    let options = PackOptions {
        pad_to_multiple: options.pad_to_multiple,
        partitioning: match has_parts(options) {
            true => Partitioning::Connected,
            false => Partitioning::Refuse,
        },
        ..PackOptions::new(budget)
    };
    let forests = forests.expect("the trajectories are valid");
    pack_step(trajectories, &forests, &options).expect("every tree fits its budget")
}

/// Trajectories that share a prompt of `prompt` tokens, with `answers` answers of `answer` tokens;
/// every `every`-th token is trained.
fn star(
    tree: usize,
    [prompt, answers, answer]: [usize; 3],
    every: usize,
    vocab_size: usize,
) -> Vec<Trajectory> {
    let token = |place: usize| (scramble((tree << 40 | place) as u64) % vocab_size as u64) as u32;
    let trajectory = |number: usize, answer: usize| {
        let own = (0..answer).map(|index| match index {
            // Answers differ from their first token on.
            0 => (number % vocab_size) as u32,
            _ => token((number + 1) << 20 | index),
        });
        let tokens: Vec<u32> = (0..prompt).map(token).chain(own).collect();
        // A step without trained tokens would be refused.
        let every = every.min(tokens.len());
        let mask = (0..tokens.len()).map(|index| index % every == every - 1);
        let mask = mask.collect();
        Trajectory::new(tree.to_string(), number.to_string(), tokens, mask)
    };
    match answers {
        0 => vec![trajectory(0, 0)],
        _ => (0..answers)
            .map(|number| trajectory(number, answer))
            .collect(),
    }
}

/// The finaliser of SplitMix64: spreads consecutive numbers.
fn scramble(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUE: StepWork = StepWork {
        steps: 0.02,
        packs: 3e-3,
        rows: 5e-5,
        block_pairs: 2e-9,
        projected_rows: 8e-5,
        recurrent_rows: 3e-5,
        recurrent_chain: 4e-4,
        past_rows: 1e-5,
    };

    fn options(recurrent: bool, max_pack_rows: usize) -> CalibrationOptions {
        CalibrationOptions {
            recurrent,
            pad_to_multiple: 32,
            partitioning: Partitioning::Connected,
            ..CalibrationOptions::new(1000, max_pack_rows)
        }
    }

    /// On a machine whose time is exactly the cost of the work, the fit recovers the cost of every
    /// kind, and other steps are predicted.
    #[test]
    fn known_costs_are_recovered() {
        for recurrent in [false, true] {
            let known = StepTime::new(TRUE);
            let options = options(recurrent, 4096);
            let calibration = calibrate(&options, |step| {
                Ok::<_, FitError>(known.seconds(&StepWork::of_step(&step.packs, recurrent)))
            })
            .unwrap();
            assert!(calibration.relative_error() < 1e-6);
            let found = calibration.step_time.seconds_of_one();
            let is_recurrent = |kind: usize| StepWork::NAMES[kind].contains("recurrent");
            for kind in (0..StepWork::NAMES.len()).filter(|&kind| recurrent || !is_recurrent(kind))
            {
                let (found, known) = (found[kind], known.seconds_of_one()[kind]);
                let name = StepWork::NAMES[kind];
                assert!(
                    (found / known - 1.0).abs() < 1e-3,
                    "{name}: {found} {known}"
                );
            }
            let other = star(9, [300, 7, 90], 3, 500);
            let step = pack(&other, build_forests(&other), 8192, &options);
            let work = StepWork::of_step(&step.packs, recurrent);
            let (found, known) = (calibration.step_time.seconds(&work), known.seconds(&work));
            assert!((found / known - 1.0).abs() < 1e-4, "{found} {known}");
        }
    }

    /// At 0.1 ms a row, packs are smaller than the budget, and all runs together take about the
    /// requested time.
    #[test]
    fn packs_are_as_large_as_the_time_allows() {
        let mut total = 0.0;
        let calibration = calibrate(&options(false, 1 << 20), |step| {
            let rows: usize = step.packs.iter().map(|pack| pack.padded_len).sum();
            total += 1e-4 * rows as f64;
            Ok::<_, FitError>(1e-4 * rows as f64)
        })
        .unwrap();
        let largest = calibration.steps[0].work.rows;
        // Packs are padded to a multiple of 32 rows.
        assert!((largest - 4.0 / (3.0 * 8.75e-4)).abs() < 32.0, "{largest}");
        assert!((3.5..4.5).contains(&total), "{total}");
    }

    #[test]
    fn the_smallest_budgets_and_vocabularies_work() {
        for rows in [1, 2, 7, 63] {
            let options = CalibrationOptions {
                recurrent: true,
                ..CalibrationOptions::new(1, rows)
            };
            let calibration = calibrate(&options, |_| Ok::<_, FitError>(1.0)).unwrap();
            let packs = calibration
                .steps
                .iter()
                .map(|step| step.work.rows / step.work.packs);
            assert!(packs.clone().all(|mean| mean <= rows as f64), "{rows}");
        }
    }

    /// The calibration uses whole trees and, if the partitioning produces parts that continue
    /// others, connected parts.
    #[test]
    fn every_way_to_cut_trees_is_calibrated() {
        for partitioning in [
            Partitioning::Refuse,
            Partitioning::Connected,
            Partitioning::Shared,
            Partitioning::PerNode,
            Partitioning::RepeatedPrefixes,
        ] {
            let options = CalibrationOptions {
                partitioning,
                ..options(false, 300)
            };
            let calibration = calibrate(&options, |_| Ok::<_, FitError>(1.0)).unwrap();
            let past_rows = calibration.steps.iter().map(|step| step.work.past_rows);
            assert_eq!(
                past_rows.sum::<f64>() > 0.0,
                has_parts(&options),
                "{partitioning:?}"
            );
        }
    }

    #[test]
    fn options_that_make_no_steps_are_refused() {
        let good = options(false, 64);
        for (bad, name) in [
            (
                CalibrationOptions {
                    vocab_size: 0,
                    ..good
                },
                "vocab_size is 0",
            ),
            (
                CalibrationOptions {
                    max_pack_rows: 0,
                    ..good
                },
                "max_pack_rows is 0",
            ),
            (
                CalibrationOptions {
                    pad_to_multiple: 0,
                    ..good
                },
                "pad_to_multiple is 0",
            ),
            (
                CalibrationOptions {
                    max_pack_rows: MAX_ROWS,
                    pad_to_multiple: 3,
                    ..good
                },
                "pad_to_multiple is 3",
            ),
            (
                CalibrationOptions {
                    seconds: f64::NAN,
                    ..good
                },
                "seconds is NaN",
            ),
        ] {
            let error = calibrate(&bad, |_| Ok::<_, FitError>(1.0)).unwrap_err();
            assert!(error.to_string().starts_with(name), "{error}");
        }
    }

    #[test]
    fn a_time_that_is_none_is_an_error() {
        let result = calibrate(&options(false, 64), |_| Ok::<_, FitError>(0.0));
        assert!(matches!(result, Err(FitError::Seconds { .. })));
        let result = calibrate(&options(false, 64), |_| Err(FitError::NoSamples));
        assert_eq!(result, Err(FitError::NoSamples));
    }
}
