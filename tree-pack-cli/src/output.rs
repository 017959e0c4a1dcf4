//! Atomic files, and text for standard output.

use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use indicatif::HumanCount;
use tempfile::NamedTempFile;

/// An unfinished file in the folder of the final one; [`NewFile::finish`] puts it in place.
pub struct NewFile {
    out: Encoder,
    path: PathBuf,
}

enum Encoder {
    Plain(BufWriter<NamedTempFile>),
    Gzip(GzEncoder<BufWriter<NamedTempFile>>),
}

impl NewFile {
    /// Begins the file `path`; it is compressed if the name ends in `.gz`.
    pub fn create(path: &Path) -> Result<Self> {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        let file = temporary_file(folder.unwrap_or(Path::new(".")), path)
            .with_context(|| format!("{}: cannot be written", path.display()))?;
        let file = BufWriter::new(file);
        let is_gzip = path.extension().is_some_and(|extension| extension == "gz");
        let out = match is_gzip {
            true => Encoder::Gzip(GzEncoder::new(file, Compression::default())),
            false => Encoder::Plain(file),
        };
        Ok(Self {
            out,
            path: path.to_owned(),
        })
    }

    /// Path of the unfinished file, for writers that take a path. It has the extension of the final
    /// file.
    pub fn unfinished_path(&self) -> &Path {
        match &self.out {
            Encoder::Plain(file) => file.get_ref().path(),
            Encoder::Gzip(file) => file.get_ref().get_ref().path(),
        }
    }

    /// Puts the file in its place.
    pub fn finish(self) -> Result<()> {
        let file = match self.out {
            Encoder::Plain(file) => Ok(file),
            Encoder::Gzip(encoder) => encoder.finish(),
        };
        file.and_then(|file| file.into_inner().map_err(io::IntoInnerError::into_error))
            .and_then(|file| {
                file.as_file().sync_all()?;
                file.persist(&self.path).map_err(|error| error.error)
            })
            .with_context(|| format!("{}: cannot be written", self.path.display()))?;
        Ok(())
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.out {
            Encoder::Plain(file) => file.write(bytes),
            Encoder::Gzip(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.out {
            Encoder::Plain(file) => file.flush(),
            Encoder::Gzip(file) => file.flush(),
        }
    }
}

fn temporary_file(folder: &Path, path: &Path) -> io::Result<NamedTempFile> {
    fs::create_dir_all(folder)?;
    let suffix = path
        .extension()
        .map_or(String::new(), |text| format!(".{}", text.display()));
    let mut builder = tempfile::Builder::new();
    builder.prefix(".unfinished-").suffix(&suffix);
    // Temporary files are private by default, but this one becomes an ordinary file.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    builder.tempfile_in(folder)
}

/// Writes a text file atomically.
pub fn write_file(path: &Path, contents: &str) -> Result<()> {
    let mut file = NewFile::create(path)?;
    file.write_all(contents.as_bytes())
        .with_context(|| format!("{}: cannot be written", path.display()))?;
    file.finish()
}

/// Prints to standard output. Unlike with `print!`, a closed pipe is an error, not a panic.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// A number with its noun: `1 task`, `1,200 tasks`.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = match (count, noun.strip_suffix('y')) {
        (1, _) => noun.to_owned(),
        (_, Some(stem)) => format!("{stem}ies"),
        (_, None) if noun.ends_with("ch") => format!("{noun}es"),
        (_, None) => format!("{noun}s"),
    };
    format!("{} {plural}", HumanCount(count))
}
