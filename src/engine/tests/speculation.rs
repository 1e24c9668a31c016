//! Speculative decoding: whatever drafts, however deep, the reply and what it leaves are those of ordinary decoding.

mod limits;
mod sampled;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::hybrid::{narrow, replies, restores};
use super::resident::{HeldState, held_state};
use super::*;
use crate::config::{ControllerKind, DeviceSetting, DrafterKind, PrecisionSetting};
use crate::decode::draft::DraftModel;
use crate::device::{
    DeviceError, Executor, ExecutorFacts, Forward, KeyWeights, PageId, Queries, SlotId, Span, StateFlow,
};
use crate::event::{Cycle, Identity};
use crate::model;
use crate::prefill::scorer::{Scorer, ScorerSettings};

const LONGEST: usize = 700;

/// How a run speculates.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Way {
    drafter: DrafterKind,
    depth: u32,
    controller: ControllerKind,
}

const ORDINARY: Way = Way { drafter: DrafterKind::None, depth: 1, controller: ControllerKind::Fixed };

fn fixed(drafter: DrafterKind, depth: u32) -> Way {
    Way { drafter, depth, controller: ControllerKind::Fixed }
}

fn adaptive(drafter: DrafterKind) -> Way {
    Way { drafter, depth: 8, controller: ControllerKind::Adaptive }
}

/// A model, by name or by folder of the fixtures, that speculates in a way.
fn of(model: &str, device: DeviceSetting, way: Way) -> Config {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let mut config = Config::default();
    config.model.device = device;
    config.model.path = match model {
        "scarp" => Some("scarp".into()),
        folder => Some(fixtures.join(folder)),
    };
    if device == DeviceSetting::Sim {
        config.model.path = None;
        config.sim.snapshot_bytes = 1;
    }
    if device == DeviceSetting::Mlx {
        config.model.precision = PrecisionSetting::F32;
    }
    config.model.threads = 2;
    config.cache.block_tokens = BLOCK;
    config.specprefill.enabled = Some(false);
    config.scheduler = SchedulerConfig { max_sequences: 2, chunk_tokens: 96, ..SchedulerConfig::default() };
    // One token is enough to draft what followed it, so much is drafted, and much of it taken back.
    config.speculation.ngram_tokens = 1;
    config.speculation.drafter = Some(way.drafter);
    config.speculation.depth = Some(way.depth);
    config.speculation.controller = Some(way.controller);
    config
}

/// What is known of the row of logits at a place of a sequence: its bits. The last forward over a place has the last word.
type Rows = BTreeMap<(Vec<u32>, usize), Vec<u32>>;

/// An executor that keeps the logits it gives, and can leave something else than it should where it takes anything back.
struct Kept {
    inner: Box<dyn Executor>,
    rows: Arc<Mutex<Rows>>,
    spoils_rewinds: bool,
    /// Where the span began that wrote each slot last.
    starts: BTreeMap<SlotId, usize>,
}

impl Executor for Kept {
    delegate_state!(but rewind);

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        self.inner.reserve(pages, slots)
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        let forward = self.inner.forward(spans)?;
        let mut given = forward.logits.chunks_exact(self.inner.facts().vocab);
        let mut rows = self.rows.lock().unwrap();
        for span in spans {
            if let Some(flow) = span.state {
                self.starts.insert(flow.to, span.start);
            }
            let last = span.start + span.tokens.len();
            let wanted = span.logits.count(span.tokens.len());
            for place in last - wanted..last {
                let bits = given.next().unwrap().iter().map(|logit| logit.to_bits()).collect();
                let page = span.pages[place / BLOCK].0;
                rows.insert((vec![page], place), bits);
            }
        }
        drop(rows);
        Ok(forward)
    }

    fn rewind(&mut self, flow: StateFlow, tokens: usize) -> Result<(), DeviceError> {
        self.inner.rewind(flow, tokens)?;
        if self.spoils_rewinds {
            // The right place, and another state there.
            let mut state = self.inner.export_slot(flow.to)?;
            for exponent in state.iter_mut().skip(3).step_by(4) {
                *exponent ^= 1;
            }
            self.inner.import_slot(flow.to, self.starts[&flow.to] + tokens, &state)?;
        }
        Ok(())
    }

    fn key_weights(
        &mut self,
        pages: &[PageId],
        window: std::ops::Range<usize>,
        queries: &Queries,
    ) -> Result<KeyWeights, DeviceError> {
        self.inner.key_weights(pages, window, queries)
    }
}

/// What a run came to.
#[derive(Debug)]
struct Came {
    replies: BTreeMap<RequestId, Vec<u32>>,
    rows: Rows,
    held: Vec<HeldState>,
    events: Vec<Event>,
}

impl Came {
    fn cycles(&self) -> Vec<&Cycle> {
        let cycles = self.events.iter().filter_map(|event| match &event.body {
            Body::Cycled(cycle) => Some(&**cycle),
            _ => None,
        });
        cycles.collect()
    }

    fn accepted(&self) -> u32 {
        self.cycles().iter().map(|cycle| cycle.accepted).sum()
    }

    fn drafted(&self) -> u32 {
        self.cycles().iter().map(|cycle| cycle.drafted).sum()
    }

    fn endings(&self) -> Vec<&str> {
        let endings = self.events.iter().filter_map(|event| match &event.body {
            Body::DraftingEnded { message } => Some(message.as_str()),
            _ => None,
        });
        endings.collect()
    }
}

/// A prompt that repeats itself in part, so that some of it can be looked up.
fn prompt(seed: u32, length: usize) -> Vec<u32> {
    (0..length as u32)
        .map(|i| if i % 50 < 30 { 11 + i % 50 } else { 40 + (seed * 31 + i * i) % 60 })
        .collect()
}

struct Setting {
    config: Config,
    ground: Ground,
    spoils_rewinds: bool,
}

impl Setting {
    fn of(config: Config) -> Setting {
        let ground = narrow(config.cache.snapshot_policy, config.scheduler.clone(), BLOCK, LONGEST, 40);
        Setting { config, ground, spoils_rewinds: false }
    }

    fn run(&self, work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter)) -> Came {
        let Loaded { executor, text, draft, .. } = model::load(&self.config).unwrap();
        let draft = draft.map(|draft| draft.executor);
        self.run_with(executor, text, draft, work)
    }

    fn run_with(
        &self,
        executor: Box<dyn Executor>,
        text: TextCodec,
        draft: Option<Box<dyn Executor>>,
        work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter),
    ) -> Came {
        let rows = Arc::new(Mutex::new(Rows::new()));
        let vocab = executor.facts().vocab;
        let (spoils_rewinds, starts) = (self.spoils_rewinds, BTreeMap::new());
        let kept = Kept { inner: executor, rows: Arc::clone(&rows), spoils_rewinds, starts };
        let loaded = Loaded { executor: Box::new(kept), text, scorer: None, draft: None };
        let (held, events) = self.ground.run_on(loaded, |scheduler, clock, out| {
            let model = draft.map(|draft| DraftModel::new(draft, [0; 32], vocab, 1 << 30, 2, 96));
            scheduler.attach_speculation(SpeculationSide::new(model, self.config.clone()));
            work(scheduler, clock, out);
            let cache = scheduler.cache_mut();
            assert_eq!(cache.used_pages(), cache.cached_blocks(), "a page leaks");
            assert_eq!(cache.used_slots(), cache.cached_snapshots(), "a slot leaks");
            held_state(scheduler)
        });
        let rows = std::mem::take(&mut *rows.lock().unwrap());
        Came { replies: replies(&events), rows, held, events }
    }
}

/// Three turns of a session, the second and third restored, then one beside another that decodes at the same time.
fn session(scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    for length in [150, 260, 421] {
        scheduler.submit(submission(prompt(1, length), 70), clock, out);
        drain(scheduler, clock, out);
    }
    scheduler.submit(submission(prompt(1, 330), 40), clock, out);
    scheduler.submit(submission(prompt(2, 190), 55), clock, out);
    drain(scheduler, clock, out);
}

/// The same without neighbours.
fn alone(scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    for (seed, length, most) in [(1, 150, 70), (1, 260, 70), (2, 190, 60)] {
        scheduler.submit(submission(prompt(seed, length), most), clock, out);
        drain(scheduler, clock, out);
    }
}

/// Blocks' tokens and digests, in an order of their own.
fn sorted(held: &[HeldState]) -> Vec<HeldState> {
    let mut held = held.to_vec();
    held.sort();
    held
}

fn assert_same(came: &Came, ordinary: &Came, what: &str) {
    assert_eq!(came.replies, ordinary.replies, "{what}: another reply");
    let (left, expected) = (sorted(&came.held), sorted(&ordinary.held));
    assert!(left == expected, "{what}: other state is left, {} blocks for {}", left.len(), expected.len());
}

const HYBRIDS: [&str; 3] = ["scarp", "parity-odd-hybrid", "parity-odd-moe"];

#[test]
fn greedy_replies_state_and_logits_are_those_of_ordinary_decoding_for_any_lookup_depth_and_neighbour() {
    for model in HYBRIDS.into_iter().chain(["parity-qwen3-q4"]) {
        let run = |way| {
            let mut setting = Setting::of(of(model, DeviceSetting::Cpu, way));
            if !HYBRIDS.contains(&model) {
                setting.ground.budget.slot_bytes = 0;
            }
            setting.run(session)
        };
        let ordinary = run(ORDINARY);
        assert!(ordinary.cycles().is_empty() && ordinary.replies.values().all(|reply| !reply.is_empty()));
        for way in [
            fixed(DrafterKind::Ngram, 1),
            fixed(DrafterKind::Ngram, 4),
            fixed(DrafterKind::Ngram, 16),
            adaptive(DrafterKind::Ngram),
        ] {
            let came = run(way);
            let what = format!("{model} {way:?}");
            assert_same(&came, &ordinary, &what);
            assert!(came.drafted() > 0, "{what}: nothing was drafted");
            let must = model == "scarp" && way.controller == ControllerKind::Fixed;
            assert!(!must || came.accepted() > 0, "{what}: nothing was accepted");
            let restored = restores(&came.events).iter().filter(|r| r.checkpoint_tokens > 0).count();
            assert!(restored >= 2, "{what}");
        }
    }
}

#[test]
fn logits_at_every_place_that_counts_have_the_bits_of_ordinary_decoding() {
    for model in HYBRIDS {
        let run = |way| Setting::of(of(model, DeviceSetting::Cpu, way)).run(alone);
        let ordinary = run(ORDINARY);
        for way in [fixed(DrafterKind::Ngram, 3), fixed(DrafterKind::Ngram, 16)] {
            let came = run(way);
            assert_same(&came, &ordinary, model);
            for ((page, place), row) in &ordinary.rows {
                let given = came.rows.iter().find(|((_, at), given)| at == place && *given == row);
                assert!(given.is_some(), "{model} {way:?}: logits at place {place}, page {page:?}");
            }
        }
    }
}

#[test]
fn the_models_own_head_and_a_draft_model_change_nothing_but_time() {
    let run = |way| Setting::of(of("scarp", DeviceSetting::Cpu, way)).run(session);
    let ordinary = run(ORDINARY);
    for drafter in [DrafterKind::Draft, DrafterKind::Mtp] {
        let mut left: Option<Vec<HeldState>> = None;
        for way in [fixed(drafter, 1), fixed(drafter, 3), fixed(drafter, 6), adaptive(drafter)] {
            let came = run(way);
            assert_eq!(came.endings(), [""; 0]);
            assert_eq!(came.replies, ordinary.replies, "{way:?}");
            // What an adaptive depth makes of it depends on times.
            let fixed = way.controller == ControllerKind::Fixed;
            assert!(!fixed || came.accepted() > 0, "{way:?}: nothing was accepted");
            // Pages hold the head's entries too, so they equal those of other depths with the head.
            let held = sorted(&came.held);
            let expected = if drafter == DrafterKind::Mtp {
                left.get_or_insert_with(|| held.clone())
            } else {
                &sorted(&ordinary.held)
            };
            assert!(held == *expected, "{way:?}: other state is left");
        }
    }
}

#[test]
fn two_runs_on_sim_give_the_same_events_and_the_replies_of_ordinary_decoding() {
    let run = |way| {
        let mut config = of("sim", DeviceSetting::Sim, way);
        config.speculation.audit = true;
        Setting::of(config).run(session)
    };
    let ordinary = run(ORDINARY);
    for way in [fixed(DrafterKind::Ngram, 4), fixed(DrafterKind::Mtp, 3), adaptive(DrafterKind::Draft)] {
        let (one, two) = (run(way), run(way));
        assert_eq!(one.events, two.events, "{way:?}");
        assert_eq!(one.replies, ordinary.replies, "{way:?}");
        assert!(one.cycles().iter().all(|cycle| cycle.audit.as_ref().is_some_and(|audit| audit.passed)));
    }
}

/// That audits pass, and that those of state other than what should have been left fail.
fn assert_audits_tell(config: &Config, how: Identity) {
    let came = Setting::of(config.clone()).run(alone);
    let cycles = came.cycles();
    assert!(cycles.iter().any(|cycle| cycle.accepted < cycle.drafted), "nothing was taken back");
    for cycle in cycles {
        let audit = cycle.audit.as_ref().expect("every cycle is audited");
        assert!(audit.passed && audit.how == how, "{config:?}: {audit:?}");
    }
    assert_eq!(came.endings(), [""; 0]);
    let spoilt = Setting { spoils_rewinds: true, ..Setting::of(config.clone()) }.run(alone);
    let failed = |cycle: &&Cycle| cycle.audit.as_ref().is_some_and(|audit| !audit.passed);
    let failed: Vec<_> = spoilt.cycles().into_iter().filter(failed).collect();
    assert!(!failed.is_empty(), "state that was not taken back passes for right");
    assert!(failed.iter().all(|cycle| cycle.accepted < cycle.drafted), "only these took anything back");
}

#[test]
fn every_audit_passes_and_one_of_state_that_was_not_taken_back_fails() {
    for model in HYBRIDS {
        let mut config = of(model, DeviceSetting::Cpu, fixed(DrafterKind::Ngram, 4));
        config.speculation.audit = true;
        assert_audits_tell(&config, Identity::Bitwise);
    }
    let mut config = of("scarp", DeviceSetting::Cpu, fixed(DrafterKind::Mtp, 3));
    config.speculation.audit = true;
    assert_audits_tell(&config, Identity::Bitwise);
}

#[test]
fn a_forward_that_others_share_is_no_measurement() {
    let came = Setting::of(of("scarp", DeviceSetting::Cpu, fixed(DrafterKind::Ngram, 4))).run(session);
    let shared: Vec<_> = came.cycles().into_iter().filter(|cycle| cycle.neighbours > 0).cloned().collect();
    assert!(!shared.is_empty());
    assert!(shared.iter().all(|cycle| cycle.verify.is_none() && cycle.took().is_none()));
    assert!(came.cycles().iter().all(|cycle| cycle.neighbours > 0 || cycle.verify.is_some()));
}

#[test]
fn cycles_add_up_to_the_reply() {
    let came = Setting::of(of("scarp", DeviceSetting::Cpu, fixed(DrafterKind::Ngram, 4))).run(alone);
    for (request, reply) in &came.replies {
        let of_request = came.events.iter().filter(|event| event.request == Some(*request));
        let mut next = 1;
        for event in of_request {
            let Body::Cycled(cycle) = &event.body else { continue };
            assert_eq!(cycle.first, next, "a cycle follows the one before it");
            assert!(cycle.accepted <= cycle.tested && cycle.tested <= cycle.drafted);
            assert!(cycle.drafted <= cycle.depth && cycle.proposed.len() == cycle.drafted as usize);
            assert!(
                cycle.tested == cycle.drafted
                    || cycle.tested == cycle.accepted + 1
                    || next + u64::from(cycle.emitted()) == reply.len() as u64
            );
            next += u64::from(cycle.emitted());
        }
        // The first token comes of the prefill.
        assert_eq!(next, reply.len() as u64);
    }
}

#[test]
fn measuring_what_verifying_costs_leaves_no_trace() {
    let run = |curve| {
        let mut config = of("scarp", DeviceSetting::Cpu, fixed(DrafterKind::Ngram, 4));
        config.speculation.curve = curve;
        Setting::of(config).run(alone)
    };
    let (without, with) = (run(false), run(true));
    assert_same(&with, &without, "the curve");
    let curves = with.events.iter().filter_map(|event| match &event.body {
        Body::VerifyCurve(curve) => Some(curve),
        _ => None,
    });
    let curves: Vec<_> = curves.collect();
    assert_eq!(curves.len(), 3, "one a reply");
    assert!(curves.iter().all(|curve| curve.points.len() == 8 && curve.points[0].0 == 1));
}

#[test]
fn behind_a_gap_drafted_tokens_stand_where_those_of_ordinary_decoding_do() {
    let run = |way| {
        let mut config = of("scarp", DeviceSetting::Cpu, way);
        config.specprefill.enabled = Some(true);
        config.specprefill.threshold = Some(100);
        config.specprefill.tail_tokens = 32;
        config.speculation.audit = true;
        let Loaded { executor, text, scorer, draft } = model::load(&config).unwrap();
        let setting = Setting::of(config);
        setting.run_with(executor, text, draft.map(|draft| draft.executor), |scheduler, clock, out| {
            let scorer = scorer.map(|scorer| {
                let settings = ScorerSettings::of(&setting.config.specprefill, 96, scorer.decodes);
                Scorer::new(scorer.executor, [0; 32], Vec::new(), settings)
            });
            scheduler.attach_sparse(SparseSide::new(scorer, setting.config.clone()));
            for length in [400, 520] {
                scheduler.submit(submission(prompt(3, length), 60), clock, out);
                drain(scheduler, clock, out);
            }
        })
    };
    let ordinary = run(ORDINARY);
    let sparse = |event: &&Event| matches!(event.body, Body::Scored(_));
    assert_eq!(ordinary.events.iter().filter(sparse).count(), 2);
    for drafter in [DrafterKind::Ngram, DrafterKind::Mtp, DrafterKind::Draft] {
        let came = run(fixed(drafter, 4));
        assert_eq!(came.replies, ordinary.replies, "{drafter:?}");
        assert_eq!(came.endings(), [""; 0], "{drafter:?}");
        assert!(came.cycles().iter().all(|cycle| cycle.audit.as_ref().is_some_and(|audit| audit.passed)));
        assert!(came.accepted() > 0, "{drafter:?}");
    }
}

#[test]
fn a_head_goes_on_from_entries_that_come_back_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let run = |folder: &str, lengths: &[usize]| {
        let mut setting = Setting::of(of("scarp", DeviceSetting::Cpu, fixed(DrafterKind::Mtp, 3)));
        let (dir, tuning) = (dir.path().join(folder), Tuning::default());
        setting.ground.tier = Some(TierGround { dir, limit_bytes: 1 << 30, tuning });
        setting.run(|scheduler, clock, out| {
            for length in lengths {
                scheduler.submit(submission(prompt(1, *length), 40), clock, out);
                drain(scheduler, clock, out);
            }
            scheduler.close_tier(clock, out);
        })
    };
    run("kept", &[300]);
    let (resumed, anew) = (run("kept", &[420]), run("new", &[420]));
    assert!(restores(&resumed.events)[0].ssd.is_some(), "nothing came from disk");
    assert_eq!(resumed.replies, anew.replies);
    let drafts = |came: &Came| came.cycles().iter().map(|cycle| cycle.proposed.clone()).collect::<Vec<_>>();
    assert_eq!(drafts(&resumed), drafts(&anew), "the head drafts otherwise");
    let of_prompt = |came: &Came| {
        let held = sorted(&came.held).into_iter().map(|(tokens, page, _)| (tokens, page));
        held.collect::<BTreeMap<_, _>>()
    };
    assert_eq!(of_prompt(&resumed), of_prompt(&anew));
}

#[cfg(feature = "mlx")]
#[test]
fn on_mlx_replies_are_those_of_ordinary_decoding_and_audits_pass_at_tolerance() {
    for (model, drafters) in [
        ("parity-odd-hybrid", &[DrafterKind::Ngram][..]),
        ("parity-odd-moe", &[DrafterKind::Ngram]),
        ("scarp", &[DrafterKind::Ngram, DrafterKind::Mtp, DrafterKind::Draft]),
    ] {
        let run = |way| {
            let mut config = of(model, DeviceSetting::Mlx, way);
            config.speculation.audit = true;
            Setting::of(config).run(alone)
        };
        let ordinary = run(ORDINARY);
        for drafter in drafters {
            let came = run(fixed(*drafter, 3));
            assert_eq!(came.replies, ordinary.replies, "{model} {drafter:?}");
            for cycle in came.cycles() {
                let audit = cycle.audit.as_ref().expect("every cycle is audited");
                assert!(audit.passed && audit.how == Identity::Tolerance, "{model} {drafter:?}: {audit:?}");
            }
        }
    }
    let mut config = of("scarp", DeviceSetting::Mlx, fixed(DrafterKind::Ngram, 4));
    config.speculation.audit = true;
    assert_audits_tell(&config, Identity::Tolerance);
}
