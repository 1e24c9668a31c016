//! The `cpu` device: own kernels, chosen at run time, the same bits by every route.
//!
//! A token's numbers depend on the tokens and positions before it, never on how the work was cut: every output is one chain of
//! operations in an order fixed by columns, groups and positions. Chunks, batches, threads and instruction sets
//! only decide which chains run side by side.

mod attention;
mod delta;
mod elementwise;
mod encoding;
mod experts;
mod isa;
mod kernel;
mod kv;
mod linear;
mod memory;
mod pack;
mod pool;
mod quantise;
mod states;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod timing;
mod weigh;

use attention::{Attention, AttentionScratch};
use delta::DeltaScratch;
use elementwise::{Add, Gate, GateRows, NormHeads, RmsNorm, RotaryTable, Rotate};
use experts::{Expert, Gather};
use memory::{Arena, Parts, Recycler, Tally};
use pack::Matrix;
use pool::Pool;
use quantise::{Operands, rows_a_task};
use weigh::Weigh;

pub use delta::Delta;
pub use encoding::kept_bits;
pub use experts::Experts;
pub use kernel::Kernel;
pub use kv::Kv;
pub use memory::Hidden;
pub use states::States;

use super::ops::{
    AttentionShape, DeltaShape, DeltaSource, Device, ExpertShape, ExpertSource, Keys, KvShape, Rotary, Rows,
    StateShape,
};
use super::weights::WeightSource;
use super::weights::read::{plain, plain_of};
use super::{DeviceError, MemoryUse, PageId, SlotId, StateFlow};
use crate::config::Precision;
use crate::event::Identity;

/// How to make a [`Cpu`].
#[derive(Debug, Clone, Copy)]
pub struct CpuOptions {
    /// Precision of linear layers, and with it of stored keys and values (f16 under `int8`).
    pub precision: Precision,
    /// Threads; 0 means one a core.
    pub threads: usize,
    /// The instruction set; the fastest there is where `None`.
    pub kernel: Option<Kernel>,
}

/// The device.
pub struct Cpu {
    precision: Precision,
    kernel: Kernel,
    pool: Pool,
    weights: Arena,
    recycler: Recycler,
    operands: Operands,
    attention: AttentionScratch,
    delta: DeltaScratch,
    rotary: Option<RotaryTable>,
    tally: Tally,
    /// Memory of logits that are done with.
    spare_logits: Vec<f32>,
    /// Experts that rows went to since somebody asked.
    experts_touched: u64,
}

/// A linear layer: matrices stacked by rows.
pub struct Linear {
    matrices: Vec<Matrix>,
}

/// A norm's gain.
pub struct Gain {
    values: Vec<f32>,
}

/// A token embedding.
pub struct Table {
    matrix: Vec<Matrix>,
}

impl Cpu {
    /// A device with threads of its own. Fails where the processor lacks the instruction set asked for or the system
    /// refuses a thread.
    pub fn new(options: CpuOptions) -> Result<Cpu, DeviceError> {
        let kernel = options.kernel.unwrap_or_else(Kernel::best);
        if !kernel.is_available() {
            return Err(DeviceError::Contract(format!("this processor has no {kernel}")));
        }
        let pool = Pool::new(options.threads)
            .map_err(|error| DeviceError::Contract(format!("no thread could be started: {error}")))?;
        let tally = Tally::default();
        Ok(Cpu {
            precision: options.precision,
            kernel,
            pool,
            weights: Arena::new(&tally),
            recycler: Recycler::new(&tally),
            operands: Operands::new(&tally),
            attention: AttentionScratch::new(&tally),
            delta: DeltaScratch::new(&tally),
            rotary: None,
            tally,
            spare_logits: Vec::new(),
            experts_touched: 0,
        })
    }

    fn layout(&self, shape: KvShape) -> Result<kv::Layout, DeviceError> {
        kv::Layout::new(shape, self.precision == Precision::Int8)
    }

    fn multiply(&mut self, x: &Hidden, matrices: &[Matrix], out: &mut [f32]) {
        assert_eq!(matrices.first().map(|m| m.cols), Some(x.cols()), "columns of activations and weights");
        linear::multiply(matrices, x.data(), out, &mut self.operands, self.kernel, &mut self.pool);
    }

    fn multiplied(&mut self, x: &Hidden, matrices: &[Matrix]) -> Vec<f32> {
        let mut out = std::mem::take(&mut self.spare_logits);
        out.resize(x.rows() * matrices.iter().map(|m| m.rows).sum::<usize>(), 0.0);
        self.multiply(x, matrices, &mut out);
        out
    }

    fn product(&mut self, x: &Hidden, w: &Linear) -> Hidden {
        let mut out = self.recycler.hidden(x.rows(), w.matrices.iter().map(|m| m.rows).sum());
        self.multiply(x, &w.matrices, out.data_mut());
        out
    }
}

fn exported(held: Option<&[u8]>, what: &str, number: u32) -> Result<Vec<u8>, DeviceError> {
    held.map(<[u8]>::to_vec).ok_or_else(|| not_there(what, number))
}

fn import(held: Option<&mut [u8]>, bytes: &[u8], what: &str, number: u32) -> Result<(), DeviceError> {
    let held = held.ok_or_else(|| not_there(what, number))?;
    if held.len() != bytes.len() {
        return Err(DeviceError::exported_length(what, held.len(), bytes.len()));
    }
    held.copy_from_slice(bytes);
    Ok(())
}

fn not_there(what: &str, number: u32) -> DeviceError {
    DeviceError::Contract(format!("{what} {number} is not reserved"))
}

impl Device for Cpu {
    type Hidden = Hidden;
    type Linear = Linear;
    type Gain = Gain;
    type Table = Table;
    type Delta = Delta;
    type Experts = Experts;
    type Kv = Kv;
    type States = States;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn family(&self) -> &'static str {
        "cpu, i16 activations"
    }

    fn kernel(&self) -> String {
        self.kernel.to_string()
    }

    fn precision(&self) -> &'static str {
        match self.precision {
            Precision::Int8 => "int8",
            Precision::F32 => "f32",
        }
    }

    fn identity(&self) -> Identity {
        Identity::Bitwise
    }

    fn memory(&self) -> Option<MemoryUse> {
        Some(self.tally.memory())
    }

    fn load_linear(&mut self, stacked: &[WeightSource<'_>]) -> Result<Linear, DeviceError> {
        if stacked.is_empty() {
            return Err(DeviceError::Contract("a linear layer of no tensors".to_owned()));
        }
        Ok(Linear { matrices: pack::pack(stacked, self.precision, &mut self.pool, &mut self.weights)? })
    }

    fn load_gain(&mut self, source: WeightSource<'_>) -> Result<Gain, DeviceError> {
        Ok(Gain { values: plain(&source)? })
    }

    fn load_table(&mut self, source: WeightSource<'_>) -> Result<Table, DeviceError> {
        Ok(Table { matrix: pack::pack(&[source], self.precision, &mut self.pool, &mut self.weights)? })
    }

    fn load_delta(&mut self, shape: DeltaShape, source: DeltaSource<'_>) -> Result<Delta, DeviceError> {
        let DeltaSource { convolution, decay_rate, decay_bias, norm } = source;
        Ok(Delta::new(
            shape,
            &plain_of(&convolution, shape.channels(), shape.taps)?,
            &plain_of(&decay_rate, 1, shape.value_heads)?,
            &plain_of(&decay_bias, 1, shape.value_heads)?,
            plain_of(&norm, 1, shape.value_dim)?,
        ))
    }

    fn load_experts(&mut self, experts: &[ExpertSource<'_>]) -> Result<Experts, DeviceError> {
        let mut load = |expert: &ExpertSource<'_>| {
            let gate_up = self.load_linear(&[expert.gate, expert.up])?;
            Ok(Expert { gate_up, down: self.load_linear(&[expert.down])? })
        };
        Ok(Experts { experts: experts.iter().map(&mut load).collect::<Result<_, DeviceError>>()? })
    }

    fn new_kv(&mut self, shape: KvShape) -> Result<Kv, DeviceError> {
        Ok(Kv::new(self.layout(shape)?, &self.tally))
    }

    fn kv_page_bytes(&self, shape: KvShape) -> usize {
        self.layout(shape).map_or(0, |layout| layout.page_bytes())
    }

    fn reserve_kv(&mut self, kv: &mut Kv, pages: usize) -> Result<(), DeviceError> {
        kv.reserve(pages)
    }

    fn kv_digest(&self, kv: &Kv, page: PageId, tokens: usize) -> [u8; 32] {
        kv.digest(page, tokens)
    }

    fn export_page(&self, kv: &Kv, page: PageId) -> Result<Vec<u8>, DeviceError> {
        exported(kv.bytes(page), "page", page.0)
    }

    fn import_page(&mut self, kv: &mut Kv, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        import(kv.bytes_mut(page), bytes, "page", page.0)
    }

    fn new_states(&mut self, shape: StateShape) -> Result<States, DeviceError> {
        States::new(shape, &self.tally)
    }

    fn slot_bytes(&self, shape: StateShape) -> usize {
        States::slot_bytes(shape)
    }

    fn reserve_slots(&mut self, states: &mut States, slots: usize) -> Result<(), DeviceError> {
        states.reserve(slots)
    }

    fn slot_digest(&self, states: &States, slot: SlotId) -> [u8; 32] {
        states.digest(slot)
    }

    fn export_slot(&self, states: &States, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        exported(states.bytes(slot), "slot", slot.0)
    }

    fn import_slot(&mut self, states: &mut States, slot: SlotId, bytes: &[u8]) -> Result<(), DeviceError> {
        import(states.bytes_mut(slot), bytes, "slot", slot.0)
    }

    fn rewind(&mut self, states: &mut States, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        delta::rewind(states, flow, tokens, self.kernel, &mut self.pool)
    }

    fn upload(&mut self, numbers: &[f32], columns: usize) -> Hidden {
        let mut out = self.recycler.hidden(numbers.len() / columns, columns);
        out.data_mut().copy_from_slice(numbers);
        out
    }

    fn embed(&mut self, table: &Table, tokens: &[u32]) -> Hidden {
        let matrix = &table.matrix[0];
        let mut out = self.recycler.hidden(tokens.len(), matrix.cols);
        for (token, out) in tokens.iter().zip(out.data_mut().chunks_exact_mut(matrix.cols)) {
            matrix.read_row(*token as usize, out);
        }
        out
    }

    fn rms_norm(&mut self, x: &Hidden, gain: &Gain, eps: f32) -> Hidden {
        assert_eq!(x.cols(), gain.values.len(), "columns of activations and gain");
        let mut out = self.recycler.hidden(x.rows(), x.cols());
        let (kernel, cols, gain) = (self.kernel, x.cols(), &gain.values);
        by_rows(&mut self.pool, x.rows(), cols, out.data_mut(), |rows, out| {
            let x = &x.data()[rows.start * cols..rows.end * cols];
            kernel.dispatch(RmsNorm { x, gain, eps, out });
        });
        out
    }

    fn linear(&mut self, x: &Hidden, w: &Linear) -> Hidden {
        self.product(x, w)
    }

    fn beside(&mut self, x: &Hidden, y: &Hidden) -> Hidden {
        assert_eq!(x.rows(), y.rows(), "rows beside each other");
        let mut out = self.recycler.hidden(x.rows(), x.cols() + y.cols());
        let (cols, rows) = (out.cols(), x.data().chunks_exact(x.cols()).zip(y.data().chunks_exact(y.cols())));
        for (out, (x, y)) in out.data_mut().chunks_exact_mut(cols).zip(rows) {
            let (left, right) = out.split_at_mut(x.len());
            left.copy_from_slice(x);
            right.copy_from_slice(y);
        }
        out
    }

    fn add(&mut self, x: &mut Hidden, y: &Hidden) {
        assert_eq!((x.rows(), x.cols()), (y.rows(), y.cols()), "shapes of a sum");
        let (kernel, cols, rows) = (self.kernel, x.cols(), x.rows());
        by_rows(&mut self.pool, rows, cols, x.data_mut(), |rows, x| {
            kernel.dispatch(Add { x, y: &y.data()[rows.start * cols..rows.end * cols] });
        });
    }

    fn norm_heads(&mut self, qkv: &mut Hidden, shape: AttentionShape, query: &Gain, key: &Gain, eps: f32) {
        let (kernel, cols, rows) = (self.kernel, qkv.cols(), qkv.rows());
        assert!(cols == shape.columns() && [query, key].iter().all(|g| g.values.len() == shape.head_dim));
        by_rows(&mut self.pool, rows, cols, qkv.data_mut(), |_, x| {
            kernel.dispatch(NormHeads { x, shape, query: &query.values, key: &key.values, eps });
        });
    }

    fn rotary(&mut self, qkv: &mut Hidden, shape: AttentionShape, rotary: Rotary, positions: &[u32]) {
        assert!(
            rotary.dims <= shape.head_dim && positions.len() == qkv.rows(),
            "rotary embedding of {shape:?}"
        );
        let mut table = match self.rotary.take() {
            Some(table) if table.rotary() == rotary => table,
            _ => RotaryTable::new(rotary),
        };
        table.extend(positions.iter().max().map_or(0, |last| *last as usize + 1));
        let (kernel, cols, rows) = (self.kernel, qkv.cols(), qkv.rows());
        by_rows(&mut self.pool, rows, cols, qkv.data_mut(), |rows, x| {
            kernel.dispatch(Rotate { x, cols, shape, table: &table, positions: &positions[rows] });
        });
        self.rotary = Some(table);
    }

    fn queries(&mut self, qkv: &Hidden, shape: AttentionShape, indices: &[usize]) -> Hidden {
        let (cols, queries) = (qkv.cols(), shape.queries());
        let mut out = self.recycler.hidden(indices.len(), queries);
        for (index, out) in indices.iter().zip(out.data_mut().chunks_exact_mut(queries)) {
            out.copy_from_slice(&qkv.data()[index * cols..][..queries]);
        }
        out
    }

    fn read(&mut self, x: &Hidden) -> Result<Vec<f32>, DeviceError> {
        Ok(x.data().to_vec())
    }

    fn key_weights(
        &mut self,
        kv: &mut Kv,
        layer: usize,
        keys: Keys<'_>,
        queries: &[f32],
        shape: AttentionShape,
    ) -> Result<Vec<f32>, DeviceError> {
        let weigh = if kv.layout().half { weigh::weigh::<u16> } else { weigh::weigh::<f32> };
        let call = Weigh { queries, shape, kv, layer, keys };
        Ok(weigh(call, self.kernel, &mut self.pool))
    }

    fn store(&mut self, qkv: &Hidden, shape: AttentionShape, rows: Rows<'_>, kv: &mut Kv, layer: usize) {
        let AttentionShape { kv_heads, head_dim, .. } = shape;
        let layout = kv.layout();
        assert_eq!(qkv.cols(), shape.columns(), "columns of queries, gates, keys and values");
        assert_eq!(
            (kv_heads, head_dim),
            (layout.shape.kv_heads, layout.shape.head_dim),
            "heads of the store"
        );
        let mut projections = qkv.data().chunks_exact(qkv.cols());
        for span in rows.spans {
            for (offset, row) in projections.by_ref().take(span.tokens.len()).enumerate() {
                let (page, offset) = Rows::slot(span, span.start + offset, layout.shape.page_tokens);
                let (keys, values) = row[shape.keys_at()..].split_at(kv_heads * head_dim);
                kv.write(page, layer, offset, keys, values);
            }
        }
    }

    fn attention(
        &mut self,
        qkv: &Hidden,
        shape: AttentionShape,
        rows: Rows<'_>,
        kv: &mut Kv,
        layer: usize,
        first: usize,
    ) -> Hidden {
        self.store(qkv, shape, rows, kv, layer);
        let mut out = self.recycler.hidden(qkv.rows(), shape.heads * shape.head_dim);
        let attend = if kv.layout().half { attention::attend::<u16> } else { attention::attend::<f32> };
        let call = Attention { qkv: qkv.data(), shape, rows, kv, layer, first, out: out.data_mut() };
        attend(call, &mut self.attention, self.kernel, &mut self.pool);
        out
    }

    fn gated_delta(
        &mut self,
        x: &Hidden,
        delta: &Delta,
        rows: Rows<'_>,
        states: &mut States,
        layer: usize,
        eps: f32,
    ) -> Hidden {
        let shape = delta.shape();
        assert_eq!(x.cols(), shape.columns(), "columns of a gated delta layer");
        assert_eq!(shape, states.layout().delta(), "heads of the states");
        let mut out = self.recycler.hidden(x.rows(), shape.values());
        let call = delta::Call { x: x.data(), delta, rows, layer, eps, out: out.data_mut() };
        delta::gated_delta(call, states, &mut self.delta, self.kernel, &mut self.pool);
        out
    }

    fn experts(&mut self, x: &Hidden, scores: &Hidden, shape: ExpertShape, experts: &Experts) -> Hidden {
        assert_eq!((scores.rows(), scores.cols()), (x.rows(), shape.experts), "scores of the experts");
        let shares = experts::route(scores.data(), shape);
        let cols = x.cols();
        let mut out = self.recycler.hidden(x.rows(), cols);
        out.data_mut().fill(0.0);
        for (expert, share) in experts.experts.iter().zip(&shares) {
            if share.rows.is_empty() {
                continue;
            }
            self.experts_touched += 1;
            let mine = self.select_rows(x, &share.rows);
            let given = self.gated_mlp(&mine, &expert.gate_up, &expert.down);
            self.kernel.dispatch(Gather { x: given.data(), share, cols, out: out.data_mut() });
        }
        out
    }

    fn take_experts_touched(&mut self) -> Option<u64> {
        Some(std::mem::take(&mut self.experts_touched))
    }

    fn gate_rows(&mut self, x: &mut Hidden, gate: &Hidden) {
        assert_eq!((x.rows(), 1), (gate.rows(), gate.cols()), "gates of rows");
        let (kernel, cols, rows) = (self.kernel, x.cols(), x.rows());
        by_rows(&mut self.pool, rows, cols, x.data_mut(), |rows, x| {
            kernel.dispatch(GateRows { x, gates: &gate.data()[rows], cols });
        });
    }

    fn gated_mlp(&mut self, x: &Hidden, gate_up: &Linear, down: &Linear) -> Hidden {
        let both = self.product(x, gate_up);
        let cols = both.cols() / 2;
        let mut gated = self.recycler.hidden(x.rows(), cols);
        let kernel = self.kernel;
        by_rows(&mut self.pool, x.rows(), cols, gated.data_mut(), |rows, out| {
            let x = &both.data()[rows.start * 2 * cols..rows.end * 2 * cols];
            kernel.dispatch(Gate { x, out, cols });
        });
        drop(both);
        self.product(&gated, down)
    }

    fn select_rows(&mut self, x: &Hidden, indices: &[usize]) -> Hidden {
        let cols = x.cols();
        let mut out = self.recycler.hidden(indices.len(), cols);
        for (index, out) in indices.iter().zip(out.data_mut().chunks_exact_mut(cols)) {
            out.copy_from_slice(&x.data()[index * cols..(index + 1) * cols]);
        }
        out
    }

    fn tied_logits(&mut self, x: &Hidden, table: &Table) -> Result<Vec<f32>, DeviceError> {
        Ok(self.multiplied(x, &table.matrix))
    }

    fn logits(&mut self, x: &Hidden, output: &Linear) -> Result<Vec<f32>, DeviceError> {
        Ok(self.multiplied(x, &output.matrices))
    }

    fn take_back(&mut self, logits: Vec<f32>) {
        if logits.capacity() > self.spare_logits.capacity() {
            self.spare_logits = logits;
        }
    }

    fn evaluate(&mut self, _kv: &mut Kv, _states: Option<&mut States>) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Runs `body` over ranges of rows of `out`, `[rows, cols]`, on all threads where there is enough to do.
fn by_rows(
    pool: &mut Pool,
    rows: usize,
    cols: usize,
    out: &mut [f32],
    body: impl Fn(std::ops::Range<usize>, &mut [f32]) + Sync,
) {
    let chunk = rows_a_task(rows, cols);
    let out = Parts::new(out);
    pool.run(rows.div_ceil(chunk), |task| {
        let range = task * chunk..rows.min((task + 1) * chunk);
        // SAFETY: the ranges of tasks do not overlap.
        body(range.clone(), unsafe { out.part(range.start * cols..range.end * cols) });
    });
}
