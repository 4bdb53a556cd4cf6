//! Logins at several providers, of which some do not answer.

use std::sync::Arc;

use futures_util::FutureExt as _;
use serde_json::json;
use testkit::pki::Ca;
use tokio::sync::Barrier;

use super::*;
use crate::cli::login::cache::CachedCertificate;
use crate::cli::login::session::tests::{Setup, json_reply};
use crate::cli::login::settings::tests::settings;
use crate::http::https_client::testing::{H1, TestServer, reply, serving};

/// A provider whose revocation endpoint answers with this status, once so many requests wait for it.
async fn provider(ca: &Ca, status: u16, at_once: usize) -> TestServer {
    let barrier = Arc::new(Barrier::new(at_once));
    let config = serving(&ca.server(&["127.0.0.1"]), None, H1);
    TestServer::start(config, "127.0.0.1:0", move |request| {
        let barrier = Arc::clone(&barrier);
        async move {
            let issuer = format!("https://{}", request.headers["host"].to_str().unwrap());
            match (request.target.as_str(), status) {
                ("/revoke", _) => {
                    barrier.wait().await;
                    reply(status, r#"{"error":"unsupported_token_type"}"#)
                }
                // Without a revocation endpoint.
                (_, 404) => json_reply(
                    200,
                    &json!({"issuer": issuer, "token_endpoint": format!("{issuer}/token"),
                        "end_session_endpoint": format!("{issuer}/end")}),
                ),
                _ => json_reply(
                    200,
                    &json!({"issuer": issuer, "token_endpoint": format!("{issuer}/token"),
                        "revocation_endpoint": format!("{issuer}/revoke")}),
                ),
            }
        }
        .boxed()
    })
    .await
}

/// The tokens of a login at this issuer.
fn login(ca: &Ca, issuer: &str, user: &str, refresh_token: Option<&str>) -> CachedTokens {
    use base64::Engine as _;
    let authorities = base64::engine::general_purpose::STANDARD.encode(ca.cert_pem());
    let settings = settings(&[
        &format!("--issuer={issuer}"),
        &format!("--user={user}"),
        &format!("--issuer-certificate-authority-data={authorities}"),
    ]);
    let mut tokens = CachedTokens::new(&settings, "a.b.c", 2_000, 1_000);
    tokens.refresh_token = refresh_token.map(SecretText::new);
    tokens
}

#[tokio::test]
async fn all_providers_are_asked_side_by_side_and_each_answer_is_told() {
    let ca = Ca::new("providers");
    let [good, refusing, without] =
        [provider(&ca, 200, 2).await, provider(&ca, 400, 1).await, provider(&ca, 404, 1).await];
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = format!("https://{}", closed.local_addr().unwrap());
    drop(closed);
    let logins = [
        login(&ca, &away, "a", Some("refresh-away")),
        // Neither is answered before both were asked.
        login(&ca, &good.url(""), "a", Some("refresh-a")),
        login(&ca, &good.url(""), "b", Some("refresh-b")),
        login(&ca, &good.url(""), "c", None),
        login(&ca, &refusing.url(""), "a", Some("refresh")),
        login(&ca, &without.url(""), "a", Some("refresh")),
    ];
    let revocations = revoke_all(&logins, Duration::from_mins(1)).await;
    let page = format!("{}?client_id=kubernetes", without.url("/end"));
    let [Revocation::Failed(unreachable), a, b, none, Revocation::Failed(refused), no_endpoint] =
        revocations.as_slice()
    else {
        panic!("{revocations:?}")
    };
    assert_eq!([a, b], [&Revocation::Revoked; 2]);
    assert_eq!((none, no_endpoint), (&Revocation::NoToken, &Revocation::NoEndpoint(Some(page))));
    assert!(unreachable.contains("whether the provider is up"), "{unreachable}");
    assert!(refused.contains("cannot revoke this kind of token"), "{refused}");
    let asked = good.take();
    let bodies = asked.iter().filter(|request| request.target == "/revoke");
    let bodies: String = bodies.map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect();
    for token in ["token=refresh-a", "token=refresh-b", "token_type_hint=refresh_token"] {
        assert!(bodies.contains(token), "{bodies}");
    }
    let shown = format!("{revocations:?}");
    assert!(!shown.contains("refresh-"), "{shown}");
}

#[tokio::test]
async fn a_provider_that_does_not_answer_by_the_deadline_has_failed() {
    let ca = Ca::new("providers");
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("https://{}", silent.local_addr().unwrap());
    let logins = [login(&ca, &issuer, "a", Some("refresh"))];
    let revocations = revoke_all(&logins, Duration::from_millis(1)).await;
    assert_eq!(revocations, [Revocation::Failed("no answer within 1ms".to_owned())]);
}

#[tokio::test]
async fn everything_is_removed_whatever_the_providers_answer() {
    let setup = Setup::new().await;
    let of_setup = setup.device();
    setup.ask(&of_setup, true).await.unwrap();
    let ca = Ca::new("away");
    let other = settings(&["--issuer=https://127.0.0.1:1"]);
    let entry = setup.entry(&other);
    entry.write(&login(&ca, "https://127.0.0.1:1", "", Some("refresh"))).await.unwrap();
    let certificate = entry.certificate(&[b"cluster".to_vec()]);
    let cached = CachedCertificate::new(&other, "https://c", None);
    certificate.write_certificate(&cached).await.unwrap();
    setup.server.take();
    let code = log_out_everywhere(vec![Ok(setup.cache())]).await.unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE), "one provider is away");
    assert!(setup.cache().entries().await.unwrap().is_empty());
    let revoked = setup.server.take().into_iter().find(|request| request.target == "/revoke").unwrap();
    assert!(String::from_utf8_lossy(&revoked.body).contains("token=refresh-0"));
    let code = log_out_everywhere(vec![Ok(setup.cache())]).await.unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS), "nothing is left to revoke");
}

#[tokio::test]
async fn an_entry_that_cannot_be_removed_keeps_no_other_one() {
    let setup = Setup::new().await;
    setup.ask(&setup.device(), true).await.unwrap();
    let directory = setup.home.path().join("cache");
    for name in ["0", "f"] {
        std::fs::create_dir_all(directory.join(format!("{}.json/in the way", name.repeat(64)))).unwrap();
    }
    setup.server.take();
    let code = log_out_everywhere(vec![Ok(setup.cache())]).await.unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    assert!(setup.server.take().iter().any(|request| request.target == "/revoke"));
}

#[tokio::test]
async fn a_store_that_fails_keeps_no_login_of_the_other_from_being_revoked() {
    let setup = Setup::new().await;
    setup.ask(&setup.device(), true).await.unwrap();
    let failing = || Err(CacheError::Locked(Duration::from_secs(1)));
    let code = log_out_everywhere(vec![failing(), Ok(setup.cache())]).await.unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    assert!(setup.cache().entries().await.unwrap().is_empty());
    assert!(setup.server.take().iter().any(|request| request.target == "/revoke"));
    assert!(log_out_everywhere(vec![failing()]).await.is_err(), "the store that the user means");
}
