//! What the crate announces as events of `tracing`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

/// The implementations announced, by operation.
pub type Announced = Arc<Mutex<BTreeMap<String, String>>>;

/// Collects the events of this crate from all threads: Fusion runs operations on its own.
pub struct Collector(pub Announced);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "burn_tree_train"
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let previous = self
            .0
            .lock()
            .unwrap()
            .insert(fields.op.clone(), fields.implementation.clone());
        if let Some(previous) = previous {
            assert_eq!(previous, fields.implementation, "{}", fields.op);
        }
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Fields {
    op: String,
    implementation: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "op" => self.op = value.to_owned(),
            "implementation" => self.implementation = value.to_owned(),
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn Debug) {}
}
