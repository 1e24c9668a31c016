//! Memory the kernels work in: aligned, zeroed, and recycled.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::Pod;
use memmap2::MmapMut;

use crate::device::{DeviceError, MemoryUse};

/// Bytes of a cache line, and of an AVX-512 register.
const LINE: usize = 64;

/// Bytes of a huge page. One core reads memory twice as fast through them as through pages of 4 KiB, and decoding is
/// reading memory.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes an arena maps at a time.
const ARENA_BYTES: usize = 64 << 20;

/// Bytes of slabs, shared by all that give them out. Plain vectors (gains, rotary angles, the log of a revocable span) are small beside
/// them and not counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    active: AtomicU64,
    peak: AtomicU64,
    kept: AtomicU64,
}

impl Tally {
    /// What the slabs hold now, the most they held, and what is kept for reuse.
    pub(super) fn memory(&self) -> MemoryUse {
        let Counts { active, peak, kept } = &*self.0;
        let [active, peak, kept] = [active, peak, kept].map(|bytes| bytes.load(Ordering::Relaxed));
        MemoryUse { active, peak, cached: Some(kept), limit: None }
    }
}

/// A slab's bytes in the tally, from its creation to its end.
struct Counted {
    bytes: u64,
    /// Whether the slab is kept for reuse, rather than in use.
    kept: bool,
    tally: Tally,
}

impl Counted {
    fn new(bytes: usize, tally: &Tally) -> Counted {
        let counted = Counted { bytes: bytes as u64, kept: false, tally: tally.clone() };
        counted.add();
        counted
    }

    fn add(&self) {
        let Counts { active, peak, kept } = &*self.tally.0;
        if self.kept {
            kept.fetch_add(self.bytes, Ordering::Relaxed);
        } else {
            let before = active.fetch_add(self.bytes, Ordering::Relaxed);
            peak.fetch_max(before + self.bytes, Ordering::Relaxed);
        }
    }

    fn remove(&self) {
        let Counts { active, kept, .. } = &*self.tally.0;
        let counter = if self.kept { kept } else { active };
        counter.fetch_sub(self.bytes, Ordering::Relaxed);
    }

    fn keep(&mut self, kept: bool) {
        self.remove();
        self.kept = kept;
        self.add();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A fixed slice of numbers, zero at first, that starts on a cache line. Memory is taken from the system when first written.
pub(super) struct Slab<T> {
    start: NonNull<T>,
    len: usize,
    /// Keeps the memory alive; nobody else refers to this slab's part of it.
    _memory: Memory,
    counted: Counted,
}

/// Where a slab's memory is from.
enum Memory {
    Heap { _bytes: Vec<u8> },
    Mapped { _mapping: Arc<MmapMut> },
}

// SAFETY: a slab owns its numbers as a `Vec` does.
unsafe impl<T: Send> Send for Slab<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Slab<T> {}

impl<T: Pod> Slab<T> {
    /// `len` zeros, or [`DeviceError::OutOfMemory`] naming `what`.
    fn try_new(len: usize, what: &str, tally: &Tally) -> Result<Slab<T>, DeviceError> {
        let bytes = slab_bytes::<T>(len, what)?;
        if bytes >= HUGE_PAGE {
            return Arena::new(tally).slab(len, what);
        }
        let mut heap = vec![0u8; bytes + LINE];
        let offset = heap.as_ptr().align_offset(LINE);
        let start = NonNull::from(&mut heap[offset..]).cast();
        let counted = Counted::new(bytes, tally);
        Ok(Slab { start, len, _memory: Memory::Heap { _bytes: heap }, counted })
    }
}

impl<T> Deref for Slab<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `start` is aligned to a line and followed by `len` initialised plain numbers that only this slab refers to.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Slab<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

fn out_of_memory(bytes: usize, what: &str) -> DeviceError {
    DeviceError::OutOfMemory { bytes: bytes as u64, problem: what.to_owned() }
}

/// Bytes of `len` numbers in whole lines.
fn slab_bytes<T>(len: usize, what: &str) -> Result<usize, DeviceError> {
    len.checked_mul(size_of::<T>())
        .filter(|bytes| *bytes < isize::MAX as usize / 2)
        .map(|bytes| bytes.next_multiple_of(LINE))
        .ok_or_else(|| out_of_memory(usize::MAX, what))
}

/// Gives out slabs that lie side by side in huge pages. Their memory returns when an arena's whole mapping is unused.
pub(super) struct Arena {
    mapping: Option<Arc<MmapMut>>,
    /// The first free byte of the mapping, on a line.
    next: NonNull<u8>,
    left: usize,
    tally: Tally,
}

// SAFETY: `next` points to the part of the mapping that no slab has, which the arena owns.
unsafe impl Send for Arena {}

impl Arena {
    /// Nothing yet. Its slabs count in `tally`.
    pub(super) fn new(tally: &Tally) -> Arena {
        Arena { mapping: None, next: NonNull::dangling(), left: 0, tally: tally.clone() }
    }

    /// `len` zeros, or [`DeviceError::OutOfMemory`] naming `what`.
    pub(super) fn slab<T: Pod>(&mut self, len: usize, what: &str) -> Result<Slab<T>, DeviceError> {
        let bytes = slab_bytes::<T>(len, what)?;
        let mapping = match &self.mapping {
            Some(mapping) if bytes <= self.left => Arc::clone(mapping),
            _ => self.map(bytes, what)?,
        };
        let start = self.next;
        // SAFETY: the mapping has `left >= bytes` bytes from `next` on.
        self.next = unsafe { self.next.add(bytes) };
        self.left -= bytes;
        let counted = Counted::new(bytes, &self.tally);
        Ok(Slab { start: start.cast(), len, _memory: Memory::Mapped { _mapping: mapping }, counted })
    }

    /// Starts a new mapping with room for `bytes`.
    fn map(&mut self, bytes: usize, what: &str) -> Result<Arc<MmapMut>, DeviceError> {
        let room = match self.mapping {
            // The first slab of an arena may be the only one.
            None => bytes,
            Some(_) => bytes.max(ARENA_BYTES),
        };
        let room = room.next_multiple_of(HUGE_PAGE);
        let mut mapping = MmapMut::map_anon(room + HUGE_PAGE).map_err(|_| out_of_memory(room, what))?;
        // Advice: where it is not taken, everything works, slower.
        #[cfg(target_os = "linux")]
        let _ = mapping.advise(memmap2::Advice::HugePage);
        let offset = mapping.as_ptr().align_offset(HUGE_PAGE);
        self.next = NonNull::from(&mut mapping[offset..]).cast();
        self.left = room;
        let mapping = Arc::new(mapping);
        self.mapping = Some(Arc::clone(&mapping));
        Ok(mapping)
    }
}

/// A slab that grows when asked for more than ever before, and is otherwise reused.
pub(super) struct Scratch<T> {
    slab: Option<Slab<T>>,
    tally: Tally,
}

impl<T: Pod> Scratch<T> {
    /// Nothing yet. What it takes counts in `tally`.
    pub(super) fn new(tally: &Tally) -> Scratch<T> {
        Scratch { slab: None, tally: tally.clone() }
    }

    /// `len` numbers of unspecified value.
    pub(super) fn take(&mut self, len: usize) -> &mut [T] {
        if self.slab.as_ref().is_none_or(|slab| slab.len < len) {
            self.slab = Some(allocate(len, &self.tally));
        }
        match &mut self.slab {
            Some(slab) => &mut slab[..len],
            None => &mut [],
        }
    }
}

/// Working memory, whose absence leaves nothing sensible to do.
fn allocate<T: Pod>(len: usize, tally: &Tally) -> Slab<T> {
    match Slab::try_new(len, "activations", tally) {
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
pub(super) struct Recycler {
    kept: Arc<Mutex<Vec<Slab<f32>>>>,
    tally: Tally,
}

impl Recycler {
    /// Slabs kept for reuse; a layer has fewer activations alive at once.
    const KEPT: usize = 12;

    /// Nothing yet. What it gives out counts in `tally`.
    pub(super) fn new(tally: &Tally) -> Recycler {
        Recycler { kept: Arc::default(), tally: tally.clone() }
    }

    /// A matrix of unspecified contents.
    pub(super) fn hidden(&self, rows: usize, cols: usize) -> Hidden {
        let len = rows * cols;
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let fit = kept
            .iter()
            .enumerate()
            .filter(|(_, slab)| slab.len >= len)
            .min_by_key(|(_, slab)| slab.len)
            .map(|(index, _)| index);
        let data = match fit {
            Some(index) => {
                let mut slab = kept.swap_remove(index);
                slab.counted.keep(false);
                slab
            }
            None => allocate(len, &self.tally),
        };
        drop(kept);
        Hidden { rows, cols, data: Some(data), home: self.clone() }
    }

    fn give_back(&self, mut slab: Slab<f32>) {
        slab.counted.keep(true);
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_are_zeroed_aligned_and_apart() {
        let mut arena = Arena::new(&Tally::default());
        let mut slabs: Vec<Slab<u32>> =
            [1, 17, 600_000, 0, 5_000_000, 3].map(|len| arena.slab(len, "test").unwrap()).into();
        drop(arena);
        for (i, slab) in slabs.iter_mut().enumerate() {
            assert_eq!(slab.as_ptr() as usize % LINE, 0);
            assert!(slab.iter().all(|x| *x == 0));
            slab.fill(i as u32 + 1);
        }
        slabs.remove(2);
        for (slab, value) in slabs.iter().zip([1, 2, 4, 5, 6]) {
            assert!(slab.iter().all(|x| *x == value));
        }
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        for len in [usize::MAX, usize::MAX / 4, 1 << 58] {
            assert!(
                matches!(
                    Slab::<f32>::try_new(len, "test", &Tally::default()),
                    Err(DeviceError::OutOfMemory { .. })
                ),
                "{len}"
            );
        }
    }

    /// Active, peak and kept, lines.
    fn lines(tally: &Tally) -> [u64; 3] {
        let MemoryUse { active, peak, cached, limit } = tally.memory();
        assert_eq!(limit, None);
        [active, peak, cached.unwrap()].map(|bytes| {
            assert!(bytes.is_multiple_of(LINE as u64));
            bytes / LINE as u64
        })
    }

    #[test]
    fn slabs_count_while_they_live_and_the_peak_stays() {
        let tally = Tally::default();
        let mut arena = Arena::new(&tally);
        let first: Slab<f32> = arena.slab(33, "test").unwrap();
        let second: Slab<u8> = arena.slab(64, "test").unwrap();
        assert_eq!(lines(&tally), [4, 4, 0]);
        drop(first);
        assert_eq!(lines(&tally), [1, 4, 0]);
        let mut scratch = Scratch::<f32>::new(&tally);
        scratch.take(16);
        scratch.take(8);
        assert_eq!(lines(&tally), [2, 4, 0]);
        assert!(arena.slab::<f32>(1 << 58, "test").is_err());
        drop((scratch, second, arena));
        assert_eq!(lines(&tally), [0, 4, 0], "what was refused never counted");
    }

    #[test]
    fn what_is_kept_for_reuse_is_not_in_use() {
        let tally = Tally::default();
        let recycler = Recycler::new(&tally);
        let many: Vec<Hidden> = (0..Recycler::KEPT + 3).map(|_| recycler.hidden(2, 16)).collect();
        let (all, kept) = (many.len() as u64 * 2, Recycler::KEPT as u64 * 2);
        assert_eq!(lines(&tally), [all, all, 0]);
        drop(many);
        assert_eq!(lines(&tally), [0, all, kept]);
        let one = recycler.hidden(1, 16);
        assert_eq!(lines(&tally), [2, all, kept - 2], "a kept one, whole");
        drop(one);
        drop(recycler);
        assert_eq!(lines(&tally), [0, all, 0]);
    }
}
