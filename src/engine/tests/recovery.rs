//! Background recovery in the scheduler: what is published is what a dense run leaves, whoever comes goes first, and nothing is left behind.

mod durable;
mod isolated;
mod orders;
mod whoever_comes;

use std::collections::BTreeMap;

use super::hybrid::narrow;
use super::resident::{self, HeldState, assert_recomputes};
use super::sparse::{LONGEST, ask, attach_scorer, on_sim, tokens};
use super::*;
use crate::config::{DeviceSetting, RecoveryConfig, RecoveryPolicy};
use crate::engine::asked::Asked;
use crate::engine::background::Rest;
use crate::event::{DebtTaken, JobEnded, Publication, RecoverySlice, Route};
use crate::model;
use crate::recovery::job::{Declined, End, Mode};
use crate::recovery::standing::Why;

/// The pseudo-model with its scorer, a low threshold, and recovery on.
fn recovering() -> Config {
    let mut config = on_sim();
    config.specprefill.tail_tokens = 16;
    config.specprefill.threshold = Some(20);
    config.recovery.enabled = true;
    config.recovery.slice_tokens = 48;
    config
}

fn on_cpu() -> Config {
    let mut config = recovering();
    config.model.device = DeviceSetting::Cpu;
    config.model.threads = 2;
    config
}

/// Runs `work` on a scheduler set up as the configuration says, among `neighbours`.
fn run_among<T>(
    config: &Config,
    neighbours: &Neighbours,
    work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
) -> (T, Vec<Event>) {
    let Loaded { executor, text, scorer, .. } = model::load(config).unwrap();
    let ground = narrow(config.cache.snapshot_policy, config.scheduler.clone(), BLOCK, LONGEST, 200);
    ground.run_on(Loaded { executor, text, scorer: None, draft: None }, |scheduler, clock, out| {
        attach_scorer(scorer, config, scheduler);
        let member = Arc::new(neighbours.join());
        scheduler.attach_background(Background::new(config.recovery.clone(), member, Arc::default()));
        let result = work(scheduler, clock, out);
        assert!(scheduler.is_idle());
        scheduler.end_recovery(End::Cancelled, clock, out);
        assert_nothing_is_held(scheduler);
        result
    })
}

fn run<T>(
    config: &Config,
    work: impl FnOnce(&mut Scheduler<'_>, &mut Clock, &mut Emitter) -> T,
) -> (T, Vec<Event>) {
    run_among(config, &Neighbours::open(&config.recovery), work)
}

/// What the cache holds, in the order of its tokens.
fn held_state(scheduler: &mut Scheduler<'_>) -> Vec<HeldState> {
    let mut held = resident::held_state(scheduler);
    held.sort();
    held
}

/// Every page and slot in use is the cache's.
fn assert_nothing_is_held(scheduler: &mut Scheduler<'_>) {
    // A page that was given away under a block is one that the index knows and nobody uses.
    let cache = scheduler.cache_mut();
    assert!(cache.used_pages() <= cache.cached_blocks(), "a page leaks");
    assert!(cache.used_slots() <= cache.cached_snapshots(), "a slot leaks");
}

fn serve(tokens: Vec<u32>, scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    scheduler.submit(ask(tokens, None), clock, out);
    while !scheduler.is_idle() {
        scheduler.step(clock, out);
        assert!(!scheduler.has_live(), "a request finds live state gone within the step");
    }
}

fn serve_dense(tokens: Vec<u32>, scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    scheduler.submit(ask(tokens, Some(false)), clock, out);
    while !scheduler.is_idle() {
        scheduler.step(clock, out);
    }
}

/// Lets so much time pass as the engine's loop would.
fn idle(seconds: f64, scheduler: &mut Scheduler<'_>, clock: &mut Clock, out: &mut Emitter) {
    let until = clock.now().after(Nanos::from_seconds(seconds));
    while clock.now() < until {
        match scheduler.background_step(Some(until), clock, out) {
            Rest::No => assert_sound(scheduler),
            Rest::For(time) => clock.skip_to(clock.now().after(Nanos::from(time)).min(until)),
            Rest::Open => clock.skip_to(until),
        }
    }
}

/// What is committed is restorable, and live state stands on top of it.
fn assert_sound(scheduler: &mut Scheduler<'_>) {
    let Some((tokens, committed, processed)) =
        scheduler.job().map(|job| (job.tokens().to_vec(), job.committed(), job.processed()))
    else {
        return assert_nothing_is_held(scheduler);
    };
    if !scheduler.has_live() {
        // What is lost between two slices is found out when the next one builds on it.
        return;
    }
    let restorable = scheduler.cache_mut().restorable_prefix(&tokens) as u64;
    assert!(committed <= restorable, "{committed} committed, {restorable} restorable");
    assert!(processed >= committed.min(restorable));
}

fn slices(events: &[Event]) -> Vec<&RecoverySlice> {
    let of = |event: &'_ Event| matches!(event.body, Body::RecoverySlice(_));
    let slices = events.iter().filter(|event| of(event)).map(|event| match &event.body {
        Body::RecoverySlice(slice) => &**slice,
        _ => unreachable!(),
    });
    slices.collect()
}

fn publications(events: &[Event]) -> Vec<&Publication> {
    let publications = events.iter().filter_map(|event| match &event.body {
        Body::Published(publication) => Some(&**publication),
        _ => None,
    });
    publications.collect()
}

fn ends(events: &[Event]) -> Vec<&JobEnded> {
    let ends = events.iter().filter_map(|event| match &event.body {
        Body::RecoveryEnded(ended) => Some(&**ended),
        _ => None,
    });
    ends.collect()
}

fn taken(events: &[Event]) -> Vec<DebtTaken> {
    let taken = events.iter().filter_map(|event| match &event.body {
        Body::DebtConsidered(considered) => Some(considered.taken),
        _ => None,
    });
    taken.collect()
}

fn retired(events: &[Event]) -> Vec<Why> {
    let retired = events.iter().filter_map(|event| match event.body {
        Body::Retired { why, .. } => Some(why),
        _ => None,
    });
    retired.collect()
}

const B: usize = BLOCK;

fn restored(events: &[Event]) -> Vec<u64> {
    let restored = events.iter().filter_map(|event| match &event.body {
        Body::Restored(restore) => Some(restore.checkpoint_tokens),
        _ => None,
    });
    restored.collect()
}
