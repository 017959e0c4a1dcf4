//! Lists of integers on devices.

use std::sync::{Arc, Mutex};

use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Lists of a plan on the devices that have used it.
pub struct DeviceCache<T>(Arc<Mutex<Vec<(CubeDevice, T)>>>);

impl<T: Clone> DeviceCache<T> {
    /// The lists on the device of `near`, put there by `upload` the first time.
    pub fn get(&self, near: &CubeTensor, upload: impl FnOnce(&Client) -> T) -> T {
        // A panic while uploading leaves the list as it was.
        let mut entries = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some((_, lists)) = entries.iter().find(|(device, _)| *device == near.device) {
            return lists.clone();
        }
        let lists = upload(&near.client);
        entries.push((near.device.clone(), lists.clone()));
        lists
    }
}

impl<T> Clone for DeviceCache<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for DeviceCache<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> std::fmt::Debug for DeviceCache<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DeviceCache")
    }
}

/// Copies add nothing to a plan.
impl<T> PartialEq for DeviceCache<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for DeviceCache<T> {}

/// Integers on a device.
#[derive(Clone, Debug)]
pub struct DeviceList {
    handle: Handle,
    length: usize,
}

impl DeviceList {
    /// Uploads `values`.
    pub fn new(client: &Client, values: &[u32]) -> Self {
        Self {
            handle: client.create_from_slice(u32::as_bytes(values)),
            length: values.len(),
        }
    }

    /// The list as an argument of a kernel.
    pub fn arg(&self) -> BufferArg {
        // SAFETY: the buffer was made from as many values.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.length) }
    }
}
