//! The controller that deletes requests that are over.
//!
//! Follows `pkg/controller/certificates/cleaner/cleaner.go`, and is stricter in two things: what is deleted is the very
//! version that was judged, and the first pass comes at once, since a lease may change hands more often than passes come.

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::core::Request;
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use super::conditions::{Conditions, Moment};
use super::pages::{PATH, Pages};
use super::words;
use crate::clock::UnixTime;
use crate::controllers::Context;
use crate::controllers::client::send;
use crate::controllers::settings::Name;
use crate::controllers::worker::PATIENCE;
use crate::go::pem;
use crate::go::url::path_segment;
use crate::pki::x509::certificate::Certificate;
use crate::pki::x509::der::{Der, tag};

/// Between two passes.
const EACH: Duration = Duration::from_hours(1);
/// After a pass that failed.
const SOON: Duration = Duration::from_mins(1);
/// How long what was decided on is kept.
const DECIDED: Duration = Duration::from_hours(1);
/// How long what waits for somebody is kept.
const PENDING: Duration = Duration::from_hours(24);
/// The longest name in a URL, which has 64 KiB at most.
const MAX_SEGMENT: usize = 65_000;
const TOO_LONG: &str = "no URL of this client can hold the name, delete it with kubectl";
/// How much of a name is logged.
const MAX_LOGGED: usize = 1024;
/// The cause of problems with names.
const NAMES: &str = "csrcleaner names";
/// The cause of problems with names that no token of a list can hold.
const SKIPPED: &str = "csrcleaner skipped names";
/// What is said of an API server that takes longer than it may.
const NO_ANSWER: &str = "the API server does not answer in time";

/// Why a request is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    /// It has had its certificate for long.
    Issued,
    /// It was denied long ago.
    Denied,
    /// It failed long ago.
    Failed,
    /// Nobody has looked at it.
    Pending,
    /// Its certificate has expired.
    Expired,
    /// It was approved and never signed.
    Unissued,
}

/// Cleans for as long as it is polled.
pub(crate) async fn run(context: Context) -> Infallible {
    loop {
        let rest = match pass(&context).await {
            Ok(()) => EACH,
            Err(problem) => {
                error!(cluster = &*context.cluster, "cannot list certificate signing requests: {problem}");
                SOON
            }
        };
        sleep(rest).await;
    }
}

/// What tells whether a request is over.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Fields {
    metadata: Metadata,
    status: Option<Status>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    name: String,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Moment,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    certificate: Option<ByteString>,
    conditions: Conditions,
}

/// Looks at every request once.
async fn pass(context: &Context) -> Result<(), String> {
    let mut pages = Pages::new(None);
    loop {
        // One page of a cluster is in memory at a time.
        let turn = context.lists.acquire().await;
        let page = timeout(PATIENCE, pages.next::<Fields>(&context.client)).await;
        let page = page.map_err(|_| NO_ANSWER.to_owned())?.map_err(|error| words(&error))?;
        if pages.has_skipped() && context.problems.begins(SKIPPED) {
            let cluster = &*context.cluster;
            warn!(cluster, "requests passed over: names are not UTF-8, or begin like one that is not");
        }
        let Some(page) = page else { return Ok(()) };
        let now = context.clock.now();
        let ended =
            page.into_iter().filter_map(|fields| over(&fields, now).map(|over| (fields.metadata, over)));
        let ended: Vec<_> = ended.collect();
        drop(turn);
        for (metadata, over) in ended {
            delete(context, metadata, over).await;
        }
    }
}

async fn delete(context: &Context, metadata: Metadata, over: Over) {
    let Metadata { name, uid, resource_version, .. } = metadata;
    let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
    let cluster = &*context.cluster;
    let at = match path_segment(&name) {
        Ok(at) if at.len() <= MAX_SEGMENT => at,
        refused => {
            let problem = refused.err().map_or_else(|| TOO_LONG.to_owned(), |problem| problem.to_string());
            let (csr, problem) = (cut(&name), cut(&problem));
            if context.problems.begins(NAMES) {
                error!(cluster, csr, "cannot delete: {problem}; others like it are not logged");
            } else {
                debug!(cluster, csr, "cannot delete: {problem}");
            }
            return;
        }
    };
    let name = cut(&name);
    let deleting = async {
        let request = Request::new(PATH).delete(&at, &params).map_err(kube::Error::BuildRequest)?;
        send(&context.client, request).await
    };
    let Ok(deleted) = timeout(PATIENCE, deleting).await else {
        error!(cluster, csr = name, "cannot delete: {NO_ANSWER}");
        return;
    };
    match deleted {
        Ok(()) => info!(cluster, csr = name, because = ?over, "request deleted"),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let labels = [cluster, Name::CsrCleaner.alias()];
            context.metrics.controllers.conflicts.with_label_values(&labels).inc();
            debug!(cluster, csr = name, "changed since it was read, looked at again with the next pass");
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(problem) => error!(cluster, csr = name, "cannot delete: {problem}"),
    }
}

/// As much of a name as a log needs.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_LOGGED)).unwrap_or_default()
}

/// Why a request is over, if it is.
fn over(Fields { metadata, status }: &Fields, now: UnixTime) -> Option<Over> {
    let now = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX);
    let is_older = |time: Option<Timestamp>, age: Duration| {
        let age = i128::try_from(age.as_nanos()).unwrap_or(i128::MAX);
        // What has no time has no age.
        time.is_some_and(|time| now - time.as_nanosecond() > age)
    };
    let Conditions { is_any, approved, denied, failed } =
        status.as_ref().map(|status| status.conditions).unwrap_or_default();
    let certificate = status.as_ref().and_then(|status| status.certificate.as_ref());
    let certificate = certificate.map(|certificate| &*certificate.0).filter(|pem| !pem.is_empty());
    let issued = certificate.is_some();
    let is_past = |end: i64| now > i128::from(end) * 1_000_000_000;
    let Moment(created) = metadata.creation_timestamp;
    let cases = [
        (Over::Issued, issued && is_older(approved.oldest, DECIDED)),
        (Over::Denied, is_older(denied.oldest, DECIDED)),
        (Over::Failed, is_older(failed.oldest, DECIDED)),
        (Over::Pending, !is_any && is_older(created, PENDING)),
        (Over::Expired, approved.is_there && certificate.and_then(not_after).is_some_and(is_past)),
        (Over::Unissued, !issued && is_older(approved.oldest, PENDING)),
    ];
    cases.into_iter().find(|(_, is_over)| *is_over).map(|(over, _)| over)
}

/// When the first certificate ends, if all of the first block can be read: a block may hold several.
// go: crypto/x509/parser.go, ParseCertificates
fn not_after(certificates: &[u8]) -> Option<i64> {
    let (block, _) = pem::decode(certificates)?;
    let mut rest = Der::new(&block.content);
    let mut first = None;
    while !rest.is_empty() {
        let whole = rest.whole(tag::SEQUENCE)?.to_vec();
        let parsed = Certificate::parse(whole.into()).ok()?;
        first.get_or_insert(parsed.not_after);
    }
    first
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use http::{Method, Response};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::client::Body;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use serde_json::json;
    use tower::service_fn;

    use tracing::instrument::WithSubscriber as _;

    use super::super::conditions::NO_TIME;
    use super::super::testing::Lines;
    use super::super::{APPROVED, Condition, Csr, DENIED, FAILED};
    use super::*;
    use crate::controllers::client::bounded;
    use crate::controllers::testing::FakeCluster;

    /// 2030-01-01T00:00:00Z.
    const NOW: u64 = 1_893_456_000;
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;

    fn ago(seconds: u64) -> Time {
        Time(Timestamp::from_second(i64::try_from(NOW - seconds).unwrap()).unwrap())
    }

    fn certificate(until: i32) -> Vec<u8> {
        let mut params = CertificateParams::default();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem().into_bytes()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_gets_no_answer_is_followed_by_another() {
        let asked = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&asked);
        // It never answers the first list, nor any deletion.
        let service = service_fn(move |request: http::Request<Body>| {
            let number = seen.fetch_add(1, Ordering::SeqCst);
            async move {
                if number == 0 || request.method() == Method::DELETE {
                    std::future::pending::<()>().await;
                }
                let old = json!({"metadata": {"name": "old", "creationTimestamp": "2020-01-01T00:00:00Z"},
                    "spec": {"request": "", "signerName": "example.com/s"}});
                let list = json!({"metadata": {}, "items": [old]});
                Ok::<_, Infallible>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        let mut context = FakeCluster::new().context();
        context.client = kube::Client::new(service, "default");
        assert!(timeout(Duration::from_hours(2), run(context)).await.is_err());
        assert_eq!(asked.load(Ordering::SeqCst), 5, "a list, and twice a list and a deletion");
    }

    #[test]
    fn a_time_that_only_go_has_makes_no_object_unreadable() {
        let late = json!({"metadata": {"name": "a", "creationTimestamp": "9999-12-31T23:59:59Z"},
            "status": {"conditions": [{"type": DENIED, "lastUpdateTime": "9999-12-31T23:59:59Z"}]}});
        let fields: Fields = serde_json::from_str(&late.to_string()).unwrap();
        assert_eq!(over(&fields, Duration::from_secs(NOW)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_is_as_large_as_any_is_deleted_and_so_are_those_behind_it() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&deleted);
        let service = service_fn(move |request: http::Request<Body>| {
            let query = request.uri().query().unwrap_or_default();
            let object = |name: &str, filler: &str| {
                format!(
                    r#"{{"metadata":{{"generateName":"{filler}","name":"{name}","creationTimestamp":"2020-01-01T00:00:00Z"}}}}"#
                )
            };
            let large = |count: usize| object("large", &r"\u003c".repeat(count));
            let (token, items) =
                match (query.contains("continue"), query.split('&').any(|pair| pair == "limit=1")) {
                    _ if request.method() == Method::DELETE => {
                        seen.lock()
                            .unwrap()
                            .push(request.uri().path().rsplit('/').next().unwrap().to_owned());
                        (String::new(), String::new())
                    }
                    (true, _) => (String::new(), object("behind", "")),
                    (false, true) => ("behind".to_owned(), large(3 << 19)),
                    (false, false) => (String::new(), format!("{},{}", large(3 << 19), object("behind", ""))),
                };
            let list = format!(r#"{{"metadata":{{"continue":"{token}"}},"items":[{items}]}}"#);
            std::future::ready(Ok::<_, Infallible>(Response::new(Body::from(list.into_bytes()))))
        });
        let mut context = FakeCluster::new().context();
        context.client = bounded(kube::Client::new(service, "default"));
        assert_eq!(pass(&context).await, Ok(()));
        assert_eq!(*deleted.lock().unwrap(), ["large", "behind"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_no_url_can_hold_is_told_of_once_and_keeps_no_other() {
        let cluster = FakeCluster::new();
        let old = json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}});
        let long = |of: &str| format!("{PATH}/{}", of.repeat(70_000));
        for path in [long("a"), long("b"), format!("{PATH}/z")] {
            cluster.put(&path, old.clone());
        }
        let context = cluster.context();
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        let passes = async {
            for _ in 0..3 {
                assert_eq!(pass(&context).await, Ok(()));
            }
        };
        passes.with_subscriber(log).await;
        assert!(cluster.get(&format!("{PATH}/z")).is_none());
        let text = lines.text();
        let told = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!((told("cannot delete"), told("request deleted")), (1, 1), "{}", text.len());
        assert!(text.len() < 4000, "{}", text.len());
    }

    /// When it was created, its certificate, its conditions with when they were updated; what becomes of it.
    type Row<'a> = (&'a str, Time, Option<&'a [u8]>, &'a [(&'a str, Option<Time>)], Option<Over>);

    // kubernetes: pkg/controller/certificates/cleaner/cleaner_test.go; the last ones are of our own
    #[test]
    fn what_is_over_goes_and_nothing_else() {
        let (lasting, ended) = (certificate(2031), certificate(2029));
        let (lasting, ended) = (Some(lasting.as_slice()), Some(ended.as_slice()));
        let zero = Time(Timestamp::from_second(NO_TIME).unwrap());
        let new = || ago(MINUTE);
        let at = |seconds: u64| Some(ago(seconds));
        let cases: &[Row<'_>] = &[
            ("approved not passed deadline", new(), lasting, &[(APPROVED, at(50 * MINUTE))], None),
            ("approved passed deadline not issued", new(), None, &[(APPROVED, at(50 * MINUTE))], None),
            ("approved passed deadline", new(), lasting, &[(APPROVED, at(2 * HOUR))], Some(Over::Issued)),
            ("denied not passed deadline", new(), None, &[(DENIED, at(50 * MINUTE))], None),
            ("denied passed deadline", new(), None, &[(DENIED, at(2 * HOUR))], Some(Over::Denied)),
            (
                "failed not passed deadline",
                new(),
                None,
                &[(APPROVED, at(2 * HOUR)), (FAILED, at(50 * MINUTE))],
                None,
            ),
            (
                "failed passed deadline",
                new(),
                None,
                &[(APPROVED, at(2 * HOUR)), (FAILED, at(2 * HOUR))],
                Some(Over::Failed),
            ),
            ("pending not passed deadline", ago(5 * HOUR), None, &[], None),
            ("pending passed deadline", ago(25 * HOUR), None, &[], Some(Over::Pending)),
            (
                "approved unissued past deadline",
                new(),
                None,
                &[(APPROVED, at(25 * HOUR))],
                Some(Over::Unissued),
            ),
            ("approved unissued not past deadline", new(), None, &[(APPROVED, at(5 * HOUR))], None),
            ("approved expired", new(), ended, &[(APPROVED, at(50 * MINUTE))], Some(Over::Expired)),
            ("unparseable", new(), Some(b"garbage"), &[(APPROVED, at(2 * HOUR))], Some(Over::Issued)),
            ("unparseable, young", new(), Some(b"garbage"), &[(APPROVED, at(50 * MINUTE))], None),
            ("exactly an hour is not longer", new(), lasting, &[(APPROVED, at(HOUR))], None),
            ("a condition without a time has no age", new(), None, &[(DENIED, None)], None),
            ("nor one with Go's zero", new(), None, &[(DENIED, Some(zero.clone()))], None),
            ("nor a request", zero, None, &[], None),
            (
                "a condition of its own keeps a request",
                ago(25 * HOUR),
                None,
                &[("Looked", at(25 * HOUR))],
                None,
            ),
        ];
        for (name, created, certificate, conditions, expected) in cases {
            let mut csr = Csr::default();
            csr.metadata.creation_timestamp = Some(created.clone());
            let status = csr.status.get_or_insert_default();
            status.certificate = certificate.map(|pem| ByteString(pem.to_vec()));
            let condition = |(kind, updated): &(&str, Option<Time>)| Condition {
                type_: (*kind).to_owned(),
                last_update_time: updated.clone(),
                ..Condition::default()
            };
            status.conditions = Some(conditions.iter().map(condition).collect());
            let fields: Fields = serde_json::from_value(serde_json::to_value(&csr).unwrap()).unwrap();
            assert_eq!(over(&fields, Duration::from_secs(NOW)), *expected, "{name}");
        }
    }
}
