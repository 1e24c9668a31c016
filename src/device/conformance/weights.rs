//! Random tensors in every encoding, with what they mean.

use half::{bf16, f16};

use crate::device::weights::{Encoding, Float, RowOrder, WeightSource};

/// A small deterministic generator (splitmix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// In -1..1.
    pub(crate) fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// `n` numbers in -1..1.
    pub(crate) fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// How a [`Tensor`] is encoded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Plain(Float),
    Q4_0,
    Q4_1,
    Q8_0,
    Affine { bits: usize, group: usize, float: Float },
}

impl Kind {
    /// Every encoding a device must take.
    pub(crate) fn all() -> Vec<Kind> {
        let mut all = vec![
            Kind::Plain(Float::F32),
            Kind::Plain(Float::F16),
            Kind::Plain(Float::Bf16),
            Kind::Q4_0,
            Kind::Q4_1,
            Kind::Q8_0,
        ];
        for bits in [2, 3, 4, 5, 6, 8] {
            for (group, float) in [(32, Float::F16), (64, Float::Bf16), (128, Float::F32)] {
                all.push(Kind::Affine { bits, group, float });
            }
        }
        all
    }
}

/// A random tensor: its bytes, and its values as the file has them (rows in file order).
pub(crate) struct Tensor {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) values: Vec<f32>,
    pub(crate) order: RowOrder,
    kind: Kind,
    main: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

fn push(out: &mut Vec<u8>, float: Float, x: f32) -> f32 {
    match float {
        Float::F32 => {
            out.extend(x.to_le_bytes());
            x
        }
        Float::F16 => {
            let x = f16::from_f32(x);
            out.extend(x.to_le_bytes());
            x.to_f32()
        }
        Float::Bf16 => {
            let x = bf16::from_f32(x);
            out.extend(x.to_le_bytes());
            x.to_f32()
        }
    }
}

impl Tensor {
    /// Random weights whose products with unit inputs are of order one.
    pub(crate) fn random(rng: &mut Rng, kind: Kind, rows: usize, cols: usize) -> Tensor {
        let mut tensor = Tensor {
            rows,
            cols,
            values: Vec::new(),
            order: RowOrder::Halves,
            kind,
            main: Vec::new(),
            scales: Vec::new(),
            biases: Vec::new(),
        };
        let size = 2.0 / (cols as f32).sqrt();
        match kind {
            Kind::Plain(float) => {
                for _ in 0..rows * cols {
                    let x = push(&mut tensor.main, float, rng.unit() * size);
                    tensor.values.push(x);
                }
            }
            Kind::Q4_0 | Kind::Q4_1 | Kind::Q8_0 => {
                for _ in 0..rows * cols / 32 {
                    tensor.push_block(rng, size);
                }
            }
            Kind::Affine { bits, group, float } => {
                for _ in 0..rows * cols / group {
                    let levels = (1u32 << bits) as f32;
                    let scale = push(&mut tensor.scales, float, size * (1.0 + rng.unit() * 0.5) / levels);
                    let bias = push(&mut tensor.biases, float, -size * (0.5 + 0.2 * rng.unit()));
                    let u: Vec<u32> = (0..group).map(|_| rng.below(1 << bits) as u32).collect();
                    tensor.values.extend(u.iter().map(|u| scale * *u as f32 + bias));
                    let mut stream = vec![0u8; group * bits / 8];
                    for (i, u) in u.iter().enumerate() {
                        for bit in 0..bits {
                            let at = i * bits + bit;
                            stream[at / 8] |= ((u >> bit & 1) as u8) << (at % 8);
                        }
                    }
                    tensor.main.extend(stream);
                }
            }
        }
        tensor
    }

    /// A GGUF block of 32.
    fn push_block(&mut self, rng: &mut Rng, size: f32) {
        let spread = 1.0 + rng.unit() * 0.5;
        if self.kind == Kind::Q8_0 {
            let d = push(&mut self.main, Float::F16, size * spread / 127.0);
            for _ in 0..32 {
                let q = rng.below(256) as u8 as i8;
                self.main.push(q as u8);
                self.values.push(d * f32::from(q));
            }
            return;
        }
        let d = push(&mut self.main, Float::F16, size * spread / 8.0);
        let m = match self.kind {
            Kind::Q4_1 => push(&mut self.main, Float::F16, -size * (1.0 + 0.2 * rng.unit())),
            _ => -8.0 * d,
        };
        let bytes: Vec<u8> = (0..16).map(|_| rng.below(256) as u8).collect();
        self.values.extend(bytes.iter().map(|b| d * f32::from(b & 15) + m));
        self.values.extend(bytes.iter().map(|b| d * f32::from(b >> 4) + m));
        self.main.extend(bytes);
    }

    /// As a device takes it.
    pub(crate) fn source(&self) -> WeightSource<'_> {
        let encoding = match self.kind {
            Kind::Plain(float) => Encoding::Plain(float, &self.main),
            Kind::Q4_0 => Encoding::Q4_0(&self.main),
            Kind::Q4_1 => Encoding::Q4_1(&self.main),
            Kind::Q8_0 => Encoding::Q8_0(&self.main),
            Kind::Affine { bits, group, float } => Encoding::Affine {
                bits,
                group,
                packed: &self.main,
                scales: (float, &self.scales),
                biases: (float, &self.biases),
            },
        };
        WeightSource { name: "test", rows: self.rows, cols: self.cols, encoding, order: self.order }
    }

    /// `x · Wᵀ` in f64, rows in the order of halves.
    pub(crate) fn product(&self, x: &[f32]) -> Vec<f64> {
        let mut out = Vec::new();
        for x in x.chunks_exact(self.cols) {
            for row in 0..self.rows {
                let file = match self.order {
                    RowOrder::Halves => row,
                    RowOrder::Pairs { head_dim } => {
                        let (head, i) = (row / head_dim, row % head_dim);
                        let half = head_dim / 2;
                        head * head_dim + if i < half { 2 * i } else { 2 * (i - half) + 1 }
                    }
                    RowOrder::GatedHeads { head_dim } => {
                        let heads = self.rows / head_dim / 2;
                        let (head, i) = (row / head_dim, row % head_dim);
                        (2 * (head % heads) + head / heads) * head_dim + i
                    }
                };
                let w = &self.values[file * self.cols..(file + 1) * self.cols];
                out.push(w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum());
            }
        }
        out
    }
}
