//! `ExecCredential` of `client.authentication.k8s.io`, which kubectl exchanges with its exec plugins.
//!
//! Both versions have the same fields.
// client-go: pkg/apis/clientauthentication/v1/types.go and v1beta1/types.go

use portcullis_go::time;
use portcullis_system::clock::UnixTime;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::api_server::ClusterEntry;
use super::client_certificate::CertificateCredential;
use super::error::LoginError;
use super::session::Credential;
use super::settings::ClusterConfig;
use secrecy::ExposeSecret as _;

/// The environment variable with the request.
// client-go: plugin/pkg/client/auth/exec/exec.go
pub(super) const VARIABLE: &str = "KUBERNETES_EXEC_INFO";
const KIND: &str = "ExecCredential";
pub(super) const V1: &str = "client.authentication.k8s.io/v1";
const V1BETA1: &str = "client.authentication.k8s.io/v1beta1";

/// What kubectl asks for.
#[derive(Debug)]
pub(super) struct ExecRequest {
    /// The version of the answer.
    pub(super) version: &'static str,
    /// Whether standard input belongs to the plugin; `None`: the command was not run by a client.
    pub(super) interactive: Option<bool>,
    /// `spec.cluster.config`.
    pub(super) config: ClusterConfig,
    /// `spec.cluster`, which clients give with `provideClusterInfo`.
    pub(super) cluster: Option<ClusterEntry>,
}

// Unknown fields are ignored, as Go does: newer clients may have more.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialRequest {
    api_version: Option<String>,
    kind: Option<String>,
    #[serde(default)]
    spec: Option<ExecCredentialSpec>,
}

#[derive(Default, Deserialize)]
struct ExecCredentialSpec {
    #[serde(default)]
    interactive: Option<bool>,
    #[serde(default)]
    cluster: Option<Box<RawValue>>,
}

/// What `spec.cluster` has beside the fields of a kubeconfig.
#[derive(Deserialize)]
struct ExecCluster {
    #[serde(default)]
    config: Option<Box<RawValue>>,
}

/// The answer. The spec is not repeated: client-go ignores it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialAnswer<'a> {
    api_version: &'a str,
    kind: &'static str,
    status: ExecCredentialStatus<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExecCredentialStatus<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    expiration_timestamp: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_certificate_data: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_key_data: Option<&'a str>,
}

impl<'a> From<&'a Credential> for ExecCredentialStatus<'a> {
    fn from(credential: &'a Credential) -> Self {
        Self {
            expiration_timestamp: credential.renew_at.map(whole_seconds),
            token: Some(credential.token.expose_secret()),
            client_certificate_data: None,
            client_key_data: None,
        }
    }
}

impl<'a> From<&'a CertificateCredential> for ExecCredentialStatus<'a> {
    fn from(credential: &'a CertificateCredential) -> Self {
        Self {
            expiration_timestamp: Some(whole_seconds(credential.renew_at)),
            token: None,
            client_certificate_data: Some(&credential.certificate),
            client_key_data: Some(credential.key.expose_secret()),
        }
    }
}

fn whole_seconds(time: UnixTime) -> String {
    time::format_since_epoch(UnixTime::from_secs(time.as_secs()))
}

impl ExecRequest {
    /// Parses the variable; `None`: it is not set.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, LoginError> {
        let problem = |problem: &str| LoginError::usage(&format!("{VARIABLE}: {problem}"));
        let Some(text) = text.filter(|text| !text.is_empty()) else {
            return Ok(Self {
                version: V1,
                interactive: None,
                config: ClusterConfig::default(),
                cluster: None,
            });
        };
        let request: ExecCredentialRequest = serde_json::from_str(text)
            .map_err(|error| problem(&format!("not an ExecCredential: {error}")))?;
        if request.kind.as_deref() != Some(KIND) {
            return Err(problem("its kind is not ExecCredential"));
        }
        let version = match request.api_version.as_deref() {
            Some(V1) => V1,
            Some(V1BETA1) => V1BETA1,
            other => {
                return Err(problem(&format!(
                    "its apiVersion is {:?}; set apiVersion: {V1} in the exec stanza of the kubeconfig",
                    other.unwrap_or_default()
                )));
            }
        };
        let spec = request.spec.unwrap_or_default();
        let cluster = |error| problem(&format!("spec.cluster: {error}"));
        let described = spec.cluster.as_deref().map(RawValue::get);
        let entry =
            described.map(serde_json::from_str::<Option<ClusterEntry>>).transpose().map_err(cluster)?;
        let extension = described.map(serde_json::from_str::<Option<ExecCluster>>).transpose();
        let config = extension.map_err(cluster)?.flatten().and_then(|cluster| cluster.config);
        let config =
            config.map(|config| serde_json::from_str::<Option<ClusterConfig>>(config.get())).transpose();
        let config = config.map_err(|error| {
            problem(&format!("spec.cluster.config, the extension client.authentication.k8s.io/exec: {error}"))
        })?;
        // Absent in v1beta1 of old clients, which never give the plugin a terminal for certain.
        let interactive = Some(spec.interactive.unwrap_or_default());
        Ok(Self {
            version,
            interactive,
            config: config.flatten().unwrap_or_default(),
            cluster: entry.flatten(),
        })
    }

    /// The answer with a credential.
    pub(super) fn answer<'a>(
        &self,
        credential: impl Into<ExecCredentialStatus<'a>>,
    ) -> Result<String, LoginError> {
        let answer =
            ExecCredentialAnswer { api_version: self.version, kind: KIND, status: credential.into() };
        serde_json::to_string(&answer).map(|text| text + "\n").map_err(LoginError::other)
    }
}

#[cfg(test)]
mod tests {
    use portcullis_system::clock::UnixTime;
    use secrecy::SecretString;
    use serde_json::json;

    use super::*;

    struct Case {
        name: &'static str,
        info: Option<&'static str>,
        /// The version of the answer and `interactive`, or a part of the error.
        expected: Result<(&'static str, Option<bool>), &'static str>,
    }

    // client-go: plugin/pkg/client/auth/exec/exec_test.go, TestRefreshCreds: what client-go sends
    const CASES: &[Case] = &[
        Case { name: "not run by a client", info: None, expected: Ok((V1, None)) },
        Case { name: "empty variable", info: Some(""), expected: Ok((V1, None)) },
        Case {
            name: "v1",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":true}}"#,
            ),
            expected: Ok((V1, Some(true))),
        },
        Case {
            name: "v1, not interactive",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}"#,
            ),
            expected: Ok((V1, Some(false))),
        },
        Case {
            name: "v1beta1",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"interactive":true}}"#,
            ),
            expected: Ok((V1BETA1, Some(true))),
        },
        Case {
            name: "v1beta1 without a spec",
            info: Some(r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1"}"#),
            expected: Ok((V1BETA1, Some(false))),
        },
        Case {
            name: "v1 with every field of the cluster",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{
                "server":"https://gateway.test","tls-server-name":"g","insecure-skip-tls-verify":true,
                "certificate-authority-data":"Y2E=","proxy-url":"socks5://p","disable-compression":true,
                "config":{"issuer":"https://issuer.test","clientID":"kubernetes","scopes":["groups"]}},"interactive":false}}"#,
            ),
            expected: Ok((V1, Some(false))),
        },
        Case {
            name: "a null config",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{"server":"https://g","config":null},"interactive":false}}"#,
            ),
            expected: Ok((V1, Some(false))),
        },
        Case {
            name: "an unknown field is of a newer client",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":true,"new":1},"new":2}"#,
            ),
            expected: Ok((V1, Some(true))),
        },
        Case {
            name: "a misspelled config",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"cluster":{"server":"https://g","config":{"isuer":"x"}},"interactive":true}}"#,
            ),
            expected: Err("unknown field `isuer`"),
        },
        Case {
            name: "v1alpha1",
            info: Some(
                r#"{"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1alpha1","spec":{}}"#,
            ),
            expected: Err("set apiVersion: client.authentication.k8s.io/v1"),
        },
        Case {
            name: "another kind",
            info: Some(r#"{"kind":"Status","apiVersion":"client.authentication.k8s.io/v1"}"#),
            expected: Err("kind is not ExecCredential"),
        },
        Case { name: "not JSON", info: Some("{"), expected: Err("not an ExecCredential") },
    ];

    #[test]
    fn requests_of_both_versions_are_read() {
        let mut failures = Vec::new();
        for case in CASES {
            let request = ExecRequest::parse(case.info);
            let found = request.map(|request| (request.version, request.interactive));
            let equal = match (&found, &case.expected) {
                (Ok(found), Ok(expected)) => found == expected,
                (Err(error), Err(part)) => error.to_string().contains(part),
                _ => false,
            };
            if !equal {
                failures.push(format!("{}: {found:?}", case.name));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
    }

    #[test]
    fn the_cluster_is_that_of_the_client() {
        let case = CASES.iter().find(|case| case.name == "v1 with every field of the cluster").unwrap();
        let entry = ExecRequest::parse(case.info).unwrap().cluster.unwrap();
        let text = |value: &Option<String>| value.clone().unwrap();
        assert_eq!(text(&entry.server), "https://gateway.test");
        assert_eq!(text(&entry.tls_server_name), "g");
        assert_eq!(text(&entry.certificate_authority_data), "Y2E=");
        assert_eq!(text(&entry.proxy_url), "socks5://p");
        assert_eq!(entry.insecure_skip_tls_verify, Some(true));
    }

    #[test]
    fn the_answer_is_of_the_version_of_the_request() {
        for version in [V1, V1BETA1] {
            let request =
                ExecRequest { version, interactive: None, config: ClusterConfig::default(), cluster: None };
            let credential = Credential {
                token: SecretString::from("a.b.c"),
                subject: None,
                renew_at: Some(UnixTime::from_millis(1_800_000_000_900)),
            };
            let answer: serde_json::Value =
                serde_json::from_str(&request.answer(&credential).unwrap()).unwrap();
            let expected = json!({
                "apiVersion": version,
                "kind": "ExecCredential",
                "status": {"token": "a.b.c", "expirationTimestamp": "2027-01-15T08:00:00Z"},
            });
            assert_eq!(answer, expected);
            let credential = Credential { renew_at: None, ..credential };
            let answer: serde_json::Value =
                serde_json::from_str(&request.answer(&credential).unwrap()).unwrap();
            assert_eq!(answer["status"], json!({"token": "a.b.c"}));
            let certificate = CertificateCredential {
                certificate: "CERTIFICATE".to_owned(),
                key: SecretString::from("KEY"),
                renew_at: UnixTime::from_secs(1_800_000_001),
            };
            let answer: serde_json::Value =
                serde_json::from_str(&request.answer(&certificate).unwrap()).unwrap();
            let expected = json!({
                "clientCertificateData": "CERTIFICATE",
                "clientKeyData": "KEY",
                "expirationTimestamp": "2027-01-15T08:00:01Z",
            });
            assert_eq!(answer["status"], expected, "no token");
        }
    }
}
