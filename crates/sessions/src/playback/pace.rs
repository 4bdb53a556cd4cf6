//! When a player shows the events of a recording.

use std::time::Duration;

/// Turns the times of a recording into those of its player. Pure: the player has the clock.
#[derive(Debug, Clone)]
pub struct Pace {
    speed: f64,
    idle_limit: Option<Duration>,
    /// The time of the last event, in the recording and in the player.
    recorded: Duration,
    played: Duration,
}

impl Pace {
    /// A pace of `speed` times that of the recording, which is positive. A pause of the recording that is longer than `idle_limit` is
    /// as long as that.
    pub fn new(speed: f64, idle_limit: Option<Duration>) -> Self {
        Self { speed, idle_limit, recorded: Duration::ZERO, played: Duration::ZERO }
    }

    /// The time since the start of the playback at which the next event is due.
    pub fn due(&mut self, recorded: Duration) -> Duration {
        let pause = recorded.saturating_sub(self.recorded);
        let pause = self.idle_limit.map_or(pause, |limit| pause.min(limit));
        self.recorded = recorded.max(self.recorded);
        let pause = Duration::try_from_secs_f64(pause.as_secs_f64() / self.speed).unwrap_or(Duration::MAX);
        self.played = self.played.saturating_add(pause);
        self.played
    }
}
