//! Any chunks give the same events, and random bytes do no harm.

use proptest::collection::vec;
use proptest::prelude::*;

use super::streams::{channels, spdy_ports, spdy_session, tunnelled};
use super::*;

fn sessions() -> Vec<(StreamProtocol, SessionKind, Vec<Sent>)> {
    let text = StreamProtocol::Spdy(ProtocolVersion::TextErrors);
    vec![
        (V5, SessionKind::Exec, channels(300)),
        (V4, SessionKind::PortForward, channels(300)),
        (SPDY, SessionKind::Exec, spdy_session()),
        (text, SessionKind::PortForward, spdy_ports()),
        (StreamProtocol::TunnelledSpdy, SessionKind::PortForward, tunnelled(spdy_ports())),
        (StreamProtocol::Unknown, SessionKind::Exec, channels(300)),
    ]
}

fn chunked(sent: &[Sent], sizes: &[usize]) -> Vec<Sent> {
    let mut sizes = sizes.iter().cycle();
    let mut chunks = Vec::new();
    for (from, bytes) in sent {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            chunks.push((*from, chunk.to_vec()));
            rest = after;
        }
    }
    chunks
}

fn without_reasons(seen: Vec<Seen>) -> Vec<Seen> {
    let without = |seen| if let Seen::Unreadable(side, _) = seen { Seen::Unreadable(side, "") } else { seen };
    seen.into_iter().map(without).collect()
}

#[test]
fn single_bytes_give_the_same_events() {
    for (protocol, kind, sent) in sessions() {
        assert_eq!(
            decode(protocol, kind, &chunked(&sent, &[1])),
            decode(protocol, kind, &sent),
            "{protocol:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_chunks_give_the_same_events(sizes in vec(1_usize..300, 1..40)) {
        for (protocol, kind, sent) in sessions() {
            prop_assert_eq!(decode(protocol, kind, &chunked(&sent, &sizes)), decode(protocol, kind, &sent));
        }
    }

    /// Also after changes of any bytes. Of two reasons why a block of headers cannot be read, the chunks decide which is met first.
    #[test]
    fn damaged_streams_give_the_same_events_in_any_chunks(
        changes in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..8),
        sizes in vec(1_usize..300, 1..40),
    ) {
        for (protocol, kind, mut sent) in sessions() {
            for (frame, byte, value) in &changes {
                let bytes = &mut frame.get_mut(&mut sent).1;
                *byte.get_mut(bytes.as_mut_slice()) = *value;
            }
            let whole = without_reasons(decode(protocol, kind, &sent));
            prop_assert_eq!(without_reasons(decode(protocol, kind, &chunked(&sent, &sizes))), whole);
        }
    }

    #[test]
    fn random_bytes_hold_no_more_than_the_bound(
        sent in vec((prop_oneof![Just(Side::Client), Just(Side::Server)], vec(any::<u8>(), 0..600)), 0..12),
    ) {
        for (protocol, kind, _) in sessions() {
            let whole = without_reasons(decode(protocol, kind, &sent));
            prop_assert_eq!(without_reasons(decode(protocol, kind, &chunked(&sent, &[7, 1, 90]))), whole);
        }
    }
}
