//! A cache folder: whose state, which chains, how many bytes, what is wrong.

use std::path::Path;
use std::sync::Mutex;

use serde::Serialize;

use super::super::Failure;
use super::super::output::Output;
use super::super::progress::Progress;
use crate::cache::tier::inventory::{FileCount, IdentityInventory, Inventory, inventory};
use crate::report::{Align, Table, bytes, counted, or_dash, printable, thousands};

/// What `--json` prints.
#[derive(Serialize)]
struct Cache<'a> {
    kind: &'static str,
    #[serde(flatten)]
    inventory: &'a Inventory,
}

/// Damaged files that are told one by one.
const MOST_TOLD: usize = 20;

pub(super) fn inspect(path: &Path, verify: bool, json: bool, output: &mut Output) -> Result<(), Failure> {
    let progress = Mutex::new(Progress::new());
    let verb = if verify { "checking" } else { "reading headers" };
    let show = |looked: u64, of: u64| {
        // Whoever finds it taken has nothing newer to say.
        if let Ok(mut progress) = progress.try_lock() {
            progress.show(|| format!("{verb}: {} of {}", thousands(looked), counted(of, "file")));
        }
    };
    let inventory = inventory(path, verify, &show)?;
    drop(progress);
    if json {
        return output.json(&Cache { kind: "cache", inventory: &inventory });
    }
    output.text(&text(&inventory))
}

fn text(inventory: &Inventory) -> String {
    let path = printable(&inventory.folder.display().to_string());
    let mut text = format!("{path}\n\n{}", facts(inventory));
    for identity in &inventory.identities {
        text.push_str(&format!("\n{}", of_identity(identity)));
    }
    if !inventory.damage.is_empty() {
        text.push_str(&format!("\n{}", damage(inventory)));
        if let Some(more) = inventory.damage.len().checked_sub(MOST_TOLD).filter(|more| *more > 0) {
            text.push_str(&format!("and {} more; --json tells all\n", thousands(more as u64)));
        }
    }
    text
}

/// What is true of the folder as a whole.
fn facts(inventory: &Inventory) -> Table {
    let mut facts = Table::new(&[("cache folder", Align::Left), ("", Align::Left)]);
    let owner = match (inventory.in_use, inventory.process) {
        (false, _) => "nobody".to_owned(),
        (true, None) => "a process".to_owned(),
        (true, Some(process)) => format!("process {process}"),
    };
    facts.row(["in use by", &owner]);
    let all = FileCount { files: inventory.files, bytes: inventory.bytes };
    facts.row(["blocks and snapshots", &size(all)]);
    let checked = if inventory.verified { "every byte" } else { "headers; --verify checks the rest" };
    facts.row(["checked", checked]);
    let damaged = inventory.damage.len() as u64;
    facts.row(["damaged", &if damaged == 0 { "none".to_owned() } else { counted(damaged, "file") }]);
    facts.row(["set aside before", &size(inventory.set_aside)]);
    facts.row(["unfinished", &size(inventory.unfinished)]);
    facts
}

fn size(count: FileCount) -> String {
    match count.files {
        0 => "none".to_owned(),
        files => format!("{}, {}", counted(files, "file"), bytes(count.bytes)),
    }
}

fn of_identity(identity: &IdentityInventory) -> Table {
    let short = |digest: &str| digest.chars().take(12).collect::<String>();
    let mut facts = Table::new(&[("identity", Align::Left), (&short(&identity.root), Align::Left)]);
    let mut fact = |name: &str, value: String| facts.row([name, &value]);
    fact("model", short(&identity.model));
    fact("tokenizer and template", short(&identity.text));
    fact("computed", format!("{} by {}, {}", identity.precision, identity.family, identity.positions));
    let (attention, recurrent) = (identity.attention_layers.into(), identity.recurrent_layers.into());
    fact("layers", format!("{} attention, {} recurrent", thousands(attention), thousands(recurrent)));
    let blocks = identity.blocks;
    fact("blocks", format!("{} of {}", size(blocks), counted(identity.block_tokens, "token")));
    fact("tokens", thousands(identity.tokens));
    fact("snapshots", size(identity.snapshots));
    fact("placeholders", or_dash(identity.placeholders, thousands));
    let longest = counted(identity.longest_chain_tokens, "token");
    fact(
        "chains",
        match identity.chains {
            0 => "none".to_owned(),
            chains => format!("{}, the longest {longest}", thousands(chains)),
        },
    );
    let orphans = match identity.orphans {
        0 => "none".to_owned(),
        orphans => format!(
            "{}, no prompt gets to {}",
            counted(orphans, "block"),
            counted(identity.unreachable_blocks, "block")
        ),
    };
    fact("without parent", orphans);
    if identity.orphan_snapshots > 0 {
        fact("without block", counted(identity.orphan_snapshots, "snapshot"));
    }
    facts
}

fn damage(inventory: &Inventory) -> Table {
    let mut damage = Table::new(&[("damaged", Align::Left), ("name", Align::Left), ("what", Align::Left)]);
    for file in inventory.damage.iter().take(MOST_TOLD) {
        damage.row([file.part, &file.hash, &file.what]);
    }
    damage
}
