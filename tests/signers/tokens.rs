//! Which token secrets are deleted, and when (pkg/controller/bootstrap/tokencleaner.go).

use std::sync::Arc;

use futures_util::FutureExt as _;
use http::StatusCode;
use serde_json::{Value, json};

use crate::case::{now, timestamp};
use crate::clusters::{Cluster, Side, unique};
use crate::scenario::Scenario;

const GROUP: &str = "tokens";
const CLEANED: &str =
    "tokencleaner_test.go: TestCleanerExpired, TestCleanerNoExpiration, TestCleanerNotExpired";
const LATER: &str = "tokencleaner_test.go: TestCleanerExpiredAt; tokencleaner.go: read again at its end";
const TIMES: &str = "util/secrets: GetExpiration; Go: time.Parse(RFC3339)";
const WHICH: &str = "tokencleaner.go: the informer's selection; names are not checked";

/// A secret, what happens to it, and whether it is gone after that.
#[derive(Clone)]
struct Token {
    secret: Value,
    /// Seconds from now at which `expiration` is.
    expires: Option<i64>,
    /// A merge patch.
    then: Option<Value>,
    /// Seconds from now until which it is watched.
    watched: i64,
    gone: bool,
}

fn token() -> Token {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"namespace": "kube-system"},
        "stringData": {"token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
    });
    Token { secret, expires: None, then: None, watched: -1, gone: false }
}

impl Token {
    fn with(mut self, key: &str, value: &str) -> Self {
        self.secret["stringData"][key] = value.into();
        self
    }

    fn at(self, expiration: &str) -> Self {
        self.with("expiration", expiration)
    }

    fn expires_in(mut self, seconds: i64) -> Self {
        self.expires = Some(seconds);
        self
    }

    fn then(mut self, patch: Value) -> Self {
        self.then = Some(patch);
        self
    }

    fn watched(mut self, seconds: i64) -> Self {
        self.watched = seconds;
        self
    }

    fn gone(mut self) -> Self {
        self.gone = true;
        self
    }

    async fn play(&self, cluster: &Cluster) -> Result<Value, String> {
        let id = format!("t{:05}", unique());
        let mut secret = self.secret.clone();
        if secret["metadata"]["name"].is_null() {
            secret["metadata"]["name"] = format!("bootstrap-token-{id}").into();
        } else {
            let name = secret["metadata"]["name"].as_str().unwrap_or_default().replace("ID", &id);
            secret["metadata"]["name"] = name.into();
        }
        if secret["stringData"]["token-id"].is_null() {
            secret["stringData"]["token-id"] = id.clone().into();
        }
        let begun = now();
        if let Some(seconds) = self.expires {
            secret["stringData"]["expiration"] = timestamp(begun + seconds).into();
        }
        let namespace = secret["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        let secrets = format!("/api/v1/namespaces/{namespace}/secrets");
        let name = secret["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("{secrets}/{name}");
        cluster.api.post(&secrets, &secret).await?.ok()?;
        if let Some(patch) = &self.then {
            cluster.api.patch(&path, patch).await?.ok()?;
        }
        if cluster.side != Side::Bare {
            cluster.check()?;
            if self.gone {
                cluster.api.until(&secrets, &name, |secret| secret.is_none()).await?;
            } else {
                fence(cluster, begun + self.watched).await?;
                fence(cluster, -1).await?;
            }
        }
        let ended = now();
        let status = cluster.api.get(&path).await?.status;
        // One that is gone is not gone before its end.
        let early = status == StatusCode::NOT_FOUND
            && self.then.is_none()
            && self.expires.is_some_and(|seconds| seconds > 0 && ended < begun + seconds);
        Ok(json!({"gone": status == StatusCode::NOT_FOUND, "early": early}))
    }
}

/// A token that ends then: when it is gone, those that ended before it have been looked at.
pub(crate) async fn fence(cluster: &Cluster, expires: i64) -> Result<(), String> {
    let id = format!("f{:05}", unique());
    let name = format!("bootstrap-token-{id}");
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token", "metadata": {"name": name},
        "stringData": {"token-id": id, "token-secret": "0123456789abcdef", "expiration": timestamp(expires.max(0))},
    });
    cluster.api.post(secrets, &secret).await?.ok()?;
    let gone = cluster.api.until(secrets, &name, |secret| secret.is_none()).await;
    gone.map(drop).map_err(|error| format!("the fence: {error}"))
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut rows: Vec<(&str, &'static str, Token)> = vec![
        ("no end", CLEANED, token()),
        ("ended an hour ago", CLEANED, token().expires_in(-3600).gone()),
        ("ended just now", CLEANED, token().expires_in(0).gone()),
        ("ends in a day", CLEANED, token().expires_in(86_400)),
        ("ends in two seconds", LATER, token().expires_in(2).gone()),
        ("ends in two seconds, then later", LATER, {
            token()
                .expires_in(2)
                .then(json!({"stringData": {"expiration": "2099-01-01T00:00:00Z"}}))
                .watched(3)
        }),
        ("ends in two seconds, then never", LATER, {
            token().expires_in(2).then(json!({"data": {"expiration": null}})).watched(3)
        }),
        ("ends in a day, then at once", LATER, {
            token()
                .expires_in(86_400)
                .then(json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}}))
                .gone()
        }),
        ("ends in a day, then in a second", LATER, {
            let then = timestamp(now() + 1);
            token().expires_in(86_400).then(json!({"stringData": {"expiration": then}})).gone()
        }),
        ("never ends, then at once", LATER, {
            token().then(json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}})).gone()
        }),
        ("expires far away, then at an unknown time", LATER, {
            token().at("2099-01-01T00:00:00Z").then(json!({"stringData": {"expiration": "soon"}})).gone()
        }),
        ("an ended one of another type", WHICH, {
            let mut token = token().at("2020-01-01T00:00:00Z");
            token.secret["type"] = "Opaque".into();
            token
        }),
        ("an ended one in another namespace", WHICH, {
            let mut token = token().at("2020-01-01T00:00:00Z");
            token.secret["metadata"]["namespace"] = "kube-public".into();
            token
        }),
        ("an ended one with another name", WHICH, {
            let mut token = token().at("2020-01-01T00:00:00Z").gone();
            token.secret["metadata"]["name"] = "anything-ID".into();
            token
        }),
        (
            "an ended one with another id",
            WHICH,
            token().with("token-id", "zzzzzz").at("2020-01-01T00:00:00Z").gone(),
        ),
        (
            "an ended one without a secret",
            WHICH,
            token().with("token-secret", "").at("2020-01-01T00:00:00Z").gone(),
        ),
        ("an ended one for signing", WHICH, {
            token().with("usage-bootstrap-signing", "true").at("2020-01-01T00:00:00Z").gone()
        }),
        ("an ended one whose deletion waits", WHICH, {
            let mut token = token().expires_in(86_400);
            token.secret["metadata"]["finalizers"] = json!(["example.com/wait"]);
            token
        }),
    ];
    // All of these are far away, if they are times at all.
    for (text, gone) in [
        ("", false),
        ("2099-01-01T00:00:00Z", false),
        ("2099-01-01T00:00:00+02:00", false),
        ("2099-01-01T00:00:00-12:30", false),
        ("2099-01-01T00:00:00.123456789Z", false),
        ("2099-01-01T00:00:00.1234567890123Z", false),
        ("2099-01-01T00:00:00,5Z", false),
        ("9999-12-31T23:59:59Z", false),
        ("2096-02-29T00:00:00Z", false),
        ("2099-01-01T00:00:00+23:59", false),
        ("2099-01-01T1:00:00Z", false),
        ("2099-01-01T00:00:00.Z", true),
        ("2099-01-01T00:00:00+24:00", false),
        ("2099-01-01T00:00:00+00:60", false),
        ("2099-01-01T00:00:00-24:60", false),
        ("2099-01-01T00:00:00+25:00", true),
        ("2099-01-01T00:00:00+00:61", true),
        ("2099-01-01T00:00:00+0000", true),
        ("2099-01-01", true),
        ("2099-01-01T00:00:00", true),
        ("2099-01-01 00:00:00Z", true),
        ("2099-01-01t00:00:00Z", true),
        ("2099-01-01T00:00:00z", true),
        ("2099-01-01T00:00:00Z\n", true),
        (" 2099-01-01T00:00:00Z", true),
        ("2099-01-01T00:00Z", true),
        ("2099-01-01T24:00:00Z", true),
        ("2098-12-31T23:59:60Z", true),
        ("2099-02-29T00:00:00Z", true),
        ("2099-13-01T00:00:00Z", true),
        ("2099-00-01T00:00:00Z", true),
        ("2099-01-00T00:00:00Z", true),
        ("2099-1-01T00:00:00Z", true),
        ("99-01-01T00:00:00Z", true),
        ("10000-01-01T00:00:00Z", true),
        ("+2099-01-01T00:00:00Z", true),
        ("4070908800", true),
        ("never", true),
        ("20990101T000000Z", true),
        ("2099-01-01T00:00:00\u{2212}00:00", true),
    ] {
        let token = token().at(text);
        rows.push((text, TIMES, if gone { token.gone() } else { token }));
    }
    let scenario = |(number, (name, from, token)): (usize, (&str, &'static str, Token))| {
        let name = if from == TIMES { format!("time {number} {name:?}") } else { name.to_owned() };
        let (gone, expected) = (token.gone, json!({"gone": token.gone, "early": false}));
        let token = Arc::new(token);
        Scenario::new(GROUP, &name, from, Some(expected), move |_, cluster| {
            let token = Arc::clone(&token);
            async move { token.play(cluster).await }.boxed_local()
        })
        .acts(gone)
    };
    rows.into_iter().enumerate().map(scenario).collect()
}
