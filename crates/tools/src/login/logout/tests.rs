//! Logins at several providers, of which some do not answer.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use futures_util::FutureExt as _;
use portcullis_http::https_client::testing::{H1, TestServer, reply, serving};
use serde_json::{Value, json};
use testkit::pki::Ca;
use tokio::sync::Barrier;

use super::*;
use crate::login::cache::{CachedCertificate, CredentialStoreKind};
use crate::login::session::tests::{Setup, json_reply, revoked};
use crate::login::settings::tests::settings;

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
                        "revocation_endpoint": format!("{issuer}/revoke"),
                        "end_session_endpoint": format!("{issuer}/end")}),
                ),
            }
        }
        .boxed()
    })
    .await
}

#[derive(Debug, Parser)]
struct Parsed {
    #[command(flatten)]
    flags: LogoutFlags,
}

/// `portcullis logout` with these arguments.
async fn logout(arguments: &[impl AsRef<str>]) -> Result<ExitCode, LoginError> {
    let arguments = arguments.iter().map(AsRef::as_ref);
    let parsed = Parsed::try_parse_from(["logout"].into_iter().chain(arguments)).unwrap();
    run(&parsed.flags).await
}

#[test]
fn all_takes_no_flag_of_one_login() {
    use clap::CommandFactory as _;

    let command = Parsed::command();
    let flags = command.get_arguments().map(|argument| argument.get_id().as_str());
    let of_one: Vec<_> =
        flags.filter(|flag| !["all", "help", "cache_dir", "credential_store"].contains(flag)).collect();
    assert_eq!(of_one.len(), FLAGS_OF_ONE_LOGIN.len(), "{of_one:?}");
    assert!(of_one.iter().all(|flag| FLAGS_OF_ONE_LOGIN.contains(flag)), "{of_one:?}");
}

#[tokio::test]
async fn a_flag_without_an_effect_is_an_error() {
    let context = "--context=a";
    for (arguments, parts) in [
        (&["--all", "--issuer=https://a.test"][..], ["--all", "--issuer"]),
        (&["--all", "--user=a"], ["--all", "--user"]),
        (&["--all", "--kubeconfig=k"], ["--all", "--kubeconfig"]),
        (&["--issuer=https://a.test", "--client-id=c", context], ["--issuer", "--context"]),
        (&["--issuer=https://a.test", "--client-id=c", "--kubeconfig=k"], ["--issuer", "--kubeconfig"]),
    ] {
        let refused = Parsed::try_parse_from(["logout"].iter().chain(arguments)).unwrap_err().to_string();
        assert!(parts.iter().all(|part| refused.contains(part)), "{refused}");
    }
    for (argument, flag) in
        [("--client-id=c", "--client-id"), ("--scope=a", "--scope"), ("--token=access", "--token")]
    {
        let refused = logout(&[argument, context]).await.unwrap_err().to_string();
        assert!(refused.starts_with(flag) && refused.contains("give --issuer"), "{refused}");
    }
}

/// The provider of the setup as flags, and the directory of its cache.
fn flags_of(setup: &Setup) -> Vec<String> {
    let mut flags = setup.flags();
    flags.push("--client-id=kubernetes".to_owned());
    flags.push(format!("--cache-dir={}", directory_of(setup).display()));
    flags
}

/// The arguments that log out of the provider of the setup, and of all in the files of its cache.
fn one_and_all(setup: &Setup) -> [Vec<String>; 2] {
    let directory = format!("--cache-dir={}", directory_of(setup).display());
    [flags_of(setup), vec!["--all".to_owned(), "--credential-store=file".to_owned(), directory]]
}

fn directory_of(setup: &Setup) -> PathBuf {
    setup.home.path().join("cache")
}

/// The documents in a cache whose name has, or has not, the part of a certificate.
fn documents(directory: &Path, of_certificates: bool) -> Vec<PathBuf> {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut documents: Vec<_> = files
        .filter(|path| path.extension() == Some("json".as_ref()))
        .filter(|path| path.file_name().unwrap().to_str().unwrap().contains('-') == of_certificates)
        .collect();
    documents.sort();
    documents
}

/// What cannot be removed as a file.
fn put_in_the_way(document: &Path) {
    std::fs::remove_file(document).ok();
    std::fs::create_dir_all(document.join("in the way")).unwrap();
}

fn is(code: ExitCode, expected: ExitCode) -> bool {
    format!("{code:?}") == format!("{expected:?}")
}

fn authority(ca: &Ca) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(ca.cert_pem())
}

/// The tokens of a login at this issuer.
fn login(ca: &Ca, issuer: &str, user: &str, refresh_token: Option<&str>) -> CachedTokens {
    let authorities = authority(ca);
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
    let logins: Vec<_> = logins.iter().collect();
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

// RFC 8414, section 2: revocation_endpoint_auth_methods_supported
#[tokio::test]
async fn a_provider_that_revokes_for_clients_with_a_secret_only_is_told() {
    const NO_SECRET: &str = "revokes tokens only for clients that have a secret";
    let cases: [(Value, u16, &str, Option<&str>); 7] = [
        (json!(["client_secret_basic"]), 401, r#"{"error":"invalid_client"}"#, Some(NO_SECRET)),
        (json!(["client_secret_basic"]), 403, "", Some(NO_SECRET)),
        (json!(["client_secret_basic"]), 503, "", Some("503 Service Unavailable")),
        // As Keycloak.
        (json!(["private_key_jwt", "client_secret_basic"]), 200, "", None),
        (json!(["none"]), 401, r#"{"error":"invalid_client"}"#, Some("does not know this client")),
        (json!(null), 401, r#"{"error":"invalid_client"}"#, Some("does not know this client")),
        (json!([]), 400, "<html>", Some("400 Bad Request with a web page")),
    ];
    let ca = Ca::new("provider");
    for (methods, status, body, part) in cases {
        let of_document = methods.clone();
        let server = TestServer::of(&ca, H1, move |request| {
            let issuer = format!("https://{}", request.headers["host"].to_str().unwrap());
            match request.target.as_str() {
                "/revoke" => reply(status, body),
                _ => json_reply(
                    200,
                    &json!({"issuer": issuer, "revocation_endpoint": format!("{issuer}/revoke"),
                        "end_session_endpoint": format!("{issuer}/end"),
                        "revocation_endpoint_auth_methods_supported": of_document}),
                ),
            }
        })
        .await;
        let login = login(&ca, &format!("https://{}", server.address), "alice", Some("refresh"));
        let outcome = revoke_all(&[&login], Duration::from_mins(1)).await.pop().unwrap();
        match (&outcome, part) {
            (Revocation::Revoked, None) => {}
            (Revocation::Failed(problem), Some(part)) => {
                assert!(problem.contains(part), "{methods} {status}: {problem}");
                let names_page = problem.contains(&format!("https://{}/end?client_id=", server.address));
                assert_eq!(names_page, part == NO_SECRET, "{methods} {status}: {problem}");
            }
            _ => panic!("{methods} {status}: {outcome:?}"),
        }
    }
}

#[tokio::test]
async fn a_provider_that_does_not_answer_by_the_deadline_has_failed() {
    let ca = Ca::new("providers");
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let issuer = format!("https://{}", silent.local_addr().unwrap());
    let login = login(&ca, &issuer, "a", Some("refresh"));
    let revocations = revoke_all(&[&login], Duration::from_millis(1)).await;
    assert_eq!(revocations, [Revocation::Failed("no answer within 1ms".to_owned())]);
}

#[tokio::test]
async fn silent_providers_keep_no_other_from_being_asked() {
    let ca = Ca::new("providers");
    let mut silent = Vec::new();
    for _ in 0..12 {
        silent.push(tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap());
    }
    let good = provider(&ca, 200, 1).await;
    let issuers = silent.iter().map(|listener| format!("https://{}", listener.local_addr().unwrap()));
    let issuers: Vec<_> = issuers.chain([good.url("")]).collect();
    let logins: Vec<_> = issuers.iter().map(|issuer| login(&ca, issuer, "a", Some("refresh"))).collect();
    let logins: Vec<_> = logins.iter().collect();
    tokio::select! {
        ended = revoke_all(&logins, Duration::from_secs(20)) => panic!("{ended:?}"),
        () = testkit::until("the revocation", || !revoked(&good).is_empty()) => {}
    }
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
    let failing = || Err(CacheError::Locked(Duration::from_secs(1), None));
    let code = log_out_everywhere(vec![failing(), Ok(setup.cache())]).await.unwrap();
    assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::FAILURE));
    assert!(setup.cache().entries().await.unwrap().is_empty());
    assert!(setup.server.take().iter().any(|request| request.target == "/revoke"));
    assert!(log_out_everywhere(vec![failing()]).await.is_err(), "the store that the user means");
}

#[tokio::test]
async fn a_logout_that_is_interrupted_while_it_revokes_can_be_repeated() {
    let ca = Ca::new("providers");
    // No revocation is answered.
    let silent = provider(&ca, 200, usize::MAX).await;
    let home = tempfile::tempdir().unwrap();
    let issuer = silent.url("");
    let (data, tokens) = (authority(&ca), login(&ca, &issuer, "a", Some("refresh")));
    let [issuer, data, directory] = [
        format!("--issuer={issuer}"),
        format!("--issuer-certificate-authority-data={data}"),
        format!("--cache-dir={}", home.path().display()),
    ];
    let cache = LoginCache::open(Some(home.path()), CredentialStoreKind::File, false).unwrap();
    let entry = cache.entry(&settings(&[&issuer, &data, "--user=a"])).unwrap();
    entry.write(&tokens).await.unwrap();
    let one = ["--client-id=kubernetes", "--user=a", &issuer, &data, &directory];
    let all = ["--all", "--credential-store=file", &directory];
    for arguments in [one.as_slice(), &all] {
        // As Ctrl-C does.
        tokio::select! {
            ended = logout(arguments) => panic!("{ended:?}"),
            () = testkit::until("the revocation", || !revoked(&silent).is_empty()) => {}
        }
        assert_eq!(entry.read().await.unwrap().as_ref(), Some(&tokens), "{arguments:?}");
    }
}

#[tokio::test]
async fn the_page_that_ends_the_session_is_opened_although_the_revocation_fails() {
    let ca = Ca::new("providers");
    let refusing = provider(&ca, 400, 1).await;
    let home = tempfile::tempdir().unwrap();
    let opened = home.path().join("opened");
    let (issuer, data) = (refusing.url(""), authority(&ca));
    let [issuer_flag, data, directory, browser] = [
        format!("--issuer={issuer}"),
        format!("--issuer-certificate-authority-data={data}"),
        format!("--cache-dir={}", home.path().display()),
        format!("--browser-command=touch {}", opened.display()),
    ];
    let cache = LoginCache::open(Some(home.path()), CredentialStoreKind::File, false).unwrap();
    let entry = cache.entry(&settings(&[&issuer_flag, &data, "--user=a"])).unwrap();
    entry.write(&login(&ca, &issuer, "a", Some("refresh"))).await.unwrap();
    let flags =
        ["--end-session", "--client-id=kubernetes", "--user=a", &issuer_flag, &data, &directory, &browser];
    let refused = logout(&flags).await.unwrap_err().to_string();
    assert!(refused.contains("cannot revoke this kind of token"), "{refused}");
    testkit::until("the page", || opened.exists()).await;
    assert_eq!(entry.read().await.unwrap(), None);
}

#[tokio::test]
async fn a_file_that_others_can_read_is_revoked() {
    let setup = Setup::new().await;
    for (number, arguments) in one_and_all(&setup).iter().enumerate() {
        setup.ask(&setup.device(), true).await.unwrap();
        let file = documents(&directory_of(&setup), false).remove(0);
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        setup.server.take();
        let code = logout(arguments).await.unwrap();
        assert!(is(code, ExitCode::SUCCESS), "{arguments:?}");
        assert_eq!((revoked(&setup.server), file.exists()), (vec![format!("refresh-{number}")], false));
    }
}

#[tokio::test]
async fn tokens_that_cannot_be_read_are_removed_and_a_failure() {
    let setup = Setup::new().await;
    for arguments in &one_and_all(&setup) {
        for content in [r#"{"version":2,"tokens":[]}"#, "damaged"] {
            setup.ask(&setup.device(), true).await.unwrap();
            let file = documents(&directory_of(&setup), false).remove(0);
            std::fs::write(&file, content).unwrap();
            let code = logout(arguments).await.unwrap();
            assert!(is(code, ExitCode::FAILURE), "{arguments:?}");
            assert!(!file.exists());
        }
        assert!(is(logout(arguments).await.unwrap(), ExitCode::SUCCESS), "nothing is left");
    }
}

#[tokio::test]
async fn what_a_killed_login_was_writing_is_revoked_and_removed() {
    let setup = Setup::new().await;
    let [one, all] = one_and_all(&setup);
    for (number, arguments) in [(0, &all), (1, &one)] {
        setup.ask(&setup.device(), true).await.unwrap();
        let document = documents(&directory_of(&setup), false).remove(0);
        let partial = document.with_extension("partial");
        std::fs::rename(document, &partial).unwrap();
        let certificate = directory_of(&setup).join(format!("{0}-{0}.partial", "0".repeat(64)));
        std::fs::write(&certificate, "half").unwrap();
        setup.server.take();
        assert!(is(logout(arguments).await.unwrap(), ExitCode::SUCCESS), "{arguments:?}");
        assert_eq!((revoked(&setup.server), partial.exists()), (vec![format!("refresh-{number}")], false));
        assert_eq!(certificate.exists(), arguments == &one);
    }
}

#[tokio::test]
async fn a_provider_that_refuses_keeps_no_tokens() {
    let setup = Setup::new().await;
    setup.ask(&setup.device(), true).await.unwrap();
    setup.replace_document("/.well-known/openid-configuration", b"<html>".to_vec());
    let flags = flags_of(&setup);
    let error = logout(&flags).await.unwrap_err().to_string();
    assert!(error.contains("a web page instead of JSON"), "{error}");
    assert!(setup.cache().entries().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_certificate_that_stays_keeps_no_other_and_the_tokens_are_revoked() {
    let setup = Setup::new().await;
    let (flags, settings) = (flags_of(&setup), setup.device());
    setup.ask(&settings, true).await.unwrap();
    for cluster in ["a", "b", "c"] {
        let certificate = setup.entry(&settings).certificate(&[cluster.as_bytes().to_vec()]);
        let cached = CachedCertificate::new(&settings, cluster, None);
        certificate.write_certificate(&cached).await.unwrap();
    }
    let certificates = documents(&directory_of(&setup), true);
    put_in_the_way(&certificates[0]);
    setup.server.take();
    let error = logout(&flags).await.unwrap_err().to_string();
    assert!(error.contains(certificates[0].to_str().unwrap()), "{error}");
    assert_eq!(revoked(&setup.server), ["refresh-0"]);
    assert_eq!(documents(&directory_of(&setup), true), certificates[..1]);
    assert!(documents(&directory_of(&setup), false).is_empty());
}

#[tokio::test]
async fn only_what_is_removed_is_counted() {
    let setup = Setup::new().await;
    let settings = setup.device();
    setup.ask(&settings, true).await.unwrap();
    for (name, login) in [("a", &settings), ("b", &settings), ("c", &self::settings(&[]))] {
        let certificate = setup.entry(login).certificate(&[name.as_bytes().to_vec()]);
        let cached = CachedCertificate::new(login, name, None);
        certificate.write_certificate(&cached).await.unwrap();
    }
    let own = setup.entry(&settings).certificates().await.unwrap().len();
    assert_eq!((own, documents(&directory_of(&setup), true).len()), (2, 3));
    std::fs::create_dir_all(directory_of(&setup).join(format!("{}.json/in the way", "0".repeat(64))))
        .unwrap();
    std::fs::create_dir_all(directory_of(&setup).join(format!("{0}-{0}.json/in the way", "1".repeat(64))))
        .unwrap();
    let store = LockedStore::read(&setup.cache()).await.unwrap();
    let mut removed = RemovedEntries::default();
    store.remove(&mut removed).await;
    let counts = (removed.logins, removed.certificates, removed.unreadable, removed.has_failed);
    assert_eq!(counts, (1, 3, 0, true));
}

#[tokio::test]
async fn a_login_with_other_flags_is_no_success() {
    let setup = Setup::new().await;
    setup.ask(&setup.device(), true).await.unwrap();
    let flags = flags_of(&setup);
    for other in ["--user=someone", "--scope=groups", "--extra-parameter=a=b"] {
        let with_other: Vec<_> = flags.iter().map(String::as_str).chain([other]).collect();
        assert!(is(logout(&with_other).await.unwrap(), ExitCode::FAILURE), "{other}");
    }
    let other_client = flags.iter().map(|flag| flag.replace("kubernetes", "other")).collect::<Vec<_>>();
    assert!(is(logout(&other_client).await.unwrap(), ExitCode::SUCCESS), "not logged in");
    assert_eq!(setup.cache().entries().await.unwrap().len(), 1);
    assert!(is(logout(&flags).await.unwrap(), ExitCode::SUCCESS));
}

/// The arguments of an exec plugin.
fn plugin(flags: &[String]) -> Vec<&str> {
    ["credential"].into_iter().chain(flags.iter().map(String::as_str)).collect()
}

/// The flag of a kubeconfig whose current context has these parts of an exec stanza and of a cluster.
fn kubeconfig(setup: &Setup, exec: &Value, cluster: &Value) -> String {
    let with = |mut own: Value, more: &Value| {
        own.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        own
    };
    let exec = with(json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "portcullis"}), exec);
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": with(json!({"server": "https://c"}), cluster)}],
        "users": [{"name": "u", "user": {"exec": exec}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
    let path = setup.home.path().join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    format!("--kubeconfig={}", path.display())
}

#[tokio::test]
async fn a_context_logs_out_of_the_login_of_its_exec_plugin() {
    let setup = Setup::new().await;
    setup.ask(&setup.device(), true).await.unwrap();
    let flags = flags_of(&setup);
    let own: Vec<_> = flags.iter().filter(|flag| !flag.starts_with("--client-id")).cloned().collect();
    let (directory, own) = own.split_last().unwrap();
    let cluster = json!({"extensions": [
        {"name": "client.authentication.k8s.io/exec", "extension": {"clientID": "kubernetes"}}]});
    let exec = |is_given: bool| json!({"args": plugin(own), "provideClusterInfo": is_given});
    let not_given = kubeconfig(&setup, &exec(false), &cluster);
    let error = logout(&[not_given.as_str(), directory]).await.unwrap_err().to_string();
    assert!(error.contains("give --client-id"), "{error}");
    let file = kubeconfig(&setup, &exec(true), &cluster);
    setup.server.take();
    assert!(is(logout(&[file.as_str(), directory]).await.unwrap(), ExitCode::SUCCESS));
    assert_eq!(revoked(&setup.server), ["refresh-0"]);
    let elsewhere = json!({"args": plugin(own), "env": [{"name": "XDG_CACHE_HOME", "value": "/elsewhere"}]});
    let error = logout(&[kubeconfig(&setup, &elsewhere, &cluster)]).await.unwrap_err().to_string();
    assert!(error.contains("sets XDG_CACHE_HOME"), "{error}");
}

#[tokio::test]
async fn flags_count_beside_those_of_the_kubeconfig() {
    let setup = Setup::new().await;
    setup.ask(&setup.device(), true).await.unwrap();
    let flags = flags_of(&setup);
    let (directory, arguments) = flags.split_last().unwrap();
    let exec = json!({"args": plugin(arguments)});
    let file = kubeconfig(&setup, &exec, &json!({}));
    setup.server.take();
    let code = logout(&["--user=someone", &file, directory]).await.unwrap();
    assert!(is(code, ExitCode::FAILURE) && revoked(&setup.server).is_empty(), "of another user");
    let code = logout(&[file.as_str(), directory]).await.unwrap();
    assert!(is(code, ExitCode::SUCCESS));
    assert_eq!(revoked(&setup.server), ["refresh-0"]);
    assert!(setup.cache().entries().await.unwrap().is_empty());
}
