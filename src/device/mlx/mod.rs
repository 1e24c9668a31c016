//! The `mlx` device: Apple's MLX, on Metal where there is a GPU.
//!
//! Operations build a graph and compute nothing; [`Device::logits`] and [`Device::evaluate`] compute it, so that a forward's time is
//! that of its own work. What an operation refuses to build is remembered and told there too. All MLX objects live on the thread
//! that loads the model, the engine's. State is held to a tolerance, not to bits: MLX picks its kernels, and with them the order of
//! sums, by the number of rows. On Linux the same code runs on MLX's CPU backend, which is for tests.

mod attention;
mod delta;
mod experts;
mod failure;
mod hidden;
mod kv;
mod memory;
#[cfg(not(target_os = "macos"))]
mod platform;
mod states;
#[cfg(test)]
mod tests;
mod weights;

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use mlx_rs::error::Exception;
use mlx_rs::fast::{rms_norm, rope_dynamic};
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, sigmoid};
use mlx_rs::transforms::eval;
use mlx_rs::{Array, Dtype};

use delta::{Masks, silu};
use failure::{Built, device_error};
use hidden::{Heads, columns, int};
use memory::Limits;
use weights::{Weight, dtype, load, load_plain, load_stack, product, stored};

pub use delta::Delta;
pub use experts::Experts;
pub use hidden::Hidden;
pub use kv::Kv;
pub use states::States;

use super::ops::{
    AHEAD_FROM, AttentionShape, DeltaShape, DeltaSource, Device, ExpertShape, ExpertSource, Keys, KvShape,
    Rotary, Rows, StateShape,
};
use super::weights::read::{plain_of, refuse};
use super::weights::{Float, WeightSource};
use super::{DeviceError, MemoryUse, PageId, SlotId, Span, StateFlow};
use crate::config::MlxConfig;
use crate::event::Identity;

/// The type of activations, and with it of stored keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Floats {
    /// That of the first tensor loaded.
    Stored,
    /// f32, for parity with reference implementations.
    F32,
}

/// The device.
pub struct Mlx {
    /// `None` until the first tensor decides.
    float: Option<Dtype>,
    limits: Limits,
    masks: Masks,
    /// The first thing that could not be built, or computed ahead of the rest, since the last evaluation.
    failure: Option<DeviceError>,
    /// Recurrent state of this forward, to be computed together with what follows from it.
    written: Vec<Array>,
    /// The positions of the last rows that were rotated.
    positions: Option<(Vec<u32>, Array)>,
}

/// A linear layer: matrices stacked by rows.
pub struct Linear {
    matrices: Vec<Weight>,
    rows: usize,
}

/// A norm's gain.
pub struct Gain {
    values: Array,
}

/// A token embedding.
pub struct Table {
    matrix: Weight,
}

impl Mlx {
    /// The device, with the limits of `config` set for the whole process.
    pub fn new(floats: Floats, config: &MlxConfig) -> Result<Mlx, DeviceError> {
        Ok(Mlx {
            float: (floats == Floats::F32).then_some(Dtype::Float32),
            limits: Limits::set(config)?,
            masks: Masks::new(),
            failure: None,
            written: Vec::new(),
            positions: None,
        })
    }

    /// The type of activations, decided by `source` if nothing was loaded before.
    fn float(&mut self, source: &WeightSource<'_>) -> Dtype {
        *self.float.get_or_insert_with(|| stored(source))
    }

    /// The type of activations; f32 where nothing has decided.
    fn decided(&self) -> Dtype {
        self.float.unwrap_or(Dtype::Float32)
    }

    /// What was built, or a stand-in, with the failure kept for the evaluation that is to come.
    fn hidden(&mut self, doing: &str, built: Built<Array>) -> Hidden {
        let float = self.decided();
        // A graph that slips into another type computes something else, and at another price.
        let checked = built.and_then(|x| match x.dtype() == float {
            true => Ok(x),
            false => Err(Exception::custom(format!("it gives {:?} and not {float:?}", x.dtype()))),
        });
        Hidden::whole(checked.unwrap_or_else(|error| {
            self.fail(doing, &error);
            // A matrix, so that whatever is built on it fails as an error.
            Array::from_slice(&[0f32], &[1, 1])
        }))
    }

    /// Keeps the first failure.
    fn fail(&mut self, doing: &str, error: &Exception) {
        self.failure.get_or_insert_with(|| device_error(error, doing));
    }

    fn take_failure(&mut self) -> Result<(), DeviceError> {
        self.failure.take().map_or(Ok(()), Err)
    }

    /// Changes the heads of `x`, cut if need be.
    fn heads(
        &mut self,
        doing: &str,
        x: &mut Hidden,
        shape: AttentionShape,
        change: impl FnOnce(Heads) -> Built<Heads>,
    ) {
        match x.heads(shape).and_then(change) {
            Ok(heads) => x.put_heads(heads),
            Err(error) => self.fail(doing, &error),
        }
    }

    /// Computes what is to be written before it is written, where there is much of it.
    fn ahead(&self, rows: usize, arrays: &[&Array]) -> Built<()> {
        if rows < AHEAD_FROM || self.failure.is_some() {
            return Ok(());
        }
        eval(arrays.iter().copied())
    }

    /// Writes the keys and values of all rows. All are written before any is read: a view of the store would make the next write copy it.
    fn write(&self, heads: &Heads, batch: Rows<'_>, kv: &mut Kv, layer: usize) -> Built<()> {
        for (range, span) in batch.ranges().iter().zip(batch.spans) {
            let (keys, values) = (cut(&heads.keys, range)?, cut(&heads.values, range)?);
            kv.write(layer, span.pages, span.start..span.start + span.tokens.len(), &keys, &values)?;
        }
        self.ahead(batch.positions.len(), &kv.layer(layer))
    }

    /// Logits, computed, and with them the recurrent state of the forward.
    fn computed(&mut self, logits: Built<Array>) -> Result<Vec<f32>, DeviceError> {
        self.take_failure()?;
        let logits = logits.and_then(|logits| logits.as_dtype(Dtype::Float32)?.contiguous());
        let written = std::mem::take(&mut self.written);
        let numbers = logits.and_then(|logits| {
            eval(written.iter().chain([&logits]))?;
            kv::numbers(&logits)
        });
        numbers.map_err(|e| device_error(&e, "computing logits"))
    }

    /// Positions on the device.
    fn positions(&mut self, positions: &[u32]) -> Array {
        if let Some((known, array)) = &self.positions
            && known == positions
        {
            return array.clone();
        }
        let signed: Vec<i32> = positions.iter().map(|position| *position as i32).collect();
        let array = Array::from_slice(&signed, &[int(signed.len())]);
        self.positions = Some((positions.to_vec(), array.clone()));
        array
    }
}

impl Device for Mlx {
    type Hidden = Hidden;
    type Linear = Linear;
    type Gain = Gain;
    type Table = Table;
    type Delta = Delta;
    type Experts = Experts;
    type Kv = Kv;
    type States = States;

    fn name(&self) -> &'static str {
        "mlx"
    }

    fn kernel(&self) -> String {
        if memory::on_gpu() { "metal" } else { "cpu backend" }.to_owned()
    }

    fn precision(&self) -> &'static str {
        let is = |float| self.decided() == dtype(float);
        if is(Float::Bf16) {
            "bf16"
        } else if is(Float::F16) {
            "f16"
        } else {
            "f32"
        }
    }

    fn identity(&self) -> Identity {
        Identity::Tolerance
    }

    fn float_bytes(&self) -> usize {
        kv::float_bytes(self.decided())
    }

    fn memory(&self) -> Option<MemoryUse> {
        self.limits.usage()
    }

    fn load_linear(&mut self, stacked: &[WeightSource<'_>]) -> Result<Linear, DeviceError> {
        let float = stacked.first().map_or(self.decided(), |source| self.float(source));
        let rows = stacked.iter().map(|source| source.rows).sum();
        Ok(Linear { matrices: load(stacked, float)?, rows })
    }

    fn load_gain(&mut self, source: WeightSource<'_>) -> Result<Gain, DeviceError> {
        let float = self.float(&source);
        let values = load_plain(&source, float)?.reshape(&[-1]);
        Ok(Gain { values: values.map_err(|e| device_error(&e, "loading a gain"))? })
    }

    fn load_table(&mut self, source: WeightSource<'_>) -> Result<Table, DeviceError> {
        let float = self.float(&source);
        Ok(Table { matrix: load(&[source], float)?.swap_remove(0) })
    }

    fn load_delta(&mut self, shape: DeltaShape, source: DeltaSource<'_>) -> Result<Delta, DeviceError> {
        let DeltaSource { convolution, decay_rate, decay_bias, norm } = source;
        let float = self.float(&convolution);
        let taps = plain_of(&convolution, shape.channels(), shape.taps)?;
        let rates = plain_of(&decay_rate, 1, shape.value_heads)?;
        let rates: Vec<f32> = rates.iter().map(|rate| libm::exp(f64::from(*rate)) as f32).collect();
        let biases = plain_of(&decay_bias, 1, shape.value_heads)?;
        let gain = plain_of(&norm, 1, shape.value_dim)?;
        let vector = |values: &[f32]| Array::from_slice(values, &[int(values.len())]);
        let convolution = Array::from_slice(&taps, &[int(shape.channels()), int(shape.taps), 1]);
        let convolution =
            convolution.as_dtype(float).map_err(|e| device_error(&e, "loading a convolution"))?;
        Ok(Delta { shape, convolution, rates: vector(&rates), biases: vector(&biases), gain: vector(&gain) })
    }

    fn load_experts(&mut self, experts: &[ExpertSource<'_>]) -> Result<Experts, DeviceError> {
        let Some(first) = experts.first() else {
            return Err(DeviceError::Contract("a layer without experts".to_owned()));
        };
        let float = self.float(&first.gate);
        let stack = |sources: Vec<WeightSource<'_>>| {
            let uneven = sources.iter().find(|source| source.rows != sources[0].rows);
            match uneven {
                Some(source) => Err(refuse(source, "the experts of a layer differ in size".to_owned())),
                None => load_stack(&sources, experts.len(), float),
            }
        };
        Ok(Experts {
            gate: stack(experts.iter().map(|expert| expert.gate).collect())?,
            up: stack(experts.iter().map(|expert| expert.up).collect())?,
            down: stack(experts.iter().map(|expert| expert.down).collect())?,
        })
    }

    fn new_kv(&mut self, shape: KvShape) -> Result<Kv, DeviceError> {
        shape.check()?;
        Kv::new(shape, self.decided()).map_err(|e| device_error(&e, "making room for keys and values"))
    }

    fn kv_page_bytes(&self, shape: KvShape) -> usize {
        Kv::page_bytes(shape, self.decided())
    }

    fn reserve_kv(&mut self, kv: &mut Kv, pages: usize) -> Result<(), DeviceError> {
        kv.reserve(pages, self.limits.free())
    }

    fn kv_digest(&self, kv: &Kv, page: PageId, tokens: usize) -> [u8; 32] {
        digest(kv.numbers(page, tokens))
    }

    fn export_page(&self, kv: &Kv, page: PageId) -> Result<Vec<u8>, DeviceError> {
        kv.bytes(page).map_err(|e| device_error(&e, "reading a page"))
    }

    fn import_page(&mut self, kv: &mut Kv, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        kv.put_bytes(page, bytes).map_err(|e| device_error(&e, "writing a page"))
    }

    fn new_states(&mut self, shape: StateShape) -> Result<States, DeviceError> {
        States::new(shape)
    }

    fn slot_bytes(&self, shape: StateShape) -> usize {
        let tail = shape.delta.taps.saturating_sub(1) * shape.delta.channels();
        let matrices = shape.delta.state_elements() - tail;
        shape.layers * (tail * kv::float_bytes(self.decided()) + matrices * size_of::<f32>())
    }

    fn reserve_slots(&mut self, states: &mut States, slots: usize) -> Result<(), DeviceError> {
        states.reserve(slots);
        Ok(())
    }

    fn slot_digest(&self, states: &States, slot: SlotId) -> [u8; 32] {
        digest(states.numbers(slot))
    }

    fn export_slot(&self, states: &States, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        states.bytes(slot, self.decided()).map_err(|e| device_error(&e, "reading recurrent state"))
    }

    fn import_slot(&mut self, states: &mut States, slot: SlotId, bytes: &[u8]) -> Result<(), DeviceError> {
        let float = self.decided();
        states.put_bytes(slot, float, bytes).map_err(|e| device_error(&e, "writing recurrent state"))
    }

    fn rewind(&mut self, states: &mut States, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        let outcome = states.rewind(flow, tokens, &self.masks)?;
        // Now: a later forward that fails must not take it along, and its time is this call's.
        let computed = outcome.and_then(|()| eval(states.pending()));
        computed.map_err(|e| device_error(&e, "going back to an earlier state"))?;
        states.settle();
        Ok(())
    }

    fn upload(&mut self, numbers: &[f32], columns: usize) -> Hidden {
        let rows = numbers.len() / columns;
        let float = self.decided();
        let array = Array::from_slice(numbers, &[int(rows), int(columns)]).as_dtype(float);
        self.hidden("taking activations", array)
    }

    fn embed(&mut self, table: &Table, tokens: &[u32]) -> Hidden {
        let tokens = Array::from_slice(tokens, &[int(tokens.len())]);
        let rows = table.matrix.rows(&tokens);
        self.hidden("embedding tokens", rows)
    }

    fn rms_norm(&mut self, x: &Hidden, gain: &Gain, eps: f32) -> Hidden {
        let out = x.matrix().and_then(|x| rms_norm(x, Some(&gain.values), eps));
        self.hidden("a norm", out)
    }

    fn linear(&mut self, x: &Hidden, w: &Linear) -> Hidden {
        let out = x.matrix().and_then(|x| product(&x, &w.matrices));
        self.hidden("a linear layer", out)
    }

    fn beside(&mut self, x: &Hidden, y: &Hidden) -> Hidden {
        let both = x.matrix().and_then(|x| concatenate(&[x, y.matrix()?], 1));
        self.hidden("rows beside each other", both)
    }

    fn add(&mut self, x: &mut Hidden, y: &Hidden) {
        let sum = x.matrix().and_then(|x| x.add(y.matrix()?));
        *x = self.hidden("a sum", sum);
    }

    fn norm_heads(&mut self, qkv: &mut Hidden, shape: AttentionShape, query: &Gain, key: &Gain, eps: f32) {
        self.heads("a norm of heads", qkv, shape, |heads| {
            Ok(Heads {
                queries: rms_norm(&heads.queries, Some(&query.values), eps)?,
                keys: rms_norm(&heads.keys, Some(&key.values), eps)?,
                ..heads
            })
        });
    }

    fn rotary(&mut self, qkv: &mut Hidden, shape: AttentionShape, rotary: Rotary, positions: &[u32]) {
        let positions = self.positions(positions);
        // Every row is a sequence of its own, one token long, that starts at the row's position.
        let rotate = |x: &Array| {
            let x = x.expand_dims(2)?;
            let base = rotary.base as f32;
            rope_dynamic(x, int(rotary.dims), false, base, 1.0, &positions, None)?.squeeze_axes(&[2])
        };
        self.heads("rotary embedding", qkv, shape, |heads| {
            Ok(Heads { queries: rotate(&heads.queries)?, keys: rotate(&heads.keys)?, ..heads })
        });
    }

    fn queries(&mut self, qkv: &Hidden, shape: AttentionShape, indices: &[usize]) -> Hidden {
        let indices: Vec<u32> = indices.iter().map(|index| *index as u32).collect();
        let indices = Array::from_slice(&indices, &[int(indices.len())]);
        let rows = int(indices.size());
        let taken = qkv.heads(shape).and_then(|heads| {
            let taken = heads.queries.take_axis(indices, 0)?.reshape(&[rows, -1])?;
            // What is still to be computed would keep the queries of all rows, layer upon layer.
            self.ahead(hidden::rows(&heads.queries) as usize, &[&taken])?;
            Ok(taken)
        });
        self.hidden("a selection of queries", taken)
    }

    fn read(&mut self, x: &Hidden) -> Result<Vec<f32>, DeviceError> {
        self.take_failure()?;
        let numbers = x.matrix().and_then(|x| kv::numbers(&x));
        numbers.map_err(|e| device_error(&e, "reading activations"))
    }

    fn key_weights(
        &mut self,
        kv: &mut Kv,
        layer: usize,
        keys: Keys<'_>,
        queries: &[f32],
        shape: AttentionShape,
    ) -> Result<Vec<f32>, DeviceError> {
        let runs = kv.read(layer, keys.pages, keys.window, attention::FEW_RUNS);
        let weights = runs.and_then(|runs| {
            let rows = int(queries.len() / shape.queries());
            let queries = Array::from_slice(queries, &[rows, int(shape.heads), int(shape.head_dim)]);
            kv::numbers(&attention::weigh(&queries, &runs, shape)?)
        });
        weights.map_err(|e| device_error(&e, "weighing keys"))
    }

    fn store(&mut self, qkv: &Hidden, shape: AttentionShape, batch: Rows<'_>, kv: &mut Kv, layer: usize) {
        let written = qkv.heads(shape).and_then(|heads| {
            self.ahead(batch.positions.len(), &[&heads.keys, &heads.values])?;
            self.write(&heads, batch, kv, layer)
        });
        if let Err(error) = written {
            self.fail("keys and values", &error);
        }
    }

    fn attention(
        &mut self,
        qkv: &Hidden,
        shape: AttentionShape,
        batch: Rows<'_>,
        kv: &mut Kv,
        layer: usize,
        first: usize,
    ) -> Hidden {
        let mut attended = || -> Built<Array> {
            let heads = qkv.heads(shape)?;
            self.ahead(batch.positions.len(), &[&heads.queries, &heads.keys, &heads.values])?;
            self.write(&heads, batch, kv, layer)?;
            let ranges = batch.ranges();
            let mut attend = |(range, span): (&Range<usize>, &Span<'_>)| {
                let places = first..span.start + span.tokens.len();
                let runs = kv.read(layer, span.pages, places, attention::FEW_RUNS)?;
                attention::attend(&cut(&heads.queries, range)?, &runs, shape)
            };
            let out = ranges.iter().zip(batch.spans).map(&mut attend).collect::<Built<Vec<Array>>>()?;
            let out = concatenate(&out, 0)?;
            match &heads.gates {
                Some(gates) => out.multiply(sigmoid(gates)?),
                None => Ok(out),
            }
        };
        let attended = attended();
        self.hidden("attention", attended)
    }

    fn gated_delta(
        &mut self,
        x: &Hidden,
        delta: &Delta,
        batch: Rows<'_>,
        states: &mut States,
        layer: usize,
        eps: f32,
    ) -> Hidden {
        assert_eq!(delta.shape, states.delta(), "heads of the states");
        if layer == 0 {
            states.forget_logs();
        }
        if layer == 0 {
            self.written.clear();
        }
        let written = &mut self.written;
        let masks = &self.masks;
        let mut computed = || -> Built<Array> {
            let x = x.matrix()?;
            let mut out = Vec::new();
            let mut after = Vec::new();
            for (range, span) in batch.ranges().into_iter().zip(batch.spans) {
                let rows = x.try_index(int(range.start)..int(range.end))?;
                let before = states.before(span.flow(), layer)?;
                let prepared = delta.prepare(&rows, before)?;
                let (given, state) = prepared.advance(before, masks)?;
                out.push(delta.finish(&given, &rows, eps)?);
                after.push((span.flow(), state, prepared));
            }
            for (flow, state, prepared) in after {
                written.extend([state.tail.clone(), state.matrix.clone()]);
                states.put(flow.to, layer, state);
                if flow.revocable {
                    states.log(flow, prepared);
                }
            }
            concatenate(&out, 0)
        };
        let computed = computed();
        self.hidden("a gated delta layer", computed)
    }

    fn experts(&mut self, x: &Hidden, scores: &Hidden, shape: ExpertShape, experts: &Experts) -> Hidden {
        let out = x.matrix().and_then(|x| experts.forward(&x, &scores.matrix()?, shape));
        self.hidden("a mixture of experts", out)
    }

    fn gate_rows(&mut self, x: &mut Hidden, gate: &Hidden) {
        let gated = x.matrix().and_then(|x| x.multiply(sigmoid(gate.matrix()?)?));
        *x = self.hidden("gates of rows", gated);
    }

    fn gated_mlp(&mut self, x: &Hidden, gate_up: &Linear, down: &Linear) -> Hidden {
        let half = gate_up.rows / 2;
        let out = || -> Built<Array> {
            let both = product(&x.matrix()?, &gate_up.matrices)?;
            let gate = silu(&columns(&both, 0, half)?)?;
            product(&gate.multiply(columns(&both, half, 2 * half)?)?, &down.matrices)
        };
        self.hidden("a gated MLP", out())
    }

    fn select_rows(&mut self, x: &Hidden, indices: &[usize]) -> Hidden {
        let indices: Vec<u32> = indices.iter().map(|index| *index as u32).collect();
        let indices = Array::from_slice(&indices, &[int(indices.len())]);
        let out = x.matrix().and_then(|x| x.take_axis(indices, 0));
        self.hidden("a selection of rows", out)
    }

    fn tied_logits(&mut self, x: &Hidden, table: &Table) -> Result<Vec<f32>, DeviceError> {
        let logits = x.matrix().and_then(|x| table.matrix.product(&x));
        self.computed(logits)
    }

    fn logits(&mut self, x: &Hidden, output: &Linear) -> Result<Vec<f32>, DeviceError> {
        let logits = x.matrix().and_then(|x| product(&x, &output.matrices));
        self.computed(logits)
    }

    fn recover(&mut self, error: DeviceError, kv: &mut Kv, states: Option<&mut States>) -> DeviceError {
        self.failure = None;
        self.written.clear();
        let mut states = states;
        if let Some(states) = &mut states {
            states.drop_pending();
        }
        // What was not computed yet hangs on what failed, and may fail again.
        let lost = match &error {
            DeviceError::StateLost(why) => Some(why.clone()),
            _ => eval(kv.arrays()).err().map(|again| format!("{error}, then {}", again.what())),
        };
        let Some(lost) = lost else { return error };
        if let Some(states) = states {
            states.clear();
        }
        let cleared = kv.clear().map_err(|e| format!("{lost}, then {}", e.what()));
        DeviceError::StateLost(cleared.err().unwrap_or(lost))
    }

    fn evaluate(&mut self, kv: &mut Kv, states: Option<&mut States>) -> Result<(), DeviceError> {
        self.take_failure()?;
        self.written.clear();
        let pending = states.iter().flat_map(|states| states.pending());
        eval(kv.arrays().chain(pending)).map_err(|e| device_error(&e, "computing state"))?;
        if let Some(states) = states {
            states.settle();
        }
        Ok(())
    }
}

/// Some rows.
fn cut(x: &Array, range: &Range<usize>) -> Built<Array> {
    x.try_index(int(range.start)..int(range.end))
}

/// Digest of numbers; where they could not be computed, one that nothing else has.
fn digest(numbers: Built<Vec<f32>>) -> [u8; 32] {
    static UNKNOWN: AtomicU64 = AtomicU64::new(0);
    match numbers {
        Ok(numbers) => *blake3::hash(bytemuck::cast_slice(&numbers)).as_bytes(),
        Err(error) => {
            let count = UNKNOWN.fetch_add(1, Ordering::Relaxed);
            *blake3::hash(format!("{count} {}", error.what()).as_bytes()).as_bytes()
        }
    }
}
