//! Timing of work on asynchronous devices.

use std::time::Instant;

use burn::tensor::{Device, Distribution, FloatDType, Tensor};

/// Repetitions of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repetitions {
    /// Untimed runs, in which kernels are compiled and tuned and memory pools are filled.
    pub warm_up: usize,
    /// Measurements, whose median is taken.
    pub samples: usize,
    /// Runs per measurement, submitted together, so that submission overlaps with the work.
    pub runs: usize,
}

/// Median seconds of one run of `work`. The device is idle before and after each measurement.
///
/// Results are kept until the device is done, because unused results might not be computed.
///
/// # Panics
/// If the device reports an error.
pub fn seconds<T>(device: &Device, repetitions: Repetitions, work: impl FnMut() -> T) -> f64 {
    seconds_with_results(device, repetitions, work, drop)
}

/// As [`seconds`], and passes each result to `inspect`, untimed.
///
/// # Panics
/// If the device reports an error.
pub fn seconds_with_results<T>(
    device: &Device,
    repetitions: Repetitions,
    mut work: impl FnMut() -> T,
    mut inspect: impl FnMut(T),
) -> f64 {
    let mut sample = |runs: usize| {
        wait(device);
        let start = Instant::now();
        let results: Vec<T> = (0..runs).map(|_| work()).collect();
        wait(device);
        let elapsed = start.elapsed().as_secs_f64();
        results.into_iter().for_each(&mut inspect);
        elapsed / runs as f64
    };
    for _ in 0..repetitions.warm_up {
        sample(1);
    }
    let samples = (0..repetitions.samples.max(1)).map(|_| sample(repetitions.runs.max(1)));
    median(samples.collect())
}

/// Waits until the device is idle.
///
/// # Panics
/// If the device reports an error.
pub fn wait(device: &Device) {
    device
        .sync()
        .unwrap_or_else(|error| panic!("the device failed: {error}"));
}

/// FLOP/s of the matrix product `[rows, inner] x [inner, columns]` in `dtype`: the reference rate
/// for training steps.
pub fn product_rate(
    device: &Device,
    [rows, inner, columns]: [usize; 3],
    dtype: FloatDType,
    repetitions: Repetitions,
) -> f64 {
    let random = |shape| Tensor::<2>::random(shape, Distribution::Default, device).cast(dtype);
    let (left, right) = (random([rows, inner]), random([inner, columns]));
    let seconds = seconds(device, repetitions, || left.clone().matmul(right.clone()));
    2.0 * rows as f64 * inner as f64 * columns as f64 / seconds
}

/// The median; NaN without values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        f64::NAN
    } else if n % 2 == 1 {
        values[n / 2]
    } else {
        (values[n / 2 - 1] + values[n / 2]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const REPETITIONS: Repetitions = Repetitions {
        warm_up: 2,
        samples: 3,
        runs: 4,
    };

    #[test]
    fn every_run_is_made_and_inspected() {
        let calls = Cell::new(0);
        let mut results = Vec::new();
        let work = || {
            calls.set(calls.get() + 1);
            calls.get()
        };
        let seconds = seconds_with_results(&Device::flex(), REPETITIONS, work, |result| {
            results.push(result);
        });
        assert_eq!(results, (1..=2 + 3 * 4).collect::<Vec<_>>());
        assert!(seconds >= 0.0);
    }

    #[test]
    fn a_rate_is_measured() {
        let rate = product_rate(&Device::flex(), [64; 3], FloatDType::F32, REPETITIONS);
        assert!(rate.is_finite() && rate > 0.0);
    }

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(vec![]).is_nan());
    }
}
