//! The attacks; `case` is the advisory or issue that an attack reproduces.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use http::{StatusCode, Version};
use testkit::frames::{self, CANCEL, CONTINUATION, DATA, HEADERS, frame, header_block, request, reset};
use testkit::{in_time, text};
use tokio::io::AsyncWriteExt as _;

use crate::environment::{Answer, AttackEnvironment, LOAD_BALANCER, Needs, exchange, identity};

pub(crate) struct Attack {
    pub(crate) name: &'static str,
    /// The advisory or issue.
    pub(crate) case: &'static str,
    pub(crate) needs: Needs,
    /// `Ok` if the attack must succeed on the naive proxy, or the reason why it is not tried there.
    pub(crate) naive: Result<(), &'static str>,
    /// Runs the attack. The error describes its success.
    pub(crate) attempt: for<'a> fn(&'a mut AttackEnvironment) -> BoxFuture<'a, Result<(), String>>,
}

pub(crate) const CAROL: &str = "Authorization: Bearer good-token\r\n";

pub(crate) fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: api.example\r\n{headers}\r\n")
}

pub(crate) type Identity = BTreeMap<String, Vec<String>>;

pub(crate) fn expected(prefix: &str, user: &str, uid: &[&str], groups: &[&str]) -> Identity {
    let owned = |values: &[&str]| values.iter().map(ToString::to_string).collect::<Vec<_>>();
    [("user", owned(&[user])), ("uid", owned(uid)), ("group", owned(groups))]
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(name, values)| (format!("{prefix}{name}"), values))
        .collect()
}

fn carol() -> Identity {
    expected("x-remote-", "carol", &["7"], &["a", "b", "system:authenticated"])
}

fn anonymous() -> Identity {
    expected("x-remote-", "system:anonymous", &[], &["system:unauthenticated"])
}

/// Checks that the API server received exactly one request, with this identity.
fn arrived_as(environment: &AttackEnvironment, expected: &Identity) -> Result<(), String> {
    let seen = environment.only()?;
    let found = identity(&seen);
    if found == *expected { Ok(()) } else { Err(format!("it arrived as {found:?}")) }
}

/// Checks that none of these headers changes the identity of a request with carol's token.
async fn identity_stays_carol(environment: &AttackEnvironment, headers: &[&str]) -> Result<(), String> {
    for header in headers {
        environment.send_request(&get("/api", &format!("{CAROL}{header}\r\n"))).await;
        arrived_as(environment, &carol()).map_err(|got| format!("{header:?}: {got}"))?;
    }
    Ok(())
}

/// Checks that each of these requests is rejected with one of these codes and is not forwarded.
async fn all_rejected(
    environment: &AttackEnvironment,
    requests: &[String],
    codes: &[u16],
) -> Result<(), String> {
    for request in requests {
        let Answer { code, .. } = environment.send_request(request).await;
        environment.nothing().map_err(|got| format!("{:?}: {got}", request.lines().next()))?;
        if !codes.contains(&code) {
            return Err(format!("{:?} is answered with {code}", request.lines().next()));
        }
    }
    Ok(())
}

/// Checks that requests of another client succeed while a client abuses its connection.
async fn other_clients_unaffected(
    environment: &AttackEnvironment,
    abuse: &[u8],
    times: usize,
) -> Result<(), String> {
    let gateway = environment.gateway();
    let bob = environment.pki.clients.leaf().cn("bob").issue();
    let mut other = gateway.http2(Some(&bob)).await;
    let mut abuser = gateway.frames(Some(&environment.alice), 65_535).await;
    for _ in 0..times {
        // The proxy may close the connection at any time.
        if tokio::time::timeout(std::time::Duration::from_millis(200), abuser.write_all(abuse)).await.is_err()
        {
            break;
        }
        let answered = match other.send(testkit::get("/api", &[])).await {
            Ok(response) => response,
            Err(error) => return Err(format!("another client's request fails: {error}")),
        };
        if answered.status() != StatusCode::OK {
            return Err(format!("another client is answered with {}", answered.status()));
        }
        text(answered).await;
    }
    Ok(())
}

pub(crate) const ATTACKS: &[Attack] = &[
    Attack {
        name: "Connection nominates the identity",
        case: "CVE-2021-31999, CVE-2022-23652",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let nominations = [
                    "Connection: X-Remote-User",
                    "Connection: close, x-remote-group , X-REMOTE-UID",
                    "Connection: keep-alive\r\nConnection: X-Remote-User",
                    "Connection: ,,X-Remote-User,",
                ];
                identity_stays_carol(environment, &nominations).await
            })
        },
    },
    Attack {
        name: "Connection nominates the impersonation",
        case: "CVE-2021-31999",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let carol = expected("impersonate-", "carol", &["7"], &["a", "b", "system:authenticated"]);
                environment
                    .send_request(&get("/api", &format!("{CAROL}Connection: Impersonate-User\r\n")))
                    .await;
                arrived_as(environment, &carol)
            })
        },
    },
    Attack {
        name: "Connection nominates X-Forwarded-For",
        case: "golang#50580, CVE-2024-45410",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                environment
                    .send_request(&get(
                        "/api",
                        &format!("{CAROL}Connection: X-Forwarded-For\r\nX-Forwarded-For: 10.9.9.9\r\n"),
                    ))
                    .await;
                let seen = environment.only()?;
                if seen.all("x-forwarded-for") == ["127.0.0.1"] {
                    Ok(())
                } else {
                    Err(format!("{:?}", seen.all("x-forwarded-for")))
                }
            })
        },
    },
    Attack {
        name: "upgrade to h2c",
        case: "envoy#44525, golang#80416",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n";
                let answer = environment.send_request(&get("/api", &format!("{CAROL}{upgrade}"))).await;
                let seen = environment.only()?;
                let left: Vec<&str> = ["upgrade", "http2-settings"]
                    .into_iter()
                    .filter(|name| seen.headers.contains_key(*name))
                    .collect();
                if left.is_empty() && answer.code != 101 { Ok(()) } else { Err(format!("{left:?} passed")) }
            })
        },
    },
    Attack {
        name: "an upgrade nominates the identity",
        case: "envoy#44525",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                identity_stays_carol(environment, &["Connection: Upgrade, X-Remote-User\r\nUpgrade: websocket\r\nX-Remote-Group: system:masters"])
                .await
            })
        },
    },
    Attack {
        name: "identity headers without a credential",
        case: "GHSA-c8w2-fgvx-vhv4",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                environment
                    .send_request(&get(
                        "/api",
                        "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\nX-Remote-Extra-A: b\r\n",
                    ))
                    .await;
                arrived_as(environment, &anonymous())
            })
        },
    },
    Attack {
        name: "extra and UID headers that the identity does not have",
        case: "GHSA-7r4p-vjf4-gxv4",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                identity_stays_carol(
                    environment,
                    &["X-Remote-Extra-Scopes: all", "X-Remote-Uid: 0", "X-Remote-Extra-: x"],
                )
                .await
            })
        },
    },
    Attack {
        name: "other spellings of the headers",
        case: "CVE-2025-64484, GHSA-f59h-q822-g45g",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let spellings = [
                    "X_Remote_User: admin",
                    "x.remote.user: admin",
                    "X-REMOTE-USER: admin",
                    "X-Remote_Group: system:masters",
                ];
                identity_stays_carol(environment, &spellings).await?;
                for spelling in ["X-Remote-User : admin", "X-Remote-Group\t: system:masters"] {
                    environment.send_request(&get("/api", &format!("{CAROL}{spelling}\r\n"))).await;
                    if let Some(seen) = environment.backend.take()
                        && identity(&seen) != carol()
                    {
                        return Err(format!("{spelling:?} arrived as {:?}", identity(&seen)));
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "a group beside the user's own",
        case: "OCM#335",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                identity_stays_carol(
                    environment,
                    &[
                        "X-Remote-Group: system:masters",
                        "x-remote-group: a\r\nX-Remote-Group: system:masters",
                    ],
                )
                .await
            })
        },
    },
    Attack {
        name: "an impersonated group beside the user's own",
        case: "OCM#335",
        needs: Needs::Impersonation,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let requests = [
                    "Impersonate-Group: system:masters",
                    "Impersonate-User: admin",
                    "impersonate_user: admin\r\nImpersonate-Uid: 1",
                ];
                for header in requests {
                    let carol =
                        expected("impersonate-", "carol", &["7"], &["a", "b", "system:authenticated"]);
                    environment.send_request(&get("/api", &format!("{CAROL}{header}\r\n"))).await;
                    if let Some(seen) = environment.backend.take()
                        && identity(&seen) != carol
                    {
                        return Err(format!("{header:?} arrived as {:?}", identity(&seen)));
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "an identity header newer than the proxy",
        case: "Impersonate-Uid, X-Remote-Uid",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                identity_stays_carol(environment, &["X-Remote-Tenant: root"]).await?;
                all_rejected(
                    environment,
                    &[get("/api", &format!("{CAROL}Impersonate-Tenant: root\r\n"))],
                    &[400, 403],
                )
                .await
            })
        },
    },
    Attack {
        name: "a pipe after a failed upgrade",
        case: "CVE-2018-1002105",
        needs: Needs::Http1,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let Some(mut stream) = environment.connect(None).await else { return Ok(()) };
                let upgrade = get("/exec", &format!("{CAROL}Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n"));
                exchange(&mut stream, &upgrade).await;
                environment.backend.take();
                // Reaches the backend with the proxy's certificate if the connection has become a tunnel.
                exchange(
                    &mut stream,
                    &get("/secret", "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n"),
                )
                .await;
                match environment.backend.take() {
                    Some(seen) if identity(&seen) != anonymous() => Err(format!("{:?}", identity(&seen))),
                    _ => Ok(()),
                }
            })
        },
    },
    Attack {
        name: "a switch to a protocol that the client did not request",
        case: "CVE-2018-1002105",
        needs: Needs::Http1,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let upgrade =
                    get("/switch", &format!("{CAROL}Connection: Upgrade\r\nUpgrade: websocket\r\n"));
                let Answer { code, .. } = environment.send_request(&upgrade).await;
                if code == 101 { Err("the tunnel is open".to_owned()) } else { Ok(()) }
            })
        },
    },
    Attack {
        name: "a redirect that the proxy follows",
        case: "CVE-2020-8559, CVE-2022-3172",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let answer = environment.send_request(&get("/redirect", CAROL)).await;
                if environment.trapped.load(Ordering::SeqCst) > 0 || answer.body == "trapped" {
                    return Err("the proxy followed the redirect".to_owned());
                }
                environment.only().map(|_| ())
            })
        },
    },
    Attack {
        name: "a host header with another address",
        case: "CVE-2020-8562, CVE-2025-49825",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let trap = environment.trap;
                for header in [
                    format!("X-Forwarded-Host: {trap}"),
                    format!("Forwarded: host={trap}"),
                    format!("X-Host: {trap}"),
                ] {
                    environment.send_request(&get("/api", &format!("{CAROL}{header}\r\n"))).await;
                }
                environment.send_request(&format!("GET /api HTTP/1.1\r\nHost: {trap}\r\n{CAROL}\r\n")).await;
                environment
                    .send_request(&format!("GET http://{trap}/api HTTP/1.1\r\nHost: {trap}\r\n{CAROL}\r\n"))
                    .await;
                match environment.trapped.load(Ordering::SeqCst) {
                    0 => Ok(()),
                    times => Err(format!("the proxy connected to that address {times} times")),
                }
            })
        },
    },
    Attack {
        name: "rapid reset",
        case: "CVE-2023-44487",
        needs: Needs::Nothing,
        naive: Err("it has no flow to protect"),
        attempt: |environment| {
            Box::pin(async move {
                let ids = (0..200).map(|index| 2 * index + 1);
                let flood: Vec<u8> =
                    ids.flat_map(|id| [request(id, "/api"), reset(id, CANCEL)].concat()).collect();
                other_clients_unaffected(environment, &flood, 20).await?;
                match environment.backend.pending() {
                    few if few < 2_000 => Ok(()),
                    many => Err(format!("{many} requests reached the API server")),
                }
            })
        },
    },
    Attack {
        name: "endless CONTINUATION",
        case: "RUSTSEC-2024-0332",
        needs: Needs::Nothing,
        naive: Err("its HTTP library bounds them too"),
        attempt: |environment| {
            Box::pin(async move {
                let mut flood = frame(HEADERS, 0, 1, &header_block("GET", "/api"));
                for _ in 0..64 {
                    flood.extend(frame(CONTINUATION, 0, 1, &[0x40, 1, b'x', 1, b'y'].repeat(1000)));
                }
                other_clients_unaffected(environment, &flood, 20).await
            })
        },
    },
    Attack {
        name: "empty DATA frames",
        case: "RUSTSEC-2026-0258",
        needs: Needs::Nothing,
        naive: Err("its HTTP library bounds them too"),
        attempt: |environment| {
            Box::pin(async move {
                let open = frame(HEADERS, frames::END_HEADERS, 1, &header_block("POST", "/api"));
                let flood = [open, frame(DATA, 0, 1, &[]).repeat(20_000)].concat();
                other_clients_unaffected(environment, &flood, 10).await
            })
        },
    },
    Attack {
        name: "anonymous requests on shared connections",
        case: "kubernetes#135279, gardener#13405",
        needs: Needs::Nothing,
        naive: Err("it shares no connections"),
        attempt: |environment| {
            Box::pin(async move {
                for _ in 0..5 {
                    environment.send_request(&get("/api", "")).await;
                    let seen = environment.only()?;
                    // kube-apiserver closes the HTTP/2 connection of such a request.
                    if seen.version == Version::HTTP_2 {
                        return Err("it came over HTTP/2".to_owned());
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "paths with two interpretations",
        case: "CVE-2019-9901, CVE-2021-29492",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let targets = [
                    "/api/v1/namespaces/a/../b/pods",
                    "/api/v1/%2e%2e/secrets",
                    "/api/v1/a%2fb",
                    "//api//v1",
                    "/api/v1;x=y/pods",
                    "/api/v1/%5c..%5cx?a=%2F&a=b",
                ];
                for target in targets {
                    let Answer { code, .. } = environment.send_request(&get(target, CAROL)).await;
                    match environment.backend.take() {
                        Some(seen) if seen.target != target => {
                            return Err(format!("{target} became {}", seen.target));
                        }
                        None if code == 200 => {
                            return Err(format!("{target} was answered, but not by the API server"));
                        }
                        _ => {}
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "headers about the source of a request",
        case: "CVE-2026-40575",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let headers = "X-Forwarded-For: 10.9.9.9\r\nX-Real-Ip: 10.9.9.9\r\nForwarded: for=10.9.9.9\r\nX-Forwarded-Uri: /public\r\n";
                environment.send_request(&get("/api", &format!("{CAROL}{headers}"))).await;
                let seen = environment.only()?;
                let believed: Vec<&str> = ["x-forwarded-for", "x-real-ip", "forwarded"]
                    .into_iter()
                    .filter(|name| seen.all(name).iter().any(|value| value.contains("10.9.9.9")))
                    .collect();
                if believed.is_empty() && seen.target == "/api" {
                    Ok(())
                } else {
                    Err(format!("{believed:?} passed"))
                }
            })
        },
    },
    Attack {
        name: "a PROXY protocol header of a client",
        case: "haproxy: proxy-protocol.txt, section 2",
        needs: Needs::LoadBalancer,
        naive: Err("it does not know the protocol"),
        attempt: |environment| {
            Box::pin(async move {
                const OWN: &[u8] = b"PROXY TCP4 192.0.2.1 10.0.0.1 1 443\r\n";
                const FORGED: &[u8] = b"PROXY TCP4 10.9.9.9 10.0.0.1 1 443\r\n";
                let binary = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x0a\x09\x09\x09\x0a\0\0\x01\0\x01\x01\xbb";
                let request = get("/api", CAROL);
                let cases = [
                    ("127.0.0.1", FORGED.to_vec()),
                    ("127.0.0.1", binary.to_vec()),
                    (LOAD_BALANCER, [OWN, FORGED].concat()),
                    (LOAD_BALANCER, [OWN, binary].concat()),
                    (LOAD_BALANCER, b"PROXY UNKNOWN\r\n".iter().chain(FORGED).copied().collect()),
                    (LOAD_BALANCER, [b"\r\n", FORGED].concat()),
                ];
                for (from, header) in cases {
                    environment.send_behind(from, &header, &request).await;
                    environment.nothing().map_err(|got| format!("{}: {got}", header.escape_ascii()))?;
                }
                // What remains is the load balancer's own header, and a direct client.
                for (from, header, expected) in
                    [(LOAD_BALANCER, OWN, "192.0.2.1"), ("127.0.0.1", b"", "127.0.0.1")]
                {
                    environment.send_behind(from, header, &request).await;
                    let seen = environment.only()?;
                    if seen.all("x-forwarded-for") != [expected] {
                        return Err(format!("{:?} from {from}", seen.all("x-forwarded-for")));
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "a client's certificate as a front proxy's",
        case: "website#12890, Adyen/kubectl-rexec#171",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let named = get("/api", "X-Remote-User: admin\r\nX-Remote-Group: system:masters\r\n");
                let proxy = environment.pki.clients.leaf().cn("proxy").issue();
                let stranger = environment.pki.client_front.leaf().cn("stranger").issue();
                for (certificate, name) in
                    [(&environment.alice, "alice"), (&proxy, "proxy"), (&stranger, "stranger")]
                {
                    environment.send_request_as(Some(certificate), &named).await;
                    if let Some(seen) = environment.backend.take()
                        && seen.all("x-remote-user") != [name]
                    {
                        return Err(format!("{name} arrived as {:?}", identity(&seen)));
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "repeated headers",
        case: "CVE-2022-2385",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let two =
                    get("/api?watch=false&watch=true", &format!("{CAROL}Authorization: Bearer masters\r\n"));
                environment.send_request(&two).await;
                match environment.backend.take() {
                    Some(seen) if identity(&seen) != carol() => Err(format!("{:?}", identity(&seen))),
                    Some(seen) if seen.target != "/api?watch=false&watch=true" => Err(seen.target),
                    _ => Ok(()),
                }
            })
        },
    },
    Attack {
        name: "another origin's scripts",
        case: "CVE-2022-1996",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                for origin in ["https://evil.example", "null", "https://api.example.evil.example"] {
                    let answer =
                        environment.send_request(&get("/api", &format!("{CAROL}Origin: {origin}\r\n"))).await;
                    if answer.head.to_lowercase().contains("access-control-allow") {
                        return Err(format!("{origin} is let in"));
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "a certificate of another trust domain",
        case: "CVE-2025-49825",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                // A CA of the attacker with the names of the trusted CAs.
                let own = testkit::pki::Ca::new("clients");
                let between = own.intermediate("clients");
                let forged = [
                    own.leaf().cn("alice").issue(),
                    between.leaf().cn("alice").org("system:masters").issue(),
                ];
                let other_domain = environment.pki.servers.leaf().cn("alice").issue();
                for certificate in forged.iter().chain([&other_domain]) {
                    environment.send_request_as(Some(certificate), &get("/api", "")).await;
                    if let Some(seen) = environment.backend.take()
                        && seen.all("x-remote-user") != ["system:anonymous"]
                    {
                        return Err(format!("it arrived as {:?}", identity(&seen)));
                    }
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "blanks around a name",
        case: "golang net/http",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| Box::pin(padded(environment)),
    },
    Attack {
        name: "blanks around a name, over HTTP/1.1",
        case: "golang net/http",
        needs: Needs::Http1,
        naive: Ok(()),
        attempt: |environment| Box::pin(padded(environment)),
    },
    Attack {
        name: "a credential of another cluster, warm",
        case: "caches shared between clusters",
        needs: Needs::Clusters,
        naive: Err("it has one cluster"),
        attempt: |environment| {
            Box::pin(async move {
                let other = environment.other.as_ref().unwrap();
                let mallory = environment.pki.client_front.leaf().cn("mallory").issue();
                let token =
                    |path: &str, token: &str| get(path, &format!("Authorization: Bearer {token}\r\n"));
                // Valid in their own cluster, then sent to the other cluster on the same connection.
                for (certificate, good, bad) in [
                    (
                        None,
                        token("/clusters/other/api", "other-token"),
                        token("/clusters/own/api", "other-token"),
                    ),
                    (Some(&mallory), get("/clusters/other/api", ""), get("/clusters/own/api", "")),
                ] {
                    let mut stream = environment.connect(certificate).await.ok_or("no connection")?;
                    if exchange(&mut stream, &good).await.code != 200 || other.take().is_none() {
                        return Err(crate::environment::LOST.to_owned());
                    }
                    exchange(&mut stream, &bad).await;
                    environment.nothing()?;
                }
                Ok(())
            })
        },
    },
    Attack {
        name: "one cluster's name, another's path or host",
        case: "SNI of one, Host of another",
        needs: Needs::Clusters,
        naive: Err("it has one cluster"),
        attempt: |environment| {
            Box::pin(async move {
                let other = environment.other.as_ref().unwrap();
                let requests = [
                    format!("GET /api HTTP/1.1\r\nHost: other.example\r\n{CAROL}\r\n"),
                    get("/clusters/own/../other/api", CAROL),
                    get("/clusters/own/%2e%2e/other/api", CAROL),
                    get("//clusters/other/api", CAROL),
                ];
                for request in requests {
                    environment.send_request(&request).await;
                    if let Some(seen) = other.take() {
                        return Err(format!("{:?} arrived as {:?}", seen.target, identity(&seen)));
                    }
                }
                let name = "own.example".try_into().unwrap();
                let mut stream =
                    environment.gateway().tls_as(name, b"http/1.1", Some(&environment.alice)).await;
                let crossed = exchange(&mut stream, "GET /api HTTP/1.1\r\nHost: other.example\r\n\r\n").await;
                while environment.backend.take().is_some_and(|seen| seen.target != "/api") {}
                match (crossed.code, other.take()) {
                    (421, None) => Ok(()),
                    (code, seen) => Err(format!("{code}, and the other one got {seen:?}")),
                }
            })
        },
    },
    Attack {
        name: "two hosts",
        case: "request smuggling",
        needs: Needs::Nothing,
        naive: Ok(()),
        attempt: |environment| {
            Box::pin(async move {
                let requests = [
                    format!("GET /api HTTP/1.1\r\nHost: a\r\nHost: b\r\n{CAROL}\r\n"),
                    format!("GET https://a/api HTTP/1.1\r\nHost: b\r\n{CAROL}\r\n"),
                    format!("CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n{CAROL}\r\n"),
                    format!("GET /api HTTP/1.1\r\n{CAROL}\r\n"),
                ];
                all_rejected(environment, &requests, &[400]).await
            })
        },
    },
    Attack {
        name: "a request within a request",
        case: "request smuggling",
        needs: Needs::Http1,
        naive: Err("its HTTP library is the gateway's own"),
        attempt: |environment| {
            Box::pin(async move {
                let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\nX-Remote-User: admin\r\n\r\n";
                let chunked = format!(
                    "POST /api HTTP/1.1\r\nHost: a\r\n{CAROL}Content-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
                    hidden.len() + 5
                );
                let odd = format!(
                    "POST /api HTTP/1.1\r\nHost: a\r\n{CAROL}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"
                );
                for request in [chunked, odd] {
                    environment.send_request(&request).await;
                    while let Some(seen) = environment.backend.take() {
                        if identity(&seen).get("x-remote-user").is_some_and(|user| user == &["admin"]) {
                            return Err(format!("{} arrived as {:?}", seen.target, identity(&seen)));
                        }
                    }
                }
                Ok(())
            })
        },
    },
];

/// A receiver that trims names and groups would read another identity.
async fn padded(environment: &mut AttackEnvironment) -> Result<(), String> {
    let clients = &environment.pki.clients;
    let certificates = [
        clients.leaf().cn("mallory").org("system:masters ").issue(),
        clients.leaf().cn("mallory").org("\tsystem:masters").issue(),
        clients.leaf().cn(" admin").issue(),
        clients.leaf().cn("mallory").uid("1 ").issue(),
    ];
    let check = |seen: Option<testkit::ReceivedRequest>| match seen {
        Some(seen) => Err(format!("it arrived as {:?}", identity(&seen))),
        None => Ok(()),
    };
    for certificate in &certificates {
        in_time(environment.send_request_as(Some(certificate), &get("/api", ""))).await;
        check(environment.backend.take())?;
    }
    // The token file has a token whose group ends in a blank.
    environment.send_request(&get("/api", "Authorization: Bearer masters\r\n")).await;
    check(environment.backend.take())
}
