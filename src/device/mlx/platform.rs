//! What MLX's bindings expect of a platform and Linux does not have.

/// Stands in for macOS's coarse clock, from which mlx-rs seeds its random numbers. escarp draws none from MLX, so any number that differs
/// from run to run does.
///
/// # Safety
///
/// It has the signature of the C function it stands in for, takes nothing and touches no memory, so any caller may call it.
#[cfg(not(target_os = "macos"))]
#[unsafe(no_mangle)]
pub extern "C" fn mach_approximate_time() -> u64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64)
}

#[cfg(all(test, not(target_os = "macos")))]
mod tests {
    #[test]
    fn the_clock_moves() {
        let before = super::mach_approximate_time();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(super::mach_approximate_time() > before);
    }
}
