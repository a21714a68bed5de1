//! `traceparent` of W3C Trace Context.

/// The trace that a request is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TraceContext {
    pub(super) trace_id: u128,
    /// The span of the client that asks; `None` where the trace begins here.
    pub(super) parent: Option<u64>,
    pub(super) is_sampled: bool,
}

impl TraceContext {
    /// A trace of its own, sampled.
    pub(super) fn new() -> Self {
        Self { trace_id: rand::random::<u128>().max(1), parent: None, is_sampled: true }
    }

    /// Reads the value of a header; `None` where it is not one.
    pub(super) fn parse(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?;
        let mut fields = text.split('-');
        let version = hex(fields.next()?, 2)?;
        let (trace_id, parent) = (hex(fields.next()?, 32)?, hex(fields.next()?, 16)?);
        let flags = hex(fields.next()?, 2)?;
        // Later versions may have more fields; 255 is none.
        let is_whole = version < 0xff && (version > 0 || fields.next().is_none());
        let parent = u64::try_from(parent).ok()?;
        let is_sampled = flags & 1 == 1;
        (is_whole && trace_id > 0 && parent > 0).then_some(Self {
            trace_id,
            parent: Some(parent),
            is_sampled,
        })
    }

    /// The header of a request whose span is `span_id`.
    pub(super) fn traceparent(&self, span_id: u64) -> String {
        format!("00-{:032x}-{span_id:016x}-{:02x}", self.trace_id, u8::from(self.is_sampled))
    }
}

/// A new span's id.
pub(super) fn span_id() -> u64 {
    rand::random::<u64>().max(1)
}

fn hex(text: &str, n_digits: usize) -> Option<u128> {
    let is_hex = text.len() == n_digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    is_hex.then(|| u128::from_str_radix(text, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_the_standard_says() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(text.as_bytes()).unwrap();
        assert_eq!(context.trace_id, 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c);
        assert_eq!((context.parent, context.is_sampled), (Some(0xb7ad_6b71_6920_3331), true));
        assert_eq!(context.traceparent(0xb7ad_6b71_6920_3331), text);
        let later = text.replace("00-", "01-") + "-more";
        assert!(TraceContext::parse(later.as_bytes()).is_some());
        for wrong in [
            "",
            "00-1-2-01",
            &text.to_uppercase(),
            &text.replace("00-", "ff-"),
            &(text.to_owned() + "-more"),
            &text.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &text.replace("b7ad6b7169203331", &"0".repeat(16)),
        ] {
            assert_eq!(TraceContext::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
