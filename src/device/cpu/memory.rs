//! Memory the kernels work in: aligned, zeroed, and recycled.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;

use crate::device::DeviceError;

/// Bytes of a cache line, and of an AVX-512 register.
const ALIGN: usize = 64;

/// A fixed slice of zero-initialised numbers that starts on a cache line. Large ones are untouched memory until written.
pub(super) struct Slab<T> {
    raw: Vec<u8>,
    start: usize,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Slab<T> {
    /// `len` zeros, or [`DeviceError::OutOfMemory`] naming `what`.
    pub(super) fn try_new(len: usize, what: &str) -> Result<Slab<T>, DeviceError> {
        let out_of_memory = |bytes| DeviceError::OutOfMemory { bytes, problem: what.to_owned() };
        let bytes = len
            .checked_mul(size_of::<T>())
            .and_then(|bytes| bytes.checked_add(ALIGN))
            .ok_or_else(|| out_of_memory(u64::MAX))?;
        // `vec!` gives lazily zeroed memory but aborts when there is none, so ask first.
        Vec::<u8>::new().try_reserve_exact(bytes).map_err(|_| out_of_memory(bytes as u64))?;
        let raw = vec![0u8; bytes];
        let start = raw.as_ptr().align_offset(ALIGN);
        Ok(Slab { raw, start, len, element: PhantomData })
    }
}

impl<T: Pod> Deref for Slab<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        bytemuck::cast_slice(&self.raw[self.start..self.start + self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Slab<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        bytemuck::cast_slice_mut(&mut self.raw[self.start..self.start + self.len * size_of::<T>()])
    }
}

/// A slab that grows when asked for more than ever before, and is otherwise reused.
pub(super) struct Scratch<T> {
    slab: Option<Slab<T>>,
}

impl<T: Pod> Scratch<T> {
    /// Nothing yet.
    pub(super) fn new() -> Scratch<T> {
        Scratch { slab: None }
    }

    /// `len` numbers of unspecified value.
    pub(super) fn take(&mut self, len: usize) -> &mut [T] {
        if self.slab.as_ref().is_none_or(|slab| slab.len < len) {
            self.slab = Some(allocate(len));
        }
        match &mut self.slab {
            Some(slab) => &mut slab[..len],
            None => &mut [],
        }
    }
}

/// Working memory, whose absence leaves nothing sensible to do.
fn allocate<T: Pod>(len: usize) -> Slab<T> {
    match Slab::try_new(len, "activations") {
        Ok(slab) => slab,
        Err(error) => panic!("{error}"),
    }
}

/// Activations on the device: `[rows, columns]` f32.
pub struct Hidden {
    rows: usize,
    cols: usize,
    data: Option<Slab<f32>>,
    home: Recycler,
}

impl Hidden {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The numbers, row-major.
    pub fn data(&self) -> &[f32] {
        self.data.as_ref().map_or(&[], |slab| &slab[..self.rows * self.cols])
    }

    /// The numbers, row-major.
    pub(super) fn data_mut(&mut self) -> &mut [f32] {
        let len = self.rows * self.cols;
        self.data.as_mut().map_or(&mut [], |slab| &mut slab[..len])
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        if let Some(slab) = self.data.take() {
            self.home.give_back(slab);
        }
    }
}

/// Gives out [`Hidden`]s and takes their memory back, so that a forward in steady state allocates nothing.
#[derive(Clone)]
pub(super) struct Recycler(Arc<Mutex<Vec<Slab<f32>>>>);

impl Recycler {
    /// Slabs kept for reuse; a layer has fewer activations alive at once.
    const KEPT: usize = 12;

    /// Nothing yet.
    pub(super) fn new() -> Recycler {
        Recycler(Arc::new(Mutex::new(Vec::new())))
    }

    /// A matrix of unspecified contents.
    pub(super) fn hidden(&self, rows: usize, cols: usize) -> Hidden {
        let len = rows * cols;
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = kept
            .iter()
            .enumerate()
            .filter(|(_, slab)| slab.len >= len)
            .min_by_key(|(_, slab)| slab.len)
            .map(|(index, _)| index);
        let data = match fit {
            Some(index) => kept.swap_remove(index),
            None => allocate(len),
        };
        drop(kept);
        Hidden { rows, cols, data: Some(data), home: self.clone() }
    }

    fn give_back(&self, slab: Slab<f32>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(slab);
        if kept.len() > Self::KEPT {
            // The smallest is the least likely to fit a later request.
            if let Some(index) = (0..kept.len()).min_by_key(|&index| kept[index].len) {
                kept.swap_remove(index);
            }
        }
    }
}

/// A slice that several threads write, each to parts of its own.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a, T> {
    start: *mut T,
    len: usize,
    borrow: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Parts` is a mutable slice whose users promise, in `part`, not to overlap.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Shares `slice`.
    pub(super) fn new(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts { start: slice.as_mut_ptr(), len: slice.len(), borrow: PhantomData }
    }

    /// One part.
    ///
    /// # Safety
    /// No two parts that are alive at the same time may overlap.
    #[inline(always)]
    pub(super) unsafe fn part(&self, range: Range<usize>) -> &'a mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the range lies in the slice, which is borrowed for 'a; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
