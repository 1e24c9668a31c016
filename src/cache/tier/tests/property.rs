//! Random histories against a model.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Step {
    /// Store a prompt, with snapshots where bits are set.
    Store(u8, u8),
    Read(u8),
    Flush,
    Reopen {
        blocks: u8,
        without_index: bool,
    },
    Corrupt(u8, u8),
    Truncate(u8, u8),
    Remove(u8, u8),
    Fill(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<u8>(), any::<u8>()).prop_map(|(prompt, snapshots)| Step::Store(prompt, snapshots)),
        6 => any::<u8>().prop_map(Step::Read),
        1 => Just(Step::Flush),
        2 => (4_u8..40, any::<bool>()).prop_map(|(blocks, without_index)| Step::Reopen { blocks, without_index }),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(prompt, at)| Step::Corrupt(prompt, at)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(prompt, at)| Step::Truncate(prompt, at)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(prompt, at)| Step::Remove(prompt, at)),
        1 => any::<bool>().prop_map(Step::Fill),
    ]
}

/// Prompts of up to six blocks that share beginnings.
fn prompt(number: u8) -> Vec<u32> {
    let turn = |at: u32| u32::from(number >> at & 1) * 1000 + at * 10;
    (0..1 + u32::from(number) % 6).flat_map(|at| (turn(at)..).take(BLOCK)).collect()
}

struct Run {
    dir: tempfile::TempDir,
    tier: Option<Tier>,
    /// Files that were tampered with and not met by a read since.
    tampered: HashMap<(Part, BlockHash), ()>,
}

impl Run {
    fn tier(&mut self) -> &mut Tier {
        self.tier.as_mut().unwrap()
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Store(number, snapshots) => {
                let at: Vec<_> = (0..6).filter(|at| snapshots >> at & 1 == 1).collect();
                store(self.tier(), &prompt(number), &at);
            }
            Step::Read(number) => self.read(&prompt(number)),
            Step::Flush => assert!(self.tier().flush(SOON)),
            Step::Reopen { blocks, without_index } => {
                self.tier = None;
                if without_index {
                    let _ = std::fs::remove_file(self.dir.path().join("index"));
                }
                let limit = u64::from(blocks) * 2000;
                self.tier = Some(open_with(self.dir.path(), limit, tuning()));
            }
            Step::Corrupt(number, at) => self.tamper(number, at, |file| {
                let middle = file.len() / 2;
                file[middle] ^= 16;
            }),
            Step::Truncate(number, at) => self.tamper(number, at, |file| file.truncate(file.len() - 1)),
            Step::Remove(number, at) => {
                if let Some((key, path)) = self.file(number, at)
                    && std::fs::remove_file(path).is_ok()
                {
                    self.tampered.insert(key, ());
                }
            }
            Step::Fill(full) => self.tier().inject(TierFault::Fill(full)).unwrap(),
        }
    }

    /// A block or snapshot of a prompt, on disk for sure.
    fn file(&mut self, number: u8, at: u8) -> Option<((Part, BlockHash), PathBuf)> {
        let places = self.tier().places(&prompt(number));
        let part = if at >> 7 == 0 { Part::Block } else { Part::Snapshot };
        let place = places[usize::from(at) % places.len()];
        assert!(self.tier().flush(SOON));
        let path = path_of(self.tier(), part, &place);
        path.exists().then_some(((part, place.hash), path))
    }

    fn tamper(&mut self, number: u8, at: u8, change: impl Fn(&mut Vec<u8>)) {
        let Some((key, path)) = self.file(number, at) else { return };
        let mut file = std::fs::read(&path).unwrap();
        change(&mut file);
        std::fs::write(path, file).unwrap();
        self.tampered.insert(key, ());
    }

    /// Everything that the lookup says is held comes and is right, except what was tampered with.
    fn read(&mut self, tokens: &[u32]) {
        let mut wanted = blocks(self.tier(), tokens);
        for end in 1..=tokens.len() / BLOCK {
            wanted.push(snapshot(self.tier(), &tokens[..end * BLOCK]));
        }
        let held = |tier: &Tier, w: &Wanted| matches!(tier.lookup(w.part, &w.place.hash), Lookup::Held(_));
        let before: Vec<_> = wanted.iter().map(|wanted| held(self.tier(), wanted)).collect();
        let results = read(self.tier(), wanted.clone());
        for ((wanted, before), result) in wanted.iter().zip(before).zip(results) {
            let tampered = self.tampered.remove(&(wanted.part, wanted.place.hash)).is_some();
            match result {
                // Tampered with, evicted or removed, and stored again since.
                Ok(()) => assert!(before),
                Err(_) if !before => {}
                Err(failure) => {
                    assert!(tampered, "{failure}");
                    assert!(!held(self.tier(), wanted));
                }
            }
        }
    }

    fn check(&mut self) {
        let dir = self.dir.path().to_owned();
        let tier = self.tier();
        assert!(tier.flush(SOON));
        let facts = tier.facts();
        assert!(facts.bytes <= facts.limit, "{facts:?}");
        assert_eq!((facts.queued_files, facts.queued_bytes), (0, 0));
        assert_eq!(files_in(&dir.join("tmp")), 0);
        // Bytes that were taken behind the tier's back are counted until a read or the next opening misses them.
        if self.tampered.is_empty() {
            assert_eq!(facts.bytes, on_disk(&dir), "{facts:?}");
        }
        let catalogue = &self.tier().catalogue;
        assert_eq!(catalogue.order_is_sound(), Ok(()));
    }
}

fn tuning() -> Tuning {
    Tuning { retry_after: Duration::ZERO, ..Tuning::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_held_is_right_and_bytes_add_up(steps in proptest::collection::vec(step(), 1..60)) {
        let dir = tempfile::tempdir().unwrap();
        let tier = Some(open_with(dir.path(), 40_000, tuning()));
        let mut run = Run { dir, tier, tampered: HashMap::new() };
        for step in &steps {
            run.step(step);
            run.check();
        }
        // Once more from headers alone.
        run.step(&Step::Reopen { blocks: 40, without_index: true });
        run.tampered.clear();
        run.check();
    }
}
