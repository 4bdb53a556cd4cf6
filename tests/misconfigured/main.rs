//! Real API servers that do not believe the gateway, or not in all: what it says of them, and that no request reaches
//! them as somebody else.
//!
//! The servers are built on first use, as for the twin tests.

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

use http::StatusCode;
use libtest_mimic::{Arguments, Trial};

use bed::{Bed, Given, Kind};
use support::{status, text};

/// A gateway in front of a server, and what comes of it.
struct Row {
    name: &'static str,
    server: Kind,
    gateway: Given,
    outcome: Outcome,
}

enum Outcome {
    /// The server is not used, and one line of the log has all of these words.
    Closed(&'static [&'static str]),
    /// It is used, and one line of the log has these words.
    Used(&'static [&'static str]),
}

use Outcome::{Closed, Used};

const ROWS: &[Row] = &[
    Row {
        name: "all is well",
        server: Kind::Good,
        gateway: Given::Front { ca: "inner", name: "front-proxy" },
        outcome: Used(&["self-check passed"]),
    },
    Row {
        name: "it may not be known from which headers it reads identities",
        server: Kind::Good,
        gateway: Given::Unnamed,
        outcome: Closed(&[
            "not permitted to read the names of the API server's identity headers",
            "--role=extension-apiserver-authentication-reader --user=system:portcullis",
            "--backend-requestheader-username-headers",
        ]),
    },
    Row {
        name: "its flags do not name the certificate",
        server: Kind::Good,
        gateway: Given::Front { ca: "inner", name: "somebody-else" },
        outcome: Closed(&["--requestheader-allowed-names", "somebody-else"]),
    },
    Row {
        name: "the certificate is of an unknown authority",
        server: Kind::Good,
        gateway: Given::Front { ca: "unknown", name: "front-proxy" },
        outcome: Closed(&["--requestheader-client-ca-file", "CN=unknown"]),
    },
    Row {
        name: "the certificate is that of a client",
        server: Kind::Good,
        gateway: Given::Front { ca: "clients", name: "front-proxy" },
        outcome: Closed(&["every request runs as user", "front-proxy", "--requestheader-client-ca-file"]),
    },
    Row {
        name: "the certificate has expired",
        server: Kind::Good,
        gateway: Given::Expired,
        outcome: Closed(&["401", "has not expired"]),
    },
    Row {
        name: "it trusts no front proxies",
        server: Kind::NoFrontProxies,
        gateway: Given::Front { ca: "inner", name: "front-proxy" },
        outcome: Closed(&["--requestheader-client-ca-file", "CN=inner"]),
    },
    Row {
        name: "it looks for names in another header",
        server: Kind::OtherUserHeader,
        gateway: Given::Front { ca: "inner", name: "front-proxy" },
        outcome: Closed(&["--requestheader-username-headers=X-Remote-User"]),
    },
    Row {
        name: "it looks for groups and extra in other headers",
        server: Kind::OtherGroupHeaders,
        gateway: Given::Front { ca: "inner", name: "front-proxy" },
        outcome: Closed(&["groups and extra not as sent", "--requestheader-group-headers=X-Remote-Group"]),
    },
    Row {
        name: "it does not look for uids, as kubeadm sets it up",
        server: Kind::NoUids,
        gateway: Given::Front { ca: "inner", name: "front-proxy" },
        outcome: Used(&["the backend drops user UIDs", "--requestheader-uid-headers=X-Remote-Uid"]),
    },
    Row {
        name: "the gateway may not impersonate",
        server: Kind::Good,
        gateway: Given::Token("weak-token"),
        outcome: Closed(&["\\\"weak\\\" is not permitted to impersonate", "kubectl create clusterrole"]),
    },
    Row {
        name: "its token is wrong",
        server: Kind::Good,
        gateway: Given::Token("wrong-token"),
        outcome: Closed(&["401", "kubeconfig"]),
    },
    Row {
        name: "the gateway may impersonate",
        server: Kind::Good,
        gateway: Given::Token("strong-token"),
        outcome: Used(&["self-check passed"]),
    },
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Each has a server to wait for, and some share one.
    arguments.test_threads.get_or_insert(4);
    let source = build::look();
    let required = std::env::var("PORTCULLIS_REQUIRE_TWIN").is_ok_and(|value| value == "1");
    let absent = match &source {
        build::Source::Absent(why) => Some(why.clone()),
        _ => None,
    };
    if let (Some(why), true) = (&absent, required) {
        eprintln!("misconfigured: PORTCULLIS_REQUIRE_TWIN is set, but {why}");
        return ExitCode::FAILURE;
    }
    let bed = Arc::new(Bed::new(source));
    let mut trials: Vec<Trial> = ROWS
        .iter()
        .map(|row| {
            let bed = Arc::clone(&bed);
            Trial::test(row.name, move || attempt(&bed, row).map_err(Into::into))
        })
        .collect();
    let young = Arc::clone(&bed);
    trials.push(Trial::test("a young server is used as soon as it can be", move || {
        waits_for_a_young_server(&young).map_err(Into::into)
    }));
    let anew = Arc::clone(&bed);
    trials.push(Trial::test("a server that comes back with other flags is not used", move || {
        looks_again_after_a_restart(&anew).map_err(Into::into)
    }));
    if let Some(why) = absent {
        eprintln!("\nmisconfigured: SKIPPED, all {} tests: {why}\n", trials.len());
        trials = trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    bed.finish(conclusion.has_failed());
    conclusion.exit_code()
}

fn attempt(bed: &Bed, row: &Row) -> Result<(), String> {
    let server = bed.server(row.server)?;
    let gateway = bed.gateway(row.name, server.address, &row.gateway)?;
    let (words, used) = match &row.outcome {
        Closed(words) => (*words, false),
        Used(words) => (*words, true),
    };
    let line = gateway.line_with(words)?;
    if line.contains("\"ERROR\"") == used {
        return Err(format!("that is no error, or one: {line}"));
    }
    bed.runtime.block_on(async {
        let marker = format!("made-by-{}", row.name.replace(|letter: char| !letter.is_alphanumeric(), "-"));
        let body = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{marker}"}}}}"#);
        let mut client = gateway.client().http1(Some(bed.alice())).await;
        let whoami =
            client.send(bed::post(bed::REVIEWS, bed::REVIEW)).await.map_err(|error| error.to_string())?;
        let made = client
            .send(bed::post("/api/v1/namespaces/default/configmaps", &body))
            .await
            .map_err(|error| error.to_string())?;
        let there =
            bed.exists(server.address, &format!("/api/v1/namespaces/default/configmaps/{marker}")).await?;
        if used {
            let seen = text(whoami).await;
            let (code, _) = status(made).await;
            let alice = seen.contains(r#""username":"alice""#) && seen.contains("system:masters");
            return if alice && code == StatusCode::CREATED && there {
                Ok(())
            } else {
                Err(format!("{code} {seen}"))
            };
        }
        for answer in [whoami, made] {
            let (code, body) = status(answer).await;
            if (code, body["reason"].as_str())
                != (StatusCode::SERVICE_UNAVAILABLE, Some("ServiceUnavailable"))
            {
                return Err(format!("{code} {body}"));
            }
        }
        if there { Err("a request reached it as somebody".to_owned()) } else { Ok(()) }
    })
}

/// The gateway is there first. Nobody is told 403 by a server whose roles are not loaded yet.
fn waits_for_a_young_server(bed: &Bed) -> Result<(), String> {
    let [port] = servers::free_ports()?;
    let address = ([127, 0, 0, 1], port).into();
    let gateway = bed.gateway("young", address, &Given::Front { ca: "inner", name: "front-proxy" })?;
    gateway.line_with(&["endpoint unreachable"])?;
    let _server = bed.start_at(Kind::Good, "young", port)?;
    let bob = bed.bob();
    bed.runtime.block_on(async {
        let deadline = tokio::time::Instant::now() + bed::PATIENCE;
        loop {
            // Every authenticated user may, by a role that is made at the start.
            let answer = gateway.client().http1(Some(bob)).await.get("/api", &[]).await;
            match answer.status() {
                StatusCode::OK => return Ok(()),
                StatusCode::SERVICE_UNAVAILABLE if tokio::time::Instant::now() < deadline => {}
                code => return Err(format!("{code}: {}", text(answer).await)),
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    })
}

/// One that was good comes back and forgets groups. Nobody's request reaches it without them.
fn looks_again_after_a_restart(bed: &Bed) -> Result<(), String> {
    let [port] = servers::free_ports()?;
    let server = bed.start_at(Kind::Good, "restarted", port)?;
    let gateway =
        bed.gateway("restarted", server.address, &Given::Front { ca: "inner", name: "front-proxy" })?;
    gateway.line_with(&["self-check passed"])?;
    let asking = async |client: &mut support::Http1| -> Result<StatusCode, String> {
        let answer =
            client.send(bed::post(bed::REVIEWS, bed::REVIEW)).await.map_err(|error| error.to_string())?;
        let code = answer.status();
        let seen = text(answer).await;
        let misread = code == StatusCode::CREATED && !seen.contains("system:masters");
        if misread { Err(format!("alice without her groups: {seen}")) } else { Ok(code) }
    };
    let mut client = bed.runtime.block_on(gateway.client().http1(Some(bed.alice())));
    if bed.runtime.block_on(asking(&mut client))? != StatusCode::CREATED {
        return Err("it was not good".to_owned());
    }
    drop(server);
    let _server = bed.start_at(Kind::OtherGroupHeaders, "restarted", port)?;
    // All the while somebody asks.
    let told = || gateway.line_with_now(&["groups and extra not as sent"]);
    let deadline = std::time::Instant::now() + bed::PATIENCE;
    while !told() {
        bed.runtime.block_on(asking(&mut client))?;
        if std::time::Instant::now() > deadline {
            return Err("it was never looked at".to_owned());
        }
    }
    bed.runtime.block_on(asking(&mut client)).map(|_| ())
}
