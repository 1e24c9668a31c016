//! Numbers as text.

/// What stands for a value that nobody measured.
pub const UNMEASURED: &str = "–";

/// `value` as `format` writes it, or [`UNMEASURED`].
pub fn or_dash<T>(value: Option<T>, format: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| UNMEASURED.to_owned(), format)
}

/// `1234567` as `1,234,567`.
pub fn thousands(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `thousands` with a sign: `+1,024`, `-9,216`, `0`.
pub fn signed_thousands(value: i64) -> String {
    let sign = match value.signum() {
        1 => "+",
        -1 => "-",
        _ => "",
    };
    format!("{sign}{}", thousands(value.unsigned_abs()))
}

/// `1 request`, `24 requests`: a count with its noun.
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(count))
}

/// A duration given in seconds, to three significant places, with its unit: `1.83 s`, `27.7 ms`, `950 µs`, `12 m 05 s`.
pub fn seconds(value: f64) -> String {
    match value {
        v if !v.is_finite() => UNMEASURED.to_owned(),
        0.0 => "0 s".to_owned(),
        v if v < 0.000_999_5 => format!("{:.0} µs", v * 1e6),
        v if v < 0.099_95 => format!("{:.1} ms", v * 1e3),
        v if v < 0.999_5 => format!("{:.0} ms", v * 1e3),
        v if v < 9.995 => format!("{v:.2} s"),
        v if v < 99.95 => format!("{v:.1} s"),
        v => {
            let whole = v.round() as u64;
            format!("{} m {:02} s", thousands(whole / 60), whole % 60)
        }
    }
}

/// A size in bytes with a binary unit: `93.8 MiB`.
pub fn bytes(value: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1023.95 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value} B") } else { format!("{scaled:.1} {}", UNITS[unit]) }
}

/// A rate with one decimal below a hundred and none above: `44.2`, `1,204`.
pub fn rate(value: f64) -> String {
    match value {
        v if !v.is_finite() => UNMEASURED.to_owned(),
        v if v.abs() < 99.95 => format!("{v:.1}"),
        v => thousands(v.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_three() {
        let shown = [0, 7, 999, 1_000, 12_345, 1_234_567, u64::MAX].map(thousands);
        assert_eq!(
            shown,
            ["0", "7", "999", "1,000", "12,345", "1,234,567", "18,446,744,073,709,551,615"].map(String::from)
        );
        assert_eq!([-9_216, 0, 1_024].map(signed_thousands), ["-9,216", "0", "+1,024"].map(String::from));
        assert_eq!(signed_thousands(i64::MIN), "-9,223,372,036,854,775,808");
    }

    #[test]
    fn durations_change_unit_without_a_gap() {
        let shown = [0.0, 0.000_95, 0.027_7, 0.099_96, 0.5, 0.9996, 1.834, 12.34, 99.96, 725.0].map(seconds);
        assert_eq!(
            shown,
            [
                "0 s",
                "950 µs",
                "27.7 ms",
                "100 ms",
                "500 ms",
                "1.00 s",
                "1.83 s",
                "12.3 s",
                "1 m 40 s",
                "12 m 05 s"
            ]
            .map(String::from)
        );
    }

    #[test]
    fn sizes_use_binary_units() {
        let shown = [0, 1023, 1024, 98_362_432, 4 << 30].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "93.8 MiB", "4.0 GiB"].map(String::from));
    }

    #[test]
    fn null_is_not_zero() {
        assert_eq!(or_dash(None, thousands), UNMEASURED);
        assert_eq!(or_dash(Some(0), thousands), "0");
        assert_eq!(seconds(f64::NAN), UNMEASURED);
        assert_eq!(rate(f64::INFINITY), UNMEASURED);
    }
}
