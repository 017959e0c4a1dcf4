//! What the crates tell subscribers of `tracing`, for tests.

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// Keeps the events of a crate: the text fields of each, one after another, such as
/// `rms_norm kernel`. From all threads if it is the subscriber of the process, since Fusion runs
/// operations on its own.
#[derive(Clone, Debug)]
pub struct Events {
    target: &'static str,
    texts: Arc<Mutex<Vec<String>>>,
}

impl Events {
    /// Of events with this target.
    pub fn of(target: &'static str) -> Self {
        let texts = Arc::default();
        Self { target, texts }
    }

    /// The events since the last time this was asked.
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
