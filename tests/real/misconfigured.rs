//! Real API servers that do not accept all of the gateway's headers. Tests the gateway's log messages, and that no
//! request reaches the servers with another identity.

use std::time::Instant;

use http::StatusCode;
use libtest_mimic::Trial;
use testkit::real::{START_TIMEOUT, free_ports};
use testkit::{Http1, status, text};

use crate::servers::{Credential, FRONT_PROXY, HeaderFlags, REVIEW, REVIEWS, RealServers, post};

/// A gateway in front of a server, and whether it uses that server.
struct Row {
    name: &'static str,
    server: HeaderFlags,
    gateway: Credential,
    outcome: Outcome,
}

enum Outcome {
    /// The gateway does not use the server, and one line of its log has all of these words.
    Closed(&'static [&'static str]),
    /// The gateway uses the server, and one line of its log has all of these words.
    Used(&'static [&'static str]),
}

use Outcome::{Closed, Used};

const ROWS: &[Row] = &[
    Row {
        name: "all is well",
        server: HeaderFlags::Good,
        gateway: FRONT_PROXY,
        outcome: Used(&["self-check passed"]),
    },
    Row {
        name: "the gateway may not read which headers it takes identities from",
        server: HeaderFlags::Good,
        gateway: Credential::WithoutHeaderFlags,
        outcome: Closed(&[
            "not permitted to read the names of the API server's identity headers",
            "--role=extension-apiserver-authentication-reader --user=system:portcullis",
            "--backend-requestheader-username-headers",
        ]),
    },
    Row {
        name: "its flags do not name the certificate",
        server: HeaderFlags::Good,
        gateway: Credential::Certificate { ca: "inner", name: "somebody-else" },
        outcome: Closed(&["--requestheader-allowed-names", "somebody-else"]),
    },
    Row {
        name: "the certificate is of an unknown authority",
        server: HeaderFlags::Good,
        gateway: Credential::Certificate { ca: "unknown", name: "front-proxy" },
        outcome: Closed(&["--requestheader-client-ca-file", "CN=unknown"]),
    },
    Row {
        name: "the certificate is that of a client",
        server: HeaderFlags::Good,
        gateway: Credential::Certificate { ca: "clients", name: "front-proxy" },
        outcome: Closed(&["every request runs as user", "front-proxy", "--requestheader-client-ca-file"]),
    },
    Row {
        name: "the certificate has expired",
        server: HeaderFlags::Good,
        gateway: Credential::Expired,
        outcome: Closed(&["401", "has not expired"]),
    },
    Row {
        name: "it trusts no front proxies",
        server: HeaderFlags::NoFrontProxies,
        gateway: FRONT_PROXY,
        outcome: Closed(&["--requestheader-client-ca-file", "CN=inner"]),
    },
    Row {
        name: "it looks for names in another header",
        server: HeaderFlags::OtherUserHeader,
        gateway: FRONT_PROXY,
        outcome: Closed(&["--requestheader-username-headers=X-Remote-User"]),
    },
    Row {
        name: "it looks for groups and extra in other headers",
        server: HeaderFlags::OtherGroupHeaders,
        gateway: FRONT_PROXY,
        outcome: Closed(&["groups and extra not as sent", "--requestheader-group-headers=X-Remote-Group"]),
    },
    Row {
        name: "it does not look for uids, as kubeadm sets it up",
        server: HeaderFlags::NoUids,
        gateway: FRONT_PROXY,
        outcome: Used(&["the backend drops user UIDs", "--requestheader-uid-headers=X-Remote-Uid"]),
    },
    Row {
        name: "the gateway may not impersonate",
        server: HeaderFlags::Good,
        gateway: Credential::Token("weak-token"),
        outcome: Closed(&["\\\"weak\\\" is not permitted to impersonate", "deploy/rbac-impersonate.yaml"]),
    },
    Row {
        name: "its token is wrong",
        server: HeaderFlags::Good,
        gateway: Credential::Token("wrong-token"),
        outcome: Closed(&["401", "kubeconfig"]),
    },
    Row {
        name: "the gateway may impersonate",
        server: HeaderFlags::Good,
        gateway: Credential::Token("strong-token"),
        outcome: Used(&["self-check passed"]),
    },
];

/// The tests of this group.
pub(crate) fn trials(trial: &dyn Fn(&str, crate::Test) -> Trial) -> Vec<Trial> {
    let mut trials: Vec<Trial> =
        ROWS.iter().map(|row| trial(row.name, Box::new(move |servers| attempt(servers, row)))).collect();
    trials.push(trial("a server is used as soon as it has started", Box::new(waits_for_a_starting_server)));
    trials.push(trial(
        "a server that comes back with other flags is not used",
        Box::new(checks_again_after_a_restart),
    ));
    trials
}

fn attempt(servers: &RealServers, row: &Row) -> Result<(), String> {
    let server = servers.server(row.server)?;
    let gateway = servers.gateway(row.name, server.address, &row.gateway)?;
    let (words, used) = match &row.outcome {
        Closed(words) => (*words, false),
        Used(words) => (*words, true),
    };
    let line = gateway.line_with(words)?;
    if line.contains("\"ERROR\"") == used {
        return Err(format!("that is not an error, or one: {line}"));
    }
    servers.runtime().block_on(async {
        let marker = format!("made-by-{}", row.name.replace(|letter: char| !letter.is_alphanumeric(), "-"));
        let body = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{marker}"}}}}"#);
        let mut client = gateway.client().http1(Some(servers.alice())).await;
        let whoami = client.send(post(REVIEWS, REVIEW)).await.map_err(|error| error.to_string())?;
        let made = client
            .send(post("/api/v1/namespaces/default/configmaps", &body))
            .await
            .map_err(|error| error.to_string())?;
        let there = servers
            .exists(server.address, &format!("/api/v1/namespaces/default/configmaps/{marker}"))
            .await?;
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
        if there { Err("a request reached it with an identity".to_owned()) } else { Ok(()) }
    })
}

/// The gateway starts before the server. No client receives a 403 from a server that has not loaded its roles yet.
fn waits_for_a_starting_server(servers: &RealServers) -> Result<(), String> {
    let [port] = free_ports()?;
    let address = ([127, 0, 0, 1], port).into();
    let gateway = servers.gateway("young", address, &FRONT_PROXY)?;
    gateway.line_with(&["endpoint unreachable"])?;
    let _server = servers.start_at(HeaderFlags::Good, "young", port)?;
    let bob = servers.bob();
    servers.runtime().block_on(async {
        let deadline = tokio::time::Instant::now() + START_TIMEOUT;
        loop {
            // The role `system:discovery`, which the server creates at its start, allows this to every authenticated
            // user.
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

/// A correctly configured server restarts with flags that drop groups. No request may reach it without its groups.
fn checks_again_after_a_restart(servers: &RealServers) -> Result<(), String> {
    let [port] = free_ports()?;
    let server = servers.start_at(HeaderFlags::Good, "restarted", port)?;
    let gateway = servers.gateway("restarted", server.address, &FRONT_PROXY)?;
    gateway.line_with(&["self-check passed"])?;
    let asking = async |client: &mut Http1| -> Result<StatusCode, String> {
        let answer = client.send(post(REVIEWS, REVIEW)).await.map_err(|error| error.to_string())?;
        let code = answer.status();
        let seen = text(answer).await;
        let misread = code == StatusCode::CREATED && !seen.contains("system:masters");
        if misread { Err(format!("alice without her groups: {seen}")) } else { Ok(code) }
    };
    let mut client = servers.runtime().block_on(gateway.client().http1(Some(servers.alice())));
    if servers.runtime().block_on(asking(&mut client))? != StatusCode::CREATED {
        return Err("it was not good".to_owned());
    }
    drop(server);
    let _server = servers.start_at(HeaderFlags::OtherGroupHeaders, "restarted", port)?;
    // Clients send requests during the restart.
    let reported = || gateway.line_with_now(&["groups and extra not as sent"]);
    let deadline = Instant::now() + START_TIMEOUT;
    while !reported() {
        servers.runtime().block_on(asking(&mut client))?;
        if Instant::now() > deadline {
            return Err("it was never looked at".to_owned());
        }
    }
    servers.runtime().block_on(asking(&mut client)).map(|_| ())
}
