//! Atomic writes: files and folders are written under a temporary name in the same folder and then
//! renamed.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use tempfile::{Builder, NamedTempFile};

/// Prefix of the names of temporary folders.
const UNFINISHED: &str = ".unfinished-";

/// A temporary file in the folder of `path`, to be persisted there.
pub fn temporary_file_for(path: &Path) -> io::Result<NamedTempFile> {
    let folder = folder_of(path);
    fs::create_dir_all(folder)?;
    // The same extension, because some writers choose the format by it.
    let suffix = match path.extension() {
        Some(extension) => format!(".{}", extension.display()),
        None => String::new(),
    };
    let mut builder = Builder::new();
    builder.suffix(&suffix);
    readable_by_all(&mut builder, 0o666);
    builder.tempfile_in(folder)
}

/// Writes `contents` to `path` atomically.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = temporary_file_for(path)?;
    file.write_all(contents)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Fills a temporary folder with `fill` and renames it to `path`, replacing an existing folder. On
/// failure, `path` is unchanged.
pub fn write_folder<E: From<io::Error>>(
    path: &Path,
    fill: impl FnOnce(&Path) -> Result<(), E>,
) -> Result<(), E> {
    let parent = folder_of(path);
    fs::create_dir_all(parent)?;
    let mut builder = Builder::new();
    builder.prefix(UNFINISHED);
    readable_by_all(&mut builder, 0o777);
    let unfinished = builder.tempdir_in(parent)?;
    fill(unfinished.path())?;
    for entry in fs::read_dir(unfinished.path())? {
        fs::File::open(entry?.path())?.sync_all()?;
    }
    if path.exists() {
        fs::remove_dir_all(path)?;
    }
    fs::rename(unfinished.path(), path)?;
    // The folder was renamed, so there is nothing to remove.
    let _ = unfinished.keep();
    Ok(())
}

/// Removes temporary folders in `parent` that a killed process left behind.
pub fn remove_unfinished(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn folder_of(path: &Path) -> &Path {
    path.parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Temporary files are private by default; these get the default permissions of the user.
#[cfg(unix)]
fn readable_by_all(builder: &mut Builder<'_, '_>, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    builder.permissions(fs::Permissions::from_mode(mode));
}

#[cfg(not(unix))]
fn readable_by_all(_builder: &mut Builder<'_, '_>, _mode: u32) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_fails_to_fill_leaves_the_old_one() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("model");
        write_folder(&path, |folder| fs::write(folder.join("a"), "old")).unwrap();
        let failed = write_folder(&path, |folder| {
            fs::write(folder.join("a"), "new")?;
            Err(io::Error::other("disk full"))
        });
        assert!(failed.is_err());
        assert_eq!(fs::read(path.join("a")).unwrap(), b"old");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn unfinished_folders_are_removed_and_others_stay() {
        let parent = tempfile::tempdir().unwrap();
        for name in [".unfinished-abc", "step-00000001"] {
            fs::create_dir(parent.path().join(name)).unwrap();
            fs::write(parent.path().join(name).join("a"), "").unwrap();
        }
        remove_unfinished(parent.path()).unwrap();
        let left: Vec<_> = fs::read_dir(parent.path()).unwrap().collect();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].as_ref().unwrap().file_name(), "step-00000001");
    }

    #[test]
    fn a_file_replaces_the_old_one() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("new/a.json");
        write(&path, b"1").unwrap();
        write(&path, b"2").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
}
