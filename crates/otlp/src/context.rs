//! The W3C trace context: the headers `traceparent` and `tracestate`.
// go.opentelemetry.io/otel: propagation/trace_context.go

use std::fmt;

/// The bit of the flags by which a caller says that it records the trace.
const SAMPLED: u8 = 1;
/// The flags that are known; others are not passed on.
const KNOWN_FLAGS: u8 = 3;
/// The version that means "invalid".
const INVALID_VERSION: u8 = 0xff;
/// The limit on `tracestate`, as the specification requires at least. A longer one is dropped.
const MAX_TRACE_STATE: usize = 512;

/// The position of a span in its trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
    /// Whether the trace is recorded.
    pub sampled: bool,
    /// The vendors' state, passed on unchanged.
    pub trace_state: String,
    random: bool,
}

impl SpanContext {
    /// The first span of a new trace.
    pub fn root(trace_id: [u8; 16], span_id: [u8; 8], sampled: bool) -> Self {
        Self { trace_id, span_id, sampled, trace_state: String::new(), random: false }
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn child(&self, span_id: [u8; 8]) -> Self {
        Self { span_id, ..self.clone() }
    }

    /// Reads the headers of a request; `None` if there is no valid `traceparent`. An invalid `tracestate` is dropped.
    pub fn parse(traceparent: &[u8], tracestate: Option<&[u8]>) -> Option<Self> {
        let mut parts = traceparent.split(|byte| *byte == b'-');
        let [version] = hex(parts.next()?)?;
        let trace_id = hex(parts.next()?)?;
        let span_id = hex(parts.next()?)?;
        let [flags] = hex(parts.next()?)?;
        let is_valid = match version {
            INVALID_VERSION => false,
            0 => parts.next().is_none() && flags <= KNOWN_FLAGS,
            // A later version may have further parts.
            _ => true,
        };
        if !is_valid || trace_id == [0; 16] || span_id == [0; 8] {
            return None;
        }
        let trace_state = tracestate.and_then(valid_trace_state).unwrap_or_default().to_owned();
        Some(Self { trace_id, span_id, sampled: flags & SAMPLED != 0, trace_state, random: flags & 2 != 0 })
    }

    /// The value of `traceparent`.
    pub fn traceparent(&self) -> String {
        let flags = u8::from(self.sampled) | u8::from(self.random) << 1;
        format!("00-{}-{}-{flags:02x}", Hex(&self.trace_id), Hex(&self.span_id))
    }
}

/// Lower-case hexadecimal digits, two for each byte.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let (pairs, []) = text.as_chunks::<2>() else { return None };
    let bytes: Option<Vec<u8>> =
        pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    bytes?.try_into().ok()
}

struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text, if it is a list of `key=value` members of printable ASCII within the limit.
fn valid_trace_state(bytes: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(bytes).ok()?;
    let member = |member: &str| {
        let (key, value) = member.trim_matches([' ', '\t']).split_once('=')?;
        let key_is_valid = key
            .bytes()
            .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/' | b'@'));
        let value_is_valid = value.bytes().all(|byte| matches!(byte, b' '..=b'~') && byte != b'=');
        (key_is_valid && value_is_valid && !key.is_empty() && !value.is_empty()).then_some(())
    };
    (text.len() <= MAX_TRACE_STATE && text.split(',').all(|text| member(text).is_some())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_survives_a_round_trip() {
        for flags in ["00", "01", "02", "03"] {
            let text = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
            let context = SpanContext::parse(text.as_bytes(), Some(b"a=1,b=2")).unwrap();
            assert_eq!(context.traceparent(), text);
            assert_eq!(context.sampled, flags.ends_with(['1', '3']));
            assert_eq!(context.trace_state, "a=1,b=2");
            let child = context.child([7; 8]);
            assert_eq!(child.trace_id, context.trace_id);
            assert_eq!(child.traceparent(), text.replace("00f067aa0ba902b7", "0707070707070707"));
        }
    }

    #[test]
    fn invalid_parents_are_no_context() {
        let long = format!("{PARENT}-00");
        for text in [
            "",
            "00",
            &long,
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-04",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-1",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00_4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7_01",
        ] {
            assert_eq!(SpanContext::parse(text.as_bytes(), None), None, "{text}");
        }
        let later = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-ff-more";
        assert_eq!(
            SpanContext::parse(later.as_bytes(), None).unwrap().traceparent(),
            PARENT.replace("-01", "-03")
        );
    }

    #[test]
    fn an_invalid_state_is_dropped() {
        for state in ["a", "=1", "a=", "A=1", "a=1=2", "a=1,", "a=\u{e9}", &format!("a={}", "x".repeat(511))]
        {
            let context = SpanContext::parse(PARENT.as_bytes(), Some(state.as_bytes())).unwrap();
            assert_eq!(context.trace_state, "", "{state}");
        }
    }
}
