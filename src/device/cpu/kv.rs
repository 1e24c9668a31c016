//! The paged key/value store.
//!
//! A page holds, for every layer and key/value head, its keys in tiles of 64 positions, `[tile][column][64]`, so that scores of
//! sixteen keys form in one vector, and its values, `[position][padded columns]`. Numbers are f16 where linear layers
//! are quantised and f32 where they are not.

use bytemuck::Pod;
use half::f16;

use super::isa::{Isa, LANES};
use super::memory::{Arena, Slab, Tally};
use crate::device::ops::{KvShape, PAGE_MULTIPLE};
use crate::device::{DeviceError, PageId};

/// Keys a tile holds; tiles start at multiples of it.
pub(super) const TILE: usize = 64;

const _: () = assert!(PAGE_MULTIPLE.is_multiple_of(TILE), "a page is whole tiles");

/// A number of the store.
pub(super) trait Element: Pod + Send + Sync {
    /// Sixteen of them, widened.
    fn load<I: Isa>(isa: I, x: &[Self; LANES]) -> I::F;
    /// The first `V` sixteens of them, widened.
    #[inline(always)]
    fn load_all<I: Isa, const V: usize>(isa: I, x: &[[Self; LANES]]) -> [I::F; V] {
        let mut loaded = [isa.splat(0.0); V];
        for (loaded, x) in loaded.iter_mut().zip(&x[..V]) {
            *loaded = Self::load(isa, x);
        }
        loaded
    }
    /// Rounds to the nearest, and to the greatest finite where that would be infinite.
    fn narrow(x: f32) -> Self;
    /// Widens.
    fn widen(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn load<I: Isa>(isa: I, x: &[f32; LANES]) -> I::F {
        isa.load(x)
    }

    #[inline(always)]
    fn narrow(x: f32) -> f32 {
        x
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
}

/// An f16 by its bits.
impl Element for u16 {
    #[inline(always)]
    fn load<I: Isa>(isa: I, x: &[u16; LANES]) -> I::F {
        isa.load_f16(x)
    }

    #[inline(always)]
    fn narrow(x: f32) -> u16 {
        let greatest = f16::MAX.to_f32();
        f16::from_f32(x.clamp(-greatest, greatest)).to_bits()
    }

    #[inline(always)]
    fn widen(self) -> f32 {
        f16::from_bits(self).to_f32()
    }
}

/// Keys and values of all layers, in pages.
pub struct Kv {
    layout: Layout,
    arena: Arena,
    pages: Vec<Page>,
}

/// A page's numbers.
enum Page {
    F32(Slab<f32>),
    F16(Slab<u16>),
}

/// Where numbers lie in a page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// What the store was made for.
    pub(super) shape: KvShape,
    /// Whether numbers are f16.
    pub(super) half: bool,
}

impl Layout {
    /// Checks a shape.
    pub(super) fn new(shape: KvShape, half: bool) -> Result<Layout, DeviceError> {
        shape.check()?;
        Ok(Layout { shape, half })
    }

    /// Columns of a value row, padded to whole vectors.
    pub(super) fn value_stride(&self) -> usize {
        self.shape.head_dim.next_multiple_of(LANES)
    }

    fn key_elements(&self) -> usize {
        self.shape.page_tokens * self.shape.head_dim
    }

    fn head_elements(&self) -> usize {
        self.key_elements() + self.shape.page_tokens * self.value_stride()
    }

    /// Elements of a page.
    fn elements(&self) -> usize {
        self.shape.layers * self.shape.kv_heads * self.head_elements()
    }

    /// Bytes of a page.
    pub(super) fn page_bytes(&self) -> usize {
        self.elements() * if self.half { 2 } else { 4 }
    }

    /// Start of the keys of tile `tile` of the page.
    fn keys(&self, layer: usize, head: usize, tile: usize) -> usize {
        (layer * self.shape.kv_heads + head) * self.head_elements() + tile * TILE * self.shape.head_dim
    }

    /// Start of the value row at `offset` in the page.
    fn values(&self, layer: usize, head: usize, offset: usize) -> usize {
        (layer * self.shape.kv_heads + head) * self.head_elements()
            + self.key_elements()
            + offset * self.value_stride()
    }
}

impl Kv {
    /// An empty store.
    pub(super) fn new(layout: Layout, tally: &Tally) -> Kv {
        Kv { layout, arena: Arena::new(tally), pages: Vec::new() }
    }

    /// Where its numbers lie.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Makes pages `0..pages` usable.
    pub(super) fn reserve(&mut self, pages: usize) -> Result<(), DeviceError> {
        let elements = self.layout.elements();
        while self.pages.len() < pages {
            self.pages.push(if self.layout.half {
                Page::F16(self.arena.slab(elements, "a key/value page")?)
            } else {
                Page::F32(self.arena.slab(elements, "a key/value page")?)
            });
        }
        Ok(())
    }

    /// Digest of the first `tokens` positions of a page: for every layer, head and position the key's and then the value's
    /// columns as f32.
    pub(super) fn digest(&self, page: PageId, tokens: usize) -> [u8; 32] {
        match &self.pages[page.0 as usize] {
            Page::F32(x) => digest(self.layout, x, tokens),
            Page::F16(x) => digest(self.layout, x, tokens),
        }
    }

    /// A page's numbers, in the order they lie in.
    pub(super) fn bytes(&self, page: PageId) -> Option<&[u8]> {
        Some(match self.pages.get(page.0 as usize)? {
            Page::F32(x) => bytemuck::cast_slice(x),
            Page::F16(x) => bytemuck::cast_slice(x),
        })
    }

    /// The same, to be written.
    pub(super) fn bytes_mut(&mut self, page: PageId) -> Option<&mut [u8]> {
        Some(match self.pages.get_mut(page.0 as usize)? {
            Page::F32(x) => bytemuck::cast_slice_mut(x),
            Page::F16(x) => bytemuck::cast_slice_mut(x),
        })
    }

    /// The pages' numbers, if they are `E`.
    pub(super) fn read<E: Element>(&self) -> Pages<'_, E> {
        let pages = self
            .pages
            .iter()
            .map(|page| match page {
                Page::F32(x) => bytemuck::try_cast_slice(x).unwrap_or(&[]),
                Page::F16(x) => bytemuck::try_cast_slice(x).unwrap_or(&[]),
            })
            .collect();
        Pages { layout: self.layout, pages }
    }

    /// Writes key and value rows of one layer and head at `offset` of `page`.
    pub(super) fn write(&mut self, page: PageId, layer: usize, offset: usize, keys: &[f32], values: &[f32]) {
        let layout = self.layout;
        match &mut self.pages[page.0 as usize] {
            Page::F32(x) => write(layout, x, layer, offset, keys, values),
            Page::F16(x) => write(layout, x, layer, offset, keys, values),
        }
    }
}

/// Writes a token's keys and values of all heads, `[heads·head_dim]` each.
fn write<E: Element>(
    layout: Layout,
    page: &mut [E],
    layer: usize,
    offset: usize,
    keys: &[f32],
    values: &[f32],
) {
    let head_dim = layout.shape.head_dim;
    let rows = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
    for (head, (key, value)) in rows.enumerate() {
        let tile = &mut page[layout.keys(layer, head, offset / TILE)..][..TILE * head_dim];
        for (column, x) in tile.chunks_exact_mut(TILE).zip(key) {
            column[offset % TILE] = E::narrow(*x);
        }
        for (out, x) in page[layout.values(layer, head, offset)..][..head_dim].iter_mut().zip(value) {
            *out = E::narrow(*x);
        }
    }
}

fn digest<E: Element>(layout: Layout, page: &[E], tokens: usize) -> [u8; 32] {
    let KvShape { layers, kv_heads, head_dim, page_tokens } = layout.shape;
    let mut hasher = blake3::Hasher::new();
    let mut row: Vec<f32> = Vec::with_capacity(2 * head_dim);
    for layer in 0..layers {
        for head in 0..kv_heads {
            for offset in 0..tokens.min(page_tokens) {
                let tile = &page[layout.keys(layer, head, offset / TILE)..][..TILE * head_dim];
                let value = &page[layout.values(layer, head, offset)..][..head_dim];
                row.clear();
                row.extend(tile.chunks_exact(TILE).map(|column| column[offset % TILE].widen()));
                row.extend(value.iter().map(|x| x.widen()));
                hasher.update(bytemuck::cast_slice(&row));
            }
        }
    }
    *hasher.finalize().as_bytes()
}

/// A store's pages, for reading.
pub(super) struct Pages<'a, E> {
    layout: Layout,
    pages: Vec<&'a [E]>,
}

impl<'a, E: Element> Pages<'a, E> {
    /// Where numbers lie.
    pub(super) fn layout(&self) -> Layout {
        self.layout
    }

    /// Keys `[column][64]` and values `[64][stride]` of the tile that starts at `position`.
    #[inline(always)]
    pub(super) fn tile(
        &self,
        pages: &[PageId],
        position: usize,
        layer: usize,
        head: usize,
    ) -> (&'a [[E; TILE]], &'a [E]) {
        let page_tokens = self.layout.shape.page_tokens;
        let page = self.pages[pages[position / page_tokens].0 as usize];
        let offset = position % page_tokens;
        let keys = &page[self.layout.keys(layer, head, offset / TILE)..][..TILE * self.layout.shape.head_dim];
        let values = &page[self.layout.values(layer, head, offset)..][..TILE * self.layout.value_stride()];
        (keys.as_chunks().0, values)
    }
}
