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

/// Bytes of all files that count against the limit.
fn on_disk(dir: &Path) -> u64 {
    let mut bytes = 0;
    let mut folders = ["blocks", "snapshots", "damaged"].map(|name| dir.join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "safetensors") {
                bytes += entry.metadata().unwrap().len();
            }
        }
    }
    bytes
}

fn files_in(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

fn path_of(tier: &Tier, part: Part, place: &Place) -> PathBuf {
    tier.folder.path(Key { part, hash: place.hash })
}

/// What the lookup says of each whole block of `tokens`: `#` held, `x` evicted, `.` absent.
fn held(tier: &Tier, part: Part, tokens: &[u32]) -> String {
    let word = |place: Place| match tier.lookup(part, &place.hash) {
        Lookup::Held(_) => '#',
        Lookup::Evicted(_) => 'x',
        Lookup::Absent => '.',
    };
    tier.places(tokens).into_iter().map(word).collect()
}

/// Bytes of a block's file here, when it has a parent to name.
fn block_bytes() -> u64 {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    store(&mut tier, &tokens(1, 1), &[]);
    let first = tier.facts().bytes;
    store(&mut tier, &tokens(1, 2), &[]);
    tier.facts().bytes - first
}

#[cfg(unix)]
#[test]
fn folders_and_files_are_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let outer = tempfile::tempdir().unwrap();
    let dir = outer.path().join("new");
    let mut tier = open(&dir);
    store(&mut tier, &tokens(1, 2), &[1]);
    drop(tier);
    let mut seen = 0;
    let mut left = vec![dir];
    while let Some(path) = left.pop() {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        if path.is_dir() {
            assert_eq!(mode, 0o700, "{}", path.display());
            left.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            assert_eq!(mode, 0o600, "{}", path.display());
            seen += 1;
        }
    }
    assert_eq!(seen, 3 + 2, "three of state, lock and index");
}

#[test]
fn a_folder_has_one_owner_and_the_second_is_told_who() {
    let dir = tempfile::tempdir().unwrap();
    let tier = open(dir.path());
    let second = Tier::open(dir.path(), &identity(), LAYERS, SIZES, PLENTY).unwrap_err();
    let pid = std::process::id();
    assert!(matches!(&second, TierError::Locked { pid: Some(told), .. } if *told == pid), "{second:?}");
    let text = second.to_string();
    assert!(
        text.contains(&dir.path().display().to_string()) && text.contains(&format!("process {pid}")),
        "{text}"
    );
    drop(tier);
    open(dir.path());
}

#[test]
fn other_folders_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "").unwrap();
    let refused = Tier::open(dir.path(), &identity(), LAYERS, SIZES, PLENTY).unwrap_err();
    assert!(matches!(refused, TierError::NotACache { .. }), "{refused:?}");
    assert_eq!(files_in(dir.path()), 1);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("lock"), "escarp cache 2\n").unwrap();
    let refused = Tier::open(dir.path(), &identity(), LAYERS, SIZES, PLENTY).unwrap_err();
    assert!(matches!(&refused, TierError::Version { found, .. } if found == "escarp cache 2"), "{refused:?}");
}

#[test]
fn the_least_recently_used_chain_goes_from_its_end_and_takes_snapshots_along() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let (old, new) = (tokens(100, 3), tokens(200, 3));
    store(&mut tier, &old, &[2]);
    store(&mut tier, &new, &[]);
    // A block is a little larger than a snapshot here.
    let limit = tier.facts().bytes + SIZES.page;
    drop(tier);
    let mut tier = open_with(dir.path(), limit, Tuning::default());
    assert_eq!(store(&mut tier, &tokens(300, 1), &[]), [Offer::Taken]);
    assert_eq!(
        held(&tier, Part::Block, &old),
        "###",
        "the snapshot, which was used before its chain was, made room"
    );
    assert_eq!(held(&tier, Part::Snapshot, &old), "..x");
    store(&mut tier, &tokens(400, 1), &[]);
    assert_eq!((&*held(&tier, Part::Block, &old), &*held(&tier, Part::Block, &new)), ("##x", "###"));
    let gone = Lookup::Evicted(Evicted { at: Stamp(9), for_request: Some(RequestId(3)) });
    assert_eq!(tier.lookup(Part::Block, &tier.places(&old)[2].hash), gone);
    // A used chain outlives an unused one.
    tier.touch(&tier.places(&old).iter().map(|place| place.hash).collect::<Vec<_>>());
    store(&mut tier, &tokens(500, 2), &[]);
    assert_eq!((&*held(&tier, Part::Block, &old), &*held(&tier, Part::Block, &new)), ("##x", "#xx"));
    assert!(tier.flush(SOON));
    let facts = tier.facts();
    assert!(facts.bytes <= limit);
    assert_eq!((facts.bytes, facts.evicted_files), (on_disk(dir.path()), 4));
    let evicted: u64 =
        tier.poll().iter().map(|note| if let Note::Evicted { files, .. } = note { *files } else { 0 }).sum();
    assert_eq!(evicted, 4);
}

#[test]
fn a_block_is_evicted_with_a_snapshot_that_was_used_later() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let old = tokens(100, 2);
    store(&mut tier, &old, &[1]);
    store(&mut tier, &tokens(200, 1), &[]);
    tier.touch_snapshot(&tier.places(&old)[1].hash);
    tier.limit_bytes = tier.facts().bytes;
    store(&mut tier, &tokens(300, 1), &[]);
    assert_eq!((&*held(&tier, Part::Block, &old), &*held(&tier, Part::Snapshot, &old)), ("#x", ".x"));
}

#[test]
fn a_chain_that_fills_the_bound_is_not_eaten_by_its_own_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open_with(dir.path(), 3 * block_bytes(), Tuning::default());
    let offers = store(&mut tier, &tokens(1, 4), &[]);
    assert_eq!(offers, [Offer::Taken, Offer::Taken, Offer::Taken, Offer::NoRoom]);
    assert_eq!((&*held(&tier, Part::Block, &tokens(1, 4)), tier.facts().declined), ("###.", 1));
    let (prompt, last) = (tokens(1, 3), tier.places(&tokens(1, 3))[2]);
    let offer = tier.offer_snapshot(&last, state_of(Part::Snapshot, &last.hash), origin(3), Stamp(9));
    assert_eq!((offer, &*held(&tier, Part::Block, &prompt)), (Offer::NoRoom, "###"), "nor by its snapshot");
    assert!(tier.flush(SOON));
    assert_eq!(tier.facts().bytes, on_disk(dir.path()));
    let mut small = open_with(&dir.path().join("small"), 50, Tuning::default());
    assert_eq!(store(&mut small, &tokens(1, 1), &[]), [Offer::NoRoom]);
}

#[test]
fn a_full_queue_declines_and_nobody_waits() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open_with(dir.path(), PLENTY, Tuning { queue_bytes: 3 * SIZES.page, ..Tuning::default() });
    tier.inject(TierFault::Stall(Duration::from_millis(300))).unwrap();
    let before = Instant::now();
    let offers = store(&mut tier, &tokens(1, 6), &[]);
    assert!(before.elapsed() < Duration::from_millis(200), "{:?}", before.elapsed());
    let taken = offers.iter().filter(|offer| **offer == Offer::Taken).count();
    assert!(
        (1..6).contains(&taken) && offers[taken..].iter().all(|offer| *offer == Offer::QueueFull),
        "{offers:?}"
    );
    assert_eq!(tier.facts().declined as usize, 6 - taken);
    assert!(tier.facts().queued_bytes <= 3 * SIZES.page);
    let wanted = blocks(&tier, &tokens(1, 6));
    let results = read(&mut tier, wanted);
    assert!(results[..taken].iter().all(Result::is_ok), "what waits is read from memory: {results:?}");
    assert!(results[taken..].iter().all(|result| *result == Err(ReadFailure::Missing)), "{results:?}");
    assert!(tier.flush(SOON));
    assert_eq!(store(&mut tier, &tokens(1, 6), &[])[taken], Offer::Taken);
}

#[test]
fn a_full_disk_suspends_writing_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let tuning = Tuning { retry_after: Duration::from_secs(1), ..Tuning::default() };
    let mut tier = open_with(dir.path(), PLENTY, tuning);
    let (before, after) = (tokens(1, 2), tokens(50, 2));
    store(&mut tier, &before, &[]);
    assert!(tier.flush(SOON));
    tier.inject(TierFault::Fill(true)).unwrap();
    // The writer may have failed with the first before the second is offered.
    let offers = store(&mut tier, &after, &[]);
    assert_eq!(offers[0], Offer::Taken);
    assert!(matches!(offers[1], Offer::Taken | Offer::Suspended), "{offers:?}");
    let taken = offers.iter().filter(|offer| **offer == Offer::Taken).count() as u64;
    assert!(tier.flush(SOON));
    assert_eq!(held(&tier, Part::Block, &after), "..");
    assert_eq!(files_in(&dir.path().join("tmp")), 0);
    let facts = tier.facts();
    assert_eq!((facts.blocks, facts.failed_writes, facts.queued_bytes), (2, taken, 0));
    assert!(facts.problem.is_some());
    assert_eq!(facts.bytes, on_disk(dir.path()));
    let notes = tier.poll();
    assert!(notes.iter().any(|note| matches!(note, Note::Suspended { .. })), "{notes:?}");
    assert_eq!(store(&mut tier, &after, &[]), [Offer::Suspended; 2]);
    let wanted = blocks(&tier, &before);
    assert_eq!(read(&mut tier, wanted), vec![Ok(()); 2]);
    tier.inject(TierFault::Fill(false)).unwrap();
    std::thread::sleep(Duration::from_millis(1_100));
    assert_eq!(store(&mut tier, &after, &[]), [Offer::Taken; 2]);
    assert!(tier.flush(SOON));
    assert!(tier.poll().contains(&Note::Resumed));
    assert_eq!((tier.facts().problem, tier.facts().blocks), (None, 4));
}

#[test]
fn a_disk_that_stands_still_costs_the_deadline_and_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let prompt = tokens(1, 6);
    store(&mut tier, &prompt, &[]);
    assert!(tier.flush(SOON));
    tier.inject(TierFault::Stall(Duration::from_millis(800))).unwrap();
    let wanted = blocks(&tier, &prompt);
    let before = Instant::now();
    let results: Vec<_> = tier.read(wanted.clone(), Duration::from_millis(100)).collect();
    assert!(before.elapsed() < Duration::from_millis(400), "{:?}", before.elapsed());
    assert!(results.iter().all(|result| matches!(result, Err(ReadFailure::TimedOut))), "{results:?}");
    assert!(!tier.flush(Duration::ZERO) || tier.facts().queued_files == 0);
    assert_eq!(read(&mut tier, wanted), vec![Ok(()); 6], "nothing was lost by it");
}

#[test]
fn damage_in_any_region_is_noticed_moved_aside_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let prompt = tokens(1, 6);
    store(&mut tier, &prompt, &[5]);
    let places = tier.places(&prompt);
    let regions = [Region::Length, Region::Header, Region::Tokens, Region::State, Region::Checksum];
    for (place, region) in places.iter().zip(regions) {
        tier.inject(TierFault::Corrupt { part: Part::Block, hash: place.hash, region }).unwrap();
    }
    tier.inject(TierFault::Truncate { part: Part::Block, hash: places[5].hash }).unwrap();
    let part = Part::Snapshot;
    tier.inject(TierFault::Corrupt { part, hash: places[5].hash, region: Region::State }).unwrap();
    let mut wanted = blocks(&tier, &prompt);
    wanted.push(snapshot(&tier, &prompt));
    let results = read(&mut tier, wanted.clone());
    for result in &results {
        assert!(matches!(result, Err(ReadFailure::Damaged { .. })), "{results:?}");
    }
    assert_eq!(held(&tier, Part::Block, &prompt), "......");
    assert_eq!((tier.facts().damaged, tier.facts().blocks), (7, 0));
    let notes = tier.poll();
    assert_eq!(notes.iter().filter(|note| matches!(note, Note::Damaged { .. })).count(), 7, "{notes:?}");
    assert!(tier.flush(SOON));
    assert_eq!(files_in(&dir.path().join("damaged")), 14, "each with its cause");
    assert_eq!(store(&mut tier, &prompt, &[5]), [Offer::Taken; 7]);
    assert!(tier.flush(SOON));
    assert_eq!(read(&mut tier, wanted), vec![Ok(()); 7]);
    let truncated: u64 = tier.facts().bytes;
    assert!(truncated > 0);
    drop(tier);
    assert_eq!(open(dir.path()).facts().bytes, truncated);
}

#[test]
fn a_missing_file_is_missing_and_can_be_written_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let prompt = tokens(1, 2);
    store(&mut tier, &prompt, &[]);
    assert!(tier.flush(SOON));
    std::fs::remove_file(path_of(&tier, Part::Block, &tier.places(&prompt)[0])).unwrap();
    let wanted = blocks(&tier, &prompt);
    assert_eq!(read(&mut tier, wanted), [Err(ReadFailure::Missing), Ok(())]);
    assert_eq!(store(&mut tier, &prompt, &[]), [Offer::Taken, Offer::AlreadyHeld]);
}

#[test]
fn a_file_in_anothers_place_is_never_state() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let prompt = tokens(1, 2);
    store(&mut tier, &prompt, &[]);
    assert!(tier.flush(SOON));
    let places = tier.places(&prompt);
    let [first, second] = [0, 1].map(|at| path_of(&tier, Part::Block, &places[at]));
    std::fs::copy(second, first).unwrap();
    let wanted = blocks(&tier, &prompt);
    let results = read(&mut tier, wanted.clone());
    assert!(
        matches!(results[0], Err(ReadFailure::Damaged { .. } | ReadFailure::Foreign { .. })),
        "{results:?}"
    );
    // A prompt that claims a block with other tokens gets nothing either.
    let mut lie = wanted[1].clone();
    lie.tokens[0] += 1;
    let results = read(&mut tier, vec![lie]);
    assert!(matches!(results[0], Err(ReadFailure::Foreign { .. })), "{results:?}");
}

#[test]
fn what_another_identity_holds_is_told_counted_and_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = tokens(1, 6);
    let other = Identity { precision: "f32", block_tokens: 2 * BLOCK, ..identity() };
    let mut theirs = Tier::open(dir.path(), &other, LAYERS, SIZES, PLENTY).unwrap();
    let places = theirs.places(&prompt);
    for (place, block) in places.iter().zip(prompt.chunks_exact(2 * BLOCK)).take(2) {
        assert_eq!(theirs.offer_block(place, block, vec![0; 200], origin(1), Stamp(0)), Offer::Taken);
    }
    drop(theirs);
    let mut tier = open(dir.path());
    let found = tier.foreign_match(&prompt).unwrap();
    assert_eq!(found.tokens, 4 * BLOCK);
    assert_eq!(found.differs, "precision f32, here int8; tokens a block 8, here 4");
    assert_eq!(tier.foreign_match(&tokens(2, 6)), None);
    assert_eq!(held(&tier, Part::Block, &prompt), "......");
    let facts = tier.facts();
    assert_eq!((facts.blocks, facts.foreign_blocks, facts.foreign_bytes), (0, 2, facts.bytes));
    tier.limit_bytes = facts.bytes;
    assert_eq!(store(&mut tier, &prompt[..BLOCK], &[]), [Offer::Taken]);
    assert_eq!((tier.facts().blocks, tier.facts().foreign_blocks), (1, 1));
    assert_eq!(tier.foreign_match(&prompt).unwrap().tokens, 2 * BLOCK);
}

#[test]
fn the_order_of_use_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let (first, second) = (tokens(100, 2), tokens(200, 2));
    store(&mut tier, &first, &[]);
    store(&mut tier, &second, &[]);
    tier.touch(&tier.places(&first).iter().map(|place| place.hash).collect::<Vec<_>>());
    let limit = tier.facts().bytes;
    drop(tier);
    let mut tier = open_with(dir.path(), limit, Tuning::default());
    store(&mut tier, &tokens(300, 1), &[]);
    assert_eq!((&*held(&tier, Part::Block, &first), &*held(&tier, Part::Block, &second)), ("##", "#x"));
    drop(tier);
    // A lower bound evicts when the folder is opened.
    let tier = open_with(dir.path(), 2 * block_bytes(), Tuning::default());
    assert_eq!(tier.facts().blocks, 2);
    drop(tier);
    assert!(on_disk(dir.path()) <= 2 * block_bytes());
}

#[test]
fn the_index_is_a_hint() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = tokens(1, 4);
    let mut tier = open(dir.path());
    store(&mut tier, &prompt, &[3]);
    let paths: Vec<_> = tier.places(&prompt).iter().map(|place| path_of(&tier, Part::Block, place)).collect();
    let facts = tier.facts();
    drop(tier);
    let index = dir.path().join("index");
    let whole = std::fs::read(&index).unwrap();
    let known = index_file::load(&index);
    assert_eq!(known.len(), 5);
    for at in (0..whole.len()).step_by(7) {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        std::fs::write(&index, &damaged).unwrap();
        assert!(index_file::load(&index).is_empty(), "byte {at}");
        std::fs::write(&index, &whole[..at]).unwrap();
        assert!(index_file::load(&index).is_empty(), "cut at {at}");
    }
    // The last one written was a damaged one; then there is none.
    let found = open(dir.path()).facts();
    assert_eq!((found.blocks, found.bytes), (4, facts.bytes));
    std::fs::remove_file(&index).unwrap();
    assert_eq!(open(dir.path()).facts().bytes, facts.bytes);
    // An index of files that are gone or changed.
    std::fs::write(&index, &whole).unwrap();
    std::fs::remove_file(&paths[0]).unwrap();
    std::fs::write(&paths[1], "short").unwrap();
    let mut tier = open(dir.path());
    assert_eq!(held(&tier, Part::Block, &prompt), "..##");
    let notes = tier.poll();
    assert!(matches!(&notes[..], [Note::Damaged { .. }]), "{notes:?}");
}

#[test]
fn unfinished_files_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    std::fs::write(dir.path().join("tmp/77.safetensors"), "half a file").unwrap();
    drop(open(dir.path()));
    assert_eq!(files_in(&dir.path().join("tmp")), 0);
}

#[test]
fn only_so_many_damaged_files_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let prompt = tokens(1, folder::MOST_ASIDE + 5);
    store(&mut tier, &prompt, &[]);
    assert!(tier.flush(SOON));
    for place in tier.places(&prompt) {
        std::fs::write(path_of(&tier, Part::Block, &place), "rubbish").unwrap();
    }
    let wanted = blocks(&tier, &prompt);
    assert!(read(&mut tier, wanted).iter().all(Result::is_err));
    assert!(tier.flush(SOON));
    assert_eq!(files_in(&dir.path().join("damaged")), 2 * folder::MOST_ASIDE);
}

mod format;
mod inventory;
mod property;

#[test]
fn state_of_other_layers_is_refused_by_name_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = tokens(100, 2);
    store(&mut open(dir.path()), &prompt, &[]);
    let others = Layers { attention: 2, recurrent: 5 };
    let mut tier =
        Tier::open_tuned(dir.path(), &identity(), others, SIZES, PLENTY, Tuning::default()).unwrap();
    let wanted = blocks(&tier, &prompt);
    let what =
        "it holds 2 attention and 6 recurrent layers, the model has 2 attention and 5 recurrent layers";
    let refused = ReadFailure::Foreign { what: what.to_owned() };
    assert_eq!(read(&mut tier, wanted.clone()), [Err(refused.clone()), Err(refused)]);
    assert_eq!(store(&mut tier, &prompt, &[]), [Offer::Taken; 2]);
    assert_eq!(read(&mut tier, wanted), [Ok(()), Ok(())]);
}

#[test]
fn a_folder_with_a_lock_of_somebody_else_is_no_cache_folder() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("lock"), "").unwrap();
    drop(open(dir.path()));
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("lock"), "").unwrap();
    std::fs::create_dir(other.path().join("src")).unwrap();
    let refused = Tier::open(other.path(), &identity(), LAYERS, SIZES, PLENTY).unwrap_err();
    assert!(matches!(refused, TierError::NotACache { .. }), "{refused}");
}

#[test]
fn a_cache_folder_whose_lock_was_being_rewritten_is_still_one() {
    let dir = tempfile::tempdir().unwrap();
    let prompt = tokens(7, 3);
    let mut tier = open(dir.path());
    store(&mut tier, &prompt, &[]);
    assert!(tier.flush(SOON));
    drop(tier);
    let lock = dir.path().join("lock");
    // Of a power cut, whatever the order of writes was.
    std::fs::write(&lock, "").unwrap();
    drop(open(dir.path()));
    // Of a kill: the new text over the start of the old one.
    std::fs::write(&lock, "escarp cache 1\nprocess 12\n456\n").unwrap();
    drop(open(dir.path()));
    let said = std::fs::read_to_string(&lock).unwrap();
    assert_eq!(said, "escarp cache 1\n");
}
