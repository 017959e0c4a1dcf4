//! Reads the lines of a JSON-lines file in bounded memory, with gzip, byte-order mark, CRLF and
//! blank lines.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::error::ReadError;

/// Default of the maximum line length: 256 MiB.
pub const DEFAULT_MAX_LINE_BYTES: usize = 256 << 20;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads one line at a time into memory.
///
/// The first bytes identify gzip, not the name of the file.
pub struct JsonLines {
    name: PathBuf,
    reader: Box<dyn BufRead + Send>,
    line_number: u64,
    buffer: Vec<u8>,
    max_line_bytes: usize,
}

impl JsonLines {
    /// Opens a file.
    ///
    /// # Errors
    /// [`ReadError::Open`] if it cannot be opened or its first bytes cannot be read.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| ReadError::Open {
            file: path.to_owned(),
            source,
        })?;
        Self::new(path, file)
    }

    /// Reads from `source`, with `name` in errors.
    ///
    /// # Errors
    /// [`ReadError::Open`] if the first bytes cannot be read.
    pub fn new(
        name: impl Into<PathBuf>,
        source: impl Read + Send + 'static,
    ) -> Result<Self, ReadError> {
        let name = name.into();
        let reader = decompressed(source).map_err(|source| ReadError::Open {
            file: name.clone(),
            source,
        })?;
        Ok(Self {
            name,
            reader,
            line_number: 0,
            buffer: Vec::new(),
            max_line_bytes: DEFAULT_MAX_LINE_BYTES,
        })
    }

    /// Sets the maximum line length in bytes; a longer line is an error.
    pub fn with_max_line_bytes(mut self, max_line_bytes: usize) -> Self {
        self.max_line_bytes = max_line_bytes;
        self
    }

    /// Name of the file.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// The number (from 1) and the text of the next non-blank line, without its line end; `None` at
    /// the end of the file.
    ///
    /// # Errors
    /// [`ReadError::Io`] or [`ReadError::LineTooLong`]; no line can be read after them.
    pub fn next_line(&mut self) -> Result<Option<(u64, &[u8])>, ReadError> {
        loop {
            self.buffer.clear();
            self.line_number += 1;
            let limit = (self.max_line_bytes as u64).saturating_add(1);
            let read = (&mut self.reader)
                .take(limit)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| ReadError::Io {
                    file: self.name.clone(),
                    line: self.line_number,
                    source,
                })?;
            if read == 0 {
                return Ok(None);
            }
            if read > self.max_line_bytes && self.buffer.last() != Some(&b'\n') {
                return Err(ReadError::LineTooLong {
                    file: self.name.clone(),
                    line: self.line_number,
                    limit: self.max_line_bytes,
                });
            }
            if self.line_number == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
                self.buffer.drain(..BYTE_ORDER_MARK.len());
            }
            let end = self.buffer.trim_ascii_end().len();
            self.buffer.truncate(end);
            if !self.buffer.is_empty() {
                return Ok(Some((self.line_number, &self.buffer)));
            }
        }
    }
}

fn decompressed(mut source: impl Read + Send + 'static) -> io::Result<Box<dyn BufRead + Send>> {
    let mut start = Vec::with_capacity(GZIP_MAGIC.len());
    source
        .by_ref()
        .take(GZIP_MAGIC.len() as u64)
        .read_to_end(&mut start)?;
    let is_gzip = start == GZIP_MAGIC;
    let source = BufReader::new(io::Cursor::new(start).chain(source));
    Ok(if is_gzip {
        Box::new(BufReader::new(MultiGzDecoder::new(source)))
    } else {
        Box::new(source)
    })
}
