//! The flow-control windows of the streams of a connection: wide while few bodies are received at once, narrow while many are.
//!
//! A wide window lets one body arrive as fast as the network permits. Narrow ones keep what a peer can have the gateway hold
//! small. The window of the connection has room for all streams however they stall, so that no stream stops the others of a
//! connection that many clients share.

use std::time::Duration;

use tokio::time::Instant;

/// The window of each stream while few bodies are received, as in kube-apiserver: 99 % of its request bodies are shorter.
// apiserver: pkg/server/secure_serving.go, resourceBody99Percentile
const WIDE: u32 = 256 << 10;
/// The window of each stream while many are.
const NARROW: u32 = 64 << 10;
/// The windows become narrow beyond this number of bodies, ...
const NARROW_BEYOND: usize = 16;
/// ... and wide again at this number.
const WIDE_UP_TO: usize = 8;
/// What the window of a connection has beyond narrow windows for all streams: for those that have stalled while the windows were
/// wide, and for what a peer sends before it learns that they are narrow.
const RESERVE: u32 = 8 << 20;
/// How long the windows stay narrow.
const NARROW_INTERVAL: Duration = Duration::from_secs(1);

/// The windows of a connection's streams.
#[derive(Debug)]
pub struct StreamWindows {
    current: u32,
    is_fixed: bool,
    since: Instant,
}

impl StreamWindows {
    /// The windows of a new connection, wide for now.
    pub fn wide() -> Self {
        Self { current: WIDE, is_fixed: false, since: Instant::now() }
    }

    /// Windows that are always narrow, for bodies that take their time.
    pub fn narrow() -> Self {
        Self { current: NARROW, is_fixed: true, since: Instant::now() }
    }

    /// The present window of each stream.
    pub fn current(&self) -> u32 {
        self.current
    }

    /// The window of a connection with this many streams.
    pub fn of_connection(streams: u32) -> u32 {
        NARROW.saturating_mul(streams).saturating_add(RESERVE)
    }

    /// Applies the window that fits this number of bodies by `set`, which returns whether that is possible now: HTTP/2 must
    /// have acknowledged the change before.
    pub fn adjust(&mut self, bodies: usize, set: impl FnOnce(u32) -> bool) {
        let wanted = match self.current {
            _ if self.is_fixed => return,
            WIDE if bodies > NARROW_BEYOND => NARROW,
            NARROW if bodies <= WIDE_UP_TO && self.since.elapsed() >= NARROW_INTERVAL => WIDE,
            _ => return,
        };
        if set(wanted) {
            (self.current, self.since) = (wanted, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window after this many bodies; HTTP/2 accepts the change if `accepts`.
    fn adjusted(windows: &mut StreamWindows, bodies: usize, accepts: bool) -> u32 {
        windows.adjust(bodies, |_| accepts);
        windows.current()
    }

    #[tokio::test(start_paused = true)]
    async fn windows_are_narrow_while_many_bodies_arrive() {
        let mut windows = StreamWindows::wide();
        assert_eq!(adjusted(&mut windows, NARROW_BEYOND, true), WIDE);
        assert_eq!(
            adjusted(&mut windows, NARROW_BEYOND + 1, false),
            WIDE,
            "the change before is not acknowledged"
        );
        assert_eq!(adjusted(&mut windows, NARROW_BEYOND + 1, true), NARROW);
        assert_eq!(adjusted(&mut windows, 0, true), NARROW, "not at once: a change costs a round trip");
        tokio::time::advance(NARROW_INTERVAL).await;
        assert_eq!(adjusted(&mut windows, WIDE_UP_TO + 1, true), NARROW);
        assert_eq!(adjusted(&mut windows, WIDE_UP_TO, true), WIDE);
        assert_eq!(adjusted(&mut windows, 1000, true), NARROW);
        let mut fixed = StreamWindows::narrow();
        tokio::time::advance(NARROW_INTERVAL).await;
        assert_eq!(adjusted(&mut fixed, 0, true), NARROW);
    }

    // However streams stall, one after another, those that come later have a window.
    #[test]
    fn the_window_of_a_connection_has_room_for_streams_that_stall() {
        for streams in [1, 20, 100, 250, 1000] {
            let wide = streams.min(u32::try_from(NARROW_BEYOND).unwrap());
            let stalled = wide * WIDE + (streams - wide) * NARROW;
            assert!(StreamWindows::of_connection(streams) >= stalled + RESERVE / 2, "{streams}");
        }
    }
}
