//! What operations make from a mask and keep with it: plans, and copies on devices.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tree_pack::IndexMemory;

/// Values that operations have made from a mask, of any type, by keys of any type. They are
/// dropped with the mask, which so need not know the operations.
#[derive(Default)]
pub(crate) struct Derived(Mutex<Vec<Entry>>);

struct Entry {
    key: Box<dyn Any + Send + Sync>,
    value: Arc<dyn Any + Send + Sync>,
    memory: IndexMemory,
}

impl Derived {
    /// The value of type `V` for a key. The first time, `make` makes it and counts its bytes.
    ///
    /// # Errors
    /// If `make` fails. Nothing is kept then.
    pub(crate) fn get<K, V, E>(
        &self,
        key: K,
        make: impl FnOnce() -> Result<(V, IndexMemory), E>,
    ) -> Result<Arc<V>, E>
    where
        K: PartialEq + Send + Sync + 'static,
        V: Send + Sync + 'static,
    {
        let mut entries = self.lock();
        let known = entries
            .iter()
            .filter(|entry| entry.key.downcast_ref() == Some(&key))
            .find_map(|entry| entry.value.clone().downcast().ok());
        if let Some(value) = known {
            return Ok(value);
        }
        let (value, memory) = make()?;
        let value = Arc::new(value);
        entries.push(Entry {
            key: Box::new(key),
            value: value.clone(),
            memory,
        });
        Ok(value)
    }

    /// Bytes of all values.
    pub(crate) fn memory(&self) -> IndexMemory {
        self.lock().iter().map(|entry| entry.memory).sum()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        // A panic in `make` leaves the list as it was.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
