//! `portcullis token list`.

use std::time::Duration;

use clap::Args;
use kube::ResourceExt as _;
use kube::api::ListParams;
use portcullis_go::time;
use portcullis_pki::bootstrap_tokens::secret::{SECRET_TYPE, TokenData, TokenDescription};
use portcullis_system::clock::{Clock, UnixTime};
use secrecy::ExposeSecret as _;
use serde::Serialize;

use super::super::cluster::ClusterFlags;
use super::super::table::columns;
use super::{BootstrapError, print_error, say, secrets};
use crate::output::Output;

const COLUMNS: [&str; 6] = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"];

/// The flags of `portcullis token list`.
#[derive(Debug, Clone, Args)]
pub struct TokenListFlags {
    #[command(flatten)]
    cluster: ClusterFlags,
    /// The output format; JSON and YAML as `kubeadm token list` prints them, one document per token.
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Text, help_heading = "Output")]
    output: Output,
}

// kubeadm: cmd/token.go, RunListTokens
pub(super) async fn run(flags: &TokenListFlags, clock: &Clock) -> Result<(), BootstrapError> {
    let cluster = flags.cluster.connect().await.map_err(BootstrapError::cluster)?;
    let wanted = ListParams::default().fields(&format!("type={SECRET_TYPE}"));
    let found = secrets(&cluster.client);
    let found =
        cluster.ask("list bootstrap tokens", found.list(&wanted)).await.map_err(BootstrapError::Cluster)?;
    let mut tokens = Vec::new();
    for secret in &found.items {
        match TokenData::of(secret).describe(&secret.name_any()) {
            Ok(token) => tokens.push(token),
            Err(problem) => print_error(&problem.to_string()),
        }
    }
    let text = match flags.output {
        Output::Text => table(&tokens, clock.now()),
        Output::Json => json(&tokens).map_err(BootstrapError::cluster)?,
        Output::Yaml => yaml(&tokens).map_err(BootstrapError::cluster)?,
    };
    say(&text)
}

// kubeadm: cmd/token.go, formatBootstrapToken
fn table(tokens: &[TokenDescription], now: UnixTime) -> String {
    let or = |text: String, none: &str| if text.is_empty() { none.to_owned() } else { text };
    let row = |token: &TokenDescription| {
        let (ttl, end) = match &token.expires {
            Some(end) => (left(end.remaining(now), end.since_epoch(), now), end.in_whole_seconds()),
            None => ("<forever>".to_owned(), "<never>".to_owned()),
        };
        [
            token.token.expose().expose_secret().to_owned(),
            ttl,
            end,
            or(token.usages.join(","), "<none>"),
            or(token.description.clone(), "<none>"),
            or(token.groups.join(","), "<none>"),
        ]
    };
    columns(COLUMNS, tokens.iter().map(row))
}

/// The remaining time, in the largest unit.
// apimachinery: pkg/util/duration/duration.go, ShortHumanDuration
fn left(remaining: Option<Duration>, end: UnixTime, now: UnixTime) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const YEAR: u64 = 365 * DAY;
    let Some(remaining) = remaining else {
        let just_now = now.saturating_sub(end) < Duration::from_secs(2);
        return if just_now { "0s" } else { "<invalid>" }.to_owned();
    };
    match remaining.as_secs() {
        seconds @ ..MINUTE => format!("{seconds}s"),
        seconds @ ..HOUR => format!("{}m", seconds / MINUTE),
        seconds @ ..DAY => format!("{}h", seconds / HOUR),
        seconds @ ..YEAR => format!("{}d", seconds / DAY),
        seconds => format!("{}y", seconds / YEAR),
    }
}

/// A token in kubeadm's output format; the fields in kubeadm's order.
// kubeadm: apis/output/v1alpha3/types.go and apis/bootstraptoken/v1/types.go
#[derive(Serialize)]
struct BootstrapTokenDocument<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    token: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires: Option<String>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    usages: &'a [String],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'a [String],
}

impl<'a> From<&'a TokenDescription> for BootstrapTokenDocument<'a> {
    fn from(token: &'a TokenDescription) -> Self {
        Self {
            kind: "BootstrapToken",
            api_version: "output.kubeadm.k8s.io/v1alpha3",
            token: token.token.expose().expose_secret().to_owned(),
            description: &token.description,
            expires: token.expires.as_ref().map(|end| time::format_since_epoch(end.since_epoch())),
            usages: &token.usages,
            groups: &token.groups,
        }
    }
}

/// Concatenated documents, as kubeadm prints them.
fn json(tokens: &[TokenDescription]) -> serde_json::Result<String> {
    let mut text = Vec::new();
    for token in tokens {
        let style = serde_json::ser::PrettyFormatter::with_indent(b"    ");
        let mut writer = serde_json::Serializer::with_formatter(&mut text, style);
        BootstrapTokenDocument::from(token).serialize(&mut writer)?;
        text.push(b'\n');
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A stream of documents with sorted keys.
fn yaml(tokens: &[TokenDescription]) -> Result<String, String> {
    let one = |token| {
        let value =
            serde_json::to_value(BootstrapTokenDocument::from(token)).map_err(|error| error.to_string())?;
        serde_saphyr::to_string(&value).map_err(|error| error.to_string())
    };
    let documents: Result<Vec<_>, _> = tokens.iter().map(one).collect();
    documents.map(|documents| documents.join("---\n"))
}

#[cfg(test)]
mod tests {
    use portcullis_pki::bootstrap_tokens::secret::TokenData;

    use super::*;

    /// 2023-11-14T22:13:20Z
    const NOW: UnixTime = Duration::from_secs(1_700_000_000);

    fn described(pairs: &[(&str, &str)]) -> TokenDescription {
        let data: TokenData<'_> = pairs.iter().map(|(key, value)| (*key, value.as_bytes())).collect();
        data.describe("bootstrap-token-abcdef").unwrap()
    }

    /// A token with every field, and one with the required fields only.
    fn two() -> [TokenDescription; 2] {
        let least = [("token-id", "abcdef"), ("token-secret", "1234567890123456")];
        let most = [
            least[0],
            least[1],
            ("description", "valid bootstrap token"),
            ("expiration", "2023-11-15T23:13:20+01:00"),
            ("usage-bootstrap-signing", "true"),
            ("usage-bootstrap-authentication", "true"),
            ("auth-extra-groups", "system:bootstrappers:kubeadm:default-node-token,system:bootstrappers:b"),
        ];
        [described(&most), described(&least)]
    }

    #[test]
    fn tokens_are_printed_as_kubeadm_does() {
        let tokens = two();
        insta::assert_snapshot!("table", table(&tokens, NOW));
        insta::assert_snapshot!("json", json(&tokens).unwrap());
        insta::assert_snapshot!("yaml", yaml(&tokens).unwrap());
        let rude = TokenDescription { description: "a\u{1b}[2J\nb".to_owned(), ..two()[1].clone() };
        let rude = table(&[rude], NOW);
        assert!(rude.contains("<none>  a\u{fffd}[2J\u{fffd}b ") && rude.lines().count() == 2, "{rude}");
        assert_eq!(json(&[]).unwrap() + &yaml(&[]).unwrap(), "");
    }

    #[test]
    fn the_remaining_time_is_rounded_to_one_unit() {
        // apimachinery: pkg/util/duration/duration_test.go, TestShortHumanDuration
        let at = |seconds: u64| {
            let end = NOW + Duration::from_secs(seconds);
            left((seconds > 0).then(|| Duration::from_secs(seconds)), end, NOW)
        };
        for (seconds, expected) in [
            (1, "1s"),
            (59, "59s"),
            (60, "1m"),
            (119, "1m"),
            (3599, "59m"),
            (3600, "1h"),
            (86_399, "23h"),
            (86_400, "1d"),
            (364 * 86_400, "364d"),
            (365 * 86_400, "1y"),
            (800 * 86_400, "2y"),
            (0, "0s"),
        ] {
            assert_eq!(at(seconds), expected, "{seconds}");
        }
        assert_eq!(left(None, NOW.saturating_sub(Duration::from_secs(1)), NOW), "0s");
        assert_eq!(left(None, NOW.saturating_sub(Duration::from_secs(2)), NOW), "<invalid>");
    }
}
