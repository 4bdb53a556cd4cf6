//! Tokens that a real kube-apiserver issued for service accounts and pods: once the gateway's watches are complete, it
//! verifies tokens without requests to the API server, with keys from a file or from the server's key endpoint.

use std::time::{Duration, Instant};

use http::{HeaderValue, Request, StatusCode};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use testkit::real::{START_TIMEOUT, free_ports};
use testkit::{BoxedBody, Gateway, Http1, status, sum_metric, text};

use crate::servers::{FRONT_PROXY, HeaderFlags, REVIEW, REVIEWS, RealServers, post};

/// The resources that a token refers to.
const RESOURCES: [&str; 4] = ["serviceaccounts", "pods", "nodes", "secrets"];
/// Tokens of each kind.
const TOKENS: usize = 20;

/// The tests of this group. Each has its own API server, whose requests it counts.
pub(crate) fn trials(trial: &dyn Fn(&str, crate::Test) -> Trial) -> Vec<Trial> {
    vec![
        trial(
            "tokens by a key file cost no request",
            Box::new(|servers| costs_nothing(servers, "by-key-file", true)),
        ),
        trial(
            "tokens by published keys cost no request",
            Box::new(|servers| costs_nothing(servers, "by-published-keys", false)),
        ),
    ]
}

fn costs_nothing(servers: &RealServers, account: &str, key_file: bool) -> Result<(), String> {
    let server = servers.own_server(HeaderFlags::Good, account)?;
    let [metrics] = free_ports()?;
    let mut flags = vec![
        format!("--metrics-bind-address=127.0.0.1:{metrics}"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
    ];
    if key_file {
        flags.push(format!("--service-account-key-file={}", servers.file("sa.pub")?.display()));
    }
    let gateway = servers.gateway_with(account, server.address, &FRONT_PROXY, &flags)?;
    gateway.line_with(&["self-check passed"])?;
    let client = Gateway::at(gateway.address, Some(([127, 0, 0, 1], metrics).into()));
    servers.runtime().block_on(async {
        let mut accounts =
            AccountTokens { alice: client.http1(Some(servers.alice())).await, gateway: client, account };
        accounts.prepare().await?;
        accounts.until_watched().await?;
        let mut tokens = Vec::new();
        for number in 0..2 * TOKENS {
            tokens.push(accounts.token(number % 2 == 0).await?);
        }
        let before = accounts.counted().await;
        for token in &tokens {
            accounts.known(token).await?;
        }
        let after = accounts.counted().await;
        // The gateway's self-check also creates a review every minute.
        let forwarded = after.reviews - before.reviews;
        if after.live != before.live || after.reads != before.reads || forwarded < tokens.len() {
            return Err(format!("{} tokens, {before:?}, {after:?}", tokens.len()));
        }
        Ok(())
    })
}

/// Numbers of requests.
#[derive(Debug)]
struct Counted {
    /// Objects that the gateway found in its watch cache.
    watched: u64,
    /// Reads of such objects in the gateway's metrics.
    live: u64,
    /// Reads of such objects in the API server's metrics, by any client.
    reads: usize,
    /// `SelfSubjectReviews`, which the test sends, in the API server's metrics.
    reviews: usize,
}

struct AccountTokens<'a> {
    gateway: Gateway,
    alice: Http1,
    account: &'a str,
}

impl AccountTokens<'_> {
    async fn create(&mut self, request: Request<BoxedBody>) -> Result<Value, String> {
        let path = request.uri().path().to_owned();
        let answer = self.alice.send(request).await;
        match status(answer.map_err(|error| error.to_string())?).await {
            (StatusCode::CREATED | StatusCode::CONFLICT, object) => Ok(object),
            (code, body) => Err(format!("{path}: {code} {body}")),
        }
    }

    /// Creates a role or a binding from its manifest.
    async fn grant(&mut self, document: &str) -> Result<(), String> {
        let value = |key: &str| document.lines().find_map(|line| line.strip_prefix(key));
        let kind = value("kind: ").ok_or("an object has a kind")?.to_lowercase();
        let namespace = value("  namespace: ").map(|name| format!("namespaces/{name}/")).unwrap_or_default();
        let mut request = post(&format!("/apis/rbac.authorization.k8s.io/v1/{namespace}{kind}s"), document);
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/yaml"));
        self.create(request).await.map(drop)
    }

    /// Grants the gateway the permissions of its deployment, and creates a service account and a pod.
    async fn prepare(&mut self) -> Result<(), String> {
        let deployed =
            [include_str!("../../deploy/rbac.yaml"), include_str!("../../deploy/rbac-secret-tokens.yaml")];
        for document in deployed.iter().flat_map(|file| file.split("\n---\n")) {
            self.grant(document).await?;
        }
        let metadata = json!({"name": self.account});
        let account = json!({"metadata": metadata});
        self.create(post("/api/v1/namespaces/default/serviceaccounts", &account.to_string())).await?;
        let spec = json!({"serviceAccountName": self.account, "containers": [{"name": "c", "image": "c"}]});
        let pod = json!({"metadata": metadata, "spec": spec});
        self.create(post("/api/v1/namespaces/default/pods", &pod.to_string())).await?;
        Ok(())
    }

    /// A new token of the service account, or of its pod.
    async fn token(&mut self, of_pod: bool) -> Result<String, String> {
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{}/token", self.account);
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": self.account});
        let spec = if of_pod { json!({"boundObjectRef": bound}) } else { json!({}) };
        let made = self.create(post(&path, &json!({"spec": spec}).to_string())).await?;
        made["status"]["token"].as_str().map(str::to_owned).ok_or_else(|| format!("no token: {made}"))
    }

    /// Checks that the gateway authenticates a token as the service account.
    async fn known(&self, token: &str) -> Result<(), String> {
        let mut request = post(REVIEWS, REVIEW);
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        let answer = self.gateway.http1(None).await.send(request).await;
        let (code, body) = status(answer.map_err(|error| error.to_string())?).await;
        let user = format!("system:serviceaccount:default:{}", self.account);
        if body["status"]["userInfo"]["username"] == user { Ok(()) } else { Err(format!("{code} {body}")) }
    }

    /// Waits until the gateway validates a token of the pod from its watch cache, and has the keys.
    async fn until_watched(&mut self) -> Result<(), String> {
        let started = Instant::now();
        loop {
            let token = self.token(true).await?;
            let before = self.counted().await;
            let known = self.known(&token).await;
            let after = self.counted().await;
            if known.is_ok() && after.watched == before.watched + 2 && after.live == before.live {
                return Ok(());
            }
            if started.elapsed() > START_TIMEOUT {
                return Err(format!("never watched: {known:?}, {before:?}, {after:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn counted(&mut self) -> Counted {
        let lookups = async |source: &str| {
            self.gateway.count_all("portcullis_lookups_total", &[&format!("source=\"{source}\"")]).await
        };
        let (watched, live) = (lookups("watch").await, lookups("live").await);
        let served = text(self.alice.get("/metrics", &[]).await).await;
        let requests = |labels: &[&str]| sum_metric(&served, "apiserver_request_total", labels);
        let reads =
            RESOURCES.map(|resource| requests(&[&format!("resource=\"{resource}\""), "verb=\"GET\""]));
        Counted {
            watched,
            live,
            reads: usize::try_from(reads.iter().sum::<u64>()).unwrap(),
            reviews: usize::try_from(requests(&["resource=\"selfsubjectreviews\""])).unwrap(),
        }
    }
}
