//! The most memory that tensors take at the same time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use burn::tensor::Device;

/// Between two samples, besides the time a sample takes.
const PAUSE: Duration = Duration::from_micros(200);

/// Bytes of the tensors on a device before some work, and the most of them during it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesInUse {
    /// Before the work.
    pub before: u64,
    /// The most that was seen.
    pub peak: u64,
}

/// Does `work` while another thread asks the device again and again what is in use; `None` on
/// devices that do not tell. What an allocator reserves is more: it keeps what was freed, and pages
/// that are used in part. Device and work slow each other down a little.
pub fn bytes_in_use<T>(device: &Device, work: impl FnOnce() -> T) -> (T, Option<BytesInUse>) {
    let device = device.clone().inner();
    let now = || device.memory_pool_usage().map(|usage| usage.bytes_in_use);
    // A failure of the device is reported by the work.
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
        /// Ends the sampling also when the work panics.
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
