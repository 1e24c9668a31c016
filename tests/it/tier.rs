//! A cache folder across processes: killed while they write, one at a time, and looked at from the command line.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use escarp::cache::chain::{BlockHash, Identity};
use escarp::cache::tier::inventory::inventory;
use escarp::cache::tier::{
    Layers, Lookup, Note, Offer, Origin, Part, Payload, Place, ReadFailure, StateBytes, Tier, Wanted,
};
use escarp::event::{RequestId, Route, Stamp};

use crate::cli::{run, stderr, succeed};

const BLOCK: usize = 16;
const SIZES: StateBytes = StateBytes { page: 5000, slot: 3000 };
const SOON: Duration = Duration::from_secs(30);
const PLENTY: u64 = 1 << 30;
/// A bound that a writer reaches within a few prompts.
const TIGHT: u64 = 150_000;

/// Folder, bound and first prompt of a writer, for a child process.
const CHILD: &str = "ESCARP_TEST_TIER_WRITER";
/// How many writers to kill, where it is not a thousand.
const KILLS: &str = "ESCARP_TEST_TIER_KILLS";

fn identity() -> Identity {
    Identity { model: [4; 32], text: [5; 32], precision: "int8", family: "cpu", block_tokens: BLOCK }
}

fn open(folder: &Path, limit: u64) -> Tier {
    let layers = Layers { attention: 2, recurrent: 6 };
    Tier::open(folder, &identity(), layers, SIZES, limit).unwrap()
}

/// Three blocks of a prompt of its own.
fn prompt(number: u64) -> Vec<u32> {
    (0..3 * BLOCK as u32).map(|at| number as u32 * 1000 + at).collect()
}

/// State that no other block has, told by its name.
fn state_of(part: Part, hash: &BlockHash) -> Vec<u8> {
    let size = if part == Part::Block { SIZES.page } else { SIZES.slot };
    hash.bytes().iter().map(|byte| byte ^ part as u8).cycle().take(size as usize).collect()
}

fn origin() -> Origin {
    let run = "00112233445566ff".to_owned();
    Origin { run, request: RequestId(1), route: Route::Dense, written_unix_ms: 0 }
}

/// Every block of a prompt, and the snapshot at its end.
fn wanted(tier: &Tier, number: u64) -> Vec<Wanted> {
    let tokens = prompt(number);
    let places: Vec<Place> = tier.places(&tokens);
    let block = |(place, tokens): (&Place, &[u32])| Wanted {
        part: Part::Block,
        place: *place,
        tokens: tokens.into(),
    };
    let mut wanted: Vec<_> = places.iter().zip(tokens.chunks_exact(BLOCK)).map(block).collect();
    wanted.push(Wanted { part: Part::Snapshot, place: places[2], tokens: Box::default() });
    wanted
}

fn store(tier: &mut Tier, number: u64) -> bool {
    wanted(tier, number).into_iter().all(|Wanted { part, place, tokens }| {
        let state = state_of(part, &place.hash);
        let offer = match part {
            Part::Block => tier.offer_block(&place, &tokens, state, origin(), Stamp(0)),
            Part::Snapshot => tier.offer_snapshot(&place, state, origin(), Stamp(0)),
        };
        matches!(offer, Offer::Taken | Offer::AlreadyHeld)
    })
}

/// The writer: stores prompt after prompt, and says of each when it is durable. Ends by being killed.
#[test]
fn child_that_writes() {
    let Ok(task) = std::env::var(CHILD) else { return };
    let [limit, first, folder] = task.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let (limit, first): (u64, u64) = (limit.parse().unwrap(), first.parse().unwrap());
    let mut tier = open(Path::new(folder), limit);
    let mut out = std::io::stdout();
    out.write_all(b"\nopen\n").unwrap();
    for number in first.. {
        let whole = store(&mut tier, number);
        if number % 4 < 3 && tier.flush(SOON) && whole {
            out.write_all(format!("durable {number}\n").as_bytes()).unwrap();
        }
    }
}

fn spawn_writer(folder: &Path, limit: u64, first: u64) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "tier::child_that_writes", "--nocapture", "--test-threads=1"]);
    child.env(CHILD, format!("{limit} {first} {}", folder.display()));
    child.stdout(Stdio::piped()).spawn().unwrap()
}

/// Lets a writer write for a while and kills it. Gives the prompts that it said were durable.
fn write_and_kill(folder: &Path, limit: u64, first: u64, chance: &mut Chance) -> Vec<u64> {
    let mut child = spawn_writer(folder, limit, first);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    // One in eight dies while it starts or opens the folder, the others while they write.
    if chance.below(8) > 0 {
        assert!(lines.by_ref().any(|line| line == "open"));
    }
    std::thread::sleep(Duration::from_micros(chance.below(30_000)));
    child.kill().unwrap();
    child.wait().unwrap();
    lines.filter_map(|line| line.strip_prefix("durable ")?.parse().ok()).collect()
}

/// Reads a prompt back. Whatever comes is right; gives whether all of it came.
fn read_back(tier: &mut Tier, number: u64) -> bool {
    let wanted = wanted(tier, number);
    let asked = wanted.clone();
    let results: Vec<Result<Payload, ReadFailure>> = tier.read(wanted, SOON).collect();
    let mut whole = true;
    for (result, wanted) in results.iter().zip(&asked) {
        match result {
            Ok(payload) => assert_eq!(*payload.state, state_of(wanted.part, &wanted.place.hash)),
            Err(ReadFailure::Missing) => whole = false,
            Err(failure) => panic!("{wanted:?}: {failure}"),
        }
    }
    whole
}

/// A linear congruential sequence: kills need no better one.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Prompts that a round's writer may have begun to write.
const ROUND: u64 = 1000;

/// Gives how many prompts were durable when their writer was killed.
fn kill_writers(rounds: u64, seed: u64) -> usize {
    let mut chance = Chance(seed);
    let mut folder = tempfile::tempdir().unwrap();
    let mut durable: HashSet<u64> = HashSet::new();
    let mut seen = 0;
    for round in 0..rounds {
        let limit = if round % 2 == 0 { PLENTY } else { TIGHT };
        let first = round * ROUND;
        let said = write_and_kill(folder.path(), limit, first, &mut chance);
        let mut tier = open(folder.path(), PLENTY);
        let notes = tier.poll();
        assert!(!notes.iter().any(|note| matches!(note, Note::Damaged { .. })), "{notes:?}");
        seen += said.len();
        if limit == PLENTY {
            durable.extend(&said);
        } else {
            // What made room for what is another test's matter.
            durable.clear();
        }
        for number in first..first + ROUND {
            let whole = read_back(&mut tier, number);
            assert!(whole || !durable.contains(&number), "round {round}: prompt {number} was durable");
            let [end] = tier.places(&prompt(number))[2..] else { panic!() };
            let begun = tier.places(&prompt(number))[0];
            let absent = |part, place: Place| tier.lookup(part, &place.hash) == Lookup::Absent;
            let past_the_last = said.last().is_none_or(|last| number > *last + 1);
            if past_the_last && absent(Part::Block, begun) && absent(Part::Snapshot, end) {
                break;
            }
        }
        if round % 50 == 49 {
            let found = inventory(folder.path(), true, &|_, _| {}).unwrap();
            assert_eq!((found.damage.len(), found.set_aside.files), (0, 0), "{found:?}");
            assert_eq!(found.bytes, tier.facts().bytes);
            drop(tier);
            folder = tempfile::tempdir().unwrap();
            durable.clear();
        }
    }
    seen
}

#[test]
fn no_kill_at_any_moment_leaves_a_wrong_byte_or_takes_a_durable_one() {
    let kills = std::env::var(KILLS).ok().map_or(1000, |kills| kills.parse().unwrap());
    let start = Instant::now();
    let halves = [kills / 2, kills - kills / 2];
    let seen: usize = std::thread::scope(|scope| {
        let seed = |half: usize| half as u64 * 77 + 1;
        let threads: Vec<_> = halves
            .iter()
            .enumerate()
            .map(|(half, kills)| scope.spawn(move || kill_writers(*kills, seed(half))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{kills} kills in {:.1} s, {seen} prompts durable before", start.elapsed().as_secs_f64());
    assert!(seen > 0, "no writer lived long enough to write anything");
}

#[test]
fn a_second_process_is_told_who_has_the_folder() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = spawn_writer(folder.path(), TIGHT, 0);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line == "open"));
    let layers = Layers { attention: 2, recurrent: 6 };
    let refused = Tier::open(folder.path(), &identity(), layers, SIZES, TIGHT).unwrap_err().to_string();
    let text = succeed(&["inspect".as_ref(), folder.path().as_os_str()]);
    child.kill().unwrap();
    child.wait().unwrap();
    let process = format!("process {}", child.id());
    assert!(refused.contains(&process) && refused.contains("give another folder"), "{refused}");
    assert!(text.contains(&process), "{text}");
}

/// A folder with a prompt of three blocks, and the file of its first block.
fn folder_with_a_prompt() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let mut tier = open(folder.path(), PLENTY);
    assert!(store(&mut tier, 7) && tier.flush(SOON));
    let name = tier.places(&prompt(7))[0].hash.to_string();
    let file = folder.path().join("blocks").join(&name[..2]).join(name).with_extension("safetensors");
    assert!(file.exists());
    (folder, file)
}

#[test]
fn inspect_says_what_a_cache_folder_holds_and_verify_what_is_wrong() {
    let (folder, file) = folder_with_a_prompt();
    let inspect = |more: &[&str]| {
        let arguments = [&["inspect", folder.path().to_str().unwrap()], more].concat();
        succeed(&arguments)
    };
    let text = inspect(&[]);
    for line in ["in use by             nobody", "damaged               none", "tokens                  48"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(text.contains("1, the longest 48 tokens"), "{text}");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() - 1000;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let json = |more: &[&str]| serde_json::from_str::<serde_json::Value>(&inspect(more)).unwrap();
    let quick = json(&["--json"]);
    assert_eq!((&quick["kind"], quick["damage"].as_array().unwrap().len()), (&"cache".into(), 0));
    let own = &quick["identities"][0];
    assert_eq!(
        (&own["precision"], &own["placeholders"], &own["chains"]),
        (&"int8".into(), &2.into(), &1.into())
    );
    let verified = json(&["--json", "--verify"]);
    assert_eq!(verified["damage"][0]["what"], "checksum does not match");
    assert!(inspect(&["--verify"]).contains("checksum does not match"));
    let refused = run(&["inspect", "steady", "--verify"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("give a cache folder"), "{}", stderr(&refused));
}

/// Figures for the record, not facts to hold everywhere: `cargo test --release --test it tier::figures -- --ignored --nocapture`.
mod figures {
    use super::*;
    use escarp::cache::tier::format::{Header, IdentityFacts, Image};
    use escarp::cache::tier::places;

    /// Puts `count` blocks in chains of a hundred into a folder, without waiting for the disk.
    fn fill(folder: &Path, count: usize) {
        drop(open(folder, PLENTY));
        let facts = IdentityFacts::of(&identity());
        for chain in 0..count / 100 {
            let tokens: Vec<u32> = (0..100 * BLOCK).map(|at| (chain * 100 * BLOCK + at) as u32).collect();
            for (place, block) in
                places(facts.root(), &tokens, BLOCK).into_iter().zip(tokens.chunks_exact(BLOCK))
            {
                let state = vec![1; 1000];
                let header = Header {
                    part: Part::Block,
                    place,
                    identity: facts.clone(),
                    layers: Layers { attention: 2, recurrent: 6 },
                    origin: origin(),
                    state_bytes: state.len() as u64,
                };
                let image = Image::new(&header, block, state);
                let name = place.hash.to_string();
                let shard = folder.join("blocks").join(&name[..2]);
                std::fs::create_dir_all(&shard).unwrap();
                let file = [&image.head[..], &image.state, &image.checksum()].concat();
                std::fs::write(shard.join(name).with_extension("safetensors"), file).unwrap();
            }
        }
    }

    #[test]
    #[ignore = "writes 100,000 files"]
    fn inventory_of_100_000_blocks() {
        let folder = tempfile::tempdir().unwrap();
        fill(folder.path(), 100_000);
        for verify in [false, false, true] {
            let start = Instant::now();
            let found = inventory(folder.path(), verify, &|_, _| {}).unwrap();
            assert_eq!((found.files, found.damage.len()), (100_000, 0));
            println!("inventory, verify {verify}: {:.2} s", start.elapsed().as_secs_f64());
        }
        for what in ["headers", "index"] {
            let start = Instant::now();
            let tier = open(folder.path(), PLENTY);
            println!("open by {what}: {:.2} s", start.elapsed().as_secs_f64());
            assert_eq!(tier.facts().bytes, inventory(folder.path(), false, &|_, _| {}).unwrap().bytes);
            let start = Instant::now();
            drop(tier);
            println!("close: {:.2} s", start.elapsed().as_secs_f64());
        }
    }

    #[test]
    #[ignore = "writes 200 MB"]
    fn restore_of_100_blocks_of_2_mb() {
        let folder = tempfile::tempdir().unwrap();
        let page = 2_000_000;
        let layers = Layers { attention: 2, recurrent: 0 };
        let sizes = StateBytes { page, slot: 0 };
        let mut tier = Tier::open(folder.path(), &identity(), layers, sizes, PLENTY).unwrap();
        let tokens: Vec<u32> = (0..100 * BLOCK as u32).collect();
        let places = tier.places(&tokens);
        let start = Instant::now();
        let mut offering = Duration::ZERO;
        for (place, block) in places.iter().zip(tokens.chunks_exact(BLOCK)) {
            let state = vec![place.depth as u8; page as usize];
            let start = Instant::now();
            assert_eq!(tier.offer_block(place, block, state, origin(), Stamp(0)), Offer::Taken);
            offering += start.elapsed();
        }
        assert!(tier.flush(SOON));
        let took = start.elapsed().as_secs_f64();
        println!("offers: {:.2} ms in all; durable after {took:.2} s", offering.as_secs_f64() * 1e3);
        let wanted: Vec<_> = places
            .iter()
            .zip(tokens.chunks_exact(BLOCK))
            .map(|(place, block)| Wanted { part: Part::Block, place: *place, tokens: block.into() })
            .collect();
        for cold in [false, true] {
            if cold {
                for place in &places {
                    let name = place.hash.to_string();
                    let file = folder
                        .path()
                        .join("blocks")
                        .join(&name[..2])
                        .join(name)
                        .with_extension("safetensors");
                    let mut drop_pages = Command::new("dd");
                    drop_pages.arg(format!("if={}", file.display())).args([
                        "iflag=nocache",
                        "count=0",
                        "status=none",
                    ]);
                    assert!(drop_pages.status().unwrap().success());
                }
            }
            let start = Instant::now();
            for (result, place) in tier.read(wanted.clone(), SOON).zip(&places) {
                assert_eq!(result.unwrap().state[7], place.depth as u8);
            }
            println!("restore of 200 MB, page cache cold {cold}: {:.3} s", start.elapsed().as_secs_f64());
        }
        let start = Instant::now();
        let held =
            places.iter().filter(|place| matches!(tier.lookup(Part::Block, &place.hash), Lookup::Held(_)));
        println!("lookup of {} blocks: {:.1} µs", held.count(), start.elapsed().as_secs_f64() * 1e6);
    }
}
