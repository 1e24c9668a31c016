//! Sampled replies have the distribution they would have without drafting.

use super::*;

#[test]
fn sampled_replies_repeat_by_seed_and_have_the_distribution_of_ordinary_ones() {
    // A vocabulary cut to a few tokens, so that counts mean something.
    let sampling = Sampling { temperature: 1.0, top_k: 4, ..Sampling::default() };
    let ask = |seed| Submission { sampling: Sampling { seed, ..sampling }, ..submission(prompt(1, 150), 5) };
    let draws = 1_500;
    let run = |way| {
        Setting::of(of("sim", DeviceSetting::Sim, way)).run(|scheduler, clock, out| {
            for seed in 0..draws {
                scheduler.submit(ask(seed), clock, out);
                drain(scheduler, clock, out);
            }
        })
    };
    // What follows the most frequent beginnings: verified rows behind one another, and the row behind an accepted draft.
    let ordinary = run(ORDINARY);
    let beginning = |came: &Came, length: usize| {
        let mut counts: BTreeMap<Vec<u32>, u32> = BTreeMap::new();
        for reply in came.replies.values() {
            *counts.entry(reply[..length].to_vec()).or_default() += 1;
        }
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(tokens, _)| tokens).unwrap()
    };
    let beginnings = [0, 1, 2].map(|length| beginning(&ordinary, length));
    let counts = |came: &Came| {
        let mut counts: BTreeMap<(usize, Vec<u32>), f64> = BTreeMap::new();
        for reply in came.replies.values() {
            for (place, beginning) in beginnings.iter().enumerate().filter(|(_, b)| reply.starts_with(b)) {
                let next = reply[beginning.len()..].iter().take(2).copied().collect();
                *counts.entry((place, next)).or_default() += 1.0;
            }
        }
        counts
    };
    let ordinary = counts(&ordinary);
    for way in [fixed(DrafterKind::Mtp, 3), fixed(DrafterKind::Draft, 2)] {
        let (came, again) = (run(way), run(way));
        assert_eq!(came.replies, again.replies, "by seed");
        assert!(came.accepted() > 100, "{}", came.accepted());
        let drafted = counts(&came);
        // Two samples of the same size: sum of (a - b)^2 / (a + b) is chi-squared.
        for place in 0..beginnings.len() {
            let tokens = drafted.keys().chain(ordinary.keys()).filter(|(at, _)| *at == place);
            let tokens: std::collections::BTreeSet<_> = tokens.collect();
            let (mut chi, mut kinds) = (0.0, 0.0);
            for token in tokens {
                let (a, b) = (drafted.get(token).unwrap_or(&0.0), ordinary.get(token).unwrap_or(&0.0));
                chi += (a - b) * (a - b) / (a + b);
                kinds += 1.0;
            }
            // Mean plus four deviations.
            let limit = kinds - 1.0 + 4.0 * (2.0_f64 * (kinds - 1.0)).sqrt();
            assert!(chi <= limit, "{way:?} beginning {place}: {chi} of {kinds} continuations");
        }
    }
}
