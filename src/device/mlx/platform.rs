//! What MLX's bindings expect of a platform and Linux does not have.

/// Stands in for macOS's coarse clock, from which mlx-rs seeds its random numbers. escarp draws none from MLX, so any number that differs
/// from run to run does.
///
// SAFETY: nothing else defines this symbol where there is no macOS; it has the signature of the C function it stands in for, takes
// nothing and touches no memory of its caller.
#[unsafe(no_mangle)]
pub extern "C" fn mach_approximate_time() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_clock_moves() {
        let before = super::mach_approximate_time();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(super::mach_approximate_time() > before);
    }
}
