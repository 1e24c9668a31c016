//! The listing of tensors in a GGUF header.

use super::Fault;

/// A tensor as the header lists it.
#[derive(Debug, Clone)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    /// Columns first, as the file has them.
    pub(super) dims: Vec<u64>,
    pub(super) kind: u32,
    /// From the start of the data.
    pub(super) offset: u64,
}

/// Encodings by number: name, elements and bytes of a block (zero where nothing here needs the size).
const KINDS: &[(u32, &str, u64, u64)] = &[
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
];

impl TensorInfo {
    /// Numbers it stands for.
    pub(super) fn elements(&self) -> Option<u64> {
        self.dims.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))
    }

    /// Bytes it takes, where the encoding is known and fits its shape.
    pub(super) fn bytes(&self) -> Option<u64> {
        let (_, _, block, size) = KINDS.iter().find(|(kind, ..)| *kind == self.kind)?;
        if !self.dims[0].is_multiple_of(*block) {
            return None;
        }
        (self.elements()? / block).checked_mul(*size)
    }

    pub(super) fn check(&self, data: u64, alignment: u64, file: u64) -> Result<(), Fault> {
        let name = &self.name;
        if self.dims.contains(&0) || self.elements().is_none() {
            return Err(Fault::damaged(format!("tensor `{name}` has the shape {:?}", self.dims)));
        }
        if !self.offset.is_multiple_of(alignment) {
            let problem = format!("tensor `{name}` begins at {}, not a multiple of {alignment}", self.offset);
            return Err(Fault::damaged(problem));
        }
        let Some((_, word, block, _)) = KINDS.iter().find(|(kind, ..)| *kind == self.kind) else {
            // An encoding from the future is an error only for who needs the tensor.
            return Ok(());
        };
        let Some(bytes) = self.bytes() else {
            let problem = format!(
                "tensor `{name}` is {word}, but its {} columns are no multiple of {block}",
                self.dims[0]
            );
            return Err(Fault::damaged(problem));
        };
        let end = data.checked_add(self.offset).and_then(|start| start.checked_add(bytes));
        match end {
            Some(end) if end <= file => Ok(()),
            _ => Err(Fault::damaged(format!("tensor `{name}` ends outside the file's {file} bytes"))),
        }
    }
}

/// The word for an encoding.
pub(super) fn kind_name(kind: u32) -> String {
    match KINDS.iter().find(|(number, ..)| *number == kind) {
        Some((_, name, ..)) => (*name).to_owned(),
        None => format!("type {kind}"),
    }
}

/// Bits of a weight of the packed encodings that can be loaded.
pub(super) fn packed_bits(kind: u32) -> Option<usize> {
    match kind {
        2 | 3 => Some(4),
        8 => Some(8),
        _ => None,
    }
}
