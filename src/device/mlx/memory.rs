//! What MLX's allocator holds, and its limits.
//!
//! MLX counts for the whole process, so two models in one process show the same figures.

use std::sync::OnceLock;

use mlx_rs::error::Exception;
use mlx_rs::{DeviceType, memory};

use super::failure::Built;
use crate::config::MlxConfig;
use crate::device::{DeviceError, MemoryUse};

/// The limits in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// What weights, state and work may take together.
    memory: Option<u64>,
}

/// Whether MLX computes on a GPU.
pub(super) fn on_gpu() -> bool {
    let kind = mlx_rs::Device::try_default().and_then(|device| device.get_type());
    matches!(kind, Ok(DeviceType::Gpu))
}

/// MLX's own limit, before anybody set another for the process.
fn original_limit() -> Built<u64> {
    static ORIGINAL: OnceLock<u64> = OnceLock::new();
    match ORIGINAL.get() {
        Some(limit) => Ok(*limit),
        None => {
            let limit = memory::memory_limit()? as u64;
            Ok(*ORIGINAL.get_or_init(|| limit))
        }
    }
}

/// The limit where none is configured, from MLX's own. On Metal that is 95 % of the machine's memory, or one and a half times what the
/// system recommends the GPU to hold where that is less: more than can be held resident. Three quarters of the memory is what the system
/// gives a GPU by default on machines of 36 GB and more.
fn own_limit(limit: u64, gpu: bool) -> u64 {
    if gpu { limit / 95 * 75 } else { limit }
}

impl Limits {
    /// Sets what is configured and leaves the rest to MLX.
    pub(super) fn set(config: &MlxConfig) -> Result<Limits, DeviceError> {
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let refused = |key: &str, error: Exception| {
            DeviceError::Contract(format!("`mlx.{key}` was refused: {}; leave it out", error.what()))
        };
        if let Some(bytes) = config.cache_limit {
            memory::set_cache_limit(size(bytes)).map_err(|e| refused("cache_limit", e))?;
        }
        if let Some(bytes) = config.wired_limit {
            memory::set_wired_limit(size(bytes)).map_err(|e| refused("wired_limit", e))?;
        }
        let limit = match config.memory_limit {
            Some(bytes) => bytes,
            None => own_limit(original_limit().map_err(|e| refused("memory_limit", e))?, on_gpu()),
        };
        if limit == 0 {
            return Ok(Limits { memory: None });
        }
        // MLX keeps to the same: above it, it waits for work under way to end before it hands out more.
        memory::set_memory_limit(size(limit)).map_err(|e| refused("memory_limit", e))?;
        Ok(Limits { memory: Some(limit) })
    }

    /// Bytes below the limit; `None` where there is none.
    pub(super) fn free(&self) -> Option<u64> {
        let MemoryUse { active, limit, .. } = self.usage()?;
        Some(limit?.saturating_sub(active))
    }

    /// What is held now.
    pub(super) fn usage(&self) -> Option<MemoryUse> {
        let read = || -> Built<MemoryUse> {
            Ok(MemoryUse {
                active: memory::active_memory()? as u64,
                peak: memory::peak_memory()? as u64,
                cached: Some(memory::cache_memory()? as u64),
                limit: self.memory,
            })
        };
        read().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_not_asked_for_more_than_is_recommended() {
        assert_eq!(own_limit(95 << 30, true), 75 << 30);
        assert_eq!(own_limit(20 << 30, false), 20 << 30);
    }

    #[test]
    fn what_is_held_is_counted_and_has_a_limit() {
        let limits = Limits::set(&MlxConfig::default()).unwrap();
        let held = mlx_rs::Array::from_iter((0..1 << 20).map(|x| x as f32), &[1 << 20]);
        held.eval().unwrap();
        let usage = limits.usage().unwrap();
        assert!(usage.active >= 4 << 20 && usage.peak >= usage.active, "{usage:?}");
        assert!(limits.free().unwrap() > 1 << 30, "{usage:?}");
    }
}
