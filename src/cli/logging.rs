//! Where the program's own log goes: a file, never standard output or error.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use super::Failure;

/// Sends log lines to `path`, if one is given, and to `view`, if the caller shows them itself. Without either, nothing is
/// logged. The filter is `RUST_LOG`, else everything of this program from `info` up.
pub(super) fn start(
    path: Option<&Path>,
    view: Option<Box<dyn Layer<Registry> + Send + Sync>>,
) -> Result<(), Failure> {
    let file = path.map(private_file).transpose()?.map(|file| {
        tracing_subscriber::fmt::layer().with_ansi(false).with_writer(Mutex::new(file)).with_filter(filter())
    });
    if file.is_none() && view.is_none() {
        return Ok(());
    }
    tracing_subscriber::registry().with(view).with(file).try_init().map_err(Failure::run)
}

fn filter() -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("escarp=info"))
}

/// Log lines may quote prompts, which are private.
fn private_file(path: &Path) -> Result<File, Failure> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(|error| {
        Failure::input(format_args!(
            "{}: {error}; give `--log` a file in a folder that you may write to",
            path.display()
        ))
    })
}
