use super::*;
use crate::event::{
    Arrival, Body, Cause, Effective, FinishReason, HistoryChange, Identity, Logits, Loss, Nanos, RequestId,
    Restore, Route, RunFacts, Scored, ScorerStart, Segment, SegmentRun, SetBy, Source, SparseAdmission,
    SparseSettings, SparseVerdict, Stamp, Survival, SurvivingIdentifier,
};

/// A request as one lane tells it.
#[derive(Clone)]
pub(super) struct Told {
    pub(super) prompt: u64,
    pub(super) checkpoint: u64,
    pub(super) canonical: u64,
    pub(super) ttft: f64,
    pub(super) scored: Option<Scored>,
    pub(super) reply: Vec<(u32, f32)>,
    pub(super) logits: Option<Vec<f32>>,
}

pub(super) fn told(prompt: u64, checkpoint: u64, canonical: u64, ttft: f64) -> Told {
    Told { prompt, checkpoint, canonical, ttft, scored: None, reply: vec![(1, 0.5), (2, 0.25)], logits: None }
}

pub(super) fn scored(origin: u64, kept: &[(u64, u64)], seconds: f64) -> Scored {
    Scored {
        origin,
        scored_tokens: 100,
        draft_cached_tokens: 0,
        start: ScorerStart::First,
        draft_stored_tokens: None,
        lookahead_steps: 8,
        prefill: Nanos::from_seconds(seconds),
        lookahead: Nanos(0),
        importance: Nanos(0),
        unit_tokens: 32,
        unit_scores: Vec::new(),
        selected_tokens: 40,
        kept: kept.to_vec(),
        dense_until: origin + 10,
    }
}

pub(super) fn run() -> RunFacts {
    RunFacts { block_tokens: 64, ..RunFacts::of_test() }
}

fn admission() -> SparseAdmission {
    let set_by = SetBy::Model;
    SparseAdmission {
        settings: SparseSettings {
            enabled: Effective { value: true, set_by: set_by.clone() },
            keep: Effective { value: 0.2, set_by: set_by.clone() },
            threshold: Effective { value: 50, set_by },
        },
        verdict: SparseVerdict::Sparse,
        protected_tokens: 20,
        boundary_before: String::new(),
        boundary_after: String::new(),
        suffix_tokens: 100,
        to_score_tokens: 100,
    }
}

/// Tells a whole run of one lane.
pub(super) fn tell(comparison: &mut Comparison, lane: usize, requests: &[Told]) {
    let mut now = 0.0;
    let mut say = |at: f64, request: Option<u64>, body: Body| {
        let (at, request) = (Stamp(Nanos::from_seconds(at).0), request.map(RequestId));
        comparison.apply_event(lane, &Event { seq: 0, at, lane: Some(A), request, body });
    };
    say(0.0, None, Body::RunStarted(Box::new(run())));
    for (index, told) in requests.iter().enumerate() {
        let id = Some(index as u64 + 1);
        let Told { prompt, checkpoint, .. } = *told;
        let segments = vec![
            SegmentRun { segment: Segment::System, tokens: 20.min(prompt) },
            SegmentRun { segment: Segment::User, tokens: prompt.saturating_sub(20) / 2 },
            SegmentRun { segment: Segment::ToolResult, tokens: prompt.saturating_sub(20).div_ceil(2) },
        ];
        say(
            now,
            id,
            Body::Arrived(Box::new(Arrival {
                turn: index as u32 + 1,
                name: format!("r{index}"),
                source: Source::Replay,
                change: HistoryChange::Append,
                idle: None,
                prompt_tokens: prompt,
                segments,
                items: Vec::new(),
                max_output_tokens: None,
                delayed: None,
            })),
        );
        say(
            now,
            id,
            Body::Restored(Box::new(Restore {
                common_prefix_tokens: None,
                closest: None,
                held_tokens: checkpoint,
                matched_tokens: checkpoint,
                matched_with_state_tokens: checkpoint,
                checkpoint_tokens: checkpoint,
                losses: vec![Loss {
                    cause: Cause::Cold,
                    tokens: prompt - checkpoint,
                    detail: String::new(),
                    block: None,
                }],
                cause: Cause::Cold,
                divergence: None,
                blocks: Vec::new(),
                ssd: None,
                took: Nanos(0),
            })),
        );
        let route = if told.scored.is_some() { Route::Sparse } else { Route::Dense };
        let mut computed = prompt - checkpoint;
        if let Some(scored) = &told.scored {
            say(now, id, Body::SparseAdmitted(Box::new(admission())));
            say(now, id, Body::Routed { route, uncached_suffix: computed });
            say(now, id, Body::Scored(Box::new(scored.clone())));
            computed = scored.selected_tokens;
        } else {
            say(now, id, Body::Routed { route, uncached_suffix: computed });
        }
        say(now, id, Body::Prefilled { computed_tokens: computed, took: Nanos::from_seconds(told.ttft) });
        if let Some(logits) = &told.logits {
            say(now, id, Body::ReplyLogits { logits: Logits(logits.clone()) });
        }
        for (place, (token, margin)) in told.reply.iter().enumerate() {
            let (index, margin) = (place as u64, Some(*margin));
            say(now + told.ttft, id, Body::Token { token: *token, text: "x".into(), index, margin });
        }
        say(
            now,
            id,
            Body::Decoded {
                reason: FinishReason::Stop,
                output_tokens: told.reply.len() as u64,
                output_sha256: format!("{:?}", told.reply.iter().map(|(token, _)| token).collect::<Vec<_>>()),
                text: String::new(),
                took: Nanos(0),
                shared_forwards: None,
            },
        );
        say(
            now,
            id,
            Body::Stored {
                stored_tokens: 0,
                canonical_tokens: told.canonical,
                evicted_blocks: 0,
                snapshots: None,
                tier: None,
            },
        );
        let took = told.ttft + 1.0;
        say(now + took, id, Body::Finished { reason: FinishReason::Stop, took: Nanos::from_seconds(took) });
        now += took;
    }
}

pub(super) fn lanes(names: &[&str]) -> Comparison {
    Comparison::new(names.iter().map(|name| (*name).to_owned()))
}

/// The published shape: sparse wins the cold request, then pays for what it left.
fn published() -> Comparison {
    let mut comparison = lanes(&["dense", "sparse"]);
    tell(
        &mut comparison,
        0,
        &[
            told(1000, 0, 960, 10.0),
            told(1100, 960, 1088, 1.4),
            told(1200, 1088, 1152, 1.1),
            told(1300, 1152, 1280, 1.5),
        ],
    );
    let cold = Told { scored: Some(scored(0, &[(500, 532)], 1.0)), ..told(1000, 0, 0, 4.0) };
    let next = |prompt, ttft| Told { scored: Some(scored(0, &[(40, 72)], 1.0)), ..told(prompt, 0, 0, ttft) };
    tell(&mut comparison, 1, &[cold, next(1100, 5.0), next(1200, 6.0), next(1300, 7.0)]);
    comparison
}

#[test]
fn the_verdict_tells_the_early_lead_the_end_and_what_is_owed() {
    let verdict = published().verdicts().remove(0);
    assert_eq!((verdict.lane.as_str(), verdict.against.as_str(), verdict.requests), ("sparse", "dense", 4));
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    // Dense 10, 11.4, 12.5, 14; sparse 4, 9, 15, 22.
    assert!(
        near(verdict.ttft_sum_s.unwrap().median, 22.0)
            && near(verdict.against_ttft_sum_s.unwrap().median, 14.0)
    );
    assert!(near(verdict.lead_s.unwrap().median, -8.0) && near(verdict.whole_lead_s.unwrap().median, -8.0));
    assert_eq!((verdict.outcome, verdict.whole_outcome), (Some(Outcome::Slower), Some(Outcome::Slower)));
    assert_eq!(verdict.led_until.unwrap().turn, 2);
    let best = verdict.best_lead.clone().unwrap();
    assert!(best.place.turn == 1 && near(best.seconds, 6.0));
    assert!(near(verdict.scorer_sum_s.unwrap().median, 4.0));
    // The dense lane's curve, fitted to its prefills but the first: about 10 ms a token.
    let owed = verdict.owed.unwrap();
    assert_eq!(owed.tokens, 1300);
    assert!((10.0..17.0).contains(&owed.seconds.unwrap()), "{owed:?}");
    assert_eq!(verdict.against_owed.unwrap().tokens, 20);
    let sentence = verdict.sentence();
    assert!(sentence.starts_with("sparse led until turn 2 (by 6.00 s at turn 1), ends 8.00 s behind dense and owes 1,300 tokens (≈ 1"), "{sentence}");
    assert!(
        sentence.contains("; dense owes 20 tokens (≈ ")
            && sentence.ends_with("; with replies it ends 8.00 s behind (one run)"),
        "{sentence}"
    );
}

#[test]
fn each_way_a_session_can_go_has_its_words() {
    let sentence = |dense: &[f64], sparse: &[f64]| {
        let mut comparison = lanes(&["dense", "sparse"]);
        let requests = |times: &[f64]| times.iter().map(|t| told(100, 0, 64, *t)).collect::<Vec<_>>();
        tell(&mut comparison, 0, &requests(dense));
        tell(&mut comparison, 1, &requests(sparse));
        comparison.verdicts()[0].sentence()
    };
    assert!(
        sentence(&[5.0, 5.0], &[2.0, 2.0])
            .starts_with("sparse ends 6.00 s ahead of dense and owes 36 tokens")
    );
    let gave_back = sentence(&[5.0, 1.0], &[2.0, 2.0]);
    assert!(
        gave_back.starts_with("sparse ends 2.00 s ahead of dense (by 3.00 s at turn 1) and"),
        "{gave_back}"
    );
    assert!(sentence(&[2.0, 2.0], &[3.0, 3.0]).starts_with("sparse never led, ends 2.00 s behind dense and"));
    assert!(sentence(&[2.0, 2.0], &[2.0, 2.0]).starts_with("sparse ends level with dense and"));
    let level = sentence(&[4.0, 2.0], &[3.0, 3.0]);
    assert!(level.starts_with("sparse led until turn 1 (by 1.00 s), ends level with dense and"), "{level}");
    let partial = sentence(&[4.0, 2.0], &[3.0]);
    assert!(partial.starts_with("over the first 1 request: sparse ends 1.00 s ahead of dense"), "{partial}");
    let late = sentence(&[1.0, 1.0, 5.0, 5.0, 1.0, 1.0], &[2.0, 2.0, 2.0, 2.0, 9.0, 2.0]);
    assert!(
        late.starts_with("sparse led from turn 3 until turn 4 (by 4.00 s), ends 5.00 s behind"),
        "{late}"
    );
    let once = sentence(&[1.0, 1.0, 5.0, 1.0], &[2.0, 2.0, 2.0, 5.0]);
    assert!(once.starts_with("sparse led only after turn 3 (by 1.00 s), ends 3.00 s behind"), "{once}");
    assert_eq!(sentence(&[], &[]), "sparse and dense: no request has been answered in both");
}

#[test]
fn repeats_give_medians_and_a_difference_smaller_than_their_spread_is_a_tie() {
    let run = |pairs: &[(f64, f64)]| {
        let mut comparison = lanes(&["dense", "sparse"]);
        for (repeat, (dense, sparse)) in pairs.iter().enumerate() {
            if repeat > 0 {
                comparison.begin_repeat();
            }
            tell(&mut comparison, 0, &[told(100, 0, 64, *dense)]);
            tell(&mut comparison, 1, &[told(100, 0, 64, *sparse)]);
        }
        comparison
    };
    let mixed = run(&[(2.0, 1.9), (2.0, 2.3), (2.0, 2.1)]);
    let verdict = mixed.verdicts().remove(0);
    assert_eq!((verdict.outcome, verdict.repeats), (Some(Outcome::Tie), 3));
    let sentence = verdict.sentence();
    assert!(
        sentence.contains("level with") && sentence.ends_with("3 repeats differ by more than that"),
        "{sentence}"
    );
    let ttft = mixed.turns()[0].cells[1].as_ref().unwrap().ttft_s.unwrap();
    assert_eq!((ttft.median, ttft.min, ttft.max, ttft.repeats), (2.1, 1.9, 2.3, 3));
    assert!(mixed.disagreements().is_empty());
    // Drift that both lanes share is none between them.
    let drifting = run(&[(2.0, 2.1), (3.0, 3.1), (4.0, 4.1)]).verdicts().remove(0);
    assert_eq!(drifting.outcome, Some(Outcome::Slower));
    assert!((drifting.lead_s.unwrap().median + 0.1).abs() < 1e-9);
}

#[test]
fn repeats_that_do_not_agree_about_facts_are_told() {
    let mut comparison = lanes(&["dense", "sparse"]);
    tell(&mut comparison, 0, &[told(100, 0, 64, 1.0), told(200, 64, 128, 1.0)]);
    tell(&mut comparison, 1, &[told(100, 0, 64, 1.0), told(200, 64, 128, 1.0)]);
    comparison.begin_repeat();
    tell(&mut comparison, 0, &[told(100, 0, 64, 2.0), told(200, 0, 128, 1.0)]);
    tell(&mut comparison, 1, &[Told { reply: vec![(9, 0.5), (2, 0.25)], ..told(100, 0, 64, 1.0) }]);
    let found = comparison.disagreements();
    let words = |at: usize| {
        (found[at].lane.as_str(), found[at].repeat, found[at].place.turn, found[at].what.as_str())
    };
    assert_eq!(words(0), ("dense", 2, 2, "checkpoint 64 in the first, 0 in this one"));
    assert_eq!(words(1), ("sparse", 2, 1, "another reply"));
    assert_eq!(found.len(), 2);
}

#[test]
fn replies_are_compared_where_prompts_are_the_same() {
    let base = Told { logits: Some(vec![0.0, 1.0]), ..told(100, 0, 64, 1.0) };
    let other = Told { reply: vec![(1, 0.9), (7, 0.1)], logits: Some(vec![1.0, 0.0]), ..base.clone() };
    let mut comparison = lanes(&["b", "dense", "c", "d"]);
    tell(&mut comparison, 0, std::slice::from_ref(&other));
    tell(&mut comparison, 1, std::slice::from_ref(&base));
    tell(&mut comparison, 2, &[Told { prompt: 101, ..other.clone() }]);
    tell(&mut comparison, 3, &[Told { reply: vec![(1, 0.5)], logits: None, ..base }]);
    assert_eq!(comparison.base(), 1);
    let turn = comparison.turns().remove(0);
    let reply = |lane: usize| turn.cells[lane].as_ref().unwrap().reply;
    let b = reply(0).unwrap();
    assert_eq!((b.same_text, b.first_differing, b.margin), (Some(false), Some(1), Some(0.25)));
    // (1/(1+e), e/(1+e)) against its mirror image: (e−1)/(e+1).
    let wanted = (1_f64.exp() - 1.0) / (1_f64.exp() + 1.0);
    let close = b.closeness.unwrap();
    assert!((close.kl_nats - wanted).abs() < 1e-12 && !close.top1_agrees, "{close:?}");
    assert_eq!(reply(1), None, "not compared with itself");
    assert_eq!(reply(2), None, "another prompt");
    assert_eq!(turn.cells[2].as_ref().unwrap().same_prompt, Some(false));
    let d = reply(3).unwrap();
    assert_eq!(
        (d.same_text, d.first_differing, d.margin, d.closeness),
        (Some(false), Some(1), Some(0.25), None)
    );
}

#[test]
fn what_was_kept_is_counted_by_segment_within_the_window() {
    // System 0..20, user 20..60, tool result 60..100; dense up to 30.
    let sparse =
        Told { scored: Some(scored(20, &[(25, 40), (58, 62), (99, 100)], 0.5)), ..told(100, 0, 0, 1.0) };
    let mut comparison = lanes(&["dense", "sparse"]);
    tell(&mut comparison, 1, &[sparse]);
    let survival = Survival {
        identifiers: [(2, 2), (3, 1), (1, 0)]
            .map(|(occurrences, kept)| SurvivingIdentifier { text: "a_b".into(), occurrences, kept })
            .into(),
    };
    let event = Event {
        seq: 0,
        at: Stamp(0),
        lane: Some(A),
        request: Some(RequestId(1)),
        body: Body::Survived(survival),
    };
    comparison.apply_event(1, &event);
    let turn = comparison.turns().remove(0);
    assert!(turn.cells[0].is_none());
    let cell = turn.cells[1].as_ref().unwrap();
    let kept: Vec<_> = cell.kept.iter().map(|k| (k.segment, k.kept, k.total)).collect();
    assert_eq!(kept, [(Segment::User, 22, 40), (Segment::ToolResult, 3, 40)]);
    assert_eq!(cell.survival, Some(Survived { identifiers: 3, everywhere: 1, anywhere: 2 }));
    assert_eq!(
        (cell.route, cell.computed_tokens, cell.canonical_debt_tokens),
        (Some("sparse"), Some(40), Some(100))
    );
    assert_eq!((cell.scorer_share, cell.lead_s), (Some(0.5), None));
}

#[test]
fn a_time_nobody_measured_leaves_its_sums_unknown_and_no_zero() {
    let mut comparison = lanes(&["dense", "sparse"]);
    tell(&mut comparison, 0, &[told(100, 0, 64, 1.0), told(200, 64, 128, 1.0)]);
    tell(&mut comparison, 1, &[Told { reply: vec![], ..told(100, 0, 64, 1.0) }, told(200, 64, 128, 1.0)]);
    let turns = comparison.turns();
    let cell = |turn: usize| turns[turn].cells[1].as_ref().unwrap();
    assert_eq!((cell(0).ttft_s, cell(0).ttft_sum_s, cell(0).lead_s), (None, None, None));
    assert_eq!(cell(1).ttft_s.unwrap().median, 1.0);
    assert_eq!((cell(1).ttft_sum_s, cell(1).lead_s, cell(1).scorer_s), (None, None, None));
    let verdict = comparison.verdicts().remove(0);
    assert_eq!((verdict.requests, verdict.outcome, verdict.led_until), (0, None, None));
}

#[test]
fn rows_hold_the_replay_row_and_the_comparison() {
    let comparison = published();
    let rows: Vec<serde_json::Value> =
        comparison.rows().iter().map(|row| serde_json::to_value(row).unwrap()).collect();
    assert_eq!(rows.len(), 8);
    assert_eq!((rows[1]["turn"].as_u64(), rows[1]["compare"]["lane"].as_str()), (Some(1), Some("sparse")));
    assert_eq!(rows[1]["compare"]["lead_s"]["median"], 6.0);
    assert_eq!(rows[0]["compare"]["against"], serde_json::Value::Null);
    assert_eq!(rows[0]["compare"]["order"], serde_json::Value::Null);
    assert_eq!(rows[1]["compare"]["kept"][0]["segment"], "system");
    assert_eq!(rows[1]["sparse"]["selected_tokens"], 40);
    assert_eq!(rows[1]["compare"]["reply"]["same_text"], true);
}

#[test]
fn events_in_any_order_are_taken() {
    let mut comparison = lanes(&["dense"]);
    comparison.apply(&News::Round { turn: 3, order: vec![7] });
    comparison.apply(&News::Event {
        lane: 9,
        event: Event { seq: 0, at: Stamp(0), lane: None, request: None, body: Body::RunEnded },
    });
    let body = Body::ReplyLogits { logits: Logits(vec![1.0]) };
    comparison.apply_event(0, &Event { seq: 0, at: Stamp(0), lane: None, request: Some(RequestId(4)), body });
    comparison.apply(&News::Over);
    assert!(comparison.over() && comparison.verdicts().is_empty() && comparison.rows().is_empty());
}

#[test]
fn recordings_of_two_sessions_or_of_a_model_and_a_machine_are_not_compared() {
    let mut comparison = lanes(&["a", "b"]);
    let started = |session: &str, identity| {
        let facts = RunFacts { session: session.to_owned(), identity, ..run() };
        Event { seq: 0, at: Stamp(0), lane: None, request: None, body: Body::RunStarted(Box::new(facts)) }
    };
    comparison.apply_event(0, &started("one", Identity::Bitwise));
    comparison.apply_event(1, &started("one", Identity::Tolerance));
    assert_eq!(comparison.mismatch(), None);
    comparison.apply_event(1, &started("two", Identity::Bitwise));
    assert!(comparison.mismatch().unwrap().contains("\"two\""));
    comparison.apply_event(1, &started("one", Identity::Simulated));
    assert!(comparison.mismatch().unwrap().contains("simulated"));
}

#[test]
fn a_fork_is_another_course_of_the_session_and_adds_nothing_to_what_it_replaces() {
    let near = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let mut comparison = lanes(&["dense", "sparse"]);
    for (lane, ttft) in [(0, 1.0), (1, 2.0)] {
        tell(&mut comparison, lane, &[told(100, 0, 64, ttft), told(200, 64, 192, 10.0 * ttft)]);
        let mut say = |at: f64, request: Option<u64>, body: Body| {
            let (at, request) = (Stamp(Nanos::from_seconds(at).0), request.map(RequestId));
            comparison.apply_event(lane, &Event { seq: 0, at, lane: Some(LaneId(1)), request, body });
        };
        say(50.0, None, Body::LaneOpened { parent: Some(A), at_turn: Some(2), title: String::new() });
        let arrival = Arrival {
            turn: 2,
            name: "edited".to_owned(),
            source: Source::Edit,
            change: HistoryChange::Edit,
            idle: None,
            prompt_tokens: 200,
            segments: Vec::new(),
            items: Vec::new(),
            max_output_tokens: None,
            delayed: None,
        };
        say(50.0, Some(3), Body::Arrived(Box::new(arrival)));
        let token = Body::Token { token: 1, text: String::new(), index: 0, margin: None };
        say(50.0 + 3.0 * ttft, Some(3), token);
    }
    let turns = comparison.turns();
    let sum = |turn: usize, lane: usize| turns[turn].cells[lane].as_ref().unwrap().ttft_sum_s.unwrap().median;
    assert!(near(sum(1, 0), 11.0) && near(sum(1, 1), 22.0), "the session's own line");
    assert!(near(sum(2, 0), 1.0 + 3.0) && near(sum(2, 1), 2.0 + 6.0), "the fork's");
    let verdict = comparison.verdicts().remove(0);
    assert_eq!(verdict.requests, 2);
    assert!(near(verdict.lead_s.unwrap().median, 4.0 - 8.0), "the verdict is on the line that ran last");
}
