//! Which requests are traced, by kube-apiserver's rules. Clients decide nothing: the trace context of an ordinary user
//! is only linked, and so cannot make the gateway record every request.
// apiserver: pkg/endpoints/filters/traces.go; component-base: tracing/utils.go, NewProvider

use crate::context::SpanContext;

/// The groups whose trace context is continued.
// apiserver: pkg/endpoints/filters/traces.go, notSystemPrivilegedGroup
const TRUSTED_GROUPS: [&str; 2] = ["system:masters", "system:monitoring"];
const MILLION: u32 = 1_000_000;

/// The sampler: a trusted parent decides, and otherwise the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampler {
    /// Trace IDs whose lower half is below this are sampled.
    bound: u64,
}

/// The beginning of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpanStart {
    /// The new span.
    pub context: SpanContext,
    /// The span that it belongs to.
    pub parent: Option<[u8; 8]>,
    /// The client's span, if the client is not trusted to continue its trace.
    pub link: Option<SpanContext>,
}

impl Sampler {
    /// Samples so many of a million traces.
    pub fn new(rate_per_million: u32) -> Self {
        // Go: uint64(fraction * (1 << 63))
        let bound = (u128::from(rate_per_million.min(MILLION)) << 63) / u128::from(MILLION);
        Self { bound: u64::try_from(bound).unwrap_or(u64::MAX) }
    }

    // go.opentelemetry.io/otel/sdk: trace/sampling.go, traceIDRatioSampler.ShouldSample
    fn samples(self, trace_id: [u8; 16]) -> bool {
        let (_, low) = trace_id.split_at(8);
        let low: [u8; 8] = low.try_into().unwrap_or([0xff; 8]);
        u64::from_be_bytes(low) >> 1 < self.bound
    }

    /// Begins the span of a request of a user in these groups. `parent` is the context in its headers.
    pub fn begin<'a>(
        self,
        parent: Option<SpanContext>,
        groups: impl IntoIterator<Item = &'a str>,
    ) -> SpanStart {
        let is_trusted = groups.into_iter().any(|group| TRUSTED_GROUPS.contains(&group));
        match parent {
            Some(parent) if is_trusted => SpanStart {
                context: parent.child(random_span_id()),
                parent: Some(parent.span_id),
                link: None,
            },
            link => {
                let trace_id = random_trace_id();
                let context = SpanContext::root(trace_id, random_span_id(), self.samples(trace_id));
                SpanStart { context, parent: None, link }
            }
        }
    }
}

fn random_trace_id() -> [u8; 16] {
    fastrand::u128(1..).to_be_bytes()
}

/// A new span ID.
pub fn random_span_id() -> [u8; 8] {
    fastrand::u64(1..).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(sampled: bool) -> SpanContext {
        SpanContext::root([0xee; 16], [2; 8], sampled)
    }

    #[test]
    fn only_privileged_users_continue_their_trace() {
        for (rate, groups, sampled, continued) in [
            (0, &["system:masters"][..], true, true),
            (1_000_000, &["a", "system:monitoring"], false, true),
            (0, &["system:authenticated"], true, false),
            (0, &["system:unauthenticated"], true, false),
            (0, &[], true, false),
        ] {
            let start = Sampler::new(rate).begin(Some(parent(sampled)), groups.iter().copied());
            if continued {
                assert_eq!((start.context.trace_id, start.parent), ([0xee; 16], Some([2; 8])), "{groups:?}");
                assert_eq!((start.context.sampled, start.link), (sampled, None));
                assert_ne!(start.context.span_id, [2; 8]);
            } else {
                assert_ne!(start.context.trace_id, [0xee; 16]);
                assert_eq!((start.parent, start.link), (None, Some(parent(sampled))), "{groups:?}");
                assert!(!start.context.sampled, "the client's flag counts: {groups:?}");
            }
        }
    }

    #[test]
    fn the_rate_is_of_a_million() {
        let sampled = |rate: u32| {
            let sampler = Sampler::new(rate);
            (0..100_000).filter(|_| sampler.begin(None, []).context.sampled).count()
        };
        assert_eq!(sampled(0), 0);
        assert_eq!(sampled(1_000_000), 100_000);
        // 16 standard deviations around a tenth.
        assert!((8_500..11_500).contains(&sampled(100_000)));
        // Go's bounds: the highest ID that is sampled at one half, and the next one.
        let id = |low: u64| [[0; 8], low.to_be_bytes()].concat().try_into().unwrap();
        assert!(Sampler::new(500_000).samples(id(u64::MAX >> 1)));
        assert!(!Sampler::new(500_000).samples(id((u64::MAX >> 1) + 1)));
    }
}
