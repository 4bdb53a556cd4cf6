//! One user that impersonates ten thousand users as fast as it can, beside calm users.
//!
//! The calm users are measured three times in one run: alone; beside a user that sends its own requests as fast as it
//! can, which is what any busy user costs the others on this machine; and beside the same user that impersonates. With
//! too few `--seconds` the flooder does not become all users, which is a failure, too.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::{Value, json};
use testkit::client::Client;
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::self_check::{self, respond};
use testkit::{BoxedBody, FakeBackend, H2, Pki, flags, full, text};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::honest::ResponseTimes;
use crate::memory::Memory;
use crate::report::mebibytes;

const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const RULES: &str = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews";
/// The name of the user that floods.
const FLOODER: &str = "mallory";
/// The users that the flooder impersonates, in turn.
const IDENTITIES: usize = 10_000;
/// The length of an extra attribute, so that all users need more memory than the gateway keeps of them.
const EXTRA_LENGTH: usize = 6 << 10;
/// Each n-th user has so many groups that the gateway asks for the flooder's rules.
const MANY_GROUPS_EVERY: usize = 4;
/// Connections of the flooder, and its requests in progress on each: together more than may wait for an answer.
const CONNECTIONS: usize = 4;
const CONCURRENCY: usize = 120;
/// Calm clients of each kind and HTTP version, and the pause between two requests of one.
const CALM: usize = 2;
const PAUSE: Duration = Duration::from_millis(20);
/// How long the API server takes for an access review.
const REVIEW_TIME: Duration = Duration::from_millis(2);
const WARM_UP: Duration = Duration::from_secs(2);
/// Longer than answers count, after which the memory is read for the last time.
const REST: Duration = Duration::from_secs(12);

/// The gateway's limits: questions at once of one user and of all (`src/authz/reviewer.rs`), and the memory of answers and
/// impersonations (`docs/threat-model.md`, `review-flood`).
const QUESTIONS_OF_ONE: usize = 16;
const QUESTIONS: usize = 64;
const CACHES: u64 = 48 << 10;
/// In KiB: what the caches' own estimate, the allocator, and requests in progress may need beside [`CACHES`].
const OTHER_MEMORY: u64 = 48 << 10;
/// How much memory may grow from the middle of the flood to its end, when all users have been impersonated.
const MAX_GROWTH_PERCENT: u64 = 15;
/// How many times as long as beside a busy user the requests of calm users may take, from a limit that is noise.
const MAX_SLOWDOWN: f64 = 3.0;
const NOISE: Duration = Duration::from_millis(25);
/// The log's words for a request of a user that causes too many questions.
const OVERLOADED: &str = "too many access reviews are in progress";

/// Access reviews that the API server has received.
#[derive(Default)]
struct Reviews {
    flooder: ReviewCount,
    all: ReviewCount,
}

#[derive(Default)]
struct ReviewCount {
    received: AtomicUsize,
    open: AtomicUsize,
    most: AtomicUsize,
}

impl ReviewCount {
    fn begin(&self) -> OpenReview<'_> {
        self.received.fetch_add(1, Ordering::Relaxed);
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(open, Ordering::Relaxed);
        OpenReview(self)
    }

    fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

/// Counts a review until it is answered, or until the gateway cancels it.
struct OpenReview<'a>(&'a ReviewCount);

impl Drop for OpenReview<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reviews {
    /// Answers a review as an API server whose users may all impersonate, by rules of old.
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<BoxedBody> {
        let lists_rules = request.uri().path() == RULES;
        let user = request.headers().get("x-remote-user").map(|user| user == FLOODER);
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let review: Value = serde_json::from_slice(&body).unwrap();
        let of_flooder = if lists_rules { user == Some(true) } else { review["spec"]["user"] == FLOODER };
        let counts = [&self.all, &self.flooder];
        let counts = &counts[..if of_flooder { 2 } else { 1 }];
        let open: Vec<_> = counts.iter().map(|count| count.begin()).collect();
        sleep(REVIEW_TIME).await;
        drop(open);
        let status = if lists_rules {
            let rule = json!({"verbs": ["impersonate"], "apiGroups": ["*"], "resources": ["*"]});
            json!({"incomplete": false, "resourceRules": [rule], "nonResourceRules": []})
        } else {
            json!({"allowed": review["spec"]["resourceAttributes"]["verb"] == "impersonate"})
        };
        respond(StatusCode::CREATED, &json!({"status": status}))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum CalmKind {
    Certificate,
    Token,
    /// Impersonates one user, so that the gateway knows the answer.
    OneUser,
    /// Impersonates another user with each request.
    NewUsers,
}

impl CalmKind {
    const ALL: [Self; 4] = [Self::Certificate, Self::Token, Self::OneUser, Self::NewUsers];

    fn name(self) -> &'static str {
        match self {
            Self::Certificate => "certificate",
            Self::Token => "token",
            Self::OneUser => "impersonates one user",
            Self::NewUsers => "impersonates new users",
        }
    }
}

/// Latencies by kind.
type Calm = BTreeMap<CalmKind, ResponseTimes>;
/// Number of responses by status code; 0 for none.
type Codes = BTreeMap<u16, usize>;

struct Subject {
    process: GatewayProcess,
    backend: FakeBackend,
    reviews: Arc<Reviews>,
    alice: Issued,
    flooder: Issued,
    /// Numbers of the users that calm clients and the flooder impersonate.
    next: [AtomicUsize; 2],
    _pki: Pki,
}

impl Subject {
    async fn start() -> Arc<Self> {
        let pki = Pki::new();
        let reviews = Arc::new(Reviews::default());
        let counted = Arc::clone(&reviews);
        let is_review = |path: &str| [REVIEWS, RULES].contains(&path);
        let backend = FakeBackend::with_self_check(
            &pki,
            H2,
            move |request| if is_review(request.uri().path()) { None } else { self_check::answer(request) },
            move |request| {
                if is_review(request.uri().path()) {
                    return Box::pin(Arc::clone(&counted).answer(request));
                }
                Box::pin(async { Response::new(full(vec![b'x'; 2048])) })
            },
        )
        .await;
        let flags = flags(&pki, backend.address).into_iter().chain(["--workers=0".to_owned()]);
        let process = GatewayProcess::start(crate::PORTCULLIS, flags).await;
        let alice = pki.clients.leaf().cn("alice").issue();
        let flooder = pki.clients.leaf().cn(FLOODER).issue();
        Arc::new(Self { process, backend, reviews, alice, flooder, next: Default::default(), _pki: pki })
    }

    fn rss(&self) -> u64 {
        Memory::of(self.process.id()).rss
    }

    /// Sends requests of a calm user until the end.
    async fn calm(self: Arc<Self>, kind: CalmKind, http2: bool, end: watch::Receiver<bool>) -> ResponseTimes {
        let gateway = &self.process.gateway;
        let identity = (kind == CalmKind::Certificate).then_some(&self.alice);
        let mut client = Client::connect(gateway, http2, identity).await;
        let mut times = ResponseTimes::default();
        while !*end.borrow() {
            let user = match kind {
                CalmKind::Certificate | CalmKind::Token => None,
                CalmKind::OneUser => Some("bob".to_owned()),
                CalmKind::NewUsers => Some(format!("calm-{}", self.next[0].fetch_add(1, Ordering::Relaxed))),
            };
            let token = (kind != CalmKind::Certificate).then_some(("authorization", "Bearer good-token"));
            let user = user.as_deref().map(|user| ("impersonate-user", user));
            let headers: Vec<(&str, &str)> = token.into_iter().chain(user).collect();
            let start = Instant::now();
            let code = client.code(&headers).await;
            times.record(start.elapsed(), code == 200);
            if code != 200 {
                client = Client::connect(gateway, http2, identity).await;
            }
            sleep(PAUSE).await;
        }
        times
    }

    /// Sends requests of the flooder until the end, as itself or as one of its victims.
    async fn flood(self: Arc<Self>, impersonates: bool, end: watch::Receiver<bool>) -> Codes {
        let gateway = &self.process.gateway;
        let mut codes = Codes::new();
        while !*end.borrow() {
            let connection = gateway.http2(Some(&self.flooder)).await;
            let mut tasks = JoinSet::new();
            for _ in 0..CONCURRENCY {
                let (subject, mut client, end) = (Arc::clone(&self), connection.share(), end.clone());
                tasks.spawn(async move {
                    let mut codes = Codes::new();
                    while !*end.borrow() {
                        let headers = if impersonates { subject.next_victim() } else { Vec::new() };
                        let headers: Vec<(&str, &str)> =
                            headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
                        let response = client.send(testkit::get("/api", &headers)).await;
                        let Ok(response) = response else {
                            *codes.entry(0).or_default() += 1;
                            break;
                        };
                        let code = response.status().as_u16();
                        text(response).await;
                        *codes.entry(code).or_default() += 1;
                    }
                    codes
                });
            }
            add(&mut codes, tasks.join_all().await);
        }
        codes
    }

    /// The headers for the next victim: a user, groups and an extra attribute that no other one has.
    fn next_victim(&self) -> Vec<(String, String)> {
        let number = self.next[1].fetch_add(1, Ordering::Relaxed) % IDENTITIES;
        let mut headers = vec![
            ("impersonate-user".to_owned(), format!("victim-{number}")),
            (format!("impersonate-extra-scope-{number}"), format!("{number:0EXTRA_LENGTH$}")),
        ];
        let groups = if number.is_multiple_of(MANY_GROUPS_EVERY) { 6 } else { 2 };
        let group = |group| ("impersonate-group".to_owned(), format!("team-{number}-{group}"));
        headers.extend((0..groups).map(group));
        headers
    }

    /// Runs the calm clients for some time, beside the flooder if there is one, and prints a line per second.
    async fn run(
        self: &Arc<Self>,
        phase: &'static str,
        flood: Option<bool>,
        duration: Duration,
    ) -> (Calm, Codes, Vec<Sample>) {
        let (ending, end) = watch::channel(false);
        let mut calm = JoinSet::new();
        for kind in CalmKind::ALL {
            for client in 0..2 * CALM {
                let calming = Arc::clone(self).calm(kind, client % 2 == 0, end.clone());
                calm.spawn(async move { (kind, calming.await) });
            }
        }
        let mut flooding = JoinSet::new();
        for impersonates in std::iter::repeat_n(flood, CONNECTIONS).flatten() {
            flooding.spawn(Arc::clone(self).flood(impersonates, end.clone()));
        }
        let samples = self.sample(phase, duration).await;
        ending.send_replace(true);
        let mut times = Calm::new();
        while let Some(ended) = calm.join_next().await {
            // A client without a response in time has panicked.
            match ended {
                Ok((kind, found)) => times.entry(kind).or_default().add(&found),
                Err(_) => times.entry(CalmKind::Certificate).or_default().add(&ResponseTimes::failure()),
            }
        }
        let mut codes = Codes::new();
        add(&mut codes, flooding.join_all().await);
        (times, codes, samples)
    }

    async fn sample(&self, phase: &'static str, duration: Duration) -> Vec<Sample> {
        let mut samples: Vec<Sample> = Vec::new();
        let start = Instant::now();
        let counts = || [&self.reviews.flooder, &self.reviews.all].map(ReviewCount::received);
        let mut before = counts();
        while start.elapsed() < duration {
            sleep(Duration::from_secs(1)).await;
            // Discards the requests that the fake backend records.
            while self.backend.take().is_some() {}
            let now = counts();
            let [flooder, all] = [0, 1].map(|count| now[count] - before[count]);
            before = now;
            let sample = Sample { rss: self.rss(), flooder, others: all - flooder };
            sample.print(phase);
            samples.push(sample);
        }
        samples
    }
}

fn add(codes: &mut Codes, found: Vec<Codes>) {
    for (code, times) in found.into_iter().flatten() {
        *codes.entry(code).or_default() += times;
    }
}

/// One second.
struct Sample {
    rss: u64,
    /// Access reviews about the flooder, and about others.
    flooder: usize,
    others: usize,
}

impl Sample {
    fn print(&self, phase: &str) {
        let Self { rss, flooder, others } = self;
        println!("{phase:>12}  {:>8}  {flooder:>8}  {others:>8}", mebibytes(*rss));
    }
}

pub(crate) async fn run(seconds: u64) -> ExitCode {
    let duration = Duration::from_secs(seconds);
    let subject = Subject::start().await;
    println!("{:>12}  {:>8}  {:>8}  {:>8}", "", "RSS", "reviews", "others'");
    subject.run("warm-up", None, WARM_UP).await;
    let (quiet, ..) = subject.run("quiet", None, duration / 2).await;
    let (busy, own_codes, _) = subject.run("busy user", Some(false), duration / 2).await;
    let before = subject.rss();
    let (flooded, codes, samples) = subject.run("flood", Some(true), duration).await;
    sleep(REST).await;
    let after = subject.rss();
    let most = [&subject.reviews.flooder, &subject.reviews.all].map(ReviewCount::most);
    let subject = Arc::into_inner(subject).expect("all clients have ended");
    let (_, log) = subject.process.end().await;

    let peak = samples.iter().map(|sample| sample.rss).max().unwrap_or_default();
    let (middle, last) = (samples[samples.len() / 2].rss, samples[samples.len() - 1].rss);
    let reviews: usize = samples.iter().map(|sample| sample.flooder).sum();
    println!();
    println!("{:>24}  {}", "busy user", described(&own_codes));
    println!("{:>24}  {}", "flood", described(&codes));
    println!(
        "{:>24}  {} per second of the flooder; at once at most {} of the flooder, {} of all",
        "reviews",
        reviews / samples.len(),
        most[0],
        most[1]
    );
    let [before_text, middle_text, last_text, peak_text, after_text] =
        [before, middle, last, peak, after].map(mebibytes);
    println!(
        "{:>24}  {before_text} before, {middle_text} in the middle, {last_text} at the end, at most {peak_text}, {after_text} after",
        "RSS",
    );
    println!("{:>24}  {:>34}  {:>16}  {:>16}", "", "flood", "busy user", "quiet");
    let mut slow = Vec::new();
    let mut failed = 0;
    for kind in CalmKind::ALL {
        let [flooded, busy, quiet] = [&flooded, &busy, &quiet].map(|calm| &calm[&kind]);
        failed += flooded.failed() + busy.failed() + quiet.failed();
        let mut line =
            format!("{:>24}  {:>6} requests, {} failed; ", kind.name(), flooded.count(), flooded.failed());
        for times in [flooded, busy, quiet] {
            let [p50, p99] = [50, 99].map(|percent| times.percentile(percent).as_secs_f64() * 1000.0);
            write!(line, " p50 {p50:>5.1} p99 {p99:>5.1} ms").unwrap();
        }
        let ratio = |percent| {
            let of = |times: &ResponseTimes| times.percentile(percent).as_secs_f64();
            of(flooded) / of(busy)
        };
        println!("{line}; {:.2} and {:.2} times as long", ratio(50), ratio(99));
        if flooded.percentile(99) > NOISE && ratio(99) > MAX_SLOWDOWN {
            slow.push(kind.name());
        }
    }
    let is_fault = |line: &&str| line.contains("\"ERROR\"") && !line.contains(OVERLOADED);
    let errors: Vec<&str> = log.lines().filter(is_fault).collect();
    let unexpected = codes.keys().any(|code| ![200, 429, 503].contains(code));
    let visited = codes.get(&200).copied().unwrap_or_default();
    let lines = [
        (failed == 0, "no request of a calm user failed".to_owned()),
        (slow.is_empty(), format!("no calm user waited more than {MAX_SLOWDOWN} times as long {slow:?}")),
        (!unexpected, "the flooder got 200, 429 or 503 alone".to_owned()),
        (visited >= IDENTITIES, format!("the flooder became at least {IDENTITIES} users")),
        (most[0] <= QUESTIONS_OF_ONE, format!("at most {QUESTIONS_OF_ONE} reviews of the flooder at once")),
        (most[1] <= QUESTIONS, format!("at most {QUESTIONS} reviews at once")),
        (
            peak <= before + CACHES + OTHER_MEMORY,
            format!("memory grew by less than {}", mebibytes(CACHES + OTHER_MEMORY)),
        ),
        (
            last <= middle + middle * MAX_GROWTH_PERCENT / 100,
            format!("memory grew by less than {MAX_GROWTH_PERCENT} % in the second half"),
        ),
        (errors.is_empty(), "no error was logged".to_owned()),
    ];
    println!();
    for (holds, line) in &lines {
        println!("{:>24}  {line}", if *holds { "passed" } else { "FAILED" });
    }
    errors.iter().take(10).for_each(|error| println!("{error}"));
    if lines.iter().all(|(holds, _)| *holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn described(codes: &Codes) -> String {
    let counts: Vec<String> = codes
        .iter()
        .map(|(code, times)| match code {
            0 => format!("{times} without a response"),
            code => format!("{times} times {code}"),
        })
        .collect();
    counts.join(", ")
}
