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

/// The default build on Linux: nothing of MLX is compiled, fetched or linked.
#[test]
fn the_default_build_has_nothing_of_mlx() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut tree = std::process::Command::new(cargo);
    tree.args(["tree", "--offline", "--edges", "normal,build", "--prefix", "none", "--target"]);
    tree.arg("x86_64-unknown-linux-gnu").current_dir(env!("CARGO_MANIFEST_DIR"));
    let out = tree.output().unwrap();
    if !out.status.success() {
        println!("skipped: cargo tree: {}", String::from_utf8_lossy(&out.stderr));
        return;
    }
    let tree = String::from_utf8(out.stdout).unwrap();
    assert!(tree.lines().any(|line| line.starts_with("escarp ")), "{tree}");
    assert_eq!(tree.lines().filter(|line| line.contains("mlx")).collect::<Vec<_>>(), Vec::<&str>::new());
}
