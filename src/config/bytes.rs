//! Sizes in bytes: a number, or text with a unit.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

const UNITS: [(&str, u64); 9] = [
    ("B", 1),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// Deserialises a size: `1048576`, `"1 MiB"`, `"1.5GiB"`, `"2 GB"`.
pub(super) fn deserialize<'de, D: Deserializer<'de>, T: TryFrom<u64>>(
    deserializer: D,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(Size(PhantomData))
}

/// Deserialises a size whose default is absent. TOML has no null, so what is there is a size.
pub(super) fn deserialize_some<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    deserialize(deserializer).map(Some)
}

struct Size<T>(PhantomData<T>);

impl<T: TryFrom<u64>> Visitor<'_> for Size<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of bytes, or a size such as \"512MiB\" or \"4GiB\"")
    }

    fn visit_u64<E: Error>(self, bytes: u64) -> Result<T, E> {
        T::try_from(bytes).map_err(|_| E::invalid_value(Unexpected::Unsigned(bytes), &self))
    }

    fn visit_i64<E: Error>(self, bytes: i64) -> Result<T, E> {
        match u64::try_from(bytes) {
            Ok(bytes) => self.visit_u64(bytes),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(bytes), &self)),
        }
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        match parse(text) {
            Some(bytes) => self.visit_u64(bytes),
            None => Err(E::invalid_value(Unexpected::Str(text), &self)),
        }
    }
}

fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| c.is_ascii_alphabetic())?);
    let (_, scale) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let number = number.trim();
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(*scale);
    }
    let bytes = number.parse::<f64>().ok()? * *scale as f64;
    // Below 2^63, where the conversion is exact enough and cannot saturate.
    (0.0..9.2e18).contains(&bytes).then_some(bytes.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn sizes_are_read_with_binary_and_decimal_units() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("512 MiB", 512 << 20),
            ("1.5gib", 3 << 29),
            ("2 GB", 2_000_000_000),
            ("100B", 100),
            (" 1 TiB ", 1 << 40),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "4", "GiB", "4 gigs", "-1GiB", "inf GiB", "1e40GiB", "20000000TiB", "4GiB 2"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
