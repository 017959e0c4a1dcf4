//! Columns of numbers, stored as tensors of a file.

use std::borrow::Cow;

use safetensors::tensor::{Dtype, View};

use crate::layout::Segment;
use crate::packs::PastRun;

/// A number that is stored in little-endian order on every machine.
pub trait Element: Copy {
    const DTYPE: Dtype;
    const SIZE: usize;
    fn write(self, bytes: &mut Vec<u8>);
    fn read(bytes: &[u8]) -> Self;
}

macro_rules! element {
    ($type:ty, $dtype:ident) => {
        impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            const SIZE: usize = size_of::<$type>();
            fn write(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }
            fn read(bytes: &[u8]) -> Self {
                let mut exact = [0; size_of::<$type>()];
                exact.copy_from_slice(bytes);
                Self::from_le_bytes(exact)
            }
        }
    };
}

element!(u32, U32);
element!(i32, I32);
element!(f32, F32);
element!(f64, F64);

/// A tensor to be written.
pub struct Column {
    pub name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Column {
    pub fn new<T: Element>(name: String, values: impl Iterator<Item = T>) -> Self {
        let mut bytes = Vec::with_capacity(values.size_hint().0 * T::SIZE);
        values.for_each(|value| value.write(&mut bytes));
        Self {
            name,
            dtype: T::DTYPE,
            shape: vec![bytes.len() / T::SIZE],
            bytes,
        }
    }
}

/// `[S, 3]`: start, end and parent (-1 at a root).
pub fn segment_column(name: String, segments: &[Segment]) -> Column {
    let values = segments.iter().flat_map(|segment| {
        let parent = segment.parent.map_or(-1, |parent| parent as i32);
        [segment.start as i32, segment.end as i32, parent]
    });
    let mut column = Column::new(name, values);
    column.shape = vec![segments.len(), 3];
    column
}

/// `[R, 6]`: pack, start and end of the rows, position, start and end of the rows that see them.
pub fn run_column(name: String, runs: &[PastRun]) -> Column {
    let values = runs.iter().flat_map(|run| {
        let (rows, visible_to) = (&run.rows, &run.visible_to);
        [
            run.pack,
            rows.start,
            rows.end,
            run.position,
            visible_to.start,
            visible_to.end,
        ]
    });
    let mut column = Column::new(name, values);
    column.shape = vec![runs.len(), 6];
    column
}

impl View for Column {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
