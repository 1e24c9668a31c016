//! `bench identity`: what a device does not keep is found, counted and named; what it keeps is the same bits.

use escarp::config::SimConfig;
use escarp::device::identity::{Comparison, Finding, Measured, Plan, Route, TextRoute, Verdict, measure};
use escarp::device::sim::Sim;
use escarp::device::{
    DeviceError, Executor, ExecutorFacts, Forward, KeyWeights, LogitRows, PageId, Queries, SlotId, Span,
    StateFlow,
};
use escarp::event::Identity;
use serde_json::Value;

use super::cli::{run, stderr, stdout, succeed};

const PAGE: usize = 64;
const DECODED: usize = 32;

/// The pseudo-model on a device whose logits depend on how many rows a forward has, as those of a device do that chooses its kernels
/// by that; repeated, it gives the same.
struct Noisy {
    inner: Sim,
    facts: ExecutorFacts,
    /// The most a logit is off.
    amount: f32,
    /// Rows a forward may have.
    admits: usize,
    /// Whether stored state depends on the last forward's rows too.
    stains: bool,
    rows: usize,
}

impl Noisy {
    fn new(identity: Identity, amount: f32) -> Noisy {
        let hybrid = SimConfig { snapshot_bytes: 1 << 10, ..SimConfig::default() };
        let inner = Sim::new(&hybrid, PAGE);
        let facts = ExecutorFacts { identity, precision: "bf16", ..inner.facts().clone() };
        Noisy { inner, facts, amount, admits: usize::MAX, stains: false, rows: 0 }
    }

    /// Between -1 and 1, drawn from where a logit stands and how many rows were computed with it.
    fn noise(position: usize, rows: usize, token: usize) -> f32 {
        let mut mixed = (position as u64) << 40 ^ (rows as u64) << 20 ^ token as u64;
        for _ in 0..2 {
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 27);
        }
        (mixed % 2001) as f32 / 1000.0 - 1.0
    }
}

impl Executor for Noisy {
    fn facts(&self) -> &ExecutorFacts {
        &self.facts
    }

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        self.inner.reserve(pages, slots)
    }

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: std::ops::Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError> {
        self.inner.key_weights(pages, window, queries)
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        let mut forward = self.inner.forward(spans)?;
        self.rows = spans.iter().map(|span| span.tokens.len()).sum();
        let positions = spans.iter().flat_map(|span| {
            let end = span.start + span.tokens.len();
            match span.logits {
                LogitRows::None => end..end,
                LogitRows::Last => end - 1..end,
                LogitRows::All => span.start..end,
            }
        });
        for (position, row) in positions.zip(forward.logits.chunks_exact_mut(Sim::VOCAB)) {
            for (token, logit) in row.iter_mut().enumerate() {
                *logit += self.amount * Noisy::noise(position, self.rows, token);
            }
        }
        Ok(forward)
    }

    fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        self.inner.rewind(flow, tokens)
    }

    fn admits(&self, _: usize, tokens: usize) -> usize {
        tokens.min(self.admits)
    }

    fn exported_bytes(&self) -> (usize, usize) {
        self.inner.exported_bytes()
    }

    fn export_page(&self, page: PageId) -> Result<Vec<u8>, DeviceError> {
        self.inner.export_page(page)
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.import_page(page, bytes)
    }

    fn export_slot(&self, slot: SlotId) -> Result<Vec<u8>, DeviceError> {
        self.inner.export_slot(slot)
    }

    fn import_slot(&mut self, slot: SlotId, position: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.import_slot(slot, position, bytes)
    }

    fn page_digest(&self, page: PageId, tokens: usize) -> [u8; 32] {
        let mut digest = self.inner.page_digest(page, tokens);
        digest[0] ^= if self.stains { self.rows as u8 } else { 0 };
        digest
    }

    fn slot_digest(&self, slot: SlotId) -> [u8; 32] {
        self.inner.slot_digest(slot)
    }
}

fn tokens() -> Vec<u32> {
    (0..200).map(|i| (i * 7919 + i * i * 31) % 509).collect()
}

fn measured(device: &mut dyn Executor, generated: usize) -> Measured {
    let tokens = tokens();
    let plan =
        Plan { tokens: &tokens, decoded: DECODED, chunk_tokens: PAGE, generated, logit_bytes: 1 << 20 };
    measure(device, &plan, &mut |_, _| {}).unwrap()
}

fn row(measured: &Measured, route: Route) -> &Comparison {
    let run = measured.routes.iter().find(|run| run.route == route);
    run.unwrap_or_else(|| panic!("no {route:?}")).outcome.as_ref().unwrap()
}

fn top(row: &[f32]) -> usize {
    (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap()
}

/// Logits of every position in forwards of the sizes given, the last of them repeated.
fn logits(device: &mut dyn Executor, tokens: &[u32], sizes: &[usize]) -> Vec<Vec<f32>> {
    device.reserve(8, 2).unwrap();
    let pages: Vec<PageId> = (0..8).map(PageId).collect();
    let mut sizes = sizes.iter().chain(std::iter::repeat(sizes.last().unwrap()));
    let (mut rows, mut start) = (Vec::new(), 0);
    while start < tokens.len() {
        let end = tokens.len().min(start + sizes.next().unwrap());
        let flow = StateFlow { from: (start > 0).then_some(SlotId(0)), to: SlotId(0), revocable: false };
        let tokens = &tokens[start..end];
        let span = Span {
            positions: None,
            capture: 0,
            hidden: false,
            pages: &pages,
            start,
            tokens,
            state: Some(flow),
            logits: LogitRows::All,
        };
        let given = device.forward(&[span]).unwrap().logits;
        rows.extend(given.chunks_exact(Sim::VOCAB).map(<[f32]>::to_vec));
        start = end;
    }
    rows
}

#[test]
fn numerics_that_depend_on_the_route_are_found_and_flips_are_counted() {
    let mut device = Noisy::new(Identity::Tolerance, 4e-3);
    let measured = measured(&mut device, 0);
    // The reference: chunks of 64, 64 and 40, then single tokens.
    let reference = logits(&mut device, &tokens(), &[64, 64, 40, 1]);
    for (route, sizes) in [
        (Route::Chunks(7), &[&[7; 24][..], &[1]].concat()[..]),
        (Route::Whole, &[168, 1]),
        (Route::Verify(4), &[64, 64, 40, 4]),
    ] {
        let other = logits(&mut device, &tokens(), sizes);
        let pairs = || reference.iter().zip(&other);
        let flips = pairs().filter(|(a, b)| top(a) != top(b)).count();
        let all = pairs().flat_map(|(a, b)| a.iter().zip(b));
        let largest = all.map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).fold(0.0, f64::max);
        let got = row(&measured, route);
        assert!(flips > 0, "{route:?} flips nothing");
        assert_eq!((got.positions, got.flips, got.same_bits), (200, flips, false), "{route:?}");
        assert!((got.largest * measured.deviation - largest).abs() < 1e-9, "{route:?}");
        assert!(got.mean > 0.0 && got.mean < got.largest);
        // What changes places was closer than the noise.
        let (least, widest) = got.flip_margins.unwrap();
        assert!(least <= widest && widest <= 2.0 * got.largest, "{least} {widest} {}", got.largest);
        assert_eq!(measured.verdict(got), Verdict::Within);
    }
    for route in [Route::Again, Route::Restore(64), Route::Restore(128)] {
        assert_eq!(measured.verdict(row(&measured, route)), Verdict::SameBits, "{route:?} has the same cuts");
    }
    let different = measured.compared().filter(|(_, comparison)| !comparison.same_bits).count();
    assert_eq!(measured.distinct_logits, different + 1, "each differs in its own way");
    assert!(measured.promise_kept());
    // Where bits are promised the same differences break the promise, and so does noise beyond closeness.
    let mut strict = Noisy::new(Identity::Bitwise, 4e-3);
    assert!(!self::measured(&mut strict, 0).promise_kept());
    let mut loud = Noisy::new(Identity::Tolerance, 1.0);
    assert!(!self::measured(&mut loud, 0).promise_kept());
}

#[test]
fn a_text_that_parts_is_named_with_its_token_and_the_margin_there() {
    let mut device = Noisy::new(Identity::Tolerance, 4e-3);
    let measured = measured(&mut device, 64);
    // Dense decoding, as anybody would write it.
    let mut sequence = tokens()[..200 - DECODED].to_vec();
    let mut margins = Vec::new();
    for _ in 0..64 {
        let rows = logits(&mut device, &sequence, &[64, 64, 40, 1]);
        let last = rows.last().unwrap();
        let best = top(last);
        let second = last.iter().enumerate().filter(|(t, _)| *t != best).map(|(_, l)| *l);
        margins.push(f64::from(last[best]) - f64::from(second.fold(f32::MIN, f32::max)));
        sequence.push(best as u32);
    }
    let dense = &sequence[200 - DECODED..];
    let speculative = |run: &&escarp::device::identity::TextRun| matches!(run.route, TextRoute::Speculative(drafted) if drafted > 1);
    let runs: Vec<_> = measured.texts.iter().filter(speculative).collect();
    assert_eq!(runs.len(), 2);
    for run in runs {
        assert_eq!(run.route.finding(), Finding::GreedyDecodingUnderSpeculation);
        let parting = run.outcome.clone().unwrap().expect("a margin below the noise comes in 64 tokens");
        assert_eq!(parting.expected, dense[parting.index]);
        assert_ne!(parting.token, parting.expected);
        assert!((parting.margin * measured.deviation - margins[parting.index]).abs() < 1e-9);
        assert!(margins[parting.index] < 4.0 * 4e-3, "only a near-tie can change places");
        let drafts = run.drafts.unwrap();
        assert!(drafts.accepted > 0 && drafts.accepted < drafts.drafted, "{drafts:?}");
    }
    let same = |route| measured.texts.iter().find(|run| run.route == route).unwrap().outcome == Ok(None);
    assert!(same(TextRoute::Dense(Route::Again)) && same(TextRoute::SpeculativeAgain(3)));
    assert!(measured.distinct_texts > Some(1));
}

#[test]
fn stored_state_that_differs_is_told_although_logits_agree() {
    let mut device = Noisy::new(Identity::Bitwise, 0.0);
    device.stains = true;
    let measured = measured(&mut device, 0);
    let verified = row(&measured, Route::Verify(8));
    assert!(verified.same_bits && !verified.state_same);
    assert!(row(&measured, Route::Again).state_same);
    assert!(!measured.promise_kept());
}

#[test]
fn a_route_that_memory_forbids_is_a_row_that_says_so() {
    let mut device = Noisy::new(Identity::Bitwise, 0.0);
    device.admits = 50;
    let measured = measured(&mut device, 8);
    let whole = measured.routes.iter().find(|run| run.route == Route::Whole).unwrap();
    assert!(whole.outcome.as_ref().is_err_and(|why| why.contains("admits 50")), "{whole:?}");
    assert_eq!(row(&measured, Route::Chunks(7)).positions, 200);
    assert!(measured.promise_kept(), "the engine's own route cuts smaller chunks there");
}

#[test]
fn positions_are_sampled_where_memory_holds_no_more() {
    let tokens = tokens();
    let logit_bytes = 50 * Sim::VOCAB * 4;
    let plan = Plan { tokens: &tokens, decoded: DECODED, chunk_tokens: 40, generated: 0, logit_bytes };
    let mut device = Noisy::new(Identity::Tolerance, 4e-3);
    let measured = measure(&mut device, &plan, &mut |_, _| {}).unwrap();
    assert_eq!(measured.positions, 50);
    assert_eq!(row(&measured, Route::Chunks(7)).positions, 50);
    // Of a forward with more logits than that only the last row is asked for.
    assert_eq!(row(&measured, Route::Whole).positions, DECODED + 1);
}

#[test]
fn a_plan_without_a_prompt_or_beyond_the_context_is_refused() {
    let tokens = tokens();
    let plan = Plan { tokens: &tokens, decoded: 200, chunk_tokens: 64, generated: 0, logit_bytes: 1 << 20 };
    let mut device = Noisy::new(Identity::Tolerance, 0.0);
    assert!(measure(&mut device, &plan, &mut |_, _| {}).is_err());
    let mut small = Sim::new(&SimConfig { context_tokens: 207, ..SimConfig::default() }, PAGE);
    assert!(measure(&mut small, &Plan { decoded: 32, ..plan }, &mut |_, _| {}).is_err());
}

fn json(arguments: &[&str]) -> Value {
    let text = succeed(&[&["bench", "identity", "--json"], arguments].concat());
    serde_json::from_str(&text).unwrap()
}

/// Every row of a report in which all is the same.
fn all_the_same(report: &Value) {
    let routes = report["routes"].as_array().unwrap();
    assert!(routes.len() >= 10, "{report}");
    for route in routes {
        assert_eq!(route["verdict"], "same_bits", "{route}");
        assert_eq!(
            (&route["top1_share"], &route["largest_difference"]),
            (&1.0.into(), &0.0.into()),
            "{route}"
        );
    }
    for kind in ["repeat", "prefill", "batch", "verify", "restore", "rollback"] {
        assert!(routes.iter().any(|route| route["kind"] == kind), "no {kind}");
    }
    let texts = report["texts"].as_array().unwrap();
    for finding in ["route_dependent_numerics", "greedy_decoding_under_speculation", "restore", "repetition"]
    {
        let mut rows = texts.iter().filter(|text| text["finding"] == finding).peekable();
        assert!(rows.peek().is_some(), "no {finding}");
        assert!(rows.all(|text| text["same"] == true && text["first_difference"].is_null()), "{finding}");
    }
    assert_eq!(report["promise_kept"], true);
    assert_eq!((&report["distinct_logits"], &report["distinct_texts"]), (&1.into(), &1.into()));
}

#[test]
fn the_cpu_keeps_its_promise_on_the_bundled_hybrid_and_on_a_parity_folder() {
    let report =
        json(&["--device", "cpu", "--model", "talus", "--tokens", "300", "--set", "cache.block_tokens=64"]);
    all_the_same(&report);
    assert_eq!((&report["identity"], &report["session"]), (&"bitwise".into(), &"steady".into()));
    assert_eq!((&report["prompt_tokens"], &report["decoded_tokens"]), (&268.into(), &32.into()));
    for folder in ["odd-hybrid", "llama"] {
        let path = format!("{}/tests/fixtures/parity-{folder}", env!("CARGO_MANIFEST_DIR"));
        let report = json(&[
            "--model",
            &path,
            "--tokens",
            "200",
            "--set",
            "cache.block_tokens=64",
            "--generate",
            "24",
        ]);
        all_the_same(&report);
        assert!(report["session"].is_null(), "the tokens are random: {report}");
    }
}

#[test]
fn the_simulated_device_is_checked_and_said_to_compute_nothing() {
    let sim = ["--device", "sim", "--tokens", "400", "--set", "sim.snapshot_bytes=1KiB"];
    all_the_same(&json(&sim));
    let text = succeed(&[&["bench", "identity"][..], &sim].concat());
    assert!(text.contains("computes nothing") && text.contains("CC BY 4.0"), "{text}");
    for finding in ["route-dependent numerics", "greedy decoding under speculation"] {
        assert!(text.lines().any(|line| line == finding), "no row {finding} in {text}");
    }
}

#[test]
fn json_has_these_fields() {
    let report = json(&["--device", "sim", "--tokens", "100", "--generate", "4"]);
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&report),
        "model device kernel precision identity session prompt_tokens decoded_tokens generated_tokens \
         chunk_tokens page_tokens reference logit_deviation tolerance compared_positions routes texts \
         distinct_logits distinct_texts promise_kept verdict"
    );
    assert_eq!(
        keys(&report["routes"][0]),
        "kind route positions largest_difference mean_difference top1_same top1_share flip_margin_smallest \
         flip_margin_largest not_finite logits_same state_same verdict problem"
    );
    assert_eq!(
        keys(&report["texts"][0]),
        "finding route against same first_difference margin expected_token expected_text token text drafts problem"
    );
    let restore = report["routes"].as_array().unwrap().iter().find(|row| row["kind"] == "restore").unwrap();
    assert!(restore["state_same"].is_null() && restore["problem"].is_string(), "no block fits: {restore}");
    let none = json(&["--device", "sim", "--tokens", "100", "--generate", "0"]);
    assert_eq!((&none["texts"], &none["distinct_texts"]), (&Value::Array(Vec::new()), &Value::Null));
}

#[test]
fn what_does_not_fit_is_refused_and_told() {
    let refused = |arguments: &[&str], told: &str| {
        let output = run(&[&["bench"], arguments].concat());
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{arguments:?}");
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    };
    let small = ["identity", "--device", "sim", "--set", "sim.context_tokens=300"];
    refused(&[&small[..], &["--tokens", "290"]].concat(), "give at most 260");
    refused(&[&small[..], &["--generate", "1000"]].concat(), "--generate");
    refused(&["identity", "--device", "sim", "--tokens", "10"], "--tokens");
    refused(&["identity", "--device", "sim", "--session", "no-such"], "no bundled session");
    refused(&["--decode", "4", "identity", "--device", "sim"], "identity");
    all_the_same(&json(&[&small[1..], &["--tokens", "260"], &["--set", "cache.block_tokens=64"]].concat()));
}
