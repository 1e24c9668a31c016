//! What MLX's allocator holds, and its limits.
//!
//! MLX counts for the whole process, so two models in one process show the same figures.

use mlx_rs::error::Exception;
use mlx_rs::memory;

use super::failure::Built;
use crate::config::MlxConfig;
use crate::device::{DeviceError, MemoryUse};

/// The limits in force.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// What weights, state and work may take together.
    memory: Option<u64>,
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
        if let Some(bytes) = config.memory_limit {
            memory::set_memory_limit(size(bytes)).map_err(|e| refused("memory_limit", e))?;
        }
        // Without a setting there is one of MLX's own, from the memory of the machine.
        let limit = memory::memory_limit().map_err(|e| refused("memory_limit", e))?;
        Ok(Limits { memory: Some(limit as u64).filter(|limit| *limit > 0) })
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
