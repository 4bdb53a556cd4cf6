//! Ports that are forwarded by channels: each port has one for data and one for errors, and the first two bytes of the
//! server on each are the number of the port.
// apiserver: k8s.io/cri-streaming/pkg/streaming/portforward/websocket.go

use super::event::{SessionEvent, Side};
use super::length;

/// The connections of the channels, each to one port.
#[derive(Debug)]
pub(super) struct ForwardedPorts {
    /// By the channel divided by two.
    ports: Vec<Port>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Port {
    #[default]
    Unknown,
    Half(u8),
    Open(u16),
}

impl Default for ForwardedPorts {
    fn default() -> Self {
        Self { ports: vec![Port::default(); 128] }
    }
}

impl ForwardedPorts {
    pub(super) fn content(
        &mut self,
        from: Side,
        channel: u8,
        bytes: &[u8],
        events: &mut dyn FnMut(SessionEvent<'_>),
    ) {
        if !channel.is_multiple_of(2) {
            return;
        }
        let Some(port) = self.ports.get_mut(usize::from(channel / 2)) else { return };
        let mut bytes = bytes;
        while from == Side::Server && !matches!(port, Port::Open(_)) {
            let Some((byte, rest)) = bytes.split_first() else { return };
            bytes = rest;
            *port = match *port {
                Port::Half(low) => Port::Open(u16::from_le_bytes([low, *byte])),
                _ => Port::Half(*byte),
            };
            if let Port::Open(port) = *port {
                events(SessionEvent::ConnectionOpened { port });
            }
        }
        if !bytes.is_empty() {
            events(SessionEvent::Forwarded { from, bytes: length(bytes) });
        }
    }

    pub(super) fn finish(&mut self, events: &mut dyn FnMut(SessionEvent<'_>)) {
        for port in std::mem::take(&mut self.ports) {
            if let Port::Open(port) = port {
                events(SessionEvent::ConnectionClosed { port });
            }
        }
    }

    pub(super) fn held(&self) -> usize {
        self.ports.capacity() * size_of::<Port>()
    }
}
