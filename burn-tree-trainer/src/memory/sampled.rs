//! Sampled peak memory of tensors.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use burn::tensor::Device;

/// Pause between two samples.
const PAUSE: Duration = Duration::from_micros(200);

/// Bytes of tensors on a device before some work, and their sampled peak during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesInUse {
    /// Before the work.
    pub before: u64,
    /// The largest sample.
    pub peak: u64,
}

/// Runs `work` while another thread samples the bytes in use on the device. `None` on devices that
/// do not report them. The memory reserved by the allocator is larger: it includes freed and partly
/// used pages. Sampling slows the work down slightly.
pub fn bytes_in_use<T>(device: &Device, work: impl FnOnce() -> T) -> (T, Option<BytesInUse>) {
    let device = device.clone().inner();
    let now = || device.memory_pool_usage().map(|usage| usage.bytes_in_use);
    // The work itself reports failures of the device.
    let (Ok(()), Some(before)) = (device.sync(), now()) else {
        return (work(), None);
    };
    let done = AtomicBool::new(false);
    let sample = || {
        let mut peak = before;
        while !done.load(Ordering::Relaxed) {
            peak = peak.max(now().unwrap_or(0));
            thread::sleep(PAUSE);
        }
        peak
    };
    thread::scope(|scope| {
        let sampling = scope.spawn(sample);
        /// Stops the sampling even if the work panics.
        struct Done<'a>(&'a AtomicBool);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let ending = Done(&done);
        let result = work();
        drop(ending);
        let peak = sampling.join().expect("sampling does not panic");
        (result, Some(BytesInUse { before, peak }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_pool_tells_nothing() {
        assert_eq!(bytes_in_use(&Device::flex(), || 3), (3, None));
    }
}
