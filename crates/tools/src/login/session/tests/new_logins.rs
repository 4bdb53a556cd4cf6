//! Logins on machines with and without a browser, a terminal and a display.

use http::Uri;
use openidconnect::http::StatusCode;
use portcullis_openid::answers::{self, ProviderAnswer};
use portcullis_openid::error::CallbackError;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::super::new_login::{Authorized, code_text};
use super::*;
use crate::login::callback::{Callback, CallbackListener, ExpectedCallback};
use crate::login::settings::CallbackHost;

fn given() -> (mpsc::Sender<String>, TypedLines) {
    let (sender, receiver) = mpsc::channel(4);
    (sender, TypedLines::Given(tokio::sync::Mutex::new(receiver)))
}

/// A machine, and whether a command may ask for a login by each flow: auto, browser, device.
struct Machine {
    name: &'static str,
    flag: &'static str,
    is_attended: bool,
    has_display: bool,
    may_log_in: [bool; 3],
}

#[test]
fn a_login_is_asked_for_where_a_terminal_or_a_display_is() {
    let machine = |name, flag, is_attended, has_display, may_log_in| Machine {
        name,
        flag,
        is_attended,
        has_display,
        may_log_in,
    };
    let machines = [
        machine("a desktop", "auto", true, true, [true; 3]),
        machine("a session of SSH", "auto", true, false, [true; 3]),
        machine("a program of the desktop", "auto", false, true, [true, true, false]),
        machine("a pipe, cron, a container", "auto", false, false, [false; 3]),
        machine("a desktop", "terminal", true, true, [true; 3]),
        machine("a program of the desktop", "terminal", false, true, [false; 3]),
        machine("a desktop", "never", true, true, [true; 3]),
        machine("a program of the desktop", "never", false, true, [false; 3]),
    ];
    let directory = tempfile::tempdir().unwrap();
    let cache = LoginCache::open(Some(directory.path()), CredentialStoreKind::File, false).unwrap();
    let clock = Clock::system();
    let mut failures = Vec::new();
    for Machine { name, flag, is_attended, has_display, may_log_in } in machines {
        for (flow, expected) in ["auto", "browser", "device"].into_iter().zip(may_log_in) {
            let settings = flags(&[&format!("--open-browser={flag}"), &format!("--flow={flow}")]);
            let settings = settings.settings(None).unwrap();
            let session = Session {
                settings: &settings,
                cache: Some(&cache),
                clock: &clock,
                user: UserAccess { is_attended, typed: TypedLines::Absent, has_screen: false },
                force: false,
                browser: BrowserEnvironment { browser: None, has_display },
            };
            if session.may_log_in() != expected {
                failures.push(format!("{name}, --open-browser={flag}, --flow={flow}: not {expected}"));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// A browser that leaves a mark.
fn browser(setup: &Setup, mark: &Path) -> String {
    use std::os::unix::fs::PermissionsExt as _;

    let program = setup.home.path().join("browser");
    std::fs::write(&program, format!("#!/bin/sh\n: > {}\n", mark.display())).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    program.display().to_string()
}

#[tokio::test]
async fn a_program_without_a_terminal_gets_its_browser() {
    let setup = Setup::new().await;
    let cache = setup.cache();
    for (flag, has_display, is_opened) in
        [("auto", true, true), ("auto", false, false), ("terminal", true, false), ("never", true, false)]
    {
        let mark = setup.home.path().join(format!("opened-{flag}-{has_display}"));
        let command = format!("--browser-command={}", browser(&setup, &mark));
        let settings =
            setup.settings(&[&command, &format!("--open-browser={flag}"), "--login-timeout=300ms"], None);
        let session = Session {
            browser: BrowserEnvironment { browser: None, has_display },
            ..setup.session(&settings, &cache, false)
        };
        let error = session.credential().await.unwrap_err();
        assert_eq!(
            matches!(error, LoginError::NoRedirect { .. }),
            is_opened,
            "{flag} {has_display}: {error}"
        );
        assert_eq!(
            matches!(error, LoginError::LoginRequired(_)),
            !is_opened,
            "{flag} {has_display}: {error}"
        );
        if is_opened {
            testkit::until("the browser to be started", || mark.exists()).await;
        }
        assert_eq!(mark.exists(), is_opened, "{flag} {has_display}");
    }
}

#[test]
fn a_pipe_has_no_address_that_a_user_has_pasted() {
    for (interactive, has_input, is_attended, is_typed) in [
        (Some(true), true, true, true),
        // kubernetes-client/python asks by standard output, and passes on standard input whatever it is.
        (Some(true), false, true, false),
        (Some(false), true, false, false),
        (None, true, true, true),
        (None, false, false, false),
    ] {
        let user = UserAccess::of_streams(interactive, has_input, false);
        assert_eq!((user.is_attended, user.typed.is_present()), (is_attended, is_typed), "{interactive:?}");
    }
}

/// Programs of the desktop ask every few seconds.
#[tokio::test]
async fn a_login_that_fails_without_a_terminal_opens_no_page_for_a_while() {
    let setup = Setup::new().await;
    let cache = setup.cache();
    let mark = setup.home.path().join("opened");
    let command = format!("--browser-command={}", browser(&setup, &mark));
    let settings = setup.settings(&[&command, "--login-timeout=300ms"], None);
    for (passed, is_attended, is_opened) in [
        (0, false, true),
        (0, false, false),
        (299, false, false),
        (0, true, true),
        (0, false, false),
        (1, false, true),
        (299, false, false),
    ] {
        setup.pass(passed);
        let session = Session {
            browser: BrowserEnvironment { browser: None, has_display: true },
            ..setup.session(&settings, &cache, is_attended)
        };
        let error = session.credential().await.unwrap_err();
        let is_tried = matches!(error, LoginError::NoRedirect { .. });
        assert_eq!(is_tried, is_opened, "{passed} s, terminal {is_attended}: {error}");
        if is_opened {
            testkit::until("the browser to be started", || mark.exists()).await;
            std::fs::remove_file(&mark).unwrap();
        } else {
            assert!(error.to_string().contains("failed less than 5 minutes ago"), "{error}");
        }
        assert!(!mark.exists());
    }
    let lock = setup.entry(&settings).lock(Duration::from_secs(1), || ()).await.unwrap();
    lock.set_failed_login(None);
    assert_eq!(lock.failed_login(), None);
}

/// A browser that writes its address to a file, and what it does with the redirect of a provider that agrees at once.
async fn log_in(setup: &Setup, address: &Path) {
    testkit::until("the browser to be started", || address.exists()).await;
    let start = std::fs::read_to_string(address).unwrap();
    let answer = get(&start).await;
    let location = answer.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
    let uri: Uri = location.parse().unwrap();
    let asked: BTreeMap<_, _> =
        form_urlencoded::parse(uri.query().unwrap().as_bytes()).into_owned().collect();
    *setup.state.claims.lock().unwrap() = json!({"nonce": asked["nonce"]});
    get(&format!("{}?code=c&state={}", asked["redirect_uri"], asked["state"])).await;
}

#[tokio::test]
async fn no_signal_loses_a_login_that_was_exchanged() {
    use std::os::unix::fs::PermissionsExt as _;

    for moment in ["/token", "/jwks"] {
        let setup = Setup::new().await;
        let (program, address) = (setup.home.path().join("browser"), setup.home.path().join("address"));
        let script = format!("#!/bin/sh\nprintf %s \"$1\" > {0}.new && mv {0}.new {0}\n", address.display());
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
        let settings = setup.settings(&[&format!("--browser-command={}", program.display())], None);
        let arrived = Arc::new(tokio::sync::Notify::new());
        let arrival = Arc::clone(&arrived);
        *setup.state.before.lock().unwrap() = Some((moment, Box::new(move || arrival.notify_one())));
        let interrupted = || async {
            arrived.notified().await;
            TerminationSignal::Hangup
        };
        let login = Box::pin(crate::login::completed(setup.ask(&settings, true), interrupted));
        let (outcome, ()) = tokio::join!(login, log_in(&setup, &address));
        assert!(matches!(outcome, Ok(Ok(_)) | Err(TerminationSignal::Hangup)), "{moment}: {outcome:?}");
        let kept = setup.entry(&settings).read().await.unwrap().unwrap();
        assert_eq!(kept.refresh_token, Some(SecretText::new("refresh-0")), "{moment}");
    }
}

#[tokio::test]
async fn a_login_that_another_may_have_begun_is_revoked() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let cache = setup.cache();
    let session = setup.session(&settings, &cache, true);
    let provider = LoginProvider::discover(settings.client()).await.unwrap();
    for started in [CallbackError::OtherUser, CallbackError::StartedTwice] {
        let authorized = session.device(&provider).await.unwrap();
        let begun = Authorized { started: Err(started), ..authorized };
        let refused = session.complete(&provider, begun, None, None).await.err().unwrap();
        assert!(matches!(refused, LoginError::Callback(_)), "{refused}");
        assert_eq!(revoked(&setup.server).len(), 1, "{refused}");
    }
}

#[tokio::test]
async fn a_refused_device_flow_leads_to_the_code_flow_where_the_user_can_paste() {
    const REFUSED: &[u8] = br#"{"error":"unauthorized_client","error_description":"Client is not allowed to initiate OAuth 2.0 Device Authorization Grant. The flow is disabled for the client."}"#;
    let setup = Setup::new().await;
    let cache = setup.cache();
    for (answer, flow, is_terminal, falls_back) in [
        (REFUSED, "auto", true, true),
        (br#"{"error":"unsupported_grant_type"}"#, "auto", true, true),
        (REFUSED, "auto", false, false),
        (REFUSED, "device", true, false),
        (br#"{"error":"invalid_client"}"#, "auto", true, false),
        (br#"{"error":"access_denied"}"#, "auto", true, false),
    ] {
        setup.replace_document("/device", answer.to_vec());
        let settings = setup.settings(&[&format!("--flow={flow}"), "--login-timeout=300ms"], None);
        let mut session = setup.session(&settings, &cache, true);
        let (_sender, lines) = given();
        if is_terminal {
            session.user.typed = lines;
        }
        let error = session.credential().await.unwrap_err();
        let case = String::from_utf8_lossy(answer);
        assert_eq!(
            matches!(error, LoginError::NoRedirect { .. }),
            falls_back,
            "{case} {flow} {is_terminal}: {error}"
        );
    }
}

#[tokio::test]
async fn a_provider_without_a_device_flow_leads_to_the_code_flow() {
    let setup = Setup::new().await;
    let issuer = format!("https://{}", setup.server.address);
    for endpoint in [json!(null), json!(format!("{issuer}/switched-off"))] {
        let document = json!({"issuer": issuer, "token_endpoint": format!("{issuer}/token"),
            "authorization_endpoint": format!("{issuer}/auth"), "device_authorization_endpoint": endpoint});
        setup.replace_document("/.well-known/openid-configuration", document.to_string().into_bytes());
        let settings = setup.settings(&["--login-timeout=300ms"], None);
        let error = setup.ask(&settings, true).await.unwrap_err();
        assert!(matches!(error, LoginError::NoRedirect { .. }), "{endpoint}: {error}");
    }
}

#[tokio::test]
async fn the_listener_and_the_prompt_wait_side_by_side() {
    let setup = Setup::new().await;
    let settings = setup.settings(&[], None);
    let cache = setup.cache();
    for is_pasted in [true, false] {
        let listener = CallbackListener::bind(CallbackHost::Ipv4, &[0]).await.unwrap();
        let redirect = listener.redirect_url();
        let expected = ExpectedCallback {
            state: SecretString::from("right"),
            issuer: settings.issuer.clone(),
            has_issuer: false,
        };
        let (sender, typed) = given();
        let mut session = setup.session(&settings, &cache, true);
        session.user.typed = typed;
        let address = format!("{redirect}?code=c&state=right");
        sender.send(format!("{redirect}?code=c&state=wrong")).await.unwrap();
        let browser = async {
            if is_pasted {
                sender.send(address).await.unwrap();
            } else {
                get(&address).await;
            }
        };
        let mut server = listener.serve(expected.clone(), "https://provider.test/auth");
        let redirected = session.redirected(&mut server, &expected, &redirect, true);
        let (outcome, ()) = tokio::join!(redirected, browser);
        assert!(is_code(outcome), "pasted: {is_pasted}");
    }
}

fn is_code(outcome: Result<Callback, CallbackError>) -> bool {
    matches!(outcome, Ok(Callback::Code(code)) if code.expose_secret() == "c")
}

/// Fetches a page as a browser does.
async fn get(address: &str) -> String {
    let uri: Uri = address.parse().unwrap();
    let host = uri.authority().unwrap().as_str();
    let mut stream = TcpStream::connect(host).await.unwrap();
    let request = format!("GET {} HTTP/1.1\r\nHost: {host}\r\n\r\n", uri.path_and_query().unwrap());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

// keycloak: services/…/protocol/oidc/TokenManager.java
#[tokio::test]
async fn a_user_without_offline_access_gets_in_without_it() {
    let setup = Setup::new().await;
    let settings = setup.device();
    let refusals: [TokenAnswer; 2] = [
        || {
            let description = "Offline tokens not allowed for the user or client";
            json_reply(400, &json!({"error": "not_allowed", "error_description": description}))
        },
        || error("invalid_scope"),
    ];
    for refusal in refusals {
        setup.entry(&settings).remove().await.unwrap();
        setup.server.take();
        setup.state.answers.lock().unwrap().push(refusal);
        setup.ask(&settings, true).await.unwrap();
        let asked = setup.server.take().into_iter().filter(|request| request.target == "/device");
        let scopes = asked.map(|request| {
            let form: BTreeMap<_, _> = form_urlencoded::parse(&request.body).into_owned().collect();
            form["scope"].clone()
        });
        assert_eq!(scopes.collect::<Vec<_>>(), ["openid offline_access", "openid"]);
    }
    // Once: what is refused without it is an error.
    setup.entry(&settings).remove().await.unwrap();
    for _ in 0..2 {
        setup.state.answers.lock().unwrap().push(|| error("invalid_scope"));
    }
    let refused = setup.ask(&settings, true).await.unwrap_err().to_string();
    assert!(refused.contains("invalid_scope"), "{refused}");
    // A scope that is not asked for is not left out.
    let settings = setup.settings(&["--flow=device", "--scope=groups"], None);
    setup.state.answers.lock().unwrap().push(|| error("invalid_scope"));
    let logins = setup.logins();
    setup.ask(&settings, true).await.unwrap_err();
    assert_eq!(setup.logins(), logins + 1);
}

#[tokio::test]
async fn a_login_that_cannot_be_renewed_is_named_with_a_way_to_another() {
    let setup = Setup::new().await;
    let cache = setup.cache();
    for (flags, has_token, part) in [
        (
            &[][..],
            false,
            Some("the login ends in 10 minutes\n  fix: portcullis login --prompt consent, or allow"),
        ),
        (&["--prompt=login consent"], false, Some("\n  fix: allow the client refresh tokens")),
        (&["--scope=groups"], false, None),
        (&[], true, None),
    ] {
        let settings = setup.settings(flags, None);
        let provider = LoginProvider::discover(settings.client()).await.unwrap();
        let mut tokens = CachedTokens::new(&settings, "t", START + LIFETIME, START);
        tokens.refresh_token = has_token.then(|| SecretText::new("r"));
        let warning = setup.session(&settings, &cache, true).renewal_warning(&provider, &tokens);
        assert_eq!(warning.is_some(), part.is_some(), "{flags:?}: {warning:?}");
        assert!(part.is_none_or(|part| warning.is_some_and(|warning| warning.contains(part))), "{flags:?}");
    }
}

#[tokio::test]
async fn each_parameter_is_sent_once_and_a_prompt_only_if_it_is_given() {
    let setup = Setup::new().await;
    for (flags, prompt, hint) in [
        (&[][..], None, None),
        (&["--scope=offline_access"], None, None),
        (&["--prompt=select_account"], Some("select_account"), None),
        (&["--prompt=login consent", "--user=alice"], Some("login consent"), Some("alice")),
        (&["--extra-parameter=login_hint=bob", "--extra-parameter=audience=a"], None, Some("bob")),
    ] {
        let settings = setup.settings(flags, None);
        let provider = LoginProvider::discover(settings.client()).await.unwrap();
        let provider = provider.with_prompt(settings.prompt.as_deref());
        let url = provider.authorization("http://127.0.0.1:5/callback").unwrap().url;
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        let parameters: BTreeMap<_, _> = pairs.iter().cloned().collect();
        assert_eq!(parameters.len(), pairs.len(), "{url}");
        let parameter = |name: &str| parameters.get(name).map(String::as_str);
        assert_eq!((parameter("prompt"), parameter("login_hint")), (prompt, hint), "{flags:?}");
        for (name, value) in [
            ("response_type", "code"),
            ("client_id", "kubernetes"),
            ("code_challenge_method", "S256"),
            ("redirect_uri", "http://127.0.0.1:5/callback"),
        ] {
            assert_eq!(parameter(name), Some(value), "{url}");
        }
        let scope = if flags.is_empty() { "openid offline_access" } else { parameter("scope").unwrap() };
        assert_eq!(parameter("scope"), Some(scope));
        assert!(
            ["state", "nonce", "code_challenge"].iter().all(|name| parameter(name).unwrap().len() >= 43),
            "{url}"
        );
    }
}

#[test]
fn a_code_is_shown_with_the_address_that_has_it() {
    let text = |complete: Value| {
        let body = json!({"device_code": "d", "user_code": "AB-CD", "verification_uri": "https://v.test",
            "verification_uri_complete": complete});
        let body = body.to_string();
        let answer = ProviderAnswer { status: StatusCode::OK, content_type: None, body: body.as_bytes() };
        code_text(&answers::device_authorization(answer).unwrap())
    };
    let plain = "to log in, open https://v.test on any device, and enter the code\n  AB-CD";
    assert_eq!(text(json!(null)), plain);
    assert_eq!(
        text(json!("https://v.test?c=AB-CD")),
        format!("{plain}\nor open https://v.test?c=AB-CD and compare the code")
    );
    assert_eq!(text(json!(format!("https://v.test?c={}", "x".repeat(500)))), plain, "no address that is cut");
    assert_eq!(text(json!("https://v.test?c=\u{1b}[2J")), plain, "no address with control characters");
}
