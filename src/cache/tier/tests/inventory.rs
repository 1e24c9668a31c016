use super::super::inventory::{FileCount, inventory};
use super::*;

fn look(dir: &Path, verify: bool) -> super::super::inventory::Inventory {
    inventory(dir, verify, &|_, _| {}).unwrap()
}

#[test]
fn an_inventory_counts_chains_placeholders_orphans_and_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut tier = open(dir.path());
    let long = tokens(100, 5);
    let branch = [&long[..2 * BLOCK], &tokens(900, 1)].concat();
    let cut = tokens(500, 4);
    store(&mut tier, &long, &[1, 4]);
    store(&mut tier, &branch, &[]);
    store(&mut tier, &cut, &[1]);
    assert!(tier.flush(SOON));
    let missing = path_of(&tier, Part::Block, &tier.places(&cut)[1]);
    std::fs::remove_file(missing).unwrap();
    let held = look(dir.path(), false);
    assert_eq!((held.in_use, held.process), (true, Some(std::process::id())));
    drop(tier);
    let found = look(dir.path(), false);
    assert_eq!((found.in_use, found.identities.len(), found.files), (false, 1, 12));
    assert_eq!(found.bytes, on_disk(dir.path()));
    let own = &found.identities[0];
    assert_eq!((own.blocks.files, own.snapshots.files, own.tokens), (9, 3, 36));
    assert_eq!(own.placeholders, Some(7));
    assert_eq!((own.chains, own.longest_chain_tokens), (3, 20), "the stump of the cut one is a chain too");
    assert_eq!((own.orphans, own.unreachable_blocks, own.orphan_snapshots), (1, 2, 1));
    assert_eq!((&found.damage[..], found.unfinished), (&[][..], FileCount::default()));

    // Damage to state is seen by those who read it, damage to a header by everybody.
    let mut tier = open(dir.path());
    let places = tier.places(&long);
    for (place, region) in places.iter().zip([Region::State, Region::Length]) {
        tier.inject(TierFault::Corrupt { part: Part::Block, hash: place.hash, region }).unwrap();
    }
    drop(tier);
    assert_eq!(look(dir.path(), false).damage.len(), 1);
    let verified = look(dir.path(), true);
    assert_eq!((verified.damage.len(), verified.verified, verified.files), (2, true, 12));
    assert_eq!(verified.bytes, on_disk(dir.path()));
}

#[test]
fn an_inventory_of_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(!is_cache_folder(dir.path()));
    assert!(inventory(dir.path(), false, &|_, _| {}).is_err());
    drop(open(dir.path()));
    assert!(is_cache_folder(dir.path()));
    assert_eq!(look(dir.path(), true).files, 0);
}
