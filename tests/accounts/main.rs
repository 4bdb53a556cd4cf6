//! Tokens that a real kube-apiserver issued for service accounts and pods: once the gateway's watches are complete, no
//! token costs the API server a question, with its keys from a file and as it publishes them.

#![allow(
    missing_docs,
    unreachable_pub,
    missing_debug_implementations,
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::many_single_char_names,
    clippy::print_stderr,
    reason = "tests, of which this target uses a part"
)]

#[path = "../misconfigured/bed.rs"]
mod bed;
#[path = "../support/build.rs"]
mod build;
#[path = "../support/pki.rs"]
mod pki;
#[path = "../support/servers.rs"]
mod servers;
#[path = "../it/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{HeaderValue, Request, StatusCode};
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};

use bed::{Bed, Given, Kind};
use support::{BoxedBody, Gateway, Http1, status, text};

/// What tokens are judged by.
const RESOURCES: [&str; 4] = ["serviceaccounts", "pods", "nodes", "secrets"];
/// Tokens of each kind.
const TOKENS: usize = 20;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let source = build::look();
    let absent = match &source {
        build::Source::Absent(why) => Some(why.clone()),
        _ => None,
    };
    let required = std::env::var("PORTCULLIS_REQUIRE_TWIN").is_ok_and(|value| value == "1");
    if let (Some(why), true) = (&absent, required) {
        eprintln!("accounts: PORTCULLIS_REQUIRE_TWIN is set, but {why}");
        return ExitCode::FAILURE;
    }
    let bed = Arc::new(Bed::new(source));
    let trial = |name: &'static str, account: &'static str, key_file: bool| {
        let bed = Arc::clone(&bed);
        Trial::test(name, move || costs_nothing(&bed, account, key_file).map_err(Into::into))
    };
    let mut trials = vec![
        trial("tokens by a key file cost no question", "by-key-file", true),
        trial("tokens by published keys cost no question", "by-published-keys", false),
    ];
    if let Some(why) = absent {
        eprintln!("\naccounts: SKIPPED, all {} tests: {why}\n", trials.len());
        trials = trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
    }
    // One after the other: they count what one server is asked.
    let arguments = Arguments { test_threads: Some(1), ..arguments };
    let conclusion = libtest_mimic::run(&arguments, trials);
    bed.finish(conclusion.has_failed());
    conclusion.exit_code()
}

fn costs_nothing(bed: &Bed, account: &str, key_file: bool) -> Result<(), String> {
    let server = bed.server(Kind::Good)?;
    let [metrics] = servers::free_ports()?;
    let mut flags = vec![
        format!("--metrics-bind-address=127.0.0.1:{metrics}"),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
    ];
    if key_file {
        flags.push(format!("--service-account-key-file={}", bed.file("sa.pub")?.display()));
    }
    let front = Given::Front { ca: "inner", name: "front-proxy" };
    let gateway = bed.gateway_with(account, server.address, &front, &flags)?;
    gateway.line_with(&["self-check passed"])?;
    let mut client = gateway.client();
    client.metrics = Some(([127, 0, 0, 1], metrics).into());
    bed.runtime.block_on(async {
        let mut scene = Scene { alice: client.http1(Some(bed.alice())).await, gateway: client, account };
        scene.prepare().await?;
        scene.until_watched().await?;
        let mut tokens = Vec::new();
        for number in 0..2 * TOKENS {
            tokens.push(scene.token(number % 2 == 0).await?);
        }
        let before = scene.counted().await;
        for token in &tokens {
            scene.known(token).await?;
        }
        let after = scene.counted().await;
        // The gateway's own check of the API server asks one every minute, too.
        let forwarded = after.reviews - before.reviews;
        if after.live != before.live || after.reads != before.reads || forwarded < tokens.len() {
            return Err(format!("{} tokens, {before:?}, {after:?}", tokens.len()));
        }
        Ok(())
    })
}

/// What was asked so far.
#[derive(Debug)]
struct Counted {
    /// How many objects the gateway knew from its watches.
    watched: u64,
    /// How many it says that it has read.
    live: u64,
    /// How many objects of those kinds the API server says were read, by whomever.
    reads: usize,
    /// How many requests like the test's arrived.
    reviews: usize,
}

struct Scene<'a> {
    gateway: Gateway,
    alice: Http1,
    account: &'a str,
}

impl Scene<'_> {
    async fn create(&mut self, request: Request<BoxedBody>) -> Result<Value, String> {
        let path = request.uri().path().to_owned();
        let answer = self.alice.send(request).await;
        match status(answer.map_err(|error| error.to_string())?).await {
            (StatusCode::CREATED | StatusCode::CONFLICT, object) => Ok(object),
            (code, body) => Err(format!("{path}: {code} {body}")),
        }
    }

    /// Creates an object that lets somebody do something.
    async fn grant(&mut self, document: &str) -> Result<(), String> {
        let value = |key: &str| document.lines().find_map(|line| line.strip_prefix(key));
        let kind = value("kind: ").ok_or("an object has a kind")?.to_lowercase();
        let namespace = value("  namespace: ").map(|name| format!("namespaces/{name}/")).unwrap_or_default();
        let mut request =
            bed::post(&format!("/apis/rbac.authorization.k8s.io/v1/{namespace}{kind}s"), document);
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/yaml"));
        self.create(request).await.map(drop)
    }

    /// Lets the gateway do what its deployment lets it do, and makes a service account and a pod of it.
    async fn prepare(&mut self) -> Result<(), String> {
        let deployed =
            [include_str!("../../deploy/rbac.yaml"), include_str!("../../deploy/rbac-secret-tokens.yaml")];
        for document in deployed.iter().flat_map(|file| file.split("\n---\n")) {
            self.grant(document).await?;
        }
        let metadata = json!({"name": self.account});
        let account = json!({"metadata": metadata});
        self.create(bed::post("/api/v1/namespaces/default/serviceaccounts", &account.to_string())).await?;
        let spec = json!({"serviceAccountName": self.account, "containers": [{"name": "c", "image": "c"}]});
        let pod = json!({"metadata": metadata, "spec": spec});
        self.create(bed::post("/api/v1/namespaces/default/pods", &pod.to_string())).await?;
        Ok(())
    }

    /// A new token of the service account, or of its pod.
    async fn token(&mut self, of_pod: bool) -> Result<String, String> {
        let path = format!("/api/v1/namespaces/default/serviceaccounts/{}/token", self.account);
        let bound = json!({"apiVersion": "v1", "kind": "Pod", "name": self.account});
        let spec = if of_pod { json!({"boundObjectRef": bound}) } else { json!({}) };
        let made = self.create(bed::post(&path, &json!({"spec": spec}).to_string())).await?;
        made["status"]["token"].as_str().map(str::to_owned).ok_or_else(|| format!("no token: {made}"))
    }

    /// Sees that the gateway knows whose token it is.
    async fn known(&self, token: &str) -> Result<(), String> {
        let mut request = bed::post(bed::REVIEWS, bed::REVIEW);
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        let answer = self.gateway.http1(None).await.send(request).await;
        let (code, body) = status(answer.map_err(|error| error.to_string())?).await;
        let user = format!("system:serviceaccount:default:{}", self.account);
        if body["status"]["userInfo"]["username"] == user { Ok(()) } else { Err(format!("{code} {body}")) }
    }

    /// Waits until a token of the pod is judged by what watches have told, and the keys are known.
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
            if started.elapsed() > bed::PATIENCE {
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
        let requests = |labels: &[&str]| support::sum(&served, "apiserver_request_total", labels);
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
