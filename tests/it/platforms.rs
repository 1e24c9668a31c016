//! What only a Mac compiles, which nothing here can compile, stays next to nothing.

use std::path::{Path, PathBuf};

/// Every line that names Apple's platforms to the compiler, by file: the device is part of every build there and has its GPU and
/// Accelerate, it is the default, and Linux stands in for a clock of macOS's.
const ALLOWED: [(&str, &str); 7] = [
    ("Cargo.toml", "[target.'cfg(target_os = \"macos\")'.dependencies]"),
    ("Cargo.toml", "[target.'cfg(not(target_os = \"macos\"))'.dependencies]"),
    ("src/config/mod.rs", "DeviceSetting::Auto if cfg!(target_os = \"macos\") => DeviceKind::Mlx,"),
    ("src/device/mlx/mod.rs", "#[cfg(not(target_os = \"macos\"))]"),
    ("src/device/mod.rs", "#[cfg(any(feature = \"mlx\", target_os = \"macos\"))]"),
    ("src/model/mod.rs", "#[cfg(any(feature = \"mlx\", target_os = \"macos\"))]"),
    ("src/model/mod.rs", "#[cfg(not(any(feature = \"mlx\", target_os = \"macos\")))]"),
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Lines with a target of Apple's in them.
fn apples(text: &str) -> impl Iterator<Item = &str> {
    let words = ["\"macos\"", "\"ios\"", "\"apple\"", "\"darwin\"", "apple-darwin"];
    let conditional = |line: &&str| line.contains("target") || line.contains("cfg");
    text.lines()
        .map(str::trim)
        .filter(conditional)
        .filter(move |line| words.iter().any(|word| line.contains(word)))
}

#[test]
fn only_a_short_list_of_lines_is_for_macs_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = vec![root.join("Cargo.toml")];
    files.extend(Some(root.join("build.rs")).filter(|path| path.exists()));
    sources(&root.join("src"), &mut files);
    sources(&root.join("tests"), &mut files);
    // This file has to name what it looks for.
    files.retain(|file| !file.ends_with(file!()));
    let mut found: Vec<(String, String)> = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        let text = std::fs::read_to_string(&file).unwrap();
        found.extend(apples(&text).map(|line| (name.clone(), line.to_owned())));
    }
    found.sort();
    let mut allowed = ALLOWED.map(|(file, line)| (file.to_owned(), line.to_owned())).to_vec();
    allowed.sort();
    assert_eq!(found, allowed, "lines that only a Mac compiles, or no longer does");
}

#[test]
fn a_line_for_macs_is_seen_however_it_is_written() {
    let mac = |kind: &str| format!("#[cfg({kind} = \"{}\")]", ["mac", "os"].concat());
    for line in [mac("target_os"), mac("all(unix, target_os"), mac("target_vendor").replace("macos", "apple")]
    {
        assert_eq!(apples(&format!("fn a() {{}}\n    {line}\n")).collect::<Vec<_>>(), [line]);
    }
    assert_eq!(apples("// Metal on a Mac").count(), 0);
}

/// The dependencies that a build for `target` compiles, one `name version [features]` a line; `None`, with a printed line, where cargo cannot say
/// without a network.
fn dependencies(target: &str, more: &[&str]) -> Option<Vec<String>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = std::process::Command::new(cargo);
    tree.args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--format", "{p} [{f}]"]);
    tree.args(["--target", target]).args(more).current_dir(env!("CARGO_MANIFEST_DIR"));
    let out = tree.output().unwrap();
    if !out.status.success() {
        println!("skipped: cargo tree: {}", String::from_utf8_lossy(&out.stderr));
        return None;
    }
    let tree = String::from_utf8(out.stdout).unwrap();
    assert!(tree.lines().any(|line| line.starts_with("escarp ")), "{tree}");
    Some(tree.lines().map(str::to_owned).collect())
}

/// The default build on Linux: nothing of MLX is compiled, fetched or linked.
#[test]
fn the_default_build_has_nothing_of_mlx() {
    let Some(tree) = dependencies("x86_64-unknown-linux-gnu", &[]) else { return };
    let mlx: Vec<&String> = tree.iter().filter(|line| line.contains("mlx")).collect();
    assert!(mlx.is_empty(), "{mlx:?}");
}

#[test]
fn a_mac_gets_metal_and_accelerate_without_asking_and_linux_gets_neither() {
    let features = |target: &str, more: &[&str]| {
        let tree = dependencies(target, more)?;
        let bindings = tree.into_iter().find(|line| line.starts_with("mlx-sys "));
        Some(bindings.unwrap_or_else(|| panic!("{target} {more:?}: no mlx-sys")))
    };
    if let Some(mac) = features("aarch64-apple-darwin", &[]) {
        assert!(mac.ends_with("[accelerate,metal]"), "{mac}");
    }
    if let Some(linux) = features("x86_64-unknown-linux-gnu", &["--features", "mlx"]) {
        assert!(linux.ends_with("[]"), "{linux}");
    }
}

#[test]
fn only_the_device_its_loading_and_its_settings_name_mlx() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    for folder in ["cache", "decode", "engine", "ledger", "prefill", "session", "tui"] {
        sources(&root.join(folder), &mut files);
    }
    assert!(files.len() > 50, "{}", files.len());
    for file in files.iter().filter(|file| !file.to_string_lossy().contains("tests")) {
        let text = std::fs::read_to_string(file).unwrap();
        // Tests at the end of a file may say which device they run on.
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for word in ["mlx", "Mlx", "metal", "Metal", "DeviceKind", "DeviceSetting"] {
            assert!(!code.contains(word), "{} names {word}", file.display());
        }
    }
}
