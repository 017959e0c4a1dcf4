//! Lists of integers on devices.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use burn_cubecl::{CubeDevice, tensor::CubeTensor};
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// The uploaded data of a plan, one value per device. Clones of a plan share it.
pub struct DeviceCache<T>(Arc<Mutex<Vec<(CubeDevice, T)>>>);

impl<T: Clone> DeviceCache<T> {
    /// The value for the device of `near`. The first call creates it with `upload`.
    pub fn get(&self, near: &CubeTensor, upload: impl FnOnce(&Client) -> T) -> T {
        // A panic in `upload` leaves the entries unchanged.
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

impl<T> DeviceCache<T> {
    /// The sum of `bytes` of the value of each device.
    pub fn sum(&self, bytes: impl Fn(&T) -> u64) -> u64 {
        let entries = self
            .0
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        entries.iter().map(|(_, lists)| bytes(lists)).sum()
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

/// Always equal: uploaded data does not distinguish plans.
impl<T> PartialEq for DeviceCache<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for DeviceCache<T> {}

/// A list of u32 on a device.
#[derive(Clone, Debug)]
pub struct DeviceList {
    handle: Handle,
    length: usize,
}

impl DeviceList {
    /// Uploads `values`, at least one.
    pub fn new(client: &Client, values: &[u32]) -> Self {
        Self {
            handle: client.create_from_slice(u32::as_bytes(values)),
            length: values.len(),
        }
    }

    /// The list as an argument of a kernel.
    pub fn arg(&self) -> BufferArg {
        // SAFETY: the buffer was created from this number of values.
        unsafe { BufferArg::from_raw_parts(self.handle.clone(), self.length) }
    }
}

/// Sections start at multiples of this number of values (256 bytes), the alignment of bindings that
/// all devices support.
const SECTION_ALIGNMENT: usize = 64;

/// Several lists of u32 in one buffer on a device, because WGSL allows only few bindings. Each list
/// can also be bound separately.
#[derive(Clone, Debug)]
pub struct DeviceSections {
    buffer: Handle,
    len: usize,
    sections: Vec<Range<u32>>,
}

impl DeviceSections {
    /// Uploads `lists`. `None` if their total length is 2^32 or more, which u32 cannot index.
    pub fn new(client: &Client, lists: &[&[u32]]) -> Option<Self> {
        let mut len = 0usize;
        let mut sections = Vec::with_capacity(lists.len());
        for list in lists {
            // An empty section cannot be bound.
            let length = list.len().max(1);
            let end = len.checked_add(length)?;
            sections.push(u32::try_from(len).ok()?..u32::try_from(end).ok()?);
            len = end.next_multiple_of(SECTION_ALIGNMENT);
        }
        let mut values = vec![0u32; len];
        for (list, section) in lists.iter().zip(&sections) {
            values[section.start as usize..][..list.len()].copy_from_slice(list);
        }
        Some(Self {
            buffer: client.create_from_slice(u32::as_bytes(&values)),
            len,
            sections,
        })
    }

    /// Size on the device in bytes.
    pub fn bytes(&self) -> u64 {
        (self.len * size_of::<u32>()) as u64
    }

    /// The whole buffer as an argument of a kernel.
    pub fn buffer(&self) -> BufferArg {
        // SAFETY: the buffer was created with this length.
        unsafe { BufferArg::from_raw_parts(self.buffer.clone(), self.len) }
    }

    /// Index in the buffer of the first value of list number `list`.
    pub fn start(&self, list: usize) -> u32 {
        self.sections[list].start
    }

    /// List number `list` as a separate argument of a kernel; an empty list has length 1.
    pub fn section(&self, list: usize) -> BufferArg {
        let range = &self.sections[list];
        let bytes = |numbers: usize| (numbers * size_of::<u32>()) as u64;
        let handle = self.buffer.clone();
        let handle = handle
            .offset_start(bytes(range.start as usize))
            .offset_end(bytes(self.len - range.end as usize));
        // SAFETY: the section lies within the buffer.
        unsafe { BufferArg::from_raw_parts(handle, range.len()) }
    }
}
