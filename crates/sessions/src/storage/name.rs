//! The names of sessions and of their objects. No name has text that a client could choose freely.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use portcullis_go::hex::hex;
use portcullis_go::time::{Date, Time};

/// The maximum length of an audit ID that is a part of a name.
const MAX_AUDIT_ID: usize = 64;

/// The name of a session: the time of its start, the audit ID, and a random number, since a client can choose the audit ID.
///
/// Names sort by time: `20260102T030405.678Z-2c7bb2b6-1f6f-4b3c-9c0b-000000000000-0a1b2c3d4e5f6071`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionName(String);

/// The name of an object of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectName {
    /// `session.json`.
    Start,
    /// A part, from 0.
    Part(u32, PartForm),
    /// `end.json`.
    End,
    /// `session.link`.
    StartLink,
    /// The link of a part.
    PartLink(u32),
    /// `end.link`.
    EndLink,
}

/// The form of the parts of a recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PartForm {
    /// An asciicast.
    Cast,
    /// JSON lines.
    JsonLines,
}

impl SessionName {
    /// The name of a session that started at this time since 1970. An audit ID with other characters than letters, digits
    /// and hyphens, or a long one, is replaced by its hash.
    pub fn new(started: Duration, audit_id: &str, random: [u8; 8]) -> Self {
        let seconds = i64::try_from(started.as_secs()).unwrap_or(i64::MAX).min(253_402_300_799);
        let Date { year, month, day, hour, minute, second, .. } = Date::of(seconds);
        let milliseconds = started.subsec_millis();
        let is_plain = (1..=MAX_AUDIT_ID).contains(&audit_id.len())
            && audit_id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let id = if is_plain { audit_id.to_owned() } else { format!("sha256-{}", hash(audit_id)) };
        Self(format!(
            "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}.{milliseconds:03}Z-{id}-{}",
            hex(&random)
        ))
    }

    /// A name as [`SessionName::new`] makes it; `None` for another text.
    pub fn parse(text: &str) -> Option<Self> {
        let (time, rest) = text.split_once('-')?;
        let (id, random) = rest.rsplit_once('-')?;
        let digits = |byte: u8| byte.is_ascii_digit();
        let is_time = time.len() == 20
            && time.bytes().enumerate().all(|(index, byte)| match index {
                8 => byte == b'T',
                15 => byte == b'.',
                19 => byte == b'Z',
                _ => digits(byte),
            });
        let is_id = (1..=MAX_AUDIT_ID + 7).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let is_random = random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_time && is_id && is_random).then(|| Self(text.to_owned()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The time of the start, since 1970; `None` if there is no such date.
    pub fn started(&self) -> Option<Duration> {
        let digits = |range| self.0.get(range);
        let (year, month, day) = (digits(0..4)?, digits(4..6)?, digits(6..8)?);
        // With the milliseconds and the Z.
        let (hour, minute, second) = (digits(9..11)?, digits(11..13)?, digits(13..20)?);
        let text = format!("{year}-{month}-{day}T{hour}:{minute}:{second}");
        Time::parse_rfc3339(&text).map(|time| time.since_epoch())
    }

    /// The audit ID, or `sha256-` and its hash.
    pub fn audit_id(&self) -> &str {
        let parts = self.0.split_once('-').and_then(|(_, rest)| rest.rsplit_once('-'));
        parts.map_or("", |(id, _)| id)
    }
}

fn hash(text: &str) -> String {
    digest(&SHA256, text.as_bytes())
        .as_ref()
        .iter()
        .take(16)
        .flat_map(|octet| portcullis_go::hex::digits(*octet))
        .collect()
}

impl ObjectName {
    /// The link of this object; a link has itself.
    #[must_use]
    pub fn link(self) -> Self {
        match self {
            Self::Start | Self::StartLink => Self::StartLink,
            Self::Part(number, _) | Self::PartLink(number) => Self::PartLink(number),
            Self::End | Self::EndLink => Self::EndLink,
        }
    }

    /// The object with this name; `None` for another text.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "session.json" => Self::Start,
            "session.link" => Self::StartLink,
            "end.json" => Self::End,
            "end.link" => Self::EndLink,
            _ => {
                let (number, extension) = text.split_once('.')?;
                let is_number = number.len() >= 6 && number.bytes().all(|byte| byte.is_ascii_digit());
                let number: u32 = number.parse().ok().filter(|_| is_number)?;
                let name = match extension {
                    "cast" => Self::Part(number, PartForm::Cast),
                    "jsonl" => Self::Part(number, PartForm::JsonLines),
                    "link" => Self::PartLink(number),
                    _ => return None,
                };
                // One name for each object: no more zeros than six digits need.
                return (name.to_string() == text).then_some(name);
            }
        })
    }
}

impl fmt::Display for SessionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start => f.write_str("session.json"),
            Self::StartLink => f.write_str("session.link"),
            Self::End => f.write_str("end.json"),
            Self::EndLink => f.write_str("end.link"),
            Self::Part(number, PartForm::Cast) => write!(f, "{number:06}.cast"),
            Self::Part(number, PartForm::JsonLines) => write!(f, "{number:06}.jsonl"),
            Self::PartLink(number) => write!(f, "{number:06}.link"),
        }
    }
}
