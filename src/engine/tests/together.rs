//! Many sequences at once on real arithmetic: what each says is what it says alone, whatever shares its forwards and whoever has to make way.

use std::path::Path;

use super::hybrid::replies;
use super::preemption::{preemptions, scheduling, tight};
use super::*;
use crate::config::DeviceSetting;
use crate::model;

fn load(name: &str) -> Loaded {
    let mut config = Config::default();
    config.model.device = DeviceSetting::Cpu;
    config.model.path = Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name));
    config.model.threads = 2;
    config.cache.block_tokens = BLOCK;
    let Loaded { executor, text, .. } = model::load(&config).unwrap();
    Loaded { executor, text, scorer: None, draft: None }
}

/// Requests of several lanes that share beginnings, some greedy and some drawn.
fn requests(vocab: u32) -> Vec<Submission> {
    let request = |n: usize| {
        let shared = (0..n % 3 * 40).map(|i| (i * 5 + 1) as u32 % vocab);
        let own = (0..60 + n * 23).map(|i| ((n + 1) * 131 + i * 17 + i * i % 29) as u32 % vocab);
        let mut request = submission(shared.chain(own).collect(), 40 + n as u64 * 5);
        request.lane = LaneId(n as u32 % 3);
        if n % 2 == 1 {
            request.sampling = Sampling { temperature: 0.9, seed: n as u64, ..Sampling::default() };
        }
        request
    };
    (0..6).map(request).collect()
}

fn run(name: &str, ground: &Ground, use_cache: bool, together: bool) -> Vec<Event> {
    let loaded = load(name);
    let requests = requests(loaded.executor.facts().vocab as u32);
    let ((), events) = ground.run_on(loaded, |scheduler, clock, out| {
        for request in requests {
            scheduler.submit(Submission { use_cache, ..request }, clock, out);
            if !together {
                drain(scheduler, clock, out);
            }
        }
        drain(scheduler, clock, out);
    });
    assert_eq!(events.iter().find(|event| matches!(event.body, Body::Failed { .. })), None);
    events
}

#[test]
fn sequences_that_run_together_say_what_each_says_alone() {
    for (name, hybrid) in [("parity-odd-hybrid", true), ("parity-odd-moe", true), ("parity-llama", false)] {
        let alone = run(name, &tight(scheduling(1, 10_000), 400, hybrid), false, false);
        let expected = replies(&alone);
        assert_eq!(expected.len(), 6);
        let mut made_way = 0;
        for (max_sequences, chunk_tokens, step_tokens, pages) in [
            (6, 100, None, 200),
            (6, 37, Some(50), 200),
            (4, 64, None, 9),
            (5, 29, Some(33), 10),
            (3, 7, Some(5), 8),
        ] {
            let ground = tight(
                SchedulerConfig { step_tokens, ..scheduling(max_sequences, chunk_tokens) },
                pages,
                hybrid,
            );
            for use_cache in [true, false] {
                let events = run(name, &ground, use_cache, true);
                assert_eq!(replies(&events), expected, "{name} on {ground:?}");
                made_way += preemptions(&events).values().sum::<usize>();
            }
        }
        assert!(made_way > 5, "{name}: {made_way} preemptions");
    }
}
