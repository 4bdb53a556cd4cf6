//! The deletion of bootstrap token secrets (pkg/controller/bootstrap/tokencleaner.go).

use std::sync::Arc;

use futures_util::FutureExt as _;
use http::StatusCode;
use serde_json::{Value, json};

use crate::case::timestamp;
use crate::clusters::{Cluster, Side, unique};
use crate::scenario::Scenario;
use testkit::now;

const GROUP: &str = "tokens";
const CLEANED: &str =
    "tokencleaner_test.go: TestCleanerExpired, TestCleanerNoExpiration, TestCleanerNotExpired";
const LATER: &str = "tokencleaner_test.go: TestCleanerExpiredAt; tokencleaner.go: read again at its end";
const TIMES: &str = "util/secrets: GetExpiration; Go: time.Parse(RFC3339)";
const WHICH: &str = "tokencleaner.go: the informer's selection; names are not checked";

/// A secret, a change to it, and whether the cleaner deletes it.
#[derive(Clone)]
struct Token {
    secret: Value,
    /// `expiration`, in seconds from now.
    expires: Option<i64>,
    /// A merge patch after creation.
    then: Option<Value>,
    /// For a secret that must remain: until when to wait, in seconds from now.
    wait_until: i64,
    deleted: bool,
}

fn token() -> Token {
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"namespace": "kube-system"},
        "stringData": {"token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
    });
    Token { secret, expires: None, then: None, wait_until: -1, deleted: false }
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

    fn wait_until(mut self, seconds: i64) -> Self {
        self.wait_until = seconds;
        self
    }

    fn deleted(mut self) -> Self {
        self.deleted = true;
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
        let start = now();
        if let Some(seconds) = self.expires {
            secret["stringData"]["expiration"] = timestamp(start + seconds).into();
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
            if self.deleted {
                cluster.api.until(&secrets, &name, |secret| secret.is_none()).await?;
            } else {
                fence(cluster, start + self.wait_until).await?;
                fence(cluster, -1).await?;
            }
        }
        let ended = now();
        let status = cluster.api.get(&path).await?.status;
        // The cleaner must not delete a secret before it expires.
        let early = status == StatusCode::NOT_FOUND
            && self.then.is_none()
            && self.expires.is_some_and(|seconds| seconds > 0 && ended < start + seconds);
        Ok(json!({"gone": status == StatusCode::NOT_FOUND, "early": early}))
    }
}

/// Creates a token that expires at `expires` and waits for its deletion. The cleaner has then processed all tokens that
/// expired earlier.
pub(crate) async fn fence(cluster: &Cluster, expires: i64) -> Result<(), String> {
    let id = format!("f{:05}", unique());
    let name = format!("bootstrap-token-{id}");
    let secrets = "/api/v1/namespaces/kube-system/secrets";
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token", "metadata": {"name": name},
        "stringData": {"token-id": id, "token-secret": "0123456789abcdef", "expiration": timestamp(expires.max(0))},
    });
    cluster.api.post(secrets, &secret).await?.ok()?;
    let deleted = cluster.api.until(secrets, &name, |secret| secret.is_none()).await;
    deleted.map(drop).map_err(|error| format!("the fence: {error}"))
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut rows: Vec<(&str, &'static str, Token)> = vec![
        ("no end", CLEANED, token()),
        ("expired an hour ago", CLEANED, token().expires_in(-3600).deleted()),
        ("expired just now", CLEANED, token().expires_in(0).deleted()),
        ("ends in a day", CLEANED, token().expires_in(86_400)),
        ("expires in two seconds", LATER, token().expires_in(2).deleted()),
        ("ends in two seconds, then later", LATER, {
            token()
                .expires_in(2)
                .then(json!({"stringData": {"expiration": "2099-01-01T00:00:00Z"}}))
                .wait_until(3)
        }),
        ("ends in two seconds, then never", LATER, {
            token().expires_in(2).then(json!({"data": {"expiration": null}})).wait_until(3)
        }),
        ("ends in a day, then at once", LATER, {
            token()
                .expires_in(86_400)
                .then(json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}}))
                .deleted()
        }),
        ("ends in a day, then in a second", LATER, {
            let then = timestamp(now() + 1);
            token().expires_in(86_400).then(json!({"stringData": {"expiration": then}})).deleted()
        }),
        ("never ends, then at once", LATER, {
            token().then(json!({"stringData": {"expiration": "2020-01-01T00:00:00Z"}})).deleted()
        }),
        ("expires far away, then at an unknown time", LATER, {
            token().at("2099-01-01T00:00:00Z").then(json!({"stringData": {"expiration": "soon"}})).deleted()
        }),
        ("an expired token of another type", WHICH, {
            let mut token = token().at("2020-01-01T00:00:00Z");
            token.secret["type"] = "Opaque".into();
            token
        }),
        ("an expired token in another namespace", WHICH, {
            let mut token = token().at("2020-01-01T00:00:00Z");
            token.secret["metadata"]["namespace"] = "kube-public".into();
            token
        }),
        ("an expired token with another name", WHICH, {
            let mut token = token().at("2020-01-01T00:00:00Z").deleted();
            token.secret["metadata"]["name"] = "anything-ID".into();
            token
        }),
        (
            "an expired token with another id",
            WHICH,
            token().with("token-id", "zzzzzz").at("2020-01-01T00:00:00Z").deleted(),
        ),
        (
            "an expired token without a secret",
            WHICH,
            token().with("token-secret", "").at("2020-01-01T00:00:00Z").deleted(),
        ),
        ("an expired token for signing", WHICH, {
            token().with("usage-bootstrap-signing", "true").at("2020-01-01T00:00:00Z").deleted()
        }),
        ("an expired token whose deletion waits", WHICH, {
            let mut token = token().expires_in(86_400);
            token.secret["metadata"]["finalizers"] = json!(["example.com/wait"]);
            token
        }),
    ];
    // Times far in the past or future, and invalid times.
    for (text, deleted) in [
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
        rows.push((text, TIMES, if deleted { token.deleted() } else { token }));
    }
    let scenario = |(number, (name, from, token)): (usize, (&str, &'static str, Token))| {
        let name = if from == TIMES { format!("time {number} {name:?}") } else { name.to_owned() };
        let (deleted, expected) = (token.deleted, json!({"gone": token.deleted, "early": false}));
        let token = Arc::new(token);
        Scenario::new(GROUP, &name, from, Some(expected), move |_, cluster| {
            let token = Arc::clone(&token);
            async move { token.play(cluster).await }.boxed_local()
        })
        .acts(deleted)
    };
    rows.into_iter().enumerate().map(scenario).collect()
}
