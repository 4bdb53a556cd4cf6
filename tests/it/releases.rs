//! API servers of releases with which this version is not tested: the log says so once, and they are used.

use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::self_check::{self, respond};
use testkit::{FakeBackend, H2, Pki, full, until};

use crate::endpoints::configuration_of;
use crate::gateway::start_process;

const UNTESTED: &str = "docs/releases.md";
const TOKEN: (&str, &str) = ("authorization", "Bearer good-token");

/// What an API server answers to `/version`.
type Version = Arc<Mutex<Value>>;

fn of(git_version: &str) -> Version {
    Arc::new(Mutex::new(json!({"gitVersion": git_version})))
}

async fn backend(pki: &Pki, version: &Version) -> FakeBackend {
    let version = Arc::clone(version);
    let self_check = move |request: &Request<Incoming>| {
        let answered = self_check::answer(request)?;
        let version = version.lock().unwrap().clone();
        let is_version = request.uri().path() == "/version";
        Some(if is_version { respond(StatusCode::OK, &version) } else { answered })
    };
    FakeBackend::with_self_check(pki, H2, self_check, |_| Box::pin(async { Response::new(full("ok")) })).await
}

/// The warnings of a gateway in front of these API servers of one cluster, once it uses all of them.
async fn warnings(versions: &[Version]) -> Vec<String> {
    let pki = Pki::new();
    let mut backends = Vec::new();
    for version in versions {
        backends.push(backend(&pki, version).await);
    }
    let addresses: Vec<_> = backends.iter().map(|backend| backend.address).collect();
    let process = start_process(configuration_of(&pki, &addresses, "")).await;
    let passed = || process.said("self-check passed").len() == backends.len();
    until("the self-check of every endpoint", passed).await;
    let response = process.gateway.http1(None).await.get("/api", &[TOKEN]).await;
    assert_eq!(response.status(), StatusCode::OK, "an untested release is used");
    // The end of the process flushes what it has to say.
    let (_, log) = process.end().await;
    log.lines().filter(|line| line.contains(UNTESTED)).map(str::to_owned).collect()
}

#[tokio::test]
async fn an_untested_release_is_used_with_one_warning() {
    let emulated = |own: &str, minor: &str| {
        let info = json!({"gitVersion": own, "emulationMajor": "1", "emulationMinor": minor});
        Arc::new(Mutex::new(info))
    };
    let other = |info: Value| Arc::new(Mutex::new(info));
    let cases = [
        (vec![of("v1.34.0")], vec![]),
        (vec![of("v1.37.2+k3s1")], vec![]),
        (vec![of("v1.33.9-eks-a1b2")], vec!["v1.33.9-eks-a1b2"]),
        (vec![of("v1.38.0-alpha.1")], vec!["v1.38.0-alpha.1"]),
        // One warning for a cluster and a release, another one for another release.
        (vec![of("v1.33.1"), of("v1.33.1"), of("v1.33.1")], vec!["v1.33.1"]),
        (vec![of("v1.33.1"), of("v1.38.0")], vec!["v1.33.1", "v1.38.0"]),
        // Its own release counts, not the one that it emulates.
        (vec![emulated("v1.37.2", "33")], vec![]),
        (vec![emulated("v1.38.0", "37")], vec!["v1.38.0"]),
        // A version that says nothing.
        (vec![of("unknown")], vec![]),
        (vec![of("v2.0.0")], vec![]),
        (vec![other(json!({}))], vec![]),
    ];
    for (versions, expected) in cases {
        let shown: Vec<_> = versions.iter().map(|version| version.lock().unwrap().clone()).collect();
        let mut found = warnings(&versions).await;
        found.sort();
        assert_eq!(found.len(), expected.len(), "{shown:?}: {found:#?}");
        for version in &expected {
            let count = found.iter().filter(|line| line.contains(version)).count();
            assert_eq!(count, 1, "{shown:?}: {found:#?}");
        }
        let is_complete = |line: &String| line.contains("WARN") && line.contains("\"cluster\":\"c\"");
        assert!(found.iter().all(is_complete), "{found:#?}");
    }
}
