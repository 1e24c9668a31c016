use super::super::format::*;
use super::*;

fn header(part: Part) -> Header {
    let tokens = tokens(1, 3);
    let identity = IdentityFacts::of(&identity());
    let place = places(identity.root(), &tokens, BLOCK)[2];
    Header { part, place, identity, layers: LAYERS, origin: origin(5), state_bytes: SIZES.of(part) }
}

fn file(part: Part) -> Vec<u8> {
    let header = header(part);
    let block = tokens(1, 3)[2 * BLOCK..].to_vec();
    let tokens = if part == Part::Block { &block[..] } else { &[] };
    let image = Image::new(&header, tokens, state_of(part, &header.place.hash));
    let mut bytes = [&image.head[..], &image.state].concat();
    bytes.extend(image.checksum());
    assert_eq!(bytes.len() as u64, image.bytes());
    bytes
}

#[test]
fn a_file_says_what_was_written() {
    for part in [Part::Block, Part::Snapshot] {
        let file = file(part);
        let parsed = parse(&file).unwrap();
        assert_eq!(parsed.header, header(part));
        assert_eq!(file[parsed.state], state_of(part, &parsed.header.place.hash));
        let block = tokens(1, 3)[2 * BLOCK..].to_vec();
        assert_eq!(parsed.tokens, if part == Part::Block { block } else { Vec::new() });
        assert_eq!(Header::decode(&file[..file.len() - 100], file.len() as u64).unwrap(), parsed.header);
    }
}

#[test]
fn the_format_is_safetensors() {
    let file = file(Part::Block);
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let tokens = tensors.tensor("tokens").unwrap();
    assert_eq!((tokens.dtype(), tokens.shape()), (safetensors::Dtype::U32, &[BLOCK][..]));
    assert_eq!(tensors.tensor("attention").unwrap().data().len() as u64, SIZES.page);
    assert_eq!(tensors.tensor("checksum").unwrap().shape(), [32]);
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&file).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap()["precision"], "int8");
}

#[test]
fn any_flipped_bit_is_noticed() {
    for part in [Part::Block, Part::Snapshot] {
        let mut file = file(part);
        for at in 0..file.len() {
            for bit in 0..8 {
                file[at] ^= 1 << bit;
                assert!(parse(&file).is_err(), "{part:?}: bit {bit} of byte {at}");
                file[at] ^= 1 << bit;
            }
        }
        assert!(parse(&file).is_ok());
    }
}

#[test]
fn any_cut_or_longer_file_is_noticed() {
    let mut file = file(Part::Snapshot);
    for length in 0..file.len() {
        assert!(parse(&file[..length]).is_err(), "{length}");
    }
    file.push(0);
    assert!(matches!(parse(&file), Err(FormatError::Length { .. })));
}

/// A file whose header is `json`, followed by `data` bytes.
fn with_header(json: &str, data: usize) -> Vec<u8> {
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend(json.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

#[test]
fn hostile_headers_are_refused() {
    let good = header(Part::Block).encode();
    let good = std::str::from_utf8(&good[8..]).unwrap().to_owned();
    let data = file(Part::Block).len() - 8 - good.len();
    assert_eq!(parse(&with_header(&good, data)).unwrap_err(), FormatError::Checksum);
    let replaced = [
        ("\"depth\":\"2\"", "\"depth\":\"0\""),
        ("\"depth\":\"2\"", "\"depth\":\"02\""),
        ("\"depth\":\"2\"", "\"depth\":\"-2\""),
        ("\"depth\":\"2\"", "\"depth\":\"4294967296\""),
        ("\"depth\":\"2\"", "\"depth\":2"),
        ("\"precision\":\"int8\"", "\"precision\":\"int4\""),
        ("\"block_tokens\":\"4\"", "\"block_tokens\":\"18446744073709551615\""),
        ("\"part\":\"block\"", "\"part\":\"snapshot\""),
        ("\"part\":\"block\"", "\"part\":\"lump\""),
        ("\"route\":\"dense\"", "\"route\":\"scenic\""),
        ("\"format_version\":\"1\"", "\"format_version\":\"9\""),
        ("\"format\":\"escarp cache\"", "\"format\":\"pt\""),
        ("\"shape\":[200]", "\"shape\":[18446744073709551615]"),
        ("\"shape\":[200]", "\"shape\":[201]"),
        ("\"shape\":[200]", "\"shape\":[]"),
        ("\"data_offsets\":[16,216]", "\"data_offsets\":[216,16]"),
        ("\"data_offsets\":[16,216]", "\"data_offsets\":[16,18446744073709551615]"),
        ("\"data_offsets\":[16,216]", "\"data_offsets\":[0,200]"),
        ("\"dtype\":\"U32\"", "\"dtype\":\"F32\""),
        ("\"attention\":{", "\"recurrent\":{"),
        ("{\"__metadata__\"", "{\"more\":1,\"__metadata__\""),
        ("{\"__metadata__\"", "[[[[[[[["),
    ];
    for (from, to) in replaced {
        assert!(good.contains(from), "{from}: {good}");
        let refused = parse(&with_header(&good.replace(from, to), data)).unwrap_err();
        assert_ne!(refused, FormatError::Checksum, "{from} as {to}");
    }
    for length in [u64::MAX, u64::MAX - 8, 1 << 40, MOST_HEADER_BYTES + 1] {
        let mut file = with_header(&good, data);
        file[..8].copy_from_slice(&length.to_le_bytes());
        assert_eq!(parse(&file).unwrap_err(), FormatError::HeaderLength(length));
    }
    let deep = "[".repeat(MOST_HEADER_BYTES as usize);
    assert!(matches!(parse(&with_header(&deep, 64)), Err(FormatError::Json(_))));
    for rubbish in ["", "{}", "null", "{\"__metadata__\":{}}", "\u{0}\u{1}"] {
        assert!(parse(&with_header(rubbish, 64)).is_err(), "{rubbish}");
    }
}

#[test]
fn a_folder_of_hostile_files_opens() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let shard = dir.path().join("blocks/ab");
    std::fs::create_dir(&shard).unwrap();
    let name = |n: u8| shard.join(format!("ab{}.safetensors", format!("{n:02x}").repeat(31)));
    std::fs::write(name(1), u64::MAX.to_le_bytes()).unwrap();
    std::fs::write(name(2), "").unwrap();
    std::fs::write(name(3), file(Part::Block)).unwrap();
    std::fs::create_dir(name(4)).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("/etc/passwd", name(5)).unwrap();
    std::fs::write(shard.join("notes.txt"), "mine").unwrap();
    std::fs::File::create(name(6)).unwrap().set_len(1 << 36).unwrap();
    let mut tier = open(dir.path());
    assert_eq!((tier.facts().blocks, tier.facts().damaged), (0, 5 + u64::from(cfg!(unix))));
    assert!(tier.flush(SOON));
    assert!(!tier.poll().is_empty());
    assert_eq!(files_in(&shard), 1, "what is not named as a block is left alone");
    #[cfg(unix)]
    assert!(std::path::Path::new("/etc/passwd").exists());
}
