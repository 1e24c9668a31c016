//! Bad input gets one clear message that names the file, the field and the remedy, exit code 2, and leaves nothing behind.

use std::path::{Path, PathBuf};

use super::{escarp, stderr};

/// A folder that a failing command must leave as it found it.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.path(name), content).unwrap();
        self.path(name)
    }

    fn listing(&self) -> Vec<PathBuf> {
        let mut names: Vec<_> =
            std::fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        names
    }

    /// Runs a command line in the folder; a word may name a file there. The message must contain every one of `words`.
    fn refuses(&self, arguments: &[&str], words: &[&str]) {
        let before = self.listing();
        let output = escarp().args(arguments).current_dir(self.folder.path()).output().unwrap();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed something");
        assert!(message.starts_with("escarp: ") && message.lines().count() == 1, "one message: {message}");
        assert!(!message.contains("panicked"), "{message}");
        for word in words {
            assert!(message.contains(word), "{arguments:?}: `{word}` is not in: {message}");
        }
        assert_eq!(self.listing(), before, "{arguments:?} left something behind");
    }
}

const RECORDED: &[&str] = &["--record", "out.jsonl"];

fn replay<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["replay", "--session", "quick"], more, RECORDED].concat()
}

/// The start of a GGUF file: version 3, and the two counts.
fn gguf(tensors: u64, entries: u64) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(entries.to_le_bytes());
    bytes
}

/// A metadata entry that is a string.
fn string_entry(key: &str, value: &str) -> Vec<u8> {
    const STRING: u32 = 8;
    let mut bytes = Vec::new();
    bytes.extend((key.len() as u64).to_le_bytes());
    bytes.extend(key.as_bytes());
    bytes.extend(STRING.to_le_bytes());
    bytes.extend((value.len() as u64).to_le_bytes());
    bytes.extend(value.as_bytes());
    bytes
}

#[test]
fn a_model_that_is_not_there() {
    let scene = Scene::new();
    scene.refuses(&replay(&["--model", "none.gguf"]), &["none.gguf", "no such file", "scarp, talus"]);
}

#[test]
fn a_truncated_gguf_file() {
    let scene = Scene::new();
    let whole = [gguf(0, 1), string_entry("general.architecture", "llama")].concat();
    for length in [4, 8, 16, 24, 40, whole.len() - 1] {
        scene.file("cut.gguf", &whole[..length]);
        scene.refuses(&replay(&["--model", "cut.gguf"]), &["cut.gguf"]);
        scene.refuses(&["inspect", "cut.gguf"], &["cut.gguf"]);
    }
}

#[test]
fn absurd_counts_in_a_gguf_file() {
    let scene = Scene::new();
    for (tensors, entries) in [(u64::MAX, 0), (0, u64::MAX), (1 << 40, 1 << 40)] {
        scene.file("absurd.gguf", gguf(tensors, entries));
        scene.refuses(&replay(&["--model", "absurd.gguf"]), &["absurd.gguf", "says it has"]);
    }
    let mut long_key = gguf(0, 1);
    long_key.extend(u64::MAX.to_le_bytes());
    scene.file("absurd.gguf", long_key);
    scene.refuses(&replay(&["--model", "absurd.gguf"]), &["absurd.gguf"]);
}

#[test]
fn an_unknown_architecture() {
    let scene = Scene::new();
    scene.file("other.gguf", [gguf(0, 1), string_entry("general.architecture", "mamba")].concat());
    scene.refuses(&replay(&["--model", "other.gguf"]), &["other.gguf", "mamba", "llama"]);
    std::fs::create_dir(scene.path("folder")).unwrap();
    scene.file("folder/config.json", r#"{"model_type":"mamba"}"#);
    scene.refuses(&replay(&["--model", "folder"]), &["config.json", "mamba", "llama"]);
}

#[test]
fn a_session_with_a_bad_line() {
    let scene = Scene::new();
    let head = r#"{"escarp_session":1,"title":"t"}"#;
    let request = r#"{"request":{"name":"a","append":[{"role":"user","content":"x"}]}}"#;
    for (line, word) in [
        ("{", "JSON"),
        (r#"{"request":{"name":"b","apend":[]}}"#, "append"),
        (r#"{"reqest":{}}"#, "request"),
        (r#"{"edit":{"before":"nobody"}}"#, "nobody"),
    ] {
        scene.file("bad.jsonl", [head, request, line, request].join("\n"));
        let arguments = [&["replay", "--device", "sim", "--session", "bad.jsonl"], RECORDED].concat();
        scene.refuses(&arguments, &["bad.jsonl:3", word]);
        scene.refuses(&["inspect", "bad.jsonl"], &["bad.jsonl:3", word]);
    }
    scene.refuses(&["replay", "--device", "sim", "--session", "quik"], &["quik", "did you mean `quick`?"]);
}

#[test]
fn a_recording_that_cannot_be_written() {
    let scene = Scene::new();
    std::fs::create_dir(scene.path("folder")).unwrap();
    for path in ["missing/out.jsonl", "folder"] {
        let arguments = ["replay", "--device", "sim", "--session", "quick", "--record", path];
        scene.refuses(&arguments, &[path, "--record"]);
    }
}

#[test]
fn unknown_keys_and_values() {
    let scene = Scene::new();
    let sim = |more: &[&'static str]| [&["replay", "--device", "sim", "--session", "quick"], more].concat();
    scene.refuses(
        &sim(&["--set", "cache.block_token=1"]),
        &["cache.block_token", "did you mean `cache.block_tokens`?"],
    );
    scene.refuses(&sim(&["--set", "cache.block_tokens=100"]), &["cache.block_tokens", "multiple of 64"]);
    scene.refuses(&sim(&["--idle", "soon"]), &["--idle", "`recorded`, `zero`, or seconds"]);
    scene.file("bad.toml", "[cache]\nenabled = true\nblok_tokens = 1\n");
    scene.refuses(&sim(&["--config", "bad.toml"]), &["bad.toml:3", "did you mean `cache.block_tokens`?"]);
    scene.refuses(&sim(&["--config", "none.toml"]), &["none.toml", "--config"]);
}

#[test]
fn tokens_the_model_does_not_have() {
    let scene = Scene::new();
    scene.refuses(
        &["logits", "--device", "sim", "--tokens", "1,4000000000"],
        &["--tokens", "4000000000", "0 to "],
    );
    let sizes = ["bench", "--device", "sim", "--set", "sim.context_tokens=1024", "--sizes", "2048"];
    scene.refuses(&sizes, &["--sizes", "1024"]);
}

#[test]
fn a_file_of_no_known_kind() {
    let scene = Scene::new();
    scene.file("picture.png", b"\x89PNG\r\n");
    scene.refuses(&["inspect", "picture.png"], &["picture.png", "neither"]);
    scene.file("cut.jsonl", "{\"escarp_recording\":99,\"escarp\":\"9.9\"}\n");
    scene.refuses(&["inspect", "cut.jsonl"], &["cut.jsonl:1", "99"]);
}

#[test]
fn no_terminal() {
    Scene::new().refuses(&["--device", "sim"], &["needs a terminal", "escarp replay"]);
}

#[test]
fn a_terminal_does_not_act_on_what_a_message_quotes() {
    let scene = Scene::new();
    let hostile = "{\"escarp_session\":1,\"title\":\"t\"}\n{\"\\u001b[2J\\u009b\":1}\n";
    let path = scene.file("hostile.jsonl", hostile);
    let output = escarp().args([Path::new("inspect"), &path]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(!stderr(&output).trim_end().contains(char::is_control), "{:?}", stderr(&output));
}
