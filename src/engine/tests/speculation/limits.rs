//! Where drafting ends or cannot begin: at the end of a reply or of the context, without room, without a drafter, with one that fails.

use super::*;

#[test]
fn a_reply_ends_where_it_would_have_whatever_was_drafted_beyond() {
    for most in [1, 2, 3, 5] {
        let run = |way| {
            Setting::of(of("scarp", DeviceSetting::Cpu, way)).run(|scheduler, clock, out| {
                scheduler.submit(submission(prompt(1, 150), most), clock, out);
                drain(scheduler, clock, out);
            })
        };
        let (ordinary, came) = (run(ORDINARY), run(fixed(DrafterKind::Ngram, 8)));
        assert_same(&came, &ordinary, "the budget");
        let drafted = came.cycles().iter().map(|cycle| u64::from(cycle.drafted)).max();
        assert!(drafted.unwrap_or(0) < most, "what the reply has no room for is not drafted");
    }
    // The end of the context, on a pseudo-model with a short one.
    let run = |way| {
        let mut config = of("sim", DeviceSetting::Sim, way);
        config.sim.context_tokens = 200;
        Setting::of(config).run(|scheduler, clock, out| {
            scheduler.submit(submission(prompt(1, 190), 70), clock, out);
            drain(scheduler, clock, out);
        })
    };
    let ordinary = run(ORDINARY);
    for drafter in [DrafterKind::Ngram, DrafterKind::Mtp, DrafterKind::Draft] {
        let came = run(fixed(drafter, 8));
        assert_same_replies(&came, &ordinary);
        let full = |event: &Event| matches!(event.body, Body::Finished { reason: FinishReason::Context, .. });
        assert!(came.events.iter().any(full));
    }
}

fn assert_same_replies(came: &Came, ordinary: &Came) {
    assert_eq!(came.replies, ordinary.replies);
    assert!(came.events.iter().all(|event| !matches!(event.body, Body::Failed { .. })));
}

#[test]
fn without_room_for_a_second_slot_a_sequence_decodes_ordinarily() {
    let run = |way| {
        let mut setting = Setting::of(of("scarp", DeviceSetting::Cpu, way));
        setting.ground = narrow(SnapshotPolicy::None, setting.config.scheduler.clone(), BLOCK, LONGEST, 0);
        setting.run(alone)
    };
    let (ordinary, came) = (run(ORDINARY), run(fixed(DrafterKind::Ngram, 4)));
    assert_same(&came, &ordinary, "no slot");
    assert!(came.cycles().iter().all(|cycle| cycle.drafted == 0), "drafted without a slot to verify in");
}

/// A drafter's device that fails at one call.
struct Failing {
    inner: Box<dyn Executor>,
    left: usize,
}

impl Executor for Failing {
    delegate_state!();

    fn reserve(&mut self, pages: usize, slots: usize) -> Result<(), DeviceError> {
        self.inner.reserve(pages, slots)
    }

    fn forward(&mut self, spans: &[Span<'_>]) -> Result<Forward, DeviceError> {
        self.left = self.left.wrapping_sub(1);
        if self.left == usize::MAX {
            return Err(DeviceError::OutOfMemory { bytes: 1, problem: "a test's".to_owned() });
        }
        self.inner.forward(spans)
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

#[test]
fn a_drafter_that_fails_anywhere_costs_its_request_the_drafting_and_no_reply_a_token() {
    let way = fixed(DrafterKind::Draft, 3);
    let ordinary = Setting::of(of("sim", DeviceSetting::Sim, ORDINARY)).run(alone);
    for left in [0, 1, 2, 3, 5, 8, 13, 21] {
        let setting = Setting::of(of("sim", DeviceSetting::Sim, way));
        let Loaded { executor, text, draft, .. } = model::load(&setting.config).unwrap();
        let failing = Failing { inner: draft.unwrap().executor, left };
        let came = setting.run_with(executor, text, Some(Box::new(failing)), alone);
        assert_same(&came, &ordinary, "a failing drafter");
        assert_eq!(came.endings().len(), 1, "{left}");
        assert!(came.endings()[0].contains("a test's"));
    }
}

#[test]
fn what_is_not_loaded_is_told_and_the_reply_decoded_ordinarily() {
    let ordinary = Setting::of(of("sim", DeviceSetting::Sim, ORDINARY)).run(alone);
    for drafter in [DrafterKind::Mtp, DrafterKind::Draft] {
        let mut setting = Setting::of(of("sim", DeviceSetting::Sim, ORDINARY));
        let Loaded { executor, text, .. } = model::load(&setting.config).unwrap();
        setting.config.speculation.drafter = Some(drafter);
        let came = setting.run_with(executor, text, None, alone);
        assert_same(&came, &ordinary, "not loaded");
        assert_eq!(came.endings().len(), 3);
        assert!(came.endings()[0].contains("is not loaded: start with `speculation.drafter`"));
    }
}
