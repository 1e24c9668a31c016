//! The device as a whole: the conformance suite, and what is left after a forward that failed. In f32, where nothing hides behind
//! rounding; models run in their own floats too.

use mlx_rs::ops::{block_masked_mm, broadcast_to, zeros_dtype};
use mlx_rs::with_device;

use super::*;
use crate::device::LogitRows;
use crate::device::conformance;
use crate::device::weights::{Encoding, RowOrder};

fn mlx() -> Mlx {
    Mlx::new(Floats::F32, &MlxConfig::default()).unwrap()
}

#[test]
fn it_conforms() {
    conformance::conforms(&|_| mlx());
}

/// Attention of two heads of eight columns over one page, of rows that are `row`.
fn attend(mlx: &mut Mlx, kv: &mut Kv, row: &Array, page: u32) -> Hidden {
    let shape = AttentionShape { heads: 2, kv_heads: 2, head_dim: 8, scale: 1.0, gated: false };
    let pages = [PageId(page)];
    let span = Span {
        positions: None,
        capture: 0,
        hidden: false,
        pages: &pages,
        start: 0,
        tokens: &[0],
        state: None,
        logits: LogitRows::Last,
    };
    let rows = Rows { spans: &[span], positions: &[0] };
    mlx.attention(&Hidden::whole(row.clone()), shape, rows, kv, 0, 0)
}

/// A store whose page 2 holds one position.
struct Store {
    mlx: Mlx,
    kv: Kv,
    /// What was attended with.
    row: Array,
    /// The page's digest.
    held: [u8; 32],
}

fn store() -> Store {
    let mut mlx = mlx();
    let mut kv = mlx.new_kv(KvShape { layers: 1, kv_heads: 2, head_dim: 8, page_tokens: 64 }).unwrap();
    mlx.reserve_kv(&mut kv, 4).unwrap();
    let row = Array::from_iter((0..48).map(|x| x as f32), &[1, 48]);
    attend(&mut mlx, &mut kv, &row, 2);
    mlx.evaluate(&mut kv, None).unwrap();
    let held = mlx.kv_digest(&kv, PageId(2), 1);
    Store { mlx, kv, row, held }
}

/// A number that cannot be computed: the CPU refuses this product of halves when it comes to it.
fn impossible() -> Array {
    let halves = zeros_dtype(&[32, 32], Dtype::Float16).unwrap();
    let mask = zeros_dtype(&[1, 1], Dtype::Bool).unwrap();
    let product = with_device(mlx_rs::Device::cpu(), || {
        block_masked_mm(&halves, &halves, 32, Some(&mask), None, None).unwrap()
    });
    product.as_dtype(Dtype::Float32).unwrap().sum(None).unwrap()
}

#[test]
fn after_a_forward_that_failed_other_state_is_still_there_or_known_to_be_lost() {
    let Store { mut mlx, mut kv, row, held } = store();

    // What fails comes after the state.
    attend(&mut mlx, &mut kv, &row, 1);
    let error = mlx.computed(Ok(impossible())).unwrap_err();
    let error = mlx.recover(error, &mut kv, None);
    assert!(matches!(error, DeviceError::Contract(_)), "{error}");
    assert_eq!(mlx.kv_digest(&kv, PageId(2), 1), held);

    // The state itself hangs on it.
    attend(&mut mlx, &mut kv, &row.add(impossible()).unwrap(), 1);
    let error = mlx.evaluate(&mut kv, None).unwrap_err();
    let lost = mlx.recover(error, &mut kv, None);
    assert!(matches!(lost, DeviceError::StateLost(_)), "{lost}");
    mlx.reserve_kv(&mut kv, 4).unwrap();
    assert_ne!(mlx.kv_digest(&kv, PageId(2), 1), held, "cleared");
    attend(&mut mlx, &mut kv, &row, 2);
    mlx.evaluate(&mut kv, None).unwrap();
    assert_eq!(mlx.kv_digest(&kv, PageId(2), 1), held, "and usable");
}

#[test]
fn a_long_prefill_that_fails_on_its_way_to_the_store_leaves_the_store_alone() {
    let Store { mut mlx, mut kv, row, held } = store();

    let shape = AttentionShape { heads: 2, kv_heads: 2, head_dim: 8, scale: 1.0, gated: false };
    let tokens = [0; AHEAD_FROM];
    let positions: Vec<u32> = (0..AHEAD_FROM as u32).collect();
    let span = Span {
        positions: None,
        capture: 0,
        hidden: false,
        pages: &[PageId(1)],
        start: 0,
        tokens: &tokens,
        state: None,
        logits: LogitRows::Last,
    };
    let rows = Rows { spans: &[span], positions: &positions };
    let many = broadcast_to(&row, &[int(AHEAD_FROM), 48]).unwrap().add(impossible()).unwrap();
    let out = mlx.attention(&Hidden::whole(many), shape, rows, &mut kv, 0, 0);
    // Whatever else of the forward is built on it is built in vain, and as an error.
    let _ = mlx.select_rows(&out, &[AHEAD_FROM - 1]);
    let error = mlx.evaluate(&mut kv, None).unwrap_err();
    let error = mlx.recover(error, &mut kv, None);
    assert!(!matches!(error, DeviceError::StateLost(_)), "{error}");
    assert_eq!(mlx.kv_digest(&kv, PageId(2), 1), held);
}

/// A layer of one head, 16 columns each.
fn delta(mlx: &mut Mlx, layers: usize) -> (DeltaShape, Delta, States) {
    let shape = DeltaShape { key_heads: 1, value_heads: 1, key_dim: 16, value_dim: 16, taps: 4 };
    let ones: Vec<u8> = [0.5f32; 48 * 4].iter().flat_map(|x| x.to_le_bytes()).collect();
    let source = |rows: usize, cols: usize| WeightSource {
        name: "a weight",
        rows,
        cols,
        encoding: Encoding::Plain(Float::F32, &ones[..4 * rows * cols]),
        order: RowOrder::Halves,
    };
    let source = DeltaSource {
        convolution: source(48, 4),
        decay_rate: source(1, 1),
        decay_bias: source(1, 1),
        norm: source(1, 16),
    };
    let delta = mlx.load_delta(shape, source).unwrap();
    let mut states = mlx.new_states(StateShape { layers, delta: shape }).unwrap();
    mlx.reserve_slots(&mut states, 4).unwrap();
    (shape, delta, states)
}

#[test]
fn a_failed_forward_takes_no_slot_along_that_it_did_not_write() {
    let mut mlx = mlx();
    let (shape, delta, mut states) = delta(&mut mlx, 1);
    let mut kv = mlx.new_kv(KvShape { layers: 1, kv_heads: 1, head_dim: 8, page_tokens: 64 }).unwrap();
    let columns = shape.columns();
    let x = |rows: usize| {
        Array::from_iter((0..rows * columns).map(|x| (x % 7) as f32 - 3.0), &[int(rows), int(columns)])
    };
    let run = |mlx: &mut Mlx, states: &mut States, x: &Array, from: Option<u32>, to: u32, revocable: bool| {
        let flow = StateFlow { from: from.map(SlotId), to: SlotId(to), revocable };
        let tokens = vec![0; x.dim(0) as usize];
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &[],
            start: 0,
            tokens: &tokens,
            state: Some(flow),
            logits: LogitRows::None,
        };
        let rows = Rows { spans: &[span], positions: &tokens };
        mlx.gated_delta(&Hidden::whole(x.clone()), &delta, rows, states, 0, 1e-5);
        flow
    };
    run(&mut mlx, &mut states, &x(5), None, 0, false);
    mlx.evaluate(&mut kv, Some(&mut states)).unwrap();
    let drafted = run(&mut mlx, &mut states, &x(3), Some(0), 1, true);
    mlx.evaluate(&mut kv, Some(&mut states)).unwrap();
    mlx.rewind(&mut states, drafted, 2).unwrap();
    let held = [0, 1].map(|slot| mlx.slot_digest(&states, SlotId(slot)));

    // Another sequence's forward fails.
    run(&mut mlx, &mut states, &x(2).add(impossible()).unwrap(), None, 2, false);
    let error = mlx.evaluate(&mut kv, Some(&mut states)).unwrap_err();
    let error = mlx.recover(error, &mut kv, Some(&mut states));
    assert!(!matches!(error, DeviceError::StateLost(_)), "{error}");
    assert_eq!([0, 1].map(|slot| mlx.slot_digest(&states, SlotId(slot))), held);
    // What it was to write holds nothing, and that is an error and not the start of a sequence.
    run(&mut mlx, &mut states, &x(1), Some(2), 3, false);
    let error = mlx.evaluate(&mut kv, Some(&mut states)).unwrap_err();
    assert!(error.to_string().contains("slot 2 holds no state"), "{error}");
}

#[test]
fn activations_that_slip_into_another_type_are_an_error() {
    let mut mlx = Mlx { float: Some(Dtype::Bfloat16), ..mlx() };
    let mut kv = mlx.new_kv(KvShape { layers: 1, kv_heads: 2, head_dim: 8, page_tokens: 64 }).unwrap();
    let mut x = Hidden::whole(zeros_dtype(&[1, 3], Dtype::Bfloat16).unwrap());
    mlx.add(&mut x, &Hidden::whole(zeros_dtype(&[1, 3], Dtype::Bfloat16).unwrap()));
    mlx.evaluate(&mut kv, None).unwrap();
    mlx.add(&mut x, &Hidden::whole(zeros_dtype(&[1, 3], Dtype::Float32).unwrap()));
    let error = mlx.evaluate(&mut kv, None).unwrap_err();
    assert!(error.to_string().contains("Float32 and not Bfloat16"), "{error}");
}

#[test]
fn what_cannot_be_built_is_told_at_the_next_evaluation_and_not_again() {
    let mut mlx = mlx();
    let mut kv = mlx.new_kv(KvShape { layers: 1, kv_heads: 2, head_dim: 8, page_tokens: 64 }).unwrap();
    let mut x = Hidden::whole(Array::from_iter([1f32, 2.0, 3.0], &[1, 3]));
    mlx.add(&mut x, &Hidden::whole(Array::from_iter([1f32, 2.0], &[1, 2])));
    let error = mlx.evaluate(&mut kv, None).unwrap_err();
    assert!(error.to_string().contains("a sum: "), "{error}");
    mlx.evaluate(&mut kv, None).unwrap();
}
