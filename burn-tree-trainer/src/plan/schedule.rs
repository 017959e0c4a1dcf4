//! Learning-rate schedule: linear warm-up, then cosine decay or a constant.

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The schedule after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Decay {
    /// Half a cosine wave from the peak to the minimum at the end of the run.
    Cosine,
    /// The peak until the end.
    Constant,
}

/// A learning-rate schedule.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// Peak learning rate, reached at step `warmup_steps`.
    pub peak: f64,
    /// Learning rate at the end of the cosine decay.
    pub minimum: f64,
    /// Steps of linear warm-up; step `k` has the rate `peak * (k + 1) / (warmup_steps + 1)`.
    pub warmup_steps: usize,
    /// Steps of the run.
    pub total_steps: usize,
    /// The schedule after the warm-up.
    pub decay: Decay,
}

/// An invalid schedule.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum ScheduleError {
    /// The warm-up does not end before the run.
    #[error("{warmup} warm-up steps leave none of the run's {total} steps for training")]
    WarmupTooLong {
        /// Warm-up steps.
        warmup: usize,
        /// Steps of the run.
        total: usize,
    },
    /// A rate is out of range.
    #[error("learning rate: {0}")]
    Rate(String),
}

impl Schedule {
    /// The scheduler after `completed_steps` steps: its next `step()` returns the rate of step
    /// `completed_steps` (counted from 0). It is fast-forwarded, so a resumed run has exactly the
    /// rates of an uninterrupted one.
    pub fn init(&self, completed_steps: usize) -> Result<ModuleLrScheduler, ScheduleError> {
        if self.warmup_steps >= self.total_steps {
            return Err(ScheduleError::WarmupTooLong {
                warmup: self.warmup_steps,
                total: self.total_steps,
            });
        }
        let decay_steps = self.total_steps - self.warmup_steps;
        let main = match self.decay {
            Decay::Cosine => CosineAnnealingLrSchedulerConfig::new(self.peak, decay_steps)
                .with_min_lr(self.minimum)
                .into(),
            Decay::Constant => LrSchedulerConfig::Constant(self.peak),
        };
        let config = if self.warmup_steps == 0 {
            SequentialLrSchedulerConfig::new(vec![main], vec![])
        } else {
            let first = self.peak / (self.warmup_steps + 1) as f64;
            let warmup = LinearLrSchedulerConfig::new(first, self.peak, self.warmup_steps).into();
            SequentialLrSchedulerConfig::new(vec![warmup, main], vec![self.warmup_steps])
        };
        let mut scheduler = config.init().map_err(ScheduleError::Rate)?;
        for _ in 0..completed_steps {
            scheduler.step();
        }
        Ok(scheduler)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        peak: 0.4,
        minimum: 0.1,
        warmup_steps: 3,
        total_steps: 7,
        decay: Decay::Cosine,
    };

    fn rates(schedule: &Schedule, from: usize, count: usize) -> Vec<f64> {
        let mut scheduler = schedule.init(from).unwrap();
        (0..count).map(|_| scheduler.step().base()).collect()
    }

    fn assert_close(got: &[f64], expected: &[f64]) {
        assert_eq!(got.len(), expected.len());
        for (a, b) in got.iter().zip(expected) {
            // Within a few roundings of f64.
            assert!((a - b).abs() < 1e-12, "{got:?} is not {expected:?}");
        }
    }

    #[test]
    fn rises_linearly_then_follows_the_cosine() {
        // cos(0), cos(pi/4), cos(pi/2), cos(3 pi/4) between 0.4 and 0.1.
        let half = 0.15 * std::f64::consts::FRAC_1_SQRT_2;
        assert_close(
            &rates(&SCHEDULE, 0, 7),
            &[0.1, 0.2, 0.3, 0.4, 0.25 + half, 0.25, 0.25 - half],
        );
    }

    #[test]
    fn without_warmup_starts_at_the_peak() {
        let schedule = Schedule {
            warmup_steps: 0,
            ..SCHEDULE
        };
        assert_close(&rates(&schedule, 0, 1), &[0.4]);
    }

    #[test]
    fn constant_stays_at_the_peak() {
        let schedule = Schedule {
            decay: Decay::Constant,
            ..SCHEDULE
        };
        assert_close(&rates(&schedule, 2, 4), &[0.3, 0.4, 0.4, 0.4]);
    }

    #[test]
    fn resumed_rates_are_bit_identical() {
        let whole = rates(&SCHEDULE, 0, 7);
        for done in 0..7 {
            assert_eq!(rates(&SCHEDULE, done, 7 - done), whole[done..]);
        }
    }

    #[test]
    fn bad_schedules_are_refused() {
        let long = Schedule {
            warmup_steps: 7,
            ..SCHEDULE
        };
        assert_eq!(
            long.init(0).err(),
            Some(ScheduleError::WarmupTooLong {
                warmup: 7,
                total: 7
            })
        );
        let negative = Schedule {
            peak: -1.0,
            warmup_steps: 0,
            ..SCHEDULE
        };
        assert!(matches!(negative.init(0), Err(ScheduleError::Rate(_))));
    }
}
