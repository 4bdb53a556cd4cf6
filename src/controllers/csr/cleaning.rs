//! The controller that deletes old requests.
//!
//! Follows `pkg/controller/certificates/cleaner/cleaner.go`, with two stricter rules: it deletes exactly the version
//! that it checked, and the first pass runs at once, since the lease may change hands more often than the pass
//! interval.

use std::convert::Infallible;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Preconditions};
use kube::core::Request;
use portcullis_go::pem;
use portcullis_go::url::path_segment;
use portcullis_pki::x509::certificate::Certificate;
use portcullis_pki::x509::der::{DerReader, tag};
use portcullis_system::clock::UnixTime;
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use super::conditions::{Conditions, LenientTime};
use super::{PATH, requests};
use crate::backend::bounded_client::send;
use crate::backend::follow::PagedList;
use crate::controllers::ControllerContext;
use crate::controllers::problems::error_message;
use crate::controllers::request_feed::POLICY;
use crate::controllers::settings::ControllerName;
use crate::controllers::worker::ATTEMPT_TIMEOUT;

/// The interval between passes.
const PASS_INTERVAL: Duration = Duration::from_hours(1);
/// The back-off after a failed pass.
const FAILED_PASS_BACKOFF: Duration = Duration::from_mins(1);
/// How long decided requests are kept.
const DECIDED_RETENTION: Duration = Duration::from_hours(1);
/// How long pending requests, and approved ones without a certificate, are kept.
const PENDING_RETENTION: Duration = Duration::from_hours(24);
/// The maximum length of a name in a URL, which has at most 64 KiB.
const MAX_SEGMENT: usize = 65_000;
const TOO_LONG: &str = "the name is too long for a URL, delete the request with kubectl";
/// The maximum length of a name in the log.
const MAX_LOGGED: usize = 1024;
/// The cause of problems with names.
const NAMES: &str = "csrcleaner names";
/// The cause of problems with names that no continue token can hold.
const SKIPPED: &str = "csrcleaner skipped names";
/// The error of a request that timed out.
const NO_ANSWER: &str = "the API server does not answer in time";

/// Why the controller deletes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CleanupReason {
    /// Approved and issued, for longer than the retention.
    Issued,
    /// Denied, for longer than the retention.
    Denied,
    /// Failed, for longer than the retention.
    Failed,
    /// Pending for longer than the retention.
    Pending,
    /// The certificate has expired.
    Expired,
    /// Approved, but not signed within the retention.
    Unissued,
}

/// Runs the controller.
pub(crate) async fn run(context: ControllerContext) -> Infallible {
    loop {
        let delay = match pass(&context).await {
            Ok(()) => PASS_INTERVAL,
            Err(problem) => {
                error!(cluster = &*context.cluster, "cannot list certificate signing requests: {problem}");
                FAILED_PASS_BACKOFF
            }
        };
        sleep(delay).await;
    }
}

/// The parsed fields of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CleanupFields {
    metadata: CleanupMetadata,
    status: Option<CleanupStatus>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CleanupMetadata {
    name: String,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: LenientTime,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct CleanupStatus {
    certificate: Option<ByteString>,
    conditions: Conditions,
}

/// Checks every request once.
async fn pass(context: &ControllerContext) -> Result<(), String> {
    let mut pages = PagedList::new(requests(None), &POLICY);
    loop {
        // Only one page of a cluster is in memory at a time.
        let turn = context.lists.acquire().await;
        let page = timeout(ATTEMPT_TIMEOUT, pages.next::<CleanupFields>(&context.client)).await;
        let page = page.map_err(|_| NO_ANSWER.to_owned())?.map_err(|error| error_message(&error))?;
        if pages.has_skipped() && context.problems.begins(SKIPPED) {
            let cluster = &*context.cluster;
            warn!(
                cluster,
                "requests skipped: their names are not UTF-8, or have a prefix in common with one that is not"
            );
        }
        let Some(page) = page else { return Ok(()) };
        let now = context.clock.now();
        let old = page
            .into_iter()
            .filter_map(|fields| cleanup_reason(&fields, now).map(|reason| (fields.metadata, reason)));
        let old: Vec<_> = old.collect();
        drop(turn);
        for (metadata, reason) in old {
            delete(context, metadata, reason).await;
        }
    }
}

async fn delete(context: &ControllerContext, metadata: CleanupMetadata, reason: CleanupReason) {
    let CleanupMetadata { name, uid, resource_version, .. } = metadata;
    let params = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
    let cluster = &*context.cluster;
    let at = match path_segment(&name) {
        Ok(at) if at.len() <= MAX_SEGMENT => at,
        refused => {
            let problem = refused.err().map_or_else(|| TOO_LONG.to_owned(), |problem| problem.to_string());
            let (csr, problem) = (cut(&name), cut(&problem));
            if context.problems.begins(NAMES) {
                error!(cluster, csr, "cannot delete: {problem}; further ones are not logged");
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
    let Ok(deleted) = timeout(ATTEMPT_TIMEOUT, deleting).await else {
        error!(cluster, csr = name, "cannot delete: {NO_ANSWER}");
        return;
    };
    match deleted {
        Ok(()) => info!(cluster, csr = name, because = ?reason, "request deleted"),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let labels = [cluster, ControllerName::CsrCleaner.alias()];
            context.metrics.controllers.conflicts.with_label_values(&labels).inc();
            debug!(cluster, csr = name, "changed since it was read, checked again in the next pass");
        }
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        Err(problem) => error!(cluster, csr = name, "cannot delete: {problem}"),
    }
}

/// The beginning of a name, for the log.
fn cut(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_LOGGED)).unwrap_or_default()
}

/// Why to delete a request; `None` to keep it.
fn cleanup_reason(
    CleanupFields { metadata, status }: &CleanupFields,
    now: UnixTime,
) -> Option<CleanupReason> {
    let now = i128::try_from(now.as_nanos()).unwrap_or(i128::MAX);
    let is_older = |time: Option<Timestamp>, age: Duration| {
        let age = i128::try_from(age.as_nanos()).unwrap_or(i128::MAX);
        // Without a time there is no age.
        time.is_some_and(|time| now - time.as_nanosecond() > age)
    };
    let Conditions { is_any, approved, denied, failed } =
        status.as_ref().map(|status| status.conditions).unwrap_or_default();
    let certificate = status.as_ref().and_then(|status| status.certificate.as_ref());
    let certificate = certificate.map(|certificate| &*certificate.0).filter(|pem| !pem.is_empty());
    let issued = certificate.is_some();
    let is_past = |end: i64| now > i128::from(end) * 1_000_000_000;
    let LenientTime(created) = metadata.creation_timestamp;
    let rules = [
        (CleanupReason::Issued, issued && is_older(approved.oldest, DECIDED_RETENTION)),
        (CleanupReason::Denied, is_older(denied.oldest, DECIDED_RETENTION)),
        (CleanupReason::Failed, is_older(failed.oldest, DECIDED_RETENTION)),
        (CleanupReason::Pending, !is_any && is_older(created, PENDING_RETENTION)),
        (CleanupReason::Expired, approved.is_there && certificate.and_then(not_after).is_some_and(is_past)),
        (CleanupReason::Unissued, !issued && is_older(approved.oldest, PENDING_RETENTION)),
    ];
    rules.into_iter().find(|(_, applies)| *applies).map(|(reason, _)| reason)
}

/// When the first certificate expires, if the first PEM block is valid: a block may contain several certificates.
// go: crypto/x509/parser.go, ParseCertificates
fn not_after(certificates: &[u8]) -> Option<i64> {
    let (block, _) = pem::decode(certificates)?;
    let mut rest = DerReader::new(&block.content);
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

    use super::super::conditions::GO_ZERO_TIME;
    use super::super::testing::CapturedLog;
    use super::super::{APPROVED, Condition, Csr, DENIED, FAILED};
    use super::*;
    use crate::backend::bounded_client::bounded;
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
    async fn a_pass_that_times_out_is_followed_by_another() {
        let asked = Arc::new(AtomicUsize::new(0));
        let seen = Arc::clone(&asked);
        // Never answers the first list, nor any deletion.
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
        assert_eq!(asked.load(Ordering::SeqCst), 5, "one list, then two lists with a deletion each");
    }

    #[test]
    fn a_time_that_only_go_can_represent_does_not_make_an_object_unreadable() {
        let late = json!({"metadata": {"name": "a", "creationTimestamp": "9999-12-31T23:59:59Z"},
            "status": {"conditions": [{"type": DENIED, "lastUpdateTime": "9999-12-31T23:59:59Z"}]}});
        let fields: CleanupFields = serde_json::from_str(&late.to_string()).unwrap();
        assert_eq!(cleanup_reason(&fields, Duration::from_secs(NOW)), None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_of_the_maximum_size_is_deleted_and_so_are_those_after_it() {
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
    async fn a_name_that_is_too_long_for_a_url_is_logged_once_and_does_not_block_others() {
        let cluster = FakeCluster::new();
        let old = json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}});
        let long = |of: &str| format!("{PATH}/{}", of.repeat(70_000));
        for path in [long("a"), long("b"), format!("{PATH}/z")] {
            cluster.put(&path, old.clone());
        }
        let context = cluster.context();
        let lines = CapturedLog::default();
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
        let logged = |part: &str| text.lines().filter(|line| line.contains(part)).count();
        assert_eq!((logged("cannot delete"), logged("request deleted")), (1, 1), "{}", text.len());
        assert!(text.len() < 4000, "{}", text.len());
    }

    /// Name, creation time, certificate, conditions with their update times; the expected reason.
    type Row<'a> = (&'a str, Time, Option<&'a [u8]>, &'a [(&'a str, Option<Time>)], Option<CleanupReason>);

    // kubernetes: pkg/controller/certificates/cleaner/cleaner_test.go; the last cases are our own
    #[test]
    fn old_requests_are_deleted_and_no_others() {
        let (lasting, ended) = (certificate(2031), certificate(2029));
        let (lasting, ended) = (Some(lasting.as_slice()), Some(ended.as_slice()));
        let zero = Time(Timestamp::from_second(GO_ZERO_TIME).unwrap());
        let new = || ago(MINUTE);
        let at = |seconds: u64| Some(ago(seconds));
        let cases: &[Row<'_>] = &[
            ("approved not passed deadline", new(), lasting, &[(APPROVED, at(50 * MINUTE))], None),
            ("approved passed deadline not issued", new(), None, &[(APPROVED, at(50 * MINUTE))], None),
            (
                "approved passed deadline",
                new(),
                lasting,
                &[(APPROVED, at(2 * HOUR))],
                Some(CleanupReason::Issued),
            ),
            ("denied not passed deadline", new(), None, &[(DENIED, at(50 * MINUTE))], None),
            ("denied passed deadline", new(), None, &[(DENIED, at(2 * HOUR))], Some(CleanupReason::Denied)),
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
                Some(CleanupReason::Failed),
            ),
            ("pending not passed deadline", ago(5 * HOUR), None, &[], None),
            ("pending passed deadline", ago(25 * HOUR), None, &[], Some(CleanupReason::Pending)),
            (
                "approved unissued past deadline",
                new(),
                None,
                &[(APPROVED, at(25 * HOUR))],
                Some(CleanupReason::Unissued),
            ),
            ("approved unissued not past deadline", new(), None, &[(APPROVED, at(5 * HOUR))], None),
            ("approved expired", new(), ended, &[(APPROVED, at(50 * MINUTE))], Some(CleanupReason::Expired)),
            (
                "unparseable",
                new(),
                Some(b"garbage"),
                &[(APPROVED, at(2 * HOUR))],
                Some(CleanupReason::Issued),
            ),
            ("unparseable, young", new(), Some(b"garbage"), &[(APPROVED, at(50 * MINUTE))], None),
            ("exactly an hour", new(), lasting, &[(APPROVED, at(HOUR))], None),
            ("a condition without a time", new(), None, &[(DENIED, None)], None),
            ("a condition with Go's zero time", new(), None, &[(DENIED, Some(zero.clone()))], None),
            ("a request with Go's zero time", zero, None, &[], None),
            ("a condition of another type", ago(25 * HOUR), None, &[("Looked", at(25 * HOUR))], None),
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
            let fields: CleanupFields = serde_json::from_value(serde_json::to_value(&csr).unwrap()).unwrap();
            assert_eq!(cleanup_reason(&fields, Duration::from_secs(NOW)), *expected, "{name}");
        }
    }
}
