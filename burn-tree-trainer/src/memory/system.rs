//! Memory of the system and of this process.

/// Formats bytes with a binary unit and a suitable number of digits.
pub fn format_bytes(bytes: u64) -> String {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    if gib >= 1.0 {
        format!("{gib:.1} GiB")
    } else if gib >= 1.0 / 1024.0 {
        format!("{:.0} MiB", gib * 1024.0)
    } else {
        format!("{:.1} KiB", bytes as f64 / 1024.0)
    }
}

/// Available system memory (Linux only).
pub fn available_memory() -> Option<u64> {
    kibibytes("/proc/meminfo", "MemAvailable:")
}

/// Peak memory of this process (Linux only).
pub fn peak_memory() -> Option<u64> {
    kibibytes("/proc/self/status", "VmHWM:")
}

fn kibibytes(file: &str, field: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_readable() {
        assert_eq!(format_bytes(3 << 29), "1.5 GiB");
        assert_eq!(format_bytes(400 << 20), "400 MiB");
        assert_eq!(format_bytes(1536), "1.5 KiB");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_tells_what_is_used_and_available() {
        assert!(peak_memory().unwrap() > 1 << 20);
        assert!(available_memory().unwrap() > 1 << 20);
    }
}
