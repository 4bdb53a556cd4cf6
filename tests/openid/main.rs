//! Users of a real OpenID provider, with the real kubectl, through the gateway to a real kube-apiserver: by `--oidc-*`
//! flags and by an equal `AuthenticationConfiguration`, over key rotation, a reload and the provider's absence.

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

#[path = "../misconfigured/bed.rs"]
mod bed;
#[path = "../support/build.rs"]
mod build;
#[path = "../support/pki.rs"]
mod pki;
mod provider;
#[path = "../support/servers.rs"]
mod servers;
#[path = "../it/support/mod.rs"]
mod support;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};

use bed::{Bed, Given, Kind, Running};
use provider::Provider;
use support::text;

type Test = fn(&Bed) -> Result<(), String>;

const TESTS: &[(&str, Test)] = &[
    ("kubectl by flags and by a configuration file", kubectl_by_flags_and_by_a_file),
    ("keys are rotated without a failed request", keys_are_rotated),
    ("a second issuer comes by a reload without a failed request", a_second_issuer_comes),
    ("the provider goes away", the_provider_goes_away),
];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(4);
    let source = build::look();
    let absent = match &source {
        build::Source::Absent(why) => Some(why.clone()),
        _ => provider::absent(),
    };
    let required = std::env::var("PORTCULLIS_REQUIRE_TWIN").is_ok_and(|value| value == "1");
    if let (Some(why), true) = (&absent, required) {
        eprintln!("openid: PORTCULLIS_REQUIRE_TWIN is set, but {why}");
        return ExitCode::FAILURE;
    }
    let bed = Arc::new(Bed::new(source));
    let mut trials: Vec<Trial> = TESTS
        .iter()
        .map(|(name, test)| {
            let (bed, test) = (Arc::clone(&bed), *test);
            Trial::test(*name, move || test(&bed).map_err(Into::into))
        })
        .collect();
    if let Some(why) = absent {
        eprintln!("\nopenid: SKIPPED, all {} tests: {why}\n", trials.len());
        trials = trials.into_iter().map(|trial| trial.with_ignored_flag(true)).collect();
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    bed.finish(conclusion.has_failed());
    conclusion.exit_code()
}

/// A provider, and a gateway before a real server.
struct Scene<'a> {
    bed: &'a Bed,
    name: &'static str,
    provider: Provider,
}

impl<'a> Scene<'a> {
    fn new(bed: &'a Bed, name: &'static str) -> Result<Self, String> {
        Ok(Self { bed, name, provider: Self::provider(bed, name)? })
    }

    fn provider(bed: &Bed, name: &str) -> Result<Provider, String> {
        let log = bed.file(&format!("{name}-provider.log"))?;
        Provider::start(&bed.file("server.crt")?, &bed.file("server.key")?, &log)
    }

    fn gateway(&self, name: &str, flags: &[String]) -> Result<Running, String> {
        let server = self.bed.server(Kind::Good)?;
        let front = Given::Front { ca: "inner", name: "front-proxy" };
        let gateway =
            self.bed.gateway_with(&format!("{} {name}", self.name), server.address, &front, flags)?;
        gateway.line_with(&["self-check passed"])?;
        Ok(gateway)
    }

    fn configuration(&self, issuers: &[&Provider]) -> Result<PathBuf, String> {
        let authorities =
            fs::read_to_string(self.bed.file("servers-ca.crt")?).map_err(|error| error.to_string())?;
        let issuers = issuers.iter().map(|provider| {
            json!({
                "issuer": {
                    "url": provider.issuer,
                    "certificateAuthority": authorities,
                    "audiences": ["kubernetes"],
                },
                "claimValidationRules": [{"claim": "email", "requiredValue": "alice@example.com"}],
                "claimMappings": {
                    "username": {"claim": "sub", "prefix": format!("{}#", provider.issuer)},
                    "groups": {"claim": "groups", "prefix": "company:"},
                },
            })
        });
        let configuration = json!({
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "AuthenticationConfiguration",
            "jwt": issuers.collect::<Vec<_>>(),
        });
        let file = self.bed.file(&format!("{}-authentication.yaml", self.name))?;
        let partial = file.with_extension("partial");
        fs::write(&partial, configuration.to_string()).map_err(|error| error.to_string())?;
        fs::rename(partial, &file).map_err(|error| error.to_string())?;
        Ok(file)
    }

    /// Waits until a token is known: an issuer is asked for its keys in its own time.
    fn until_known(&self, gateway: &Running, token: &str) -> Result<(), String> {
        let started = Instant::now();
        loop {
            match whoami(self.bed, gateway, token)? {
                (StatusCode::CREATED, _) => return Ok(()),
                (code, body) if started.elapsed() > bed::PATIENCE => {
                    return Err(format!("never known: {code} {body}"));
                }
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

fn whoami(bed: &Bed, gateway: &Running, token: &str) -> Result<(StatusCode, Value), String> {
    bed.runtime.block_on(async {
        let mut request = bed::post(bed::REVIEWS, bed::REVIEW);
        let value = format!("Bearer {token}").parse().map_err(|_| "no header".to_owned())?;
        request.headers_mut().insert("authorization", value);
        let answer = gateway.client().http1(None).await.send(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let code = answer.status();
        let body = serde_json::from_str(&text(answer).await).map_err(|error| error.to_string())?;
        Ok((code, body))
    })
}

fn kubectl(bed: &Bed, gateway: &Running, token: &str, arguments: &[&str]) -> Result<(bool, String), String> {
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let output = Command::new(bed.kubectl()?)
        .env_clear()
        .env("HOME", home.path())
        .arg(format!("--server=https://{}", gateway.address))
        .arg(format!("--certificate-authority={}", bed.file("servers-ca.crt")?.display()))
        .arg(format!("--token={token}"))
        .args(arguments)
        .output()
        .map_err(|error| error.to_string())?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn kubectl_by_flags_and_by_a_file(bed: &Bed) -> Result<(), String> {
    let scene = Scene::new(bed, "kubectl")?;
    let issuer = &scene.provider.issuer;
    let flags = [
        format!("--oidc-issuer-url={issuer}"),
        "--oidc-client-id=kubernetes".to_owned(),
        format!("--oidc-ca-file={}", bed.file("servers-ca.crt")?.display()),
        "--oidc-groups-claim=groups".to_owned(),
        "--oidc-groups-prefix=company:".to_owned(),
        "--oidc-required-claim=email=alice@example.com".to_owned(),
    ];
    let file = format!("--authentication-config={}", scene.configuration(&[&scene.provider])?.display());
    let (alice, bob) = (scene.provider.login("alice")?, scene.provider.login("bob")?);
    for (name, flags) in [("flags", &flags[..]), ("file", std::slice::from_ref(&file))] {
        let gateway = scene.gateway(name, flags)?;
        scene.until_known(&gateway, &alice)?;
        let (succeeded, output) = kubectl(bed, &gateway, &alice, &["auth", "whoami", "--output=json"])?;
        let review: Value = serde_json::from_str(&output).map_err(|_| format!("{name}: {output}"))?;
        let user = &review["status"]["userInfo"];
        let groups = json!(["company:developers", "company:team-alice", "system:authenticated"]);
        if !succeeded || user["username"] != json!(format!("{issuer}#alice")) || user["groups"] != groups {
            return Err(format!("{name}: {review}"));
        }
        // The reference's own words to somebody who is known and may not.
        let (succeeded, output) = kubectl(bed, &gateway, &alice, &["get", "namespaces"])?;
        if succeeded
            || !output.contains(&format!("User \"{issuer}#alice\" cannot list resource \"namespaces\""))
        {
            return Err(format!("{name}: {output}"));
        }
        let (succeeded, output) = kubectl(bed, &gateway, &bob, &["auth", "whoami"])?;
        if succeeded || !output.contains("Unauthorized") {
            return Err(format!("{name}: bob has not the required claim: {output}"));
        }
    }
    Ok(())
}

/// Asks all the time with the tokens it is given, and counts what fails.
struct Load {
    stop: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    failed: Arc<std::sync::Mutex<Vec<String>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(bed: &Bed, gateway: &Running, tokens: &[String]) -> Self {
        let mut load =
            Self { stop: Arc::default(), asked: Arc::default(), failed: Arc::default(), tasks: Vec::new() };
        for token in tokens {
            let (stop, asked, failed) =
                (Arc::clone(&load.stop), Arc::clone(&load.asked), Arc::clone(&load.failed));
            let (client, token) = (gateway.client(), format!("Bearer {token}"));
            let task = bed.runtime.spawn(async move {
                let mut client = client.http1(None).await;
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.get("/api", &[("authorization", token.as_str())]).await;
                    let code = answer.status();
                    let body = text(answer).await;
                    asked.fetch_add(1, Ordering::Relaxed);
                    if code != StatusCode::OK {
                        failed.lock().unwrap().push(format!("{code} {body}"));
                    }
                }
            });
            load.tasks.push(task);
        }
        load
    }

    /// Lets more requests pass.
    fn more(&self) -> Result<(), String> {
        let (before, started) = (self.asked.load(Ordering::Relaxed), Instant::now());
        while self.asked.load(Ordering::Relaxed) < before + 100 {
            if started.elapsed() > bed::PATIENCE {
                return Err("no more requests pass".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn finish(self, bed: &Bed) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            bed.runtime.block_on(task).map_err(|error| error.to_string())?;
        }
        let failed = self.failed.lock().unwrap();
        let asked = self.asked.load(Ordering::Relaxed);
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("{} of {asked} failed: {}", failed.len(), failed[0]))
        }
    }
}

fn keys_are_rotated(bed: &Bed) -> Result<(), String> {
    let scene = Scene::new(bed, "rotation")?;
    let file = scene.configuration(&[&scene.provider])?;
    let gateway = scene.gateway("file", &[format!("--authentication-config={}", file.display())])?;
    let first = scene.provider.login("alice")?;
    scene.until_known(&gateway, &first)?;
    let load = Load::start(bed, &gateway, std::slice::from_ref(&first));
    load.more()?;
    for _ in 0..3 {
        let before = scene.provider.key_fetches()?;
        scene.provider.rotate()?;
        let token = scene.provider.login("alice")?;
        // The very first request with a key that nobody has seen.
        let (code, body) = whoami(bed, &gateway, &token)?;
        if code != StatusCode::CREATED {
            return Err(format!("after a rotation: {code} {body}"));
        }
        let fetches = scene.provider.key_fetches()? - before;
        if fetches != 1 {
            return Err(format!("{fetches} fetches for one new key"));
        }
        load.more()?;
    }
    load.finish(bed)?;
    // A key that is no longer published is no longer known, once another was asked for. Not alice: what she is given
    // within a second is one token, which is remembered.
    let old = scene.provider.login("bob")?;
    scene.provider.rotate()?;
    scene.provider.forget()?;
    let new = scene.provider.login("alice")?;
    let (code, _) = whoami(bed, &gateway, &new)?;
    let (refused, _) = whoami(bed, &gateway, &old)?;
    if (code, refused) != (StatusCode::CREATED, StatusCode::UNAUTHORIZED) {
        return Err(format!("the new key: {code}, the old one: {refused}"));
    }
    Ok(())
}

fn a_second_issuer_comes(bed: &Bed) -> Result<(), String> {
    let scene = Scene::new(bed, "second")?;
    let second = Scene::provider(bed, "second-other")?;
    let file = scene.configuration(&[&scene.provider])?;
    let gateway = scene.gateway("file", &[format!("--authentication-config={}", file.display())])?;
    let (alice, other) = (scene.provider.login("alice")?, second.login("alice")?);
    scene.until_known(&gateway, &alice)?;
    if whoami(bed, &gateway, &other)?.0 != StatusCode::UNAUTHORIZED {
        return Err("the second issuer is known before its time".to_owned());
    }
    let load = Load::start(bed, &gateway, &[alice.clone(), alice.clone(), alice]);
    load.more()?;
    scene.configuration(&[&scene.provider, &second])?;
    scene.until_known(&gateway, &other)?;
    load.more()?;
    // One that cannot be reached leaves everything as it is.
    let gone = Scene::provider(bed, "second-gone")?;
    let file = scene.configuration(&[&scene.provider, &second, &gone])?;
    drop(gone);
    fs::write(&file, fs::read(&file).unwrap()).map_err(|error| error.to_string())?;
    load.more()?;
    if whoami(bed, &gateway, &second.login("alice")?)?.0 != StatusCode::CREATED {
        return Err("the second issuer is gone with the third".to_owned());
    }
    load.finish(bed)
}

fn the_provider_goes_away(bed: &Bed) -> Result<(), String> {
    let scene = Scene::new(bed, "away")?;
    let file = scene.configuration(&[&scene.provider])?;
    let gateway = scene.gateway("file", &[format!("--authentication-config={}", file.display())])?;
    scene.until_known(&gateway, &scene.provider.login("alice")?)?;
    let another = scene.provider.login("alice")?;
    drop(scene.provider);
    let (code, body) = whoami(bed, &gateway, &another)?;
    if code != StatusCode::CREATED {
        return Err(format!("its keys are known: {code} {body}"));
    }
    Ok(())
}
