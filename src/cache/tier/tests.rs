use std::path::Path;

use super::*;

pub(super) const BLOCK: usize = 4;
pub(super) const SIZES: StateBytes = StateBytes { page: 200, slot: 100 };
pub(super) const LAYERS: Layers = Layers { attention: 2, recurrent: 6 };
pub(super) const SOON: Duration = Duration::from_secs(20);
const PLENTY: u64 = 1 << 30;

pub(super) fn identity() -> Identity {
    Identity { model: [1; 32], text: [2; 32], precision: "int8", family: "cpu", block_tokens: BLOCK }
}

pub(super) fn origin(request: u64) -> Origin {
    Origin {
        run: "0123456789abcdef".to_owned(),
        request: RequestId(request),
        route: Route::Dense,
        written_unix_ms: 7,
    }
}

/// The state of a block or snapshot, told by its name.
pub(super) fn state_of(part: Part, hash: &BlockHash) -> Vec<u8> {
    let size = SIZES.of(part) as usize;
    let seed = hash.bytes()[0].wrapping_add(part as u8);
    (0..size).map(|i| hash.bytes()[i % 32].wrapping_mul(3).wrapping_add(seed)).collect()
}

fn open_with(dir: &Path, limit: u64, tuning: Tuning) -> Tier {
    Tier::open_tuned(dir, &identity(), LAYERS, SIZES, limit, tuning).unwrap()
}

fn open(dir: &Path) -> Tier {
    open_with(dir, PLENTY, Tuning::default())
}

/// Offers every whole block of `tokens`, and the snapshots at the ends of those in `snapshots`.
fn store(tier: &mut Tier, tokens: &[u32], snapshots: &[usize]) -> Vec<Offer> {
    let places = tier.places(tokens);
    let mut offers = Vec::new();
    for (number, (place, block)) in places.iter().zip(tokens.chunks_exact(BLOCK)).enumerate() {
        let state = state_of(Part::Block, &place.hash);
        offers.push(tier.offer_block(place, block, state, origin(3), Stamp(9)));
        if snapshots.contains(&number) {
            let state = state_of(Part::Snapshot, &place.hash);
            offers.push(tier.offer_snapshot(place, state, origin(3), Stamp(9)));
        }
    }
    tier.touch(&places.iter().map(|place| place.hash).collect::<Vec<_>>());
    offers
}

fn blocks(tier: &Tier, tokens: &[u32]) -> Vec<Wanted> {
    let places = tier.places(tokens);
    let wanted = places.into_iter().zip(tokens.chunks_exact(BLOCK));
    wanted.map(|(place, block)| Wanted { part: Part::Block, place, tokens: block.into() }).collect()
}

fn snapshot(tier: &Tier, tokens: &[u32]) -> Wanted {
    let place = *tier.places(tokens).last().unwrap();
    Wanted { part: Part::Snapshot, place, tokens: Box::default() }
}

/// Reads, and checks that whatever comes is what was stored.
fn read(tier: &mut Tier, wanted: Vec<Wanted>) -> Vec<Result<(), ReadFailure>> {
    let asked = wanted.clone();
    let results: Vec<_> = tier.read(wanted, SOON).collect();
    assert_eq!(results.len(), asked.len());
    let check = |(result, wanted): (Result<Payload, ReadFailure>, &Wanted)| {
        result.map(|payload| assert_eq!(*payload.state, state_of(wanted.part, &wanted.place.hash)))
    };
    results.into_iter().zip(&asked).map(check).collect()
}

fn tokens(from: u32, blocks: usize) -> Vec<u32> {
    (from..).take(blocks * BLOCK).collect()
}

#[test]
fn what_was_taken_comes_back_from_memory_from_disk_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let prompt = tokens(100, 5);
    assert_eq!(store(&mut tier, &prompt, &[2, 4]), [Offer::Taken; 7]);
    assert_eq!(store(&mut tier, &prompt, &[2, 4]), [Offer::AlreadyHeld; 7]);
    let mut wanted = blocks(&tier, &prompt);
    wanted.push(snapshot(&tier, &prompt));
    wanted.push(snapshot(&tier, &prompt[..3 * BLOCK]));
    assert_eq!(read(&mut tier, wanted.clone()), vec![Ok(()); 7]);
    assert!(tier.flush(SOON));
    assert_eq!(read(&mut tier, wanted.clone()), vec![Ok(()); 7]);
    let facts = tier.facts();
    assert_eq!((facts.blocks, facts.snapshots, facts.written_files, facts.queued_files), (5, 2, 7, 0));
    drop(tier);
    let mut tier = open(dir.path());
    assert_eq!(read(&mut tier, wanted), vec![Ok(()); 7]);
    assert_eq!(tier.lookup(Part::Block, &tier.places(&prompt)[1].hash), Lookup::Held(&origin(3)));
    assert_eq!(tier.facts().bytes, facts.bytes);
}
