//! Records `tracing` events, for tests.

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Records the events with one target: their text fields, concatenated, such as `rms_norm kernel`.
/// As the global subscriber it records all threads, because Fusion runs operations on its own
/// thread.
#[derive(Clone, Debug)]
pub struct Events {
    target: &'static str,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Events {
    /// The target.
    pub fn of(target: &'static str) -> Self {
        let texts = Arc::default();
        Self { target, texts }
    }

    /// The events since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.texts.lock().unwrap())
    }
}

impl Subscriber for Events {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == self.target
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = TextFields(Vec::new());
        event.record(&mut fields);
        self.texts.lock().unwrap().push(fields.0.join(" "));
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct TextFields(Vec<String>);

impl Visit for TextFields {
    fn record_str(&mut self, _: &Field, value: &str) {
        self.0.push(value.to_owned());
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
