//! What the machine offers and what this process uses of it.

use std::hint::black_box;
use std::time::Instant;

/// Times the buffer is read; the best counts.
const SWEEPS: usize = 7;
/// The buffer is at least this large, so that a cache of unknown size does not hold it.
const SMALLEST_BUFFER: usize = 256 << 20;
/// The buffer is at most this large, whatever the cache.
const LARGEST_BUFFER: usize = 1 << 30;

/// Memory of this process, bytes; `None` where the system does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessMemory {
    /// Resident now, pages of mapped files included.
    pub(super) resident: Option<u64>,
    /// The most that was ever resident.
    pub(super) peak: Option<u64>,
}

impl ProcessMemory {
    /// As the kernel counts it now.
    pub(super) fn now() -> ProcessMemory {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        ProcessMemory { resident: field(&status, "VmRSS:"), peak: field(&status, "VmHWM:") }
    }
}

/// A field of `/proc/self/status`, which are in KiB.
fn field(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Read bandwidth of main memory with `threads` threads, bytes a second: the best of several sweeps over a buffer of
/// at least four times the last-level cache.
pub(super) fn read_bandwidth(threads: usize) -> f64 {
    let bytes =
        last_level_cache().map_or(0, |cache| cache.saturating_mul(4)).clamp(SMALLEST_BUFFER, LARGEST_BUFFER);
    // Written, not just reserved: pages that were never touched may all be one page of zeros.
    let buffer: Vec<u64> = (0..bytes / size_of::<u64>()).map(|i| i as u64).collect();
    let share = buffer.len().div_ceil(threads.max(1));
    let best = (0..SWEEPS).map(|_| sweep(&buffer, share)).fold(f64::INFINITY, f64::min);
    size_of_val(buffer.as_slice()) as f64 / best
}

/// Seconds it takes to read `buffer`, one thread a `share`.
fn sweep(buffer: &[u64], share: usize) -> f64 {
    let started = Instant::now();
    std::thread::scope(|scope| {
        for part in buffer.chunks(share) {
            scope.spawn(move || black_box(sum(part)));
        }
    });
    started.elapsed().as_secs_f64()
}

/// Thirty-two sums at once, so that the additions do not wait for each other and the loads are what takes time.
fn sum(part: &[u64]) -> u64 {
    let mut sums = [0_u64; 32];
    for values in part.chunks_exact(sums.len()) {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().fold(0, |total, sum| total.wrapping_add(*sum))
}

/// Size of the largest cache of the first core, bytes.
fn last_level_cache() -> Option<usize> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    caches
        .filter_map(|cache| std::fs::read_to_string(cache.ok()?.path().join("size")).ok())
        .filter_map(|size| size.trim().strip_suffix('K')?.parse::<usize>().ok()?.checked_mul(1024))
        .max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields_are_kibibytes() {
        let status = "VmPeak:\t  100 kB\nVmHWM:\t    96060 kB\nVmRSS:\t garbage\n";
        assert_eq!(field(status, "VmHWM:"), Some(98_365_440));
        assert_eq!(field(status, "VmRSS:"), None);
        assert_eq!(field("", "VmHWM:"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_is_no_less_than_what_is_resident() {
        let now = ProcessMemory::now();
        assert!(now.resident.unwrap() > 0 && now.peak >= now.resident, "{now:?}");
    }

    #[test]
    fn a_sweep_reads_every_value_it_counts() {
        let values: Vec<u64> = (0..1024).collect();
        assert_eq!(sum(&values), 1023 * 1024 / 2);
    }
}
