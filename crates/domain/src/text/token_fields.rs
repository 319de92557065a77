//! The fields of sealed tokens: integers in big-endian order, texts after their length in four
//! bytes.

/// The remaining fields.
pub(crate) struct TokenFields<'a>(pub &'a [u8]);

/// Appends a text.
pub(crate) fn write(text: &str, out: &mut Vec<u8>) {
    // Far below 4 GiB: longer texts exceed the size limit of messages.
    out.extend_from_slice(&(text.len() as u32).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl TokenFields<'_> {
    pub(crate) fn chunk<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*chunk)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.chunk().map(|[byte]| byte)
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let length = usize::try_from(u32::from_be_bytes(self.chunk()?)).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }
}
