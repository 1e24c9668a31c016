//! Keys and values.
//!
//! A layer's keys lie in one array, `[positions, kv_heads·head_dim]`, its values in another, and page `p` is rows `p·page_tokens` on.
//! A forward's rows are written into them in place, which MLX does as long as nobody else holds the array. Pages that follow
//! each other make one run, and a run is read as a view, without copying.

use std::ops::Range;

use mlx_rs::ops::indexing::{TryIndexMutOp, TryIndexOp};
use mlx_rs::ops::{concatenate, zeros_dtype};
use mlx_rs::{Array, Dtype};

use super::failure::{Built, device_error};
use super::hidden::int;
use crate::device::ops::KvShape;
use crate::device::{DeviceError, PageId};

/// Paged keys and values.
#[derive(Debug)]
pub struct Kv {
    shape: KvShape,
    float: Dtype,
    layers: Vec<Layer>,
    /// Positions every array has room for.
    room: usize,
    /// The rows that were last put together, and the runs they are.
    last_rows: Option<(Vec<Range<usize>>, Array)>,
}

#[derive(Debug)]
struct Layer {
    keys: Array,
    values: Array,
}

/// Runs of rows of the store that hold positions `positions` of a sequence, in order.
pub(super) fn runs(pages: &[PageId], positions: Range<usize>, page_tokens: usize) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut position = positions.start;
    while position < positions.end {
        let end = positions.end.min((position / page_tokens + 1) * page_tokens);
        let row = pages[position / page_tokens].0 as usize * page_tokens + position % page_tokens;
        let piece = row..row + (end - position);
        match runs.last_mut() {
            Some(run) if run.end == piece.start => run.end = piece.end,
            _ => runs.push(piece),
        }
        position = end;
    }
    runs
}

/// Bytes of a number.
pub(super) fn float_bytes(float: Dtype) -> usize {
    if float == Dtype::Float32 { 4 } else { 2 }
}

impl Kv {
    /// An empty store.
    pub(super) fn new(shape: KvShape, float: Dtype) -> Built<Kv> {
        let empty = || zeros_dtype(&[0, int(shape.kv_heads * shape.head_dim)], float);
        let layers = (0..shape.layers).map(|_| Ok(Layer { keys: empty()?, values: empty()? }));
        Ok(Kv { shape, float, layers: layers.collect::<Built<_>>()?, room: 0, last_rows: None })
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(shape: KvShape, float: Dtype) -> usize {
        2 * shape.layers * shape.kv_heads * shape.head_dim * shape.page_tokens * float_bytes(float)
    }

    /// Makes pages `0..pages` usable, with `free` bytes to be had, `None` where nothing limits them. Room grows by an eighth where there is
    /// memory for it, so that copying what is held stays a small part of computing it; an array at a time, so that no more
    /// than one is held twice.
    pub(super) fn reserve(&mut self, pages: usize, free: Option<u64>) -> Result<(), DeviceError> {
        let needed = pages * self.shape.page_tokens;
        if needed <= self.room {
            return Ok(());
        }
        let eighth = (self.room / 8).next_multiple_of(self.shape.page_tokens);
        let ample = needed.max(self.room + eighth);
        let fits = |room: usize| free.is_none_or(|free| self.growth_bytes(room) <= free);
        let room = if fits(ample) { ample } else { needed };
        if !fits(room) {
            let problem = format!("keys and values of {pages} pages");
            return Err(DeviceError::OutOfMemory { bytes: self.growth_bytes(room), problem });
        }
        self.grow(room).map_err(|e| device_error(&e, "making room for keys and values"))
    }

    /// Bytes that growing to `room` positions takes while it happens.
    fn growth_bytes(&self, room: usize) -> u64 {
        let row = (self.columns() * float_bytes(self.float)) as u64;
        let arrays = 2 * self.layers.len() as u64;
        // All arrays, and one of them twice with what is put behind it.
        row * (arrays * (room - self.room) as u64 + room as u64)
    }

    fn grow(&mut self, room: usize) -> Built<()> {
        let (columns, float) = (int(self.columns()), self.float);
        for array in self.layers.iter_mut().flat_map(|layer| [&mut layer.keys, &mut layer.values]) {
            // An array may have grown before another failed to.
            let more = int(room) - array.dim(0);
            if more > 0 {
                let grown = concatenate(&[&*array, &zeros_dtype(&[more, columns], float)?], 0)?;
                grown.eval()?;
                *array = grown;
            }
        }
        self.room = room;
        Ok(())
    }

    fn columns(&self) -> usize {
        self.shape.kv_heads * self.shape.head_dim
    }

    /// Writes rows of keys and values, `[positions, kv_heads, head_dim]`, to the pages of a sequence.
    pub(super) fn write(
        &mut self,
        layer: usize,
        pages: &[PageId],
        positions: Range<usize>,
        keys: &Array,
        values: &Array,
    ) -> Built<()> {
        let shape = [int(positions.len()), int(self.columns())];
        let (keys, values) = (keys.reshape(&shape)?, values.reshape(&shape)?);
        let runs = runs(pages, positions, self.shape.page_tokens);
        let Layer { keys: held_keys, values: held_values } = &mut self.layers[layer];
        for (held, new) in [(held_keys, keys), (held_values, values)] {
            let mut from = 0;
            for run in &runs {
                let part = new.try_index(from..from + int(run.len()))?;
                held.try_index_mut(int(run.start)..int(run.end), part)?;
                from += int(run.len());
            }
        }
        Ok(())
    }

    /// Keys and values at `positions` of a sequence, `[positions, kv_heads, head_dim]` each: run after run in place, or where there are more
    /// than `most` runs, copied into one.
    pub(super) fn read(
        &mut self,
        layer: usize,
        pages: &[PageId],
        positions: Range<usize>,
        most: usize,
    ) -> Built<Vec<[Array; 2]>> {
        let KvShape { kv_heads, head_dim, page_tokens, .. } = self.shape;
        let heads = |x: Array| x.reshape(&[-1, int(kv_heads), int(head_dim)]);
        let runs = runs(pages, positions, page_tokens);
        if runs.len() > most {
            let rows = self.rows(runs)?;
            let copy = |array: &Array| heads(array.take_axis(&rows, 0)?);
            let [keys, values] = self.layer(layer);
            return Ok(vec![[copy(keys)?, copy(values)?]]);
        }
        let [keys, values] = self.layer(layer);
        let view = |array: &Array, run: &Range<usize>| heads(array.try_index(int(run.start)..int(run.end))?);
        runs.iter().map(|run| Ok([view(keys, run)?, view(values, run)?])).collect()
    }

    /// The rows of runs, which every layer of a forward asks for.
    fn rows(&mut self, runs: Vec<Range<usize>>) -> Built<Array> {
        if let Some((known, rows)) = &self.last_rows
            && *known == runs
        {
            return Ok(rows.clone());
        }
        let rows: Vec<u32> = runs.iter().cloned().flatten().map(|row| row as u32).collect();
        let rows = Array::from_slice(&rows, &[int(rows.len())]);
        self.last_rows = Some((runs, rows.clone()));
        Ok(rows)
    }

    /// All arrays.
    pub(super) fn arrays(&self) -> impl Iterator<Item = &Array> {
        self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values])
    }

    /// The arrays of a layer.
    pub(super) fn layer(&self, layer: usize) -> [&Array; 2] {
        let Layer { keys, values } = &self.layers[layer];
        [keys, values]
    }

    /// Forgets everything, pages included.
    pub(super) fn clear(&mut self) -> Built<()> {
        *self = Kv::new(self.shape, self.float)?;
        Ok(())
    }

    /// A page's numbers as bytes: for every layer the keys of all positions, then the values.
    pub(super) fn bytes(&self, page: PageId) -> Built<Vec<u8>> {
        let rows = self.page_rows(page);
        let mut bytes = Vec::with_capacity(Kv::page_bytes(self.shape, self.float));
        for array in self.arrays() {
            let part = array.try_index(int(rows.start)..int(rows.end))?.reshape(&[-1])?;
            float_bytes_of(&part, self.float, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// Puts such bytes, as many as a page has, into a page.
    pub(super) fn put_bytes(&mut self, page: PageId, bytes: &[u8]) -> Built<()> {
        let rows = self.page_rows(page);
        let (float, shape) = (self.float, [int(rows.len()), int(self.columns())]);
        let each = rows.len() * self.columns() * float_bytes(float);
        let held = self.layers.iter_mut().flat_map(|layer| [&mut layer.keys, &mut layer.values]);
        for (array, bytes) in held.zip(bytes.chunks_exact(each)) {
            let part = array_of(bytes, float, &shape)?;
            array.try_index_mut(int(rows.start)..int(rows.end), part)?;
        }
        mlx_rs::transforms::eval(self.arrays())
    }

    fn page_rows(&self, page: PageId) -> Range<usize> {
        let start = page.0 as usize * self.shape.page_tokens;
        start..start + self.shape.page_tokens
    }

    /// Numbers of the first `tokens` positions of a page as f32: for every layer the keys of all positions, then the values.
    pub(super) fn numbers(&self, page: PageId, tokens: usize) -> Built<Vec<f32>> {
        let tokens = tokens.min(self.shape.page_tokens);
        let start = page.0 as usize * self.shape.page_tokens;
        let parts: Vec<Array> = self
            .arrays()
            .map(|array| {
                let rows = array.try_index(int(start)..int(start + tokens))?;
                rows.as_dtype(Dtype::Float32)?.reshape(&[-1])
            })
            .collect::<Built<_>>()?;
        numbers(&concatenate(&parts, 0)?)
    }
}

/// An array's numbers, of type `float`, as bytes. Half floats come from half floats, so nothing is rounded.
pub(super) fn float_bytes_of(array: &Array, float: Dtype, out: &mut Vec<u8>) -> Built<()> {
    let numbers = numbers(array)?;
    match float {
        Dtype::Float16 => out.extend(numbers.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes())),
        Dtype::Bfloat16 => out.extend(numbers.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes())),
        _ => out.extend_from_slice(bytemuck::cast_slice(&numbers)),
    }
    Ok(())
}

/// The array of such bytes.
pub(super) fn array_of(bytes: &[u8], float: Dtype, shape: &[i32]) -> Built<Array> {
    let halves = bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    let numbers: Vec<f32> = match float {
        Dtype::Float16 => halves.map(|b| half::f16::from_le_bytes(b).to_f32()).collect(),
        Dtype::Bfloat16 => halves.map(|b| half::bf16::from_le_bytes(b).to_f32()).collect(),
        _ => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    };
    Array::from_slice(&numbers, shape).as_dtype(float)
}

/// The numbers of an f32 array, computed.
pub(super) fn numbers(array: &Array) -> Built<Vec<f32>> {
    if array.size() == 0 {
        return Ok(Vec::new());
    }
    let array = array.as_dtype(Dtype::Float32)?.contiguous()?;
    array.eval()?;
    let slice = array.try_as_slice::<f32>();
    slice.map(<[f32]>::to_vec).map_err(|e| mlx_rs::error::Exception::custom(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_pages_make_one_run() {
        let pages = [4, 5, 6, 2, 3, 9].map(PageId);
        assert_eq!(runs(&pages, 0..6 * 8, 8), [32..56, 16..32, 72..80]);
        assert_eq!(runs(&pages, 5..20, 8).first(), Some(&(37..52)));
        assert_eq!(runs(&pages, 22..26, 8), [54..56, 16..18]);
        assert!(runs(&pages, 7..7, 8).is_empty());
    }

    #[test]
    fn room_grows_as_far_as_memory_goes() {
        let shape = KvShape { layers: 3, kv_heads: 1, head_dim: 4, page_tokens: 64 };
        let page = Kv::page_bytes(shape, Dtype::Float32) as u64;
        let mut kv = Kv::new(shape, Dtype::Float32).unwrap();
        kv.reserve(100, Some(120 * page)).unwrap();
        assert_eq!(kv.room, 100 * 64);
        let refused = kv.reserve(101, Some(10 * page)).unwrap_err();
        assert!(matches!(refused, DeviceError::OutOfMemory { bytes, .. } if bytes > 10 * page), "{refused}");
        // One more page, and one of six arrays twice.
        kv.reserve(101, Some(page + 101 * page / 6 + 1)).unwrap();
        assert_eq!(kv.room, 101 * 64);
        kv.reserve(102, Some(100 * page)).unwrap();
        assert_eq!(kv.room, (101 + 13) * 64);
    }

    /// MLX's allocator counts for the whole process; what other tests hold meanwhile is far less than the store.
    #[test]
    fn a_write_happens_in_place() {
        use mlx_rs::memory;
        let shape = KvShape { layers: 1, kv_heads: 4, head_dim: 64, page_tokens: 64 };
        let mut kv = Kv::new(shape, Dtype::Float32).unwrap();
        kv.reserve(2_000, None).unwrap();
        let store = 2_000 * Kv::page_bytes(shape, Dtype::Float32);
        let pages = [70, 71, 9].map(PageId);
        let rows = || Array::from_iter((0..3 * 256).map(|x| x as f32), &[3, 4, 64]);
        for start in [0, 63, 126, 150] {
            let before = memory::active_memory().unwrap();
            memory::reset_peak_memory().unwrap();
            kv.write(0, &pages, start..start + 3, &rows(), &rows()).unwrap();
            let read = kv.read(0, &pages, 0..start + 3, 8).unwrap();
            mlx_rs::transforms::eval(kv.arrays().chain(read.iter().flatten())).unwrap();
            let rise = memory::peak_memory().unwrap().saturating_sub(before);
            assert!(rise < store / 8, "a write of 3 positions took {rise} bytes of a store of {store}");
        }
    }

    #[test]
    fn what_is_written_is_read_and_growing_keeps_it() {
        let shape = KvShape { layers: 2, kv_heads: 2, head_dim: 3, page_tokens: 4 };
        let mut kv = Kv::new(shape, Dtype::Float32).unwrap();
        kv.reserve(3, None).unwrap();
        let pages = [2, 0].map(PageId);
        let rows = |from: usize| Array::from_iter((from..from + 36).map(|x| x as f32), &[6, 2, 3]);
        kv.write(1, &pages, 1..7, &rows(0), &rows(100)).unwrap();
        let before = kv.numbers(PageId(0), 3).unwrap();
        kv.reserve(40, None).unwrap();
        assert_eq!(kv.numbers(PageId(0), 3).unwrap(), before);
        let read = kv.read(1, &pages, 0..7, 2).unwrap();
        assert_eq!(read.len(), 2, "two runs");
        assert_eq!(numbers(&read[0][0]).unwrap()[6..], (0..18).map(|x| x as f32).collect::<Vec<_>>());
        assert_eq!(numbers(&read[1][1]).unwrap(), (118..136).map(|x| x as f32).collect::<Vec<_>>());
        let copied = kv.read(1, &pages, 0..7, 1).unwrap();
        assert_eq!(copied.len(), 1, "two runs in one");
        for which in [0, 1] {
            let runs = [&read[0][which], &read[1][which]];
            assert_eq!(
                numbers(&copied[0][which]).unwrap(),
                numbers(&concatenate(&runs, 0).unwrap()).unwrap()
            );
        }
        assert!(numbers(&kv.read(0, &pages, 0..7, 2).unwrap()[0][0]).unwrap().iter().all(|x| *x == 0.0));
    }
}
