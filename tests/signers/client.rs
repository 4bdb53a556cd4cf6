//! A small JSON client of an API server, as the administrator or as a user that the administrator impersonates.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::Value;
use testkit::pki::{Ca, Issued};

/// The timeout of requests and watches.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// An API server and the client's credentials.
#[derive(Clone)]
pub(crate) struct Api {
    address: SocketAddr,
    http: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
    bearer: Option<String>,
}

/// A user that the administrator impersonates.
#[derive(Clone, Debug, Default)]
pub(crate) struct Person {
    pub(crate) name: String,
    pub(crate) uid: Option<&'static str>,
    pub(crate) groups: Vec<String>,
    pub(crate) extra: Vec<(&'static str, &'static str)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Person {
    pub(crate) fn new(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    pub(crate) fn bootstrap(id: &str) -> Self {
        Self::new(&format!("system:bootstrap:{id}"), &["system:bootstrappers", "system:authenticated"])
    }

    pub(crate) fn node(name: &str) -> Self {
        Self::new(&format!("system:node:{name}"), &["system:nodes", "system:authenticated"])
    }
}

impl Answer {
    /// The body of a successful response.
    pub(crate) fn ok(self) -> Result<Value, String> {
        if self.status.is_success() { Ok(self.body) } else { Err(format!("{}: {}", self.status, self.body)) }
    }
}

impl Api {
    /// A client with or without a certificate.
    pub(crate) fn new(address: SocketAddr, servers: &Ca, identity: Option<&Issued>) -> Self {
        Self::with_identity(
            address,
            servers,
            identity.map(|issued| (issued.chain.clone(), issued.key.clone_key())),
        )
    }

    /// The same with a certificate, its chain, and its key.
    pub(crate) fn with_identity(
        address: SocketAddr,
        servers: &Ca,
        identity: Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)>,
    ) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(servers.cert.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let keys = provider.key_provider;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let config = match identity {
            None => config.with_no_client_auth(),
            Some((chain, key)) => {
                // Not `with_client_auth_cert`, which refuses a certificate with a critical extension that rustls does not know.
                let certified = CertifiedKey::new(chain, keys.load_private_key(key).unwrap());
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().build();
        let http = Client::builder(TokioExecutor::new()).build(connector);
        Self { address, http, bearer: None }
    }

    /// The same client with a bearer token.
    pub(crate) fn with_token(mut self, token: &str) -> Self {
        self.bearer = Some(token.to_owned());
        self
    }

    async fn begin(
        &self,
        person: Option<&Person>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<http::Response<hyper::body::Incoming>, String> {
        let content =
            if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", self.address))
            .header("accept", "application/json")
            .header("content-type", content);
        if let Some(token) = &self.bearer {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        if let Some(person) = person {
            request = request.header("impersonate-user", &person.name);
            for group in &person.groups {
                request = request.header("impersonate-group", group);
            }
            if let Some(uid) = person.uid {
                request = request.header("impersonate-uid", uid);
            }
            for (key, value) in &person.extra {
                request = request.header(format!("impersonate-extra-{key}"), *value);
            }
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = request.body(Full::new(Bytes::from(body))).map_err(text)?;
        self.http.request(request).await.map_err(|error| format!("{path}: {error:?}"))
    }

    pub(crate) async fn send(
        &self,
        person: Option<&Person>,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Answer, String> {
        let exchange = async {
            let answer = self.begin(person, method, path, body).await?;
            let status = answer.status();
            let body = answer.into_body().collect().await.map_err(text)?.to_bytes();
            let body = serde_json::from_slice(&body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&body).into_owned()));
            Ok(Answer { status, body })
        };
        tokio::time::timeout(REQUEST_TIMEOUT, exchange).await.map_err(|_| format!("{path}: no answer"))?
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Answer, String> {
        self.send(None, Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.send(None, Method::POST, path, Some(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.send(None, Method::PUT, path, Some(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Result<Answer, String> {
        self.send(None, Method::PATCH, path, Some(body)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<Answer, String> {
        self.send(None, Method::DELETE, path, None).await
    }

    /// Reads watch events of a collection (`path` includes the query) until `until` returns a value.
    pub(crate) async fn watch<T>(
        &self,
        path: &str,
        mut until: impl FnMut(&str, &Value) -> Option<T>,
    ) -> Result<T, String> {
        let answer = self.begin(None, Method::GET, path, None).await?;
        if !answer.status().is_success() {
            let status = answer.status();
            let body = answer.into_body().collect().await.map_err(text)?.to_bytes();
            return Err(format!("{path}: {status}: {}", String::from_utf8_lossy(&body)));
        }
        let mut body = answer.into_body();
        let mut buffer = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.map_err(text)?.into_data() {
                buffer.extend_from_slice(&data);
            }
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line = buffer.split_to(end + 1);
                let event: Value = serde_json::from_slice(&line).map_err(text)?;
                let kind = event["type"].as_str().unwrap_or_default();
                if kind == "ERROR" {
                    return Err(format!("{path}: {event}"));
                }
                if let Some(found) = until(kind, &event["object"]) {
                    return Ok(found);
                }
            }
        }
        Err(format!("{path}: the watch ended"))
    }

    /// Waits until `wanted` accepts the object. The error of a timeout contains its last state.
    pub(crate) async fn until(
        &self,
        collection: &str,
        name: &str,
        wanted: impl Fn(Option<&Value>) -> bool,
    ) -> Result<Option<Value>, String> {
        let query = format!("fieldSelector=metadata.name%3D{}", escaped(name));
        let mut last = None;
        let waiting = async {
            loop {
                let list = self.get(&format!("{collection}?{query}")).await?.ok()?;
                last = list["items"].get(0).cloned();
                if wanted(last.as_ref()) {
                    return Ok::<_, String>(());
                }
                let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0");
                let path = format!("{collection}?{query}&watch=1&resourceVersion={version}");
                let found = self.watch(&path, |kind, object| {
                    last = (kind != "DELETED").then(|| object.clone());
                    wanted(last.as_ref()).then_some(())
                });
                match found.await {
                    Ok(()) => return Ok(()),
                    // The watch was closed, or the resource version has expired: list again.
                    Err(error) if error.ends_with("the watch ended") || error.contains("\"code\":410") => {}
                    Err(error) => return Err(error),
                }
            }
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, waiting).await {
            Ok(Ok(())) => Ok(last),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                Err(format!("{collection}/{name}: never as wanted; last: {}", last.unwrap_or_default()))
            }
        }
    }
}

/// Percent-encodes a name for a path or a query.
pub(crate) fn escaped(name: &str) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

pub(crate) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
