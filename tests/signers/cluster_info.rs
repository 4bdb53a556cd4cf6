//! The signatures of kube-public/cluster-info (pkg/controller/bootstrap/bootstrapsigner.go,
//! cluster-bootstrap/token/jws).
//!
//! This module computes the expected signatures from RFC 7515 and does not take them from the reference.

use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::FutureExt as _;
use serde_json::{Map, Value, json};

use crate::case::timestamp;
use crate::client::REQUEST_TIMEOUT;
use crate::clusters::{Cluster, Side, unique};
use crate::scenario::Scenario;

const GROUP: &str = "cluster_info";
const SIGNED: &str = "bootstrapsigner_test.go: TestSimpleSign, TestNoSignNeeded, TestUpdateSignature";
const REMOVED: &str = "bootstrapsigner_test.go: TestRemoveSignature";
const ABSENT: &str = "bootstrapsigner_test.go: TestNoConfigMap";
const TOKENS: &str = "util_test.go: TestValidateSecretForSigning";
const JWS: &str = "jws_test.go: TestComputeDetachedSignature";

const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const MAPS: &str = "/api/v1/namespaces/kube-public/configmaps";
const PREFIX: &str = "jws-kubeconfig-";
const CONFIG: &str = "apiVersion: v1\nkind: Config\n";
const SECRET: &str = "0123456789abcdef";

/// The data of a secret beside its token ID.
type Data = &'static [(&'static str, &'static str)];

#[derive(Clone)]
struct Info {
    /// Secrets by token id.
    tokens: Vec<(&'static str, Data)>,
    /// The `ConfigMap`'s data; `None` if it does not exist.
    data: Option<Value>,
    /// Merge patches after the first signing, of secrets (by token ID; null deletes) and of the `ConfigMap` (`""`).
    then: Vec<(&'static str, Value)>,
    /// The tokens with signatures at the end, and their secrets.
    signers: Vec<(&'static str, &'static str)>,
    /// The content that they sign.
    payload: Option<&'static str>,
    /// Other data of the `ConfigMap` at the end.
    rest: Value,
}

const SIGNS: Data = &[("token-secret", SECRET), ("usage-bootstrap-signing", "true")];

fn info(tokens: &[(&'static str, Data)]) -> Info {
    Info {
        tokens: tokens.to_vec(),
        data: Some(json!({"kubeconfig": CONFIG})),
        then: Vec::new(),
        signers: Vec::new(),
        payload: Some(CONFIG),
        rest: json!({}),
    }
}

fn jws(id: &str, secret: &[u8], payload: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!(r#"{{"alg":"HS256","kid":"{id}"}}"#));
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(payload));
    let signature = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), signed.as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(signature))
}

impl Info {
    fn signs(mut self, signers: &[(&'static str, &'static str)]) -> Self {
        self.signers = signers.to_vec();
        self
    }

    fn data(mut self, data: Value, payload: Option<&'static str>) -> Self {
        self.data = Some(data);
        self.payload = payload;
        self
    }

    fn then(mut self, token_id: &'static str, patch: Value) -> Self {
        self.then.push((token_id, patch));
        self
    }

    fn payload(mut self, payload: &'static str) -> Self {
        self.payload = Some(payload);
        self
    }

    fn rest(mut self, rest: Value) -> Self {
        self.rest = rest;
        self
    }

    fn expected(&self) -> Value {
        let mut data = self.rest.as_object().cloned().unwrap_or_default();
        if let Some(payload) = self.payload {
            data.insert("kubeconfig".to_owned(), payload.into());
            for (id, secret) in &self.signers {
                data.insert(format!("{PREFIX}{id}"), jws(id, secret.as_bytes(), payload).into());
            }
        }
        if self.data.is_none() { Value::Null } else { Value::Object(data) }
    }

    async fn play(&self, cluster: &Cluster) -> Result<Value, String> {
        let _alone = cluster.info.lock().await;
        let outcome = self.play_alone(cluster).await;
        cluster.api.delete(&format!("{MAPS}/cluster-info")).await?;
        for (id, _) in &self.tokens {
            cluster.api.delete(&format!("{SECRETS}/bootstrap-token-{id}")).await?;
        }
        outcome
    }

    async fn play_alone(&self, cluster: &Cluster) -> Result<Value, String> {
        for (id, data) in &self.tokens {
            let mut secret = token(id, data);
            if data.iter().any(|(key, _)| *key == "type") {
                secret["type"] = "Opaque".into();
            }
            cluster.api.post(SECRETS, &secret).await?.ok()?;
        }
        if let Some(data) = &self.data {
            let map = json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": data,
                "metadata": {"name": "cluster-info", "labels": {"mine": "yes"}, "annotations": {"mine": "too"}},
            });
            cluster.api.post(MAPS, &map).await?.ok()?;
        }
        settle(cluster).await?;
        for (token_id, patch) in &self.then {
            let path = match *token_id {
                "" => format!("{MAPS}/cluster-info"),
                id => format!("{SECRETS}/bootstrap-token-{id}"),
            };
            if patch.is_null() {
                cluster.api.delete(&path).await?.ok()?;
            } else {
                cluster.api.patch(&path, patch).await?.ok()?;
            }
        }
        if !self.then.is_empty() {
            settle(cluster).await?;
        }
        let map = cluster.api.get(&format!("{MAPS}/cluster-info")).await?;
        if map.status == http::StatusCode::NOT_FOUND {
            return Ok(Value::Null);
        }
        let map = map.ok()?;
        if map["metadata"]["labels"]["mine"] != "yes" || map["metadata"]["annotations"]["mine"] != "too" {
            return Err(format!("labels or annotations are lost: {}", map["metadata"]));
        }
        Ok(map["data"].as_object().cloned().map_or_else(|| json!({}), Value::Object))
    }
}

fn token(id: &str, data: &[(&str, &str)]) -> Value {
    let mut content: Map<String, Value> =
        data.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    content.entry("token-id").or_insert(id.into());
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{id}")}, "stringData": content,
    })
}

/// Waits until the signer has added the signature of an extra token, and removed it after the token's deletion. The
/// signer has then seen all earlier changes.
async fn settle(cluster: &Cluster) -> Result<(), String> {
    if cluster.side == Side::Bare {
        return Ok(());
    }
    cluster.check()?;
    let there = cluster.api.get(&format!("{MAPS}/cluster-info")).await?;
    if there.status != 200 || !there.body["data"]["kubeconfig"].is_string() {
        // The signer has nothing to sign, so there is no signal: wait as long as the token cleaner takes for the same
        // secrets.
        crate::tokens::fence(cluster, -1).await?;
        return crate::tokens::fence(cluster, -1).await;
    }
    let id = format!("s{:05}", unique());
    let key = format!("{PREFIX}{id}");
    let path = format!("{SECRETS}/bootstrap-token-{id}");
    cluster.api.post(SECRETS, &token(&id, SIGNS)).await?.ok()?;
    let signed = |map: Option<&Value>| {
        map.is_some_and(|map| {
            let payload = map["data"]["kubeconfig"].as_str().unwrap_or_default();
            map["data"][&key] == jws(&id, SECRET.as_bytes(), payload)
        })
    };
    let waited = tokio::time::timeout(REQUEST_TIMEOUT, cluster.api.until(MAPS, "cluster-info", signed)).await;
    cluster.api.delete(&path).await?.ok()?;
    waited.map_err(|error| error.to_string())?.map_err(|error| format!("no signature: {error}"))?;
    let gone = |map: Option<&Value>| map.is_some_and(|map| map["data"][&key].is_null());
    cluster.api.until(MAPS, "cluster-info", gone).await.map(drop)
}

pub(crate) fn scenarios() -> Vec<Scenario> {
    let abc = ("abc123", SIGNS);
    let (a, b) = (("abc123", SECRET), ("def456", "fedcba9876543210"));
    let def: (&str, Data) =
        ("def456", &[("token-secret", "fedcba9876543210"), ("usage-bootstrap-signing", "true")]);
    let stale = json!({"kubeconfig": CONFIG, "jws-kubeconfig-old000": "x..y", "jws-kubeconfig-": "z", "other": "stays"});
    let past = json!({"stringData": {"expiration": timestamp(1_600_000_000)}});
    let mut rows: Vec<(&str, &'static str, Info)> = vec![
        ("one token", SIGNED, info(&[abc]).signs(&[a])),
        ("two tokens", SIGNED, info(&[abc, def]).signs(&[a, b])),
        ("no token", SIGNED, info(&[])),
        ("no ConfigMap", ABSENT, Info { data: None, ..info(&[abc]) }),
        ("no kubeconfig", ABSENT, info(&[abc]).data(json!({"other": "x"}), None).rest(json!({"other": "x"}))),
        ("no kubeconfig, and stale signatures stay", ABSENT, {
            let data = json!({"jws-kubeconfig-old000": "x..y"});
            info(&[abc]).data(data.clone(), None).rest(data)
        }),
        ("an empty ConfigMap", ABSENT, info(&[abc]).data(json!({}), None)),
        (
            "an empty kubeconfig is signed",
            SIGNED,
            info(&[abc]).data(json!({"kubeconfig": ""}), Some("")).signs(&[a]),
        ),
        ("already signed", SIGNED, {
            let data = json!({"kubeconfig": CONFIG, "jws-kubeconfig-abc123": jws("abc123", SECRET.as_bytes(), CONFIG)});
            info(&[abc]).data(data, Some(CONFIG)).signs(&[a])
        }),
        ("a wrong signature is replaced", SIGNED, {
            let data = json!({"kubeconfig": CONFIG, "jws-kubeconfig-abc123": "wrong"});
            info(&[abc]).data(data, Some(CONFIG)).signs(&[a])
        }),
        ("stale signatures go, other keys stay", REMOVED, {
            info(&[abc]).data(stale.clone(), Some(CONFIG)).signs(&[a]).rest(json!({"other": "stays"}))
        }),
        ("stale signatures go without any token", REMOVED, {
            info(&[]).data(stale, Some(CONFIG)).rest(json!({"other": "stays"}))
        }),
        ("the kubeconfig changes", SIGNED, {
            info(&[abc]).then("", json!({"data": {"kubeconfig": "new"}})).payload("new").signs(&[a])
        }),
        ("a signature is taken away", SIGNED, {
            info(&[abc]).then("", json!({"data": {"jws-kubeconfig-abc123": null}})).signs(&[a])
        }),
        ("a signature is spoiled", SIGNED, {
            info(&[abc]).then("", json!({"data": {"jws-kubeconfig-abc123": "spoiled"}})).signs(&[a])
        }),
        ("a token goes", REMOVED, info(&[abc, def]).then("abc123", Value::Null).signs(&[b])),
        ("a token's secret changes", SIGNED, {
            info(&[abc])
                .then("abc123", json!({"stringData": {"token-secret": "changedchangedch"}}))
                .signs(&[("abc123", "changedchangedch")])
        }),
        ("a token no longer signs", REMOVED, {
            info(&[abc]).then("abc123", json!({"stringData": {"usage-bootstrap-signing": "false"}}))
        }),
        ("a token ends", REMOVED, info(&[abc, def]).then("abc123", past).signs(&[b])),
        ("a token gets another id", REMOVED, {
            info(&[abc]).then("abc123", json!({"stringData": {"token-id": "zzz999"}}))
        }),
    ];
    let signing = ("usage-bootstrap-signing", "true");
    let one = |data: Data| info(&[("abc123", data)]);
    let _ = signing;
    rows.extend([
        ("not for signing", TOKENS, one(&[("token-secret", SECRET)])),
        (
            "for authentication only",
            TOKENS,
            one(&[("token-secret", SECRET), ("usage-bootstrap-authentication", "true")]),
        ),
        (
            "for signing, in capitals",
            TOKENS,
            one(&[("token-secret", SECRET), ("usage-bootstrap-signing", "True")]),
        ),
        (
            "for signing, with a space",
            TOKENS,
            one(&[("token-secret", SECRET), ("usage-bootstrap-signing", "true ")]),
        ),
        ("an empty secret", TOKENS, one(&[("token-secret", ""), ("usage-bootstrap-signing", "true")])),
        ("no secret", TOKENS, one(&[("usage-bootstrap-signing", "true")])),
        ("another id than its name", TOKENS, {
            one(&[("token-id", "xyz789"), ("token-secret", SECRET), ("usage-bootstrap-signing", "true")])
        }),
        ("an empty id", TOKENS, {
            one(&[("token-id", ""), ("token-secret", SECRET), ("usage-bootstrap-signing", "true")])
        }),
        ("another type", TOKENS, {
            one(&[("type", "Opaque"), ("token-secret", SECRET), ("usage-bootstrap-signing", "true")])
        }),
        ("ends far away", TOKENS, {
            one(&[
                ("expiration", "2099-01-01T00:00:00Z"),
                ("token-secret", SECRET),
                ("usage-bootstrap-signing", "true"),
            ])
            .signs(&[a])
        }),
        ("a name that is too long", TOKENS, info(&[("abc1234", SIGNS)])),
        ("a name that is too short", TOKENS, info(&[("abc12", SIGNS)])),
        ("a name with a hyphen", TOKENS, info(&[("abc-12", SIGNS)])),
        ("a secret of one letter", JWS, {
            one(&[("token-secret", "s"), ("usage-bootstrap-signing", "true")]).signs(&[("abc123", "s")])
        }),
        ("a secret of seventy letters", JWS, {
            const LONG: &str = "0123456789012345678901234567890123456789012345678901234567890123456789";
            one(&[("token-secret", LONG), ("usage-bootstrap-signing", "true")]).signs(&[("abc123", LONG)])
        }),
        ("a secret beyond ASCII", JWS, {
            one(&[("token-secret", "schlüssel"), ("usage-bootstrap-signing", "true")])
                .signs(&[("abc123", "schlüssel")])
        }),
        ("a payload beyond ASCII", JWS, {
            info(&[abc])
                .data(json!({"kubeconfig": "größe: \u{1F6A2}\r\n"}), Some("größe: \u{1F6A2}\r\n"))
                .signs(&[a])
        }),
    ]);
    let scenario = |(name, from, info): (&str, &'static str, Info)| {
        let expected = info.expected();
        let began = info.data.clone().map_or(Value::Null, |mut data| {
            for (_, patch) in info.then.iter().filter(|(token_id, _)| token_id.is_empty()) {
                for (key, value) in patch["data"].as_object().into_iter().flatten() {
                    data[key] = value.clone();
                }
            }
            data
        });
        let acts = began != expected;
        let info = Arc::new(info);
        Scenario::new(GROUP, name, from, Some(expected), move |_, cluster| {
            let info = Arc::clone(&info);
            async move { info.play(cluster).await }.boxed_local()
        })
        .acts(acts)
    };
    rows.into_iter().map(scenario).collect()
}
