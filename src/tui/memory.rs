//! The device's memory on one line.

use ratatui::text::Span;

use super::text::{bytes, thousands, width};
use super::theme::Tone;
use super::view::Canvas;
use crate::event::DeviceMemory;
use crate::ledger::{RequestFacts, ShrunkChunks};

/// Columns of the bar.
const BAR: u64 = 10;

/// What the words of the gauge mean, for the help.
pub static WORDS: &[(&str, &str)] = &[
    ("device", "weights and state, and what a forward works with"),
    ("peak", "the most that was ever in use, within a forward too"),
    ("buffer cache", "freed buffers the allocator keeps for the next forward"),
    ("limit", "prefill chunks shrink to stay below it"),
];

/// Memory in use, its peak, what is freed and kept, and the limit with a bar (`█` in use, `▒` up to the peak). What does not fit
/// `room` columns is left out: the freed first, then the peak, the limit, and all of it.
pub fn gauge(memory: DeviceMemory, room: usize) -> String {
    let DeviceMemory { active_bytes, peak_bytes, cached_bytes, limit_bytes } = memory;
    let active = bytes(active_bytes);
    let device = Some(format!("device {active}"));
    let peak = Some(format!("peak {}", like(&active, bytes(peak_bytes))));
    let cached = cached_bytes.map(|cached| format!("buffer cache {}", like(&active, bytes(cached))));
    let limit =
        limit_bytes.map(|limit| format!("limit {} {}", bytes(limit), bar(active_bytes, peak_bytes, limit)));
    let lines = [
        [&device, &peak, &cached, &limit],
        [&device, &peak, &None, &limit],
        [&device, &None, &None, &limit],
        [&device, &None, &None, &None],
    ];
    let lines =
        lines.map(|parts| parts.into_iter().flatten().map(String::as_str).collect::<Vec<_>>().join(" · "));
    lines.into_iter().find(|line| width(line) <= room).unwrap_or_default()
}

/// `value` without its unit where that is the one of `first`, which stands before it.
fn like(first: &str, value: String) -> String {
    match (first.split_once(' '), value.split_once(' ')) {
        (Some((_, unit)), Some((number, same))) if unit == same => number.to_owned(),
        _ => value,
    }
}

/// A bar of what is in use (`█`) and was at most (`▒`) of a limit.
pub(super) fn bar(used: u64, peak: u64, limit: u64) -> String {
    let columns = |value: u64| {
        let columns = u128::from(value) * u128::from(BAR) / u128::from(limit.max(1));
        columns.min(u128::from(BAR)) as usize
    };
    let used = columns(used);
    let peak = columns(peak).max(used);
    format!("{}{}{}", "█".repeat(used), "▒".repeat(peak - used), "░".repeat(BAR as usize - peak))
}

/// What memory made of a request's prefill chunks, then the gauge as it was last told of the request. Each is a group of spans; there is
/// none where nothing was counted.
pub fn of_request(canvas: &Canvas<'_>, request: &RequestFacts, room: usize) -> Vec<Vec<Span<'static>>> {
    let shrunk = request.shrunk.map(|shrunk| canvas.span(shrunk_words(shrunk), Tone::Warn));
    let device = request.device_memory.map(|memory| gauge(memory, room)).filter(|words| !words.is_empty());
    let device = device.map(|words| canvas.span(words, Tone::Text));
    let groups = [shrunk, device].into_iter().flatten();
    groups.map(|span| vec![span, canvas.span("  ", Tone::Dim)]).collect()
}

fn shrunk_words(shrunk: ShrunkChunks) -> String {
    let ShrunkChunks { chunks, smallest_tokens } = shrunk;
    let plural = if chunks == 1 { "" } else { "s" };
    let (chunks, smallest) = (thousands(chunks), thousands(smallest_tokens));
    format!("{chunks} prefill chunk{plural} shrunk to fit in memory, smallest {smallest} tok")
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory(limit_bytes: Option<u64>) -> DeviceMemory {
        let cached_bytes = Some(3 * GIB / 10);
        DeviceMemory { active_bytes: 12 * GIB, peak_bytes: 19 * GIB, cached_bytes, limit_bytes }
    }

    #[test]
    fn the_gauge_says_what_fits() {
        let whole = "device 12.0 GiB · peak 19.0 · buffer cache 307.2 MiB · limit 48.0 GiB ██▒░░░░░░░";
        let limited = memory(Some(48 * GIB));
        assert_eq!(gauge(limited, 100), whole);
        assert_eq!(gauge(limited, width(whole)), whole);
        let shorter = "device 12.0 GiB · peak 19.0 · limit 48.0 GiB ██▒░░░░░░░";
        assert_eq!(gauge(limited, width(whole) - 1), shorter);
        assert_eq!(gauge(limited, width(shorter) - 1), "device 12.0 GiB · limit 48.0 GiB ██▒░░░░░░░");
        assert_eq!(gauge(limited, 20), "device 12.0 GiB");
        assert_eq!(gauge(limited, 14), "");
    }

    #[test]
    fn what_the_device_does_not_keep_is_left_out_rather_than_zero() {
        assert_eq!(gauge(memory(None), 100), "device 12.0 GiB · peak 19.0 · buffer cache 307.2 MiB");
        let plain = DeviceMemory { cached_bytes: None, ..memory(None) };
        assert_eq!(gauge(plain, 100), "device 12.0 GiB · peak 19.0");
    }

    #[test]
    fn the_bar_stays_in_its_columns() {
        for limit in [0, 1, GIB, u64::MAX] {
            assert_eq!(width(&bar(u64::MAX, 0, limit)), BAR as usize);
            assert_eq!(width(&bar(GIB, 3 * GIB, limit)), BAR as usize);
        }
    }

    #[test]
    fn words_for_one_chunk_and_for_several() {
        let words = |chunks| shrunk_words(ShrunkChunks { chunks, smallest_tokens: 64 });
        assert_eq!(words(1), "1 prefill chunk shrunk to fit in memory, smallest 64 tok");
        assert_eq!(words(1_200), "1,200 prefill chunks shrunk to fit in memory, smallest 64 tok");
    }
}
