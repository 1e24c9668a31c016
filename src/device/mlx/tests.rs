//! The device as a whole: the conformance suite, and what is left after a forward that failed. In f32, where nothing hides behind
//! rounding; models run in their own floats too.

use mlx_rs::ops::{block_masked_mm, zeros_dtype};
use mlx_rs::with_device;

use super::*;
use crate::device::LogitRows;
use crate::device::conformance;

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
    let span = Span { pages: &pages, start: 0, tokens: &[0], state: None, logits: LogitRows::Last };
    let rows = Rows { spans: &[span], positions: &[0] };
    mlx.attention(&Hidden::whole(row.clone()), shape, rows, kv, 0)
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
    let mut mlx = mlx();
    let mut kv = mlx.new_kv(KvShape { layers: 1, kv_heads: 2, head_dim: 8, page_tokens: 64 }).unwrap();
    mlx.reserve_kv(&mut kv, 4).unwrap();
    let row = Array::from_iter((0..48).map(|x| x as f32), &[1, 48]);
    attend(&mut mlx, &mut kv, &row, 2);
    mlx.evaluate(&mut kv, None).unwrap();
    let held = mlx.kv_digest(&kv, PageId(2), 1);

    // What fails comes after the state.
    attend(&mut mlx, &mut kv, &row, 1);
    mlx.computed(Ok(impossible())).unwrap_err();
    mlx.recover(&mut kv, None).unwrap();
    assert_eq!(mlx.kv_digest(&kv, PageId(2), 1), held);

    // The state itself hangs on it.
    attend(&mut mlx, &mut kv, &row.add(impossible()).unwrap(), 1);
    mlx.evaluate(&mut kv, None).unwrap_err();
    let lost = mlx.recover(&mut kv, None).unwrap_err();
    assert!(matches!(lost, DeviceError::StateLost(_)), "{lost}");
    assert_ne!(mlx.kv_digest(&kv, PageId(2), 1), held, "cleared");
    attend(&mut mlx, &mut kv, &row, 2);
    mlx.evaluate(&mut kv, None).unwrap();
    assert_eq!(mlx.kv_digest(&kv, PageId(2), 1), held, "and usable");
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
