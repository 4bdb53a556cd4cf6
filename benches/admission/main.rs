//! What admission webhooks and policies cost: creations per second through kube-apiserver, which calls the webhooks itself, and through the gateway,
//! which calls them in front of a kube-apiserver without webhooks, in one run; and how long another user waits beside large ones. What
//! a gateway could reach that costs nothing: clients that send each write to that kube-apiserver twice, first as a dry run.
//!
//!     cargo bench --bench admission
//!     cargo bench --bench admission -- --only waits

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a benchmark"
)]

mod policies;
mod waits;

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use clap::Parser;
use futures_util::future::join_all;
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use testkit::gateway_process::GatewayProcess;
use testkit::pki::Issued;
use testkit::real::{
    ApiServer, IDENTITY_HEADERS, Programs, ServerProcess, Source, account_flags, eventually, start_etcd,
};
use testkit::self_check::respond;
use testkit::webhooks::write_static_manifests;
use testkit::{FakeBackend, Gateway, Pki, flags, full};
use tokio::net::TcpListener;

const ROUND: Duration = Duration::from_secs(3);
/// Clients with one request in progress each.
const CLIENTS: usize = 8;
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// What is created, and which webhooks match it.
#[derive(Clone, Copy)]
struct Load {
    name: &'static str,
    path: &'static str,
    kind: &'static str,
    label: &'static str,
}

const LOADS: [Load; 3] = [
    Load { name: "no webhook matches", path: SECRETS, kind: "Secret", label: "" },
    Load { name: "one validating webhook", path: MAPS, kind: "ConfigMap", label: "validating" },
    Load { name: "two mutating webhooks", path: MAPS, kind: "ConfigMap", label: "mutating" },
];

/// What admission webhooks cost, through kube-apiserver, which calls them itself, and through the gateway in front of one without
/// webhooks.
#[derive(Parser)]
#[command(bin_name = "cargo bench --bench admission --")]
struct Options {
    /// Measurements to run (default: all).
    #[arg(long, value_enum, value_name = "MEASUREMENT", value_delimiter = ',')]
    only: Vec<Part>,
    /// Number of rounds of the rates; the report shows their medians.
    #[arg(long, default_value = "5")]
    rounds: NonZeroUsize,
    /// Numbers of policies.
    #[arg(long, value_name = "NUMBER", value_delimiter = ',', default_values_t = [1, 10, 300])]
    policies: Vec<usize>,
    /// The build of the gateway to measure, instead of the one that cargo builds with this.
    #[arg(long, value_name = "PROGRAM", default_value = env!("CARGO_BIN_EXE_portcullis"), hide_default_value = true)]
    program: PathBuf,
    /// Passed by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// Creations per second.
    Rates,
    /// How long another user waits beside large writes.
    Waits,
    /// Creations per second with policies.
    Policies,
}

#[tokio::main]
async fn main() -> ExitCode {
    let options = Options::parse();
    let source = Source::find();
    if let Some(absent) = source.absent() {
        eprintln!("SKIPPED: {absent}");
        return ExitCode::SUCCESS;
    }
    let programs = source.programs().expect("the servers");
    let pki = Pki::new();
    let dir = pki.directory.path();
    let (etcd_port, _etcd) = start_etcd(&programs, dir).await.expect("etcd");
    let webhooks = start_webhooks(&pki).await;
    let admin = pki.clients.leaf().cn("admin").org("system:masters").issue();
    let start = async |name: &str, more: &[&str]| {
        start_api_server(&programs, &pki, etcd_port, name, more, &admin).await.expect(name)
    };
    let disabled = "--disable-admission-plugins=MutatingAdmissionWebhook,ValidatingAdmissionWebhook";
    let (calling, _calling) = start("calling", &[]).await;
    let (plain, _plain) = start("plain", &[disabled]).await;
    register(calling, &pki, webhooks.address, &admin).await;
    permit(plain, &admin).await;

    let all: Vec<String> =
        flags(&pki, plain).into_iter().map(|flag| flag.replace("--workers=1", "--workers=2")).collect();
    let names = IDENTITY_HEADERS.map(|flag| flag.replace("--requestheader", "--backend-requestheader"));
    let all: Vec<String> = all.into_iter().chain(names).collect();
    let program = &options.program;
    let of_plain = all.clone();
    let without = GatewayProcess::start(program, all.clone()).await;
    let with =
        GatewayProcess::start(program, all.into_iter().chain(write_files(dir, webhooks.address, &pki))).await;
    let side = |name, address, is_rehearsed| Side { name, address, is_rehearsed };
    let servers = [
        side("kube-apiserver", calling, false),
        side("gateway", with.gateway.address, false),
        side("gateway without webhooks", without.gateway.address, false),
        side("a dry run and the write, by the client", plain, true),
    ];
    let users = ["heavy", "calm"].map(|name| pki.clients.leaf().cn(name).org("bench").issue());
    for server in [calling, plain] {
        waits::prepare(server, &admin).await;
    }
    let includes = |part| options.only.is_empty() || options.only.contains(&part);
    if includes(Part::Rates) {
        compare_rates(&servers, &admin, options.rounds.get()).await;
    }
    if includes(Part::Waits) {
        let servers = [&servers[0], &servers[1]].map(|side| (side.name, side.address));
        waits::run(servers, [&users[0], &users[1]]).await;
    }
    if includes(Part::Policies) {
        let server = async |name: String, more: &[&str]| start(&name, more).await;
        let gateway = async |more: Vec<String>| {
            GatewayProcess::start(program, of_plain.iter().cloned().chain(more)).await
        };
        policies::run(&options.policies, dir, &without, &admin, options.rounds.get(), server, gateway).await;
    }
    // As an operator does: then they write what they have collected.
    for gateway in [with, without] {
        let (status, log) = gateway.end().await;
        assert!(status.success(), "the gateway failed: {log}");
    }
    ExitCode::SUCCESS
}

/// What clients create objects at.
struct Side {
    name: &'static str,
    address: SocketAddr,
    /// Whether the client sends each write as a dry run first.
    is_rehearsed: bool,
}

async fn compare_rates(servers: &[Side], admin: &Issued, rounds: usize) {
    println!("{CLIENTS} clients, {rounds} rounds of {} s: creations per second, median\n", ROUND.as_secs());
    for load in LOADS {
        compare(servers, load, admin, rounds, "kube-apiserver").await;
    }
}

/// Prints the rates of a load at all sides, which take turns, beside that of the first one.
async fn compare(sides: &[Side], load: Load, admin: &Issued, rounds: usize, first: &str) {
    let mut rates = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let at = (round + turn) % sides.len();
            rates[at].push(rate(&sides[at], admin, load).await);
        }
    }
    let medians: Vec<f64> = rates.into_iter().map(median).collect();
    println!("{}", load.name);
    for (Side { name, .. }, rate) in sides.iter().zip(&medians) {
        println!("  {name:<40}{rate:>7.0}   {:>5.2} of {first}", rate / medians[0]);
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

async fn rate(side: &Side, admin: &Issued, load: Load) -> f64 {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let done = Arc::new(AtomicUsize::new(0));
    let end = Instant::now() + ROUND;
    let client = async |done: Arc<AtomicUsize>| {
        let mut client = Gateway::at(side.address, None).http2(Some(admin)).await;
        let rehearsal = side.is_rehearsed.then(|| format!("{}?dryRun=All", load.path));
        let paths: Vec<&str> = rehearsal.as_deref().into_iter().chain([load.path]).collect();
        while Instant::now() < end {
            let name = format!("bench-{}", NEXT.fetch_add(1, Ordering::Relaxed));
            let object = json!({"apiVersion": "v1", "kind": load.kind,
                "metadata": {"name": name, "labels": {"bench": load.label}}});
            for path in &paths {
                let request = Request::post(*path).header("content-type", "application/json");
                let response = client.send(request.body(full(object.to_string())).unwrap()).await.unwrap();
                let status = response.status();
                let body = response.into_body().collect().await.unwrap().to_bytes();
                assert_eq!(status, StatusCode::CREATED, "{}: {}", side.name, String::from_utf8_lossy(&body));
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    };
    let began = Instant::now();
    join_all((0..CLIENTS).map(|_| client(Arc::clone(&done)))).await;
    let done = u32::try_from(done.load(Ordering::Relaxed)).unwrap();
    f64::from(done) / began.elapsed().as_secs_f64()
}

/// Webhooks that allow everything; those below `/mutate` add a label.
async fn start_webhooks(pki: &Pki) -> FakeBackend {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let insertions = Arc::new(waits::insertions());
    FakeBackend::without_client_auth(pki, listener, move |request| {
        let insertions = Arc::clone(&insertions);
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            // Not the whole, which would take as long as what is measured.
            let uid = uid_of(&body);
            let mut response = json!({"uid": uid, "allowed": true});
            if path == "/insert" {
                response["patchType"] = json!("JSONPatch");
                response["patch"] = Value::clone(&insertions);
            }
            if let Some(name) = path.strip_prefix("/mutate/") {
                let patch =
                    json!([{"op": "add", "path": format!("/metadata/labels/{name}"), "value": "yes"}]);
                response["patchType"] = json!("JSONPatch");
                response["patch"] =
                    json!(base64::engine::general_purpose::STANDARD.encode(patch.to_string()));
            }
            respond(
                StatusCode::OK,
                &json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}),
            )
        })
    })
}

/// The UID of a review, in which it comes first.
fn uid_of(review: &[u8]) -> String {
    let text = String::from_utf8_lossy(&review[..review.len().min(1000)]).into_owned();
    let after = text.split("\"uid\":\"").nth(1).expect("a UID");
    after.split('"').next().expect("its end").to_owned()
}

/// The configurations of the webhooks, mutating and validating.
fn configurations(name: &str, webhooks: SocketAddr, pki: &Pki) -> [Value; 2] {
    let ca = base64::engine::general_purpose::STANDARD.encode(pki.servers.cert_pem());
    let webhook = |path: &str, label: &str| {
        json!({"name": format!("{}.bench.test", path.replace('/', "-")),
            "clientConfig": {"url": format!("https://{webhooks}/{path}"), "caBundle": ca},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "objectSelector": {"matchLabels": {"bench": label}},
            "sideEffects": "None", "admissionReviewVersions": ["v1"]})
    };
    let configuration = |kind: &str, webhooks: Vec<Value>| {
        json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": format!("{kind}WebhookConfiguration"),
            "metadata": {"name": name}, "webhooks": webhooks})
    };
    let [mut mutating, mut validating] = waits::webhooks(webhook);
    mutating.extend([webhook("mutate/one", "mutating"), webhook("mutate/two", "mutating")]);
    validating.push(webhook("validate", "validating"));
    [configuration("Mutating", mutating), configuration("Validating", validating)]
}

/// Lets the gateway ask the API server whether a user may make a request, which `requestLevel` does.
async fn permit(server: SocketAddr, admin: &Issued) {
    let subjects: Vec<Value> = ["portcullis", "system:portcullis"]
        .map(|name| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}))
        .into();
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "bench-gateway"}, "subjects": subjects,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    let request = Request::post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings");
    let request = request.header("content-type", "application/json");
    let mut client = Gateway::at(server, None).http1(Some(admin)).await;
    let response = client.send(request.body(full(binding.to_string())).unwrap()).await.unwrap();
    assert_eq!(response.status(), StatusCode::CREATED);
}

async fn register(server: SocketAddr, pki: &Pki, webhooks: SocketAddr, admin: &Issued) {
    for configuration in configurations("bench", webhooks, pki) {
        let kind = configuration["kind"].as_str().unwrap().to_lowercase();
        let path = format!("/apis/admissionregistration.k8s.io/v1/{kind}s");
        let request = Request::post(path).header("content-type", "application/json");
        let mut client = Gateway::at(server, None).http1(Some(admin)).await;
        let response = client.send(request.body(full(configuration.to_string())).unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::CREATED);
    }
    // The API server reads them by a watch.
    eventually("webhooks", async || {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "probe-", "labels": {"bench": "mutating"}}});
        let request = Request::post(format!("{MAPS}?dryRun=All")).header("content-type", "application/json");
        let mut client = Gateway::at(server, None).http1(Some(admin)).await;
        let response = client.send(request.body(full(object.to_string())).unwrap()).await.map_err(|error| error.to_string())?;
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?.to_bytes();
        Ok(String::from_utf8_lossy(&body).contains("\"one\":\"yes\""))
    })
    .await
    .expect("the webhooks are called");
}

/// Writes the files of the gateway; its flags.
fn write_files(dir: &Path, webhooks: SocketAddr, pki: &Pki) -> [String; 2] {
    let file = write_static_manifests(dir, &configurations("bench.static.k8s.io", webhooks, pki));
    [
        format!("--admission-control-config-file={}", file.display()),
        "--admission-mode=pinnedDryRun".to_owned(),
    ]
}

async fn start_api_server(
    programs: &Programs,
    pki: &Pki,
    etcd_port: u16,
    name: &str,
    more: &[&str],
    admin: &Issued,
) -> Result<(SocketAddr, ServerProcess), String> {
    let dir = pki.directory.path().join("servers");
    std::fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
    pki.write_pair("servers/server", &pki.servers.server(&["backend.test", "localhost", "127.0.0.1"]));
    let clients = pki.write("servers/clients.crt", pki.clients.cert_pem());
    let front = pki.write("servers/front.crt", pki.front.cert_pem());
    pki.write("servers/sa.key", pki.clients.key_pem());
    // Their key, in a certificate.
    pki.write("servers/sa.pub", pki.clients.cert_pem());
    let mut flags = vec![
        format!("--etcd-prefix=/{name}"),
        format!("--client-ca-file={}", clients.display()),
        format!("--requestheader-client-ca-file={}", front.display()),
        "--requestheader-allowed-names=portcullis".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        // Otherwise its limits would be measured.
        "--enable-priority-and-fairness=false".to_owned(),
    ];
    flags.extend(account_flags(&dir));
    flags.extend(IDENTITY_HEADERS.into_iter().chain(more.iter().copied()).map(str::to_owned));
    let started = ApiServer { programs, dir: &dir, name, etcd_port }.start(&flags, async |address| {
        if !Gateway::at(address, None).serves_tls().await {
            return false;
        }
        let mut client = Gateway::at(address, None).http1(Some(admin)).await;
        client.get("/api/v1/namespaces/default", &[]).await.status() == StatusCode::OK
            && client.get("/readyz", &[]).await.status() == StatusCode::OK
    });
    started.await
}
