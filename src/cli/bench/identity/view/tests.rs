//! The tables and the JSON of what a fixed device gave.

use super::*;
use crate::device::identity::{Route, RouteRun, TextRun};

fn same() -> Comparison {
    Comparison {
        positions: 96,
        largest: 0.0,
        mean: 0.0,
        flips: 0,
        flip_margins: None,
        not_finite: 0,
        same_bits: true,
        state_same: true,
        digest: Some([0; 32]),
    }
}

fn close(largest: f64) -> Comparison {
    Comparison { largest, mean: largest / 40.0, same_bits: false, state_same: false, ..same() }
}

/// A device that is close, with one route too far and one that memory forbids.
fn measured(identity: Identity, tolerance: Option<f64>) -> Measured {
    let flipped = Comparison { flips: 2, flip_margins: Some((2e-6, 1.4e-4)), ..close(3.1e-4) };
    let broken = Comparison { not_finite: 4, ..close(0.5) };
    let parting = Parting { index: 1_012, margin: 1.4e-4, expected: 5, token: 123_456 };
    let none = "memory admits 20 tokens a forward here, and it takes 64".to_owned();
    let drafts = Some(Drafts { cycles: 20, drafted: 60, accepted: 40 });
    let text = |route, outcome, drafts| TextRun { route, outcome, drafts };
    Measured {
        identity,
        tolerance,
        deviation: 2.5,
        positions: 80,
        routes: vec![
            RouteRun { route: Route::Again, outcome: Ok(same()) },
            RouteRun { route: Route::Chunks(7), outcome: Ok(flipped) },
            RouteRun { route: Route::Whole, outcome: Err(none.clone()) },
            RouteRun { route: Route::Beside(3), outcome: Ok(close(1.9e-3)) },
            RouteRun { route: Route::Verify(8), outcome: Ok(broken) },
            RouteRun { route: Route::Restore(131_072), outcome: Ok(close(123.4)) },
        ],
        texts: vec![
            text(TextRoute::Dense(Route::Again), Ok(None), None),
            text(TextRoute::Dense(Route::Chunks(7)), Ok(Some(Parting { index: 0, ..parting })), None),
            text(TextRoute::Dense(Route::Whole), Err(none), None),
            text(TextRoute::Speculative(1), Ok(None), drafts),
            text(TextRoute::Speculative(7), Ok(Some(parting)), drafts),
            text(TextRoute::SpeculativeAgain(3), Ok(None), drafts),
        ],
        distinct_logits: 5,
        distinct_texts: Some(3),
    }
}

fn subject(identity: Identity) -> Subject<'static> {
    Subject {
        model: "Model-27B",
        device: "gpu",
        kernel: "metal",
        precision: "f32",
        identity,
        session: Some("steady"),
        prompt_tokens: 64,
        decoded_tokens: 32,
        generated_tokens: 2_000,
        chunk_tokens: 256,
        page_tokens: 64,
    }
}

fn with<T>(identity: Identity, tolerance: Option<f64>, look: impl FnOnce(&View<'_>) -> T) -> T {
    let spell = |token: u32| if token == 5 { " the".to_owned() } else { "\n    wherever".to_owned() };
    let measured = measured(identity, tolerance);
    look(&View { subject: subject(identity), measured: &measured, spell: &spell })
}

#[test]
fn the_tables_of_a_device_that_is_close() {
    let text = with(Identity::Tolerance, Some(2e-3), |view| view.text());
    insta::assert_snapshot!(text, @r"
    Model-27B f32 · gpu metal · promises: tolerance
    96 tokens of `steady`: a prompt of 64 and 32 after it · blocks of 64
    reference: the prompt in chunks of 256, then one token a forward, alone
    unit: 2.500 logits, the standard deviation of the reference's

    logits by route        largest    mean  top-1  flips at  state  verdict
    the same again               0       0  96/96         –  same   same bits
    prefill 7 at a time     3.1e-4  7.8e-6  94/96    1.4e-4  other  within 0.002
    prefill all at once          –       –      –         –  –      –
    beside 3 others         1.9e-3  4.8e-5  96/96         –  other  within 0.002
    verify 8 rows at once      NaN  1.3e-2  96/96         –  other  differs
    restore at 131072       123.40    3.08  96/96         –  other  differs

    greedy text of 2,000 tokens        text    from  margin  instead of → here
    dense decoding repeated
      the same again                   same
    route-dependent numerics
      prefill 7 at a time              other      0  1.4e-4  ` the` → `     w…`
      prefill all at once              –
    greedy decoding under speculation
      1 token drafted a cycle          same
      7 tokens drafted a cycle         other  1,012  1.4e-4  ` the` → `     w…`
      3 drafted, run against run       same

    flips at: the widest margin between the reference's two likeliest tokens at a
    position where the likeliest became another.
    Logits are compared at 80 of 96 positions: all would take too much memory.
    Not measured, prefill all at once:
      memory admits 20 tokens a forward here, and it takes 64.
    Reference and 5 routes: 5 sets of logits. Dense decoding and 5 more: 3 texts.

    For comparison, published for oMLX on an Apple M4 Max: 13 runs of 68,034 tokens
    by three routings of attention gave 3 sets of logits, up to 0.4 apart, and 1
    text; under speculation a text parted from dense decoding at character 235 and
    two such runs at 256. Evidence level 6, correctness result: Oliver Yu, Reusable
    State Dynamics in Interactive LLM Inference (EXP-001),
    https://github.com/tc3oliver/llm-inference-systems, CC BY 4.0.

    gpu promises closeness and not the same bits: broken.
    The largest difference is 123.40 (restore at 131072), the bound 0.002;
    2 of 5 routes are beyond it and 2 of 5 texts differ.
    ");
}

#[test]
fn no_line_is_wider_than_a_small_terminal() {
    use unicode_width::UnicodeWidthStr;

    for identity in [Identity::Bitwise, Identity::Tolerance, Identity::Simulated] {
        for line in with(identity, None, |view| view.text()).lines() {
            assert!(line.width() <= 80, "{} columns: {line}", line.width());
        }
    }
}

#[test]
fn every_other_bit_is_a_difference_where_bits_are_promised() {
    let words = |identity, tolerance| {
        with(identity, tolerance, |view| {
            let compared = view.measured.compared();
            (compared.map(|(_, c)| view.verdict_word(c)).collect::<Vec<_>>(), view.verdict())
        })
    };
    let (rows, verdict) = words(Identity::Bitwise, None);
    assert_eq!(rows, ["same bits", "differs", "differs", "differs", "differs"]);
    assert!(verdict.contains("broken") && verdict.contains("4 of 5 routes and 2 of 5 texts"), "{verdict}");
    let (rows, _) = words(Identity::Tolerance, Some(2e-3));
    assert_eq!(rows, ["same bits", "within 0.002", "within 0.002", "differs", "differs"]);
}

#[test]
fn json_has_null_where_nothing_was_measured() {
    let json = with(Identity::Tolerance, Some(2e-3), |view| serde_json::to_value(view.json()).unwrap());
    let route = &json["routes"][2];
    assert_eq!(route["route"], "prefill all at once");
    for field in ["largest_difference", "top1_same", "logits_same", "state_same", "verdict"] {
        assert!(route[field].is_null(), "{route}");
    }
    assert!(route["problem"].is_string());
    let parting = &json["texts"][4];
    assert_eq!(parting["finding"], "greedy_decoding_under_speculation");
    assert_eq!((&parting["first_difference"], &parting["expected_text"]), (&1_012.into(), &" the".into()));
    assert!(json["texts"][0]["margin"].is_null() && json["texts"][0]["drafts"].is_null());
}
