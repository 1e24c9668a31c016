//! Checkpoints with random weights, against the logits that mlx-lm computes for them.
//!
//! A few lie in `tests/fixtures`, the rest where `ESCARP_SHARED` points. At `f32` escarp agrees to rounding, by every route; at
//! `int8` it picks the same token nearly always.

use std::path::{Path, PathBuf};

use escarp::config::{DeviceSetting, Precision};
use escarp::model::load;

use super::{config, from_environment, logits};

/// The folders there are: name and place.
pub(super) fn folders() -> Vec<(String, PathBuf)> {
    let mut folders = Vec::new();
    let mut add = |root: &Path, prefix: &str| {
        for entry in std::fs::read_dir(root).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if let Some(name) = name.strip_prefix(prefix)
                && entry.path().join("expected.safetensors").exists()
                && !folders.iter().any(|(known, _)| known == name)
            {
                folders.push((name.to_owned(), entry.path()));
            }
        }
    };
    add(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"), "parity-");
    if let Some(shared) = from_environment("ESCARP_SHARED") {
        add(&shared.join("data/parity"), "");
    }
    folders.sort();
    folders
}

/// What the reference computed.
pub(super) struct Expected {
    pub(super) tokens: Vec<u32>,
    /// One full forward pass, `[tokens, vocab]`.
    pub(super) whole: Vec<f32>,
    /// Chunks of 7, then single tokens, through its cache.
    pub(super) stepped: Vec<f32>,
}

impl Expected {
    pub(super) fn read(folder: &Path) -> Expected {
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Vec<[u8; 4]> {
            let tensor = tensors.tensor(name).unwrap();
            tensor.data().chunks_exact(4).map(|w| [w[0], w[1], w[2], w[3]]).collect()
        };
        Expected {
            tokens: words("tokens").into_iter().map(u32::from_le_bytes).collect(),
            whole: words("logits").into_iter().map(f32::from_le_bytes).collect(),
            stepped: words("stepped").into_iter().map(f32::from_le_bytes).collect(),
        }
    }

    pub(super) fn deviation(&self) -> f64 {
        let n = self.whole.len() as f64;
        let mean = self.whole.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        (self.whole.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n).sqrt()
    }
}

/// Largest difference in deviations of the logits.
pub(super) fn worst(got: &[f32], expected: &[f32], deviation: f64) -> f64 {
    assert_eq!(got.len(), expected.len());
    let difference = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).abs() / deviation;
    // A number that is not one is as far away as can be.
    got.iter()
        .zip(expected)
        .map(difference)
        .fold(0.0, |worst, d| if d > worst || d.is_nan() { d } else { worst })
}

#[test]
fn every_checkpoint_agrees_with_mlx_in_f32_by_every_route() {
    agree_by_every_route(DeviceSetting::Cpu);
}

/// Holds every checkpoint in f32 on a device to what mlx-lm computed.
pub(super) fn agree_by_every_route(device: DeviceSetting) {
    for (name, folder) in folders() {
        let expected = Expected::read(&folder);
        let deviation = expected.deviation();
        let mut config = config(&folder, Precision::F32);
        config.model.device = device;
        let mut loaded = load(&config).unwrap();
        for (chunks, reference) in [
            (&[96][..], &expected.whole),
            (&[7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 1], &expected.stepped),
            (&[1], &expected.whole),
            (&[64, 5], &expected.whole),
        ] {
            let got = logits(&mut *loaded.executor, &expected.tokens, chunks);
            let worst = worst(&got, reference, deviation);
            println!("{name}, chunks of {chunks:?}: {worst:.2e} deviations");
            assert!(worst < 2e-3, "{name}, chunks of {chunks:?}: {worst} deviations");
        }
    }
}

#[test]
fn every_checkpoint_picks_mlx_s_token_in_int8() {
    for (name, folder) in folders() {
        let expected = Expected::read(&folder);
        let mut loaded = load(&config(&folder, Precision::Int8)).unwrap();
        let vocab = loaded.executor.facts().vocab;
        let got = logits(&mut *loaded.executor, &expected.tokens, &[96]);
        let best = |row: &[f32]| (0..vocab).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
        let rows = got.chunks_exact(vocab).zip(expected.whole.chunks_exact(vocab));
        let same = rows.filter(|(a, b)| best(a) == best(b)).count();
        let share = same as f64 / expected.tokens.len() as f64;
        println!("{name}: the same token at {share:.3} of positions");
        assert!(share >= 0.97, "{name}: the same token at {share:.3} of positions");
    }
}

/// The greatest logits that the network the bundled models were trained as gives for the start of a session that was held out of
/// training, on the weights as exported.
#[test]
fn the_bundled_pair_is_the_network_that_was_trained() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures/bundled-logits.json");
    let reference: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for name in escarp::model::bundled() {
        let reference = &reference[name];
        let tokens = super::ids(&reference["tokens"]);
        let deviation = reference["deviation"].as_f64().unwrap();
        let rows = reference["rows"].as_array().unwrap();
        assert!(rows.len() > 20);
        for (precision, bound) in [(Precision::F32, 5e-5), (Precision::Int8, 5e-3)] {
            let mut loaded = load(&config(Path::new(name), precision)).unwrap();
            let vocab = loaded.executor.facts().vocab;
            let got = logits(&mut *loaded.executor, &tokens, &[40, 1]);
            let mut worst = 0f64;
            for row in rows {
                let at = row["at"].as_u64().unwrap() as usize * vocab;
                for pair in row["logits"].as_array().unwrap() {
                    let id = pair[0].as_u64().unwrap() as usize;
                    let difference = (f64::from(got[at + id]) - pair[1].as_f64().unwrap()).abs() / deviation;
                    assert!(difference < bound, "{name} {precision:?}: {difference} deviations at {row}");
                    worst = worst.max(difference);
                }
            }
            println!("{name} {precision:?}: {worst:.2e} deviations");
        }
    }
}
