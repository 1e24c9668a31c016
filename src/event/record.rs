//! Recordings: an event stream as versioned JSON lines.
//!
//! The first line is a header, `{"escarp_recording": 1, "escarp": "<version>"}`; each further line is one
//! [`Event`]. A recording holds prompts, so it is created readable by its owner only. It is written under a temporary
//! name and gets its own when it is complete, so an interrupted run leaves no half recording under that name.
//!
//! Writing happens on a thread of its own behind a bounded channel; what that thread cannot keep up with is counted and
//! written down as a gap.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::Receiver;

use super::{ChannelSink, Event};

/// Version of the format. A reader refuses a newer one.
pub const FORMAT: u32 = 1;

/// Undelivered events the recorder holds before it begins to lose some.
const BACKLOG: usize = 1 << 16;

/// Longest line accepted, bytes.
const MAX_LINE: u64 = 64 << 20;

/// Why a recording could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file system said no.
    #[error("{path}: {source}; {remedy}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// A line is not what it should be.
    #[error("{path}:{line}: {problem}; {remedy}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
        /// What to do about it.
        remedy: &'static str,
    },
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    escarp_recording: u32,
    escarp: String,
    /// Whose figures they are, where they are not this program's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    credit: Option<String>,
}

/// Name and text of every recording that comes with the program.
pub fn bundled() -> &'static [(&'static str, &'static str)] {
    &[("trace-b", include_str!("../../assets/recordings/trace-b.jsonl"))]
}

/// A recording being written.
pub struct Recorder {
    path: PathBuf,
    partial: PathBuf,
    thread: JoinHandle<std::io::Result<()>>,
}

impl Recorder {
    /// Starts a recording at `path`. Give the sink to the engine, and call [`Recorder::finish`] when the engine is done with it.
    pub fn create(path: &Path) -> Result<(ChannelSink, Recorder), RecordError> {
        let partial = partial_name(path);
        let refused = |source| RecordError::Io {
            path: path.to_owned(),
            source,
            remedy: "give `--record` a file in a folder you can write to",
        };
        if path.is_dir() {
            return Err(refused(std::io::ErrorKind::IsADirectory.into()));
        }
        let file = create_private(&partial).map_err(refused)?;
        let (sink, events) = ChannelSink::bounded(BACKLOG);
        let thread = std::thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || write_all(BufWriter::new(file), events))
            .map_err(refused)?;
        Ok((sink, Recorder { path: path.to_owned(), partial, thread }))
    }

    /// Waits until everything is on disk and gives the file its name. The sink must have been dropped.
    pub fn finish(self) -> Result<(), RecordError> {
        let Recorder { path, partial, thread } = self;
        let written = match thread.join() {
            Ok(written) => written,
            Err(_) => Err(std::io::Error::other("the recorder's thread panicked")),
        };
        written.and_then(|()| std::fs::rename(&partial, &path)).map_err(|source| RecordError::Io {
            path: partial,
            source,
            remedy: "what was written so far is in that file; check the disk's free space",
        })
    }

    /// Ends a recording that is not worth keeping, such as that of a run which never started. The sink must have been dropped.
    pub fn abandon(self) {
        let _ = self.thread.join();
        // A file that cannot be removed now could not be removed by a retry either.
        let _ = std::fs::remove_file(self.partial);
    }
}

fn partial_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    path.with_file_name(name)
}

fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn write_all(mut out: BufWriter<File>, mut events: Receiver<Event>) -> std::io::Result<()> {
    let header =
        Header { escarp_recording: FORMAT, escarp: env!("CARGO_PKG_VERSION").to_owned(), credit: None };
    write_line(&mut out, &header)?;
    while let Some(event) = events.blocking_recv() {
        write_line(&mut out, &event)?;
        if events.is_empty() {
            out.flush()?;
        }
    }
    out.flush()?;
    out.get_ref().sync_all()
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Whether the file begins like a recording.
pub fn is_recording(path: &Path) -> bool {
    let mut start = [0; 32];
    File::open(path)
        .and_then(|mut file| file.read(&mut start))
        .is_ok_and(|read| start[..read].starts_with(b"{\"escarp_recording\""))
}

/// Opens a bundled recording by its name, or a recording by its path. A bundled name wins over a file of that name in the working folder;
/// write `./trace-b` for the file.
pub fn open(name_or_path: &Path) -> Result<Vec<Event>, RecordError> {
    match bundled().iter().find(|(name, _)| name_or_path.as_os_str() == *name) {
        Some((name, text)) => parse(text.as_bytes(), Path::new(&format!("{name} (bundled)"))),
        None => read(name_or_path),
    }
}

/// Reads a recording. A last line that was cut off is left out.
pub fn read(path: &Path) -> Result<Vec<Event>, RecordError> {
    let file = File::open(path).map_err(|source| RecordError::Io {
        path: path.to_owned(),
        source,
        remedy: "give a recording made with `--record`, or `trace-b`, which comes with the program",
    })?;
    parse(BufReader::new(file), path)
}

/// Reads a recording from `input`, which errors call `path`.
fn parse(mut input: impl BufRead, path: &Path) -> Result<Vec<Event>, RecordError> {
    let io = |source| RecordError::Io {
        path: path.to_owned(),
        source,
        remedy: "give a recording made with `--record`",
    };
    let bad =
        |line, problem: String, remedy| RecordError::Line { path: path.to_owned(), line, problem, remedy };
    let mut events = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let read = (&mut input).take(MAX_LINE).read_until(b'\n', &mut line).map_err(io)?;
        if read as u64 == MAX_LINE {
            return Err(bad(
                number,
                format!("the line is longer than {MAX_LINE} bytes"),
                "is this a recording?",
            ));
        }
        let whole = line.ends_with(b"\n");
        if number == 1 {
            let header: Header = serde_json::from_slice(&line).map_err(|error| {
                bad(1, format!("not a recording's header: {error}"), "give a recording made with `--record`")
            })?;
            if header.escarp_recording > FORMAT {
                let problem = format!("format {} is newer than {FORMAT}", header.escarp_recording);
                return Err(bad(1, problem, "read it with the escarp that wrote it, or a later one"));
            }
            continue;
        }
        if read == 0 || !whole {
            break;
        }
        let event = serde_json::from_slice(&line).map_err(|error| {
            bad(number, error.to_string(), "the line is damaged; remove it to read the rest")
        })?;
        events.push(event);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Body, Sink, Stamp};

    fn events() -> Vec<Event> {
        (0..5)
            .map(|seq| Event {
                seq,
                at: Stamp(seq * 7),
                lane: None,
                request: None,
                body: Body::StalePage { count: seq },
            })
            .collect()
    }

    fn record(path: &Path) {
        let (mut sink, recorder) = Recorder::create(path).unwrap();
        events().iter().for_each(|event| sink.emit(event));
        assert!(!path.exists(), "the name is given at the end");
        drop(sink);
        recorder.finish().unwrap();
    }

    #[test]
    fn a_recording_reads_back_as_it_was_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        record(&path);
        assert!(is_recording(&path));
        assert_eq!(read(&path).unwrap(), events());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_cut_off_last_line_is_left_out_and_a_damaged_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.jsonl");
        record(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 9]).unwrap();
        assert_eq!(read(&path).unwrap(), events()[..4]);
        std::fs::write(&path, text.replace("\"seq\":2", "\"seq\":two")).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(error.contains("run.jsonl:4:"), "{error}");
    }

    #[test]
    fn a_newer_format_and_a_foreign_file_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "{\"escarp_recording\":2,\"escarp\":\"9\"}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("newer"));
        std::fs::write(&path, "hello\n").unwrap();
        assert!(!is_recording(&path));
        assert!(read(&path).unwrap_err().to_string().contains("x:1:"));
    }

    #[test]
    fn a_place_that_cannot_be_written_is_refused_before_anything_runs() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Recorder::create(&folder.path().join("no/such/folder/run.jsonl")).is_err());
        assert!(Recorder::create(folder.path()).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
