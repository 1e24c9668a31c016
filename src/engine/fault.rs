//! Faults to inject: what goes wrong in the field, on demand.
//!
//! A fault concerns blocks of the active lane's latest prompt, counted from 0, or the SSD tier as a whole. Each ends as a named cause or an error
//! of a later request, never as wrong output.

use std::fmt;
use std::str::FromStr;

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// Drop a block from RAM, and all behind it that only it leads to.
    EvictBlock(u32),
    /// Drop a block from RAM and from the SSD tier.
    LoseBlock(u32),
    /// Drop the recurrent layers' snapshot at a block's end, from RAM and from the SSD tier.
    DropSnapshot(u32),
    /// Flip a bit in a block's file, and drop the block from RAM.
    CorruptFile(u32),
    /// Cut a block's file short, and drop the block from RAM.
    TruncateFile(u32),
    /// Flip a bit in a snapshot's file, and drop the snapshot from RAM.
    CorruptSnapshot(u32),
    /// Give a block's page away while it is still referred to.
    ChangeGeneration(u32),
    /// The disk stands still for so many seconds.
    StallDisk(f64),
    /// The disk is full from now on.
    FillDisk,
    /// The disk has room again.
    FreeDisk,
}

/// Text that names no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no fault: {problem}; write one of {}", Fault::FORMS.map(|(form, _)| form).join(", "))]
pub struct BadFault {
    text: String,
    problem: String,
}

impl Fault {
    /// How every fault is written, and what it does.
    pub const FORMS: [(&'static str, &'static str); 10] = [
        ("evict-block:N", "drop block N from RAM, with all behind it"),
        ("lose-block:N", "drop block N from RAM and SSD"),
        ("drop-snapshot:N", "drop the recurrent snapshot at the end of block N"),
        ("corrupt-file:N", "flip a bit in the SSD file of block N"),
        ("truncate-file:N", "cut the SSD file of block N short"),
        ("corrupt-snapshot:N", "flip a bit in the SSD file of the snapshot of block N"),
        ("change-generation:N", "give the page of block N away while it is referred to"),
        ("stall-disk:SECONDS", "the disk stands still"),
        ("fill-disk", "the disk is full from now on"),
        ("free-disk", "the disk has room again"),
    ];
}

impl FromStr for Fault {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Fault, BadFault> {
        let bad = |problem: &str| BadFault { text: text.to_owned(), problem: problem.to_owned() };
        let (name, value) = match text.trim().split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (text.trim(), None),
        };
        let block = || {
            let value = value.ok_or_else(|| bad("the number of a block is missing"))?;
            value.parse().map_err(|_| bad("a block is a number, from 0"))
        };
        let plain = |fault| match value {
            None => Ok(fault),
            Some(_) => Err(bad("it takes no value")),
        };
        match name {
            "evict-block" => block().map(Fault::EvictBlock),
            "lose-block" => block().map(Fault::LoseBlock),
            "drop-snapshot" => block().map(Fault::DropSnapshot),
            "corrupt-file" => block().map(Fault::CorruptFile),
            "truncate-file" => block().map(Fault::TruncateFile),
            "corrupt-snapshot" => block().map(Fault::CorruptSnapshot),
            "change-generation" => block().map(Fault::ChangeGeneration),
            "stall-disk" => match value.and_then(|value| value.parse::<f64>().ok()) {
                Some(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(Fault::StallDisk(seconds)),
                _ => Err(bad("seconds from 0 to 3600 are missing")),
            },
            "fill-disk" => plain(Fault::FillDisk),
            "free-disk" => plain(Fault::FreeDisk),
            _ => Err(bad("there is none of this name")),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::EvictBlock(block) => write!(f, "evict-block:{block}"),
            Fault::LoseBlock(block) => write!(f, "lose-block:{block}"),
            Fault::DropSnapshot(block) => write!(f, "drop-snapshot:{block}"),
            Fault::CorruptFile(block) => write!(f, "corrupt-file:{block}"),
            Fault::TruncateFile(block) => write!(f, "truncate-file:{block}"),
            Fault::CorruptSnapshot(block) => write!(f, "corrupt-snapshot:{block}"),
            Fault::ChangeGeneration(block) => write!(f, "change-generation:{block}"),
            Fault::StallDisk(seconds) => write!(f, "stall-disk:{seconds}"),
            Fault::FillDisk => f.write_str("fill-disk"),
            Fault::FreeDisk => f.write_str("free-disk"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_written_as_it_is_read() {
        for (form, _) in Fault::FORMS {
            let text = form.replace("SECONDS", "1.5").replace('N', "7");
            let fault: Fault = text.parse().unwrap();
            assert_eq!(fault.to_string(), text);
        }
        for text in ["", "evict-block", "evict-block:x", "fill-disk:3", "stall-disk:-1", "burn-disk"] {
            let error = text.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains("write one of evict-block:N,"), "{error}");
        }
    }
}
