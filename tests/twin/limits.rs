//! Limits on requests in flight: kube-apiserver with its max-in-flight filter and the gateway have one place for reads and one
//! for writes. Requests of a user occupy them, and others are sent meanwhile.
//!
//! A request stays in progress because its client gives the response no window, so that not one byte of the body can be sent.
//! When its status has arrived, it has its place for certain.

use std::sync::OnceLock;

use bytes::Bytes;
use libtest_mimic::Failed;
use testkit::real::eventually;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::authenticators::Setting;
use crate::case::{Case, H1, case, get};
use crate::client::{self, Identity, Target, Version};
use crate::run::{Compared, http, judge, side_of};
use crate::servers::{Side, TwinServers};

/// The flags of kube-apiserver and of the gateway.
pub(crate) const FLAGS: [&str; 2] = ["--max-requests-inflight=1", "--max-mutating-requests-inflight=1"];
/// kube-apiserver's other filter replaces this one.
pub(crate) const OF_REFERENCE: &str = "--enable-priority-and-fairness=false";

const GROUP: &str = "limits";
const POD: &str = "/api/v1/namespaces/twin-fixed/pods/placed";
const MAPS: &str = "/api/v1/namespaces/twin-fixed/configmaps";
const MAP: &str = "/api/v1/namespaces/twin-fixed/configmaps/alpha";
const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const REVIEW: &str = r#"{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}"#;
const REFUSAL: &str = "Too many requests, please try again later.";
/// How often requests of the reference's own may be in the way of a case.
const MAX_COLLISIONS: usize = 5;

/// The place that a request occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Read,
    Write,
}

/// Requests while these places are taken.
struct Phase {
    taken: &'static [Place],
    cases: Vec<Case>,
}

fn phases() -> Vec<Phase> {
    let alice = |name: &str, method: &str, target: &str| case(GROUP, name, method, target).cert("alice");
    let review = |name: &str| alice(name, "POST", REVIEWS).json(REVIEW);
    let refused = |case: Case| case.answers(429).contains(REFUSAL);
    let read = |name: &str, target: &str| refused(alice(name, "GET", target));
    let watch = format!("{MAPS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dalpha");
    vec![
        Phase {
            taken: &[Place::Read],
            cases: vec![read("read beside a read", MAP), review("write beside a read").answers(201)],
        },
        Phase {
            taken: &[Place::Write],
            cases: vec![
                refused(review("write beside a write")),
                alice("read beside a write", "GET", MAP).answers(200),
            ],
        },
        Phase {
            taken: &[Place::Read, Place::Write],
            cases: vec![
                read("get", MAP),
                read("list", MAPS),
                read("discovery", "/api"),
                read("version", "/version"),
                read("healthz", "/healthz"),
                read("livez", "/livez"),
                read("readyz", "/readyz"),
                read("single check", "/livez/ping"),
                read("path that does not exist", "/none"),
                read("watch=false", &format!("{MAPS}?watch=false")),
                refused(read("not permitted", "/api/v1/namespaces/twin-fixed/secrets/hidden").cert("nobody")),
                refused(get(GROUP, "livez by anonymous", "/livez")),
                get(GROUP, "unknown token", MAP).bearer("tok-none").unauthorized(),
                alice("HEAD", "HEAD", MAP).answers(429),
                refused(alice("create", "POST", MAPS).json("{}")),
                refused(alice("replace", "PUT", MAP).json("{}")),
                refused(
                    alice("patch", "PATCH", MAP)
                        .body("application/merge-patch+json", br#"{"data":{"a":"1"}}"#),
                ),
                refused(alice("delete", "DELETE", MAP)),
                refused(alice("delete all", "DELETE", MAPS)),
                refused(review("review")),
                alice("watch", "GET", &watch).answers(200).contains("ADDED"),
                alice(
                    "watch by path",
                    "GET",
                    "/api/v1/watch/namespaces/twin-fixed/configmaps/alpha?timeoutSeconds=1",
                )
                .answers(200),
                alice("logs", "GET", &format!("{POD}/log")).answers(200).contains("second line"),
                alice("exec", "GET", &format!("{POD}/exec?command=echo&command=hello&stdout=true"))
                    .websocket("v5.channel.k8s.io", &[])
                    .answers(101)
                    .contains("ran echo hello"),
                alice(
                    "exec by POST without upgrade",
                    "POST",
                    &format!("{POD}/exec?command=true&stdout=true"),
                )
                .answers(400),
                alice("port forward without upgrade", "POST", &format!("{POD}/portforward?ports=80"))
                    .only(H1)
                    .answers(400),
                alice("proxy", "GET", "/api/v1/namespaces/twin-fixed/services/none/proxy/a").answers(503),
                alice("read by masters", "GET", MAP).cert("admin").answers(200),
                review("write by masters").cert("admin").answers(201),
                alice("healthz by masters", "GET", "/healthz").cert("admin").answers(200),
            ],
        },
    ]
}

/// Sends the cases to the reference and to a side.
pub(crate) async fn run(servers: &TwinServers, side: Side) -> Result<Compared, Failed> {
    // Their requests would take the places of each other.
    static ONE: OnceLock<Mutex<()>> = OnceLock::new();
    let _one = ONE.get_or_init(Mutex::default).lock().await;
    let alice = servers.identity("alice").ok_or("people.rs has no alice")?;
    let (reference, _) = side_of(servers, Side::Reference.with(Setting::Limits))?;
    let (subject, _) = side_of(servers, side.with(Setting::Limits))?;
    // The backend without the gateway has neither these users nor these limits.
    let limited = if side == Side::Backend { vec![reference] } else { vec![reference, subject] };
    let mut differences = Vec::new();
    for Phase { taken, cases } in phases() {
        let mut held = Vec::new();
        for target in &limited {
            for place in taken {
                held.push(InFlight::start(target, alice, *place).await?);
            }
        }
        for case in cases {
            let case = Case { setting: Setting::Limits, ..case };
            for version in case.versions {
                let free = [Place::Read, Place::Write].into_iter().filter(|place| !taken.contains(place));
                let found =
                    beside(servers, &limited, &free.collect::<Vec<_>>(), &case, *version, side).await?;
                if let Err(failed) = judge(&found, case.declared, side) {
                    let text = failed.message().unwrap_or_default();
                    differences.push(format!("{} over {version:?} with {taken:?} taken: {text}", case.name));
                }
            }
        }
        drop(held);
        for target in &limited {
            for place in taken {
                until_free(target, alice, *place).await?;
            }
        }
    }
    Ok(Compared { differences, last: 0 })
}

/// Sends a case while these places are free. It is sent again where a request of the reference's own has taken one of them since.
async fn beside(
    servers: &TwinServers,
    limited: &[&Target],
    free: &[Place],
    case: &Case,
    version: Version,
    side: Side,
) -> Result<Compared, Failed> {
    let alice = servers.identity("alice").ok_or("people.rs has no alice")?;
    let mut last = Err("not sent".into());
    for _ in 0..if free.is_empty() { 1 } else { MAX_COLLISIONS } {
        for target in limited {
            for place in free {
                until_free(target, alice, *place).await?;
            }
        }
        // An error says that the reference does not respond as the case expects.
        last = http(servers, case, version, side).await;
        if last.is_ok() {
            break;
        }
    }
    last
}

/// A request in progress, until it is dropped.
struct InFlight {
    response: http::Response<h2::RecvStream>,
    _client: h2::client::SendRequest<Bytes>,
    driver: JoinHandle<()>,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl InFlight {
    /// Starts a request, again and again while the server's own requests take the place for a moment.
    async fn start(target: &Target, identity: &Identity, place: Place) -> Result<Self, Failed> {
        let mut started = None;
        eventually("a free place", async || {
            let request = Self::send(target, identity, place).await?;
            let status = request.response.status().as_u16();
            started = Some(request);
            match status {
                200 | 201 => Ok(true),
                429 => Ok(false),
                status => Err(format!("the request that shall occupy the {place:?} place: {status}")),
            }
        })
        .await?;
        started.ok_or_else(|| "no request".into())
    }

    async fn send(target: &Target, identity: &Identity, place: Place) -> Result<Self, String> {
        // Both responses are longer than what kube-apiserver buffers before it sends the header.
        let (method, path, body) = match place {
            Place::Read => ("GET", format!("{MAPS}/large"), String::new()),
            Place::Write => {
                let spec =
                    serde_json::json!({"nonResourceAttributes": {"verb": "get", "path": "x".repeat(20_000)}});
                let review = serde_json::json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": spec});
                (
                    "POST",
                    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews".to_owned(),
                    review.to_string(),
                )
            }
        };
        let stream = client::connect(target, Some(identity), Version::H2).await.map_err(|broken| broken.0)?;
        let mut builder = h2::client::Builder::new();
        let (client, connection) =
            builder.initial_window_size(0).handshake::<_, Bytes>(stream).await.map_err(text)?;
        let driver = tokio::spawn(async move {
            connection.await.ok();
        });
        let mut client = client.ready().await.map_err(text)?;
        let request = http::Request::builder()
            .method(method)
            .uri(format!("https://{}{path}", target.address))
            .header("content-type", "application/json")
            .body(())
            .map_err(text)?;
        let (response, mut sender) = client.send_request(request, body.is_empty()).map_err(text)?;
        if !body.is_empty() {
            sender.send_data(Bytes::from(body), true).map_err(text)?;
        }
        let response = response.await.map_err(text)?;
        Ok(Self { response, _client: client, driver })
    }
}

/// Waits until the earlier requests have given the place back.
async fn until_free(target: &Target, identity: &Identity, place: Place) -> Result<(), Failed> {
    let case = match place {
        Place::Read => get(GROUP, "", "/version"),
        Place::Write => case(GROUP, "", "POST", REVIEWS).json(REVIEW),
    };
    let request = case.steps[0].plain(Version::H1);
    eventually("a free place", async || {
        let answer = client::exchange(target, Some(identity), &request).await.map_err(|broken| broken.0)?;
        Ok(answer.status != 429)
    })
    .await
    .map_err(Failed::from)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
