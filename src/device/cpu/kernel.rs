//! Which instruction set the kernels run on, and how a task gets there.

use std::fmt;

#[cfg(target_arch = "x86_64")]
use super::isa::{Avx2, Avx512};
use super::isa::{Isa, Portable};

/// An instruction set the device has kernels for. All give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// No assumption beyond the target's baseline; on `aarch64` that is NEON.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL with VNNI.
    Avx512,
}

impl Kernel {
    /// Every instruction set, slowest first.
    pub const ALL: [Kernel; 3] = [Kernel::Portable, Kernel::Avx2, Kernel::Avx512];

    /// Whether this processor has it.
    pub fn is_available(self) -> bool {
        match self {
            Kernel::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => Avx2::detect().is_some(),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => Avx512::detect().is_some(),
            #[cfg(not(target_arch = "x86_64"))]
            Kernel::Avx2 | Kernel::Avx512 => false,
        }
    }

    /// The fastest this processor has.
    pub fn best() -> Kernel {
        Kernel::ALL.into_iter().rev().find(|k| k.is_available()).unwrap_or(Kernel::Portable)
    }

    /// Its name: `scalar`, `neon`, `avx2`, `avx512-vnni`.
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Portable if cfg!(target_arch = "aarch64") => "neon",
            Kernel::Portable => "scalar",
            Kernel::Avx2 => "avx2",
            Kernel::Avx512 => "avx512-vnni",
        }
    }

    /// Runs `task` compiled for this instruction set; falls back to portable code where the processor lacks it.
    pub(super) fn dispatch<T: Task>(self, task: T) -> T::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx512 => {
                if let Some(isa) = Avx512::detect() {
                    return isa.run(task);
                }
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => {
                if let Some(isa) = Avx2::detect() {
                    return isa.run(task);
                }
            }
            _ => {}
        }
        task.run(Portable)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Work that is compiled once for every instruction set. `run` must be `#[inline(always)]`, so that it becomes part of a
/// function for which the instruction set is enabled.
pub(super) trait Task {
    /// What it gives.
    type Output;
    /// Does it.
    fn run<I: Isa>(self, isa: I) -> Self::Output;
}
