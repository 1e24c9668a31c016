//! Faults as palette entries: what each needs, and which block it would hit.

use super::app::Model;
use super::panes::request::chosen_block;
use crate::engine::Fault;

/// Stands for a block's number in [`Fault::FORMS`].
const BLOCK: &str = ":N";

/// The block a fault would hit: the one that the rack marks.
pub fn target(model: &Model) -> Option<u32> {
    let restore = model.selected()?.restore.as_ref()?;
    Some(restore.blocks.get(chosen_block(model, restore)?)?.index)
}

/// The fault number `form` of [`Fault::FORMS`] on the chosen block; `None` where it needs a block and none is chosen, or seconds.
pub fn ready(model: &Model, form: usize) -> Option<Fault> {
    let (name, _) = Fault::FORMS.get(form)?;
    with_block(name, target(model)).parse().ok()
}

/// What to type for it, as far as it is known.
pub fn prefill(model: &Model, form: usize) -> String {
    let name = Fault::FORMS.get(form).map_or("", |(name, _)| name);
    with_block(name, target(model)).replace(BLOCK, ":").replace("SECONDS", "5")
}

/// The palette entry, with the block it would hit.
pub fn label(model: &Model, form: usize) -> String {
    let Some((name, words)) = Fault::FORMS.get(form) else { return String::new() };
    let block = target(model).filter(|_| name.ends_with(BLOCK));
    let words = match block {
        Some(block) => words.replace("block N", &format!("block {block}")),
        None => (*words).to_owned(),
    };
    format!("{} · {words}", with_block(name, block))
}

fn with_block(form: &str, block: Option<u32>) -> String {
    match (form.strip_suffix(BLOCK), block) {
        (Some(name), Some(block)) => format!("{name}:{block}"),
        _ => form.to_owned(),
    }
}

/// Why fault number `form` makes no sense now.
pub fn obstacle(model: &Model, form: usize) -> Result<(), &'static str> {
    let Some(run) = model.ledger().run() else { return Err("the model is still loading") };
    let Some(needs) = Fault::FORMS.get(form).and_then(|(name, _)| Needs::of(name)) else { return Ok(()) };
    let prompted = model.history().iter().any(|request| request.restore.is_some());
    match needs {
        Needs { snapshots: true, .. } if run.snapshot_bytes.is_none() => {
            Err("this model has no recurrent layers")
        }
        Needs { tier: true, .. } if run.cache_dir.is_none() => {
            Err("there is no SSD tier; start with `--cache-dir`")
        }
        Needs { block: true, .. } if !prompted => Err("no prompt has been served; `n` runs a turn"),
        _ => Ok(()),
    }
}

/// What a fault can only happen to.
struct Needs {
    block: bool,
    tier: bool,
    snapshots: bool,
}

impl Needs {
    fn of(form: &str) -> Option<Needs> {
        let fault: Fault = form.replace("SECONDS", "1").replace(BLOCK, ":0").parse().ok()?;
        let (block, tier, snapshots) = match fault {
            Fault::EvictBlock(_) | Fault::LoseBlock(_) | Fault::ChangeGeneration(_) => (true, false, false),
            Fault::DropSnapshot(_) => (true, false, true),
            Fault::CorruptFile(_) | Fault::TruncateFile(_) => (true, true, false),
            Fault::CorruptSnapshot(_) => (true, true, true),
            Fault::StallDisk(_) | Fault::FillDisk | Fault::FreeDisk => (false, true, false),
        };
        Some(Needs { block, tier, snapshots })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_known() {
        for (form, _) in Fault::FORMS {
            assert!(Needs::of(form).is_some(), "{form}");
        }
    }

    #[test]
    fn a_block_is_put_where_the_form_has_one() {
        assert_eq!(with_block("evict-block:N", Some(7)), "evict-block:7");
        assert_eq!(with_block("evict-block:N", None), "evict-block:N");
        assert_eq!(with_block("fill-disk", Some(7)), "fill-disk");
        let empty = Model::default();
        assert_eq!(prefill(&empty, 0), "evict-block:");
        assert_eq!(prefill(&empty, 7), "stall-disk:5");
        assert_eq!(label(&empty, 8), "fill-disk · the disk is full from now on");
        assert_eq!(ready(&empty, 0), None);
        assert_eq!(ready(&empty, 8), Some(Fault::FillDisk));
    }
}
