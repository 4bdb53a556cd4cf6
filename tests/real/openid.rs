//! Users of a real OpenID provider with kubectl, through the gateway to a real kube-apiserver: with `--oidc-*` flags
//! and with an equal `AuthenticationConfiguration`, during key rotation, a reload and an outage of the provider.

mod another_provider;
mod certificates;
mod dex;
mod go_provider;
mod login;
mod provider;
mod transcript;

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::StatusCode;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use testkit::real::START_TIMEOUT;
use testkit::text;

use crate::servers::{FRONT_PROXY, HeaderFlags, REVIEW, REVIEWS, RealGateway, RealServers, post};
pub(crate) use provider::{Provider, absent};

/// The tests of this group.
pub(crate) fn trials(trial: &dyn Fn(&str, crate::Test) -> Trial) -> Vec<Trial> {
    let mut trials = vec![
        trial("kubectl by flags and by a configuration file", Box::new(kubectl_by_flags_and_by_a_file)),
        trial("keys are rotated without a failed request", Box::new(keys_are_rotated)),
        trial("a second issuer comes by a reload without a failed request", Box::new(a_second_issuer_comes)),
        trial("the provider goes away", Box::new(the_provider_goes_away)),
        trial("from an empty home to kubectl", Box::new(login::from_an_empty_home_to_kubectl)),
        trial("contexts of one login", Box::new(login::contexts_of_one_login)),
        trial("the transcript of the page", Box::new(transcript::the_transcript_is_what_a_user_sees)),
        trial("the quick start of README", Box::new(transcript::the_quick_start)),
        trial("a revoked login and a new one", Box::new(login::a_revoked_login_and_a_new_one)),
        trial(
            "a login with a provider of another make",
            Box::new(another_provider::a_login_with_a_provider_of_another_make),
        ),
        trial("a device code, and a user who may not", Box::new(login::a_device_code_and_a_user_who_may_not)),
        trial("certificates in place of tokens", Box::new(certificates::certificates_in_place_of_tokens)),
    ];
    // The modules of Dex are many: tests/go/README.md.
    if std::env::var_os("PORTCULLIS_DEX").is_some() {
        trials.push(trial("a login with Dex", Box::new(dex::a_login_with_dex)));
    }
    trials
}

/// A provider, and a gateway in front of a real server.
struct ProviderSetup<'a> {
    servers: &'a RealServers,
    name: &'static str,
    provider: Provider,
}

impl<'a> ProviderSetup<'a> {
    fn new(servers: &'a RealServers, name: &'static str) -> Result<Self, String> {
        Ok(Self { servers, name, provider: Self::provider(servers, name)? })
    }

    fn provider(servers: &RealServers, name: &str) -> Result<Provider, String> {
        let log = servers.file(&format!("{name}-provider.log"))?;
        Provider::start(&servers.file("server.crt")?, &servers.file("server.key")?, &log)
    }

    fn gateway(&self, name: &str, flags: &[String]) -> Result<RealGateway, String> {
        let server = self.servers.server(HeaderFlags::Good)?;
        let gateway = self.servers.gateway_with(
            &format!("{} {name}", self.name),
            server.address,
            &FRONT_PROXY,
            flags,
        )?;
        gateway.line_with(&["self-check passed"])?;
        Ok(gateway)
    }

    fn configuration(&self, issuers: &[&Provider]) -> Result<PathBuf, String> {
        let authorities =
            fs::read_to_string(self.servers.file("servers-ca.crt")?).map_err(|error| error.to_string())?;
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
        let file = self.servers.file(&format!("{}-authentication.yaml", self.name))?;
        let partial = file.with_extension("partial");
        fs::write(&partial, configuration.to_string()).map_err(|error| error.to_string())?;
        fs::rename(partial, &file).map_err(|error| error.to_string())?;
        Ok(file)
    }

    /// Waits until a token is accepted: the gateway fetches the keys of an issuer in the background.
    fn until_known(&self, gateway: &RealGateway, token: &str) -> Result<(), String> {
        let started = Instant::now();
        loop {
            match whoami(self.servers, gateway, token)? {
                (StatusCode::CREATED, _) => return Ok(()),
                (code, body) if started.elapsed() > START_TIMEOUT => {
                    return Err(format!("never known: {code} {body}"));
                }
                _ => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }
}

fn whoami(servers: &RealServers, gateway: &RealGateway, token: &str) -> Result<(StatusCode, Value), String> {
    servers.runtime().block_on(async {
        let mut request = post(REVIEWS, REVIEW);
        let value = format!("Bearer {token}").parse().map_err(|_| "no header".to_owned())?;
        request.headers_mut().insert("authorization", value);
        let answer = gateway.client().http1(None).await.send(request).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let code = answer.status();
        let body = serde_json::from_str(&text(answer).await).map_err(|error| error.to_string())?;
        Ok((code, body))
    })
}

fn kubectl(
    servers: &RealServers,
    gateway: &RealGateway,
    token: &str,
    arguments: &[&str],
) -> Result<(bool, String), String> {
    let home = tempfile::tempdir().map_err(|error| error.to_string())?;
    let output = Command::new(servers.kubectl()?)
        .env_clear()
        .env("HOME", home.path())
        .arg(format!("--server=https://{}", gateway.address))
        .arg(format!("--certificate-authority={}", servers.file("servers-ca.crt")?.display()))
        .arg(format!("--token={token}"))
        .args(arguments)
        .output()
        .map_err(|error| error.to_string())?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

fn kubectl_by_flags_and_by_a_file(servers: &RealServers) -> Result<(), String> {
    let setup = ProviderSetup::new(servers, "kubectl")?;
    let issuer = &setup.provider.issuer;
    let flags = [
        format!("--oidc-issuer-url={issuer}"),
        "--oidc-client-id=kubernetes".to_owned(),
        format!("--oidc-ca-file={}", servers.file("servers-ca.crt")?.display()),
        "--oidc-groups-claim=groups".to_owned(),
        "--oidc-groups-prefix=company:".to_owned(),
        "--oidc-required-claim=email=alice@example.com".to_owned(),
    ];
    let file = format!("--authentication-config={}", setup.configuration(&[&setup.provider])?.display());
    let (alice, bob) = (setup.provider.login("alice")?, setup.provider.login("bob")?);
    for (name, flags) in [("flags", &flags[..]), ("file", std::slice::from_ref(&file))] {
        let gateway = setup.gateway(name, flags)?;
        setup.until_known(&gateway, &alice)?;
        let (succeeded, output) = kubectl(servers, &gateway, &alice, &["auth", "whoami", "--output=json"])?;
        let review: Value = serde_json::from_str(&output).map_err(|_| format!("{name}: {output}"))?;
        let user = &review["status"]["userInfo"];
        let groups = json!(["company:developers", "company:team-alice", "system:authenticated"]);
        if !succeeded || user["username"] != json!(format!("{issuer}#alice")) || user["groups"] != groups {
            return Err(format!("{name}: {review}"));
        }
        // The message of kube-apiserver for a user without permission.
        let (succeeded, output) = kubectl(servers, &gateway, &alice, &["get", "namespaces"])?;
        if succeeded
            || !output.contains(&format!("User \"{issuer}#alice\" cannot list resource \"namespaces\""))
        {
            return Err(format!("{name}: {output}"));
        }
        let (succeeded, output) = kubectl(servers, &gateway, &bob, &["auth", "whoami"])?;
        if succeeded || !output.contains("Unauthorized") {
            return Err(format!("{name}: bob has not the required claim: {output}"));
        }
    }
    Ok(())
}

/// Sends requests with these tokens until `finish`, and counts failures.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    failed: Arc<std::sync::Mutex<Vec<String>>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(servers: &RealServers, gateway: &RealGateway, tokens: &[String]) -> Self {
        let mut load =
            Self { stop: Arc::default(), sent: Arc::default(), failed: Arc::default(), tasks: Vec::new() };
        for token in tokens {
            let (stop, sent, failed) =
                (Arc::clone(&load.stop), Arc::clone(&load.sent), Arc::clone(&load.failed));
            let (client, token) = (gateway.client(), format!("Bearer {token}"));
            let task = servers.runtime().spawn(async move {
                let mut client = client.http1(None).await;
                while !stop.load(Ordering::Relaxed) {
                    let answer = client.get("/api", &[("authorization", token.as_str())]).await;
                    let code = answer.status();
                    let body = text(answer).await;
                    sent.fetch_add(1, Ordering::Relaxed);
                    if code != StatusCode::OK {
                        failed.lock().unwrap().push(format!("{code} {body}"));
                    }
                }
            });
            load.tasks.push(task);
        }
        load
    }

    /// Waits for more requests.
    fn wait_for_more(&self) -> Result<(), String> {
        let (before, started) = (self.sent.load(Ordering::Relaxed), Instant::now());
        while self.sent.load(Ordering::Relaxed) < before + 100 {
            if started.elapsed() > START_TIMEOUT {
                return Err("no more requests pass".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn finish(self, servers: &RealServers) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            servers.runtime().block_on(task).map_err(|error| error.to_string())?;
        }
        let failed = self.failed.lock().unwrap();
        let sent = self.sent.load(Ordering::Relaxed);
        if failed.is_empty() {
            Ok(())
        } else {
            Err(format!("{} of {sent} failed: {}", failed.len(), failed[0]))
        }
    }
}

fn keys_are_rotated(servers: &RealServers) -> Result<(), String> {
    let setup = ProviderSetup::new(servers, "rotation")?;
    let file = setup.configuration(&[&setup.provider])?;
    let gateway = setup.gateway("file", &[format!("--authentication-config={}", file.display())])?;
    let first = setup.provider.login("alice")?;
    setup.until_known(&gateway, &first)?;
    let load = Load::start(servers, &gateway, std::slice::from_ref(&first));
    load.wait_for_more()?;
    let mut used = vec![first];
    for _ in 0..3 {
        let before = setup.provider.key_fetches()?;
        setup.provider.rotate()?;
        let token = setup.provider.login("alice")?;
        // The first request with a new key.
        let (code, body) = whoami(servers, &gateway, &token)?;
        if code != StatusCode::CREATED {
            return Err(format!("after a rotation: {code} {body}"));
        }
        used.push(token);
        let fetches = setup.provider.key_fetches()? - before;
        if fetches != 1 {
            return Err(format!("{fetches} fetches for one new key"));
        }
        load.wait_for_more()?;
    }
    load.finish(servers)?;
    // The gateway rejects tokens of a removed key once it has fetched the keys again. Two logins within a second return the
    // same token, which the gateway has in its cache.
    let old = loop {
        let token = setup.provider.login("alice")?;
        if !used.contains(&token) {
            break token;
        }
    };
    setup.provider.rotate()?;
    setup.provider.forget()?;
    let new = setup.provider.login("alice")?;
    let (code, _) = whoami(servers, &gateway, &new)?;
    let (refused, _) = whoami(servers, &gateway, &old)?;
    if (code, refused) != (StatusCode::CREATED, StatusCode::UNAUTHORIZED) {
        return Err(format!("the new key: {code}, the old one: {refused}"));
    }
    Ok(())
}

fn a_second_issuer_comes(servers: &RealServers) -> Result<(), String> {
    let setup = ProviderSetup::new(servers, "second")?;
    let second = ProviderSetup::provider(servers, "second-other")?;
    let file = setup.configuration(&[&setup.provider])?;
    let gateway = setup.gateway("file", &[format!("--authentication-config={}", file.display())])?;
    let (alice, other) = (setup.provider.login("alice")?, second.login("alice")?);
    setup.until_known(&gateway, &alice)?;
    if whoami(servers, &gateway, &other)?.0 != StatusCode::UNAUTHORIZED {
        return Err("the second issuer is known before its time".to_owned());
    }
    let load = Load::start(servers, &gateway, &[alice.clone(), alice.clone(), alice]);
    load.wait_for_more()?;
    setup.configuration(&[&setup.provider, &second])?;
    setup.until_known(&gateway, &other)?;
    load.wait_for_more()?;
    // An unreachable issuer does not affect the others.
    let unreachable = ProviderSetup::provider(servers, "second-gone")?;
    let file = setup.configuration(&[&setup.provider, &second, &unreachable])?;
    drop(unreachable);
    fs::write(&file, fs::read(&file).unwrap()).map_err(|error| error.to_string())?;
    load.wait_for_more()?;
    if whoami(servers, &gateway, &second.login("alice")?)?.0 != StatusCode::CREATED {
        return Err("the second issuer is gone with the third".to_owned());
    }
    load.finish(servers)
}

fn the_provider_goes_away(servers: &RealServers) -> Result<(), String> {
    let setup = ProviderSetup::new(servers, "away")?;
    let file = setup.configuration(&[&setup.provider])?;
    let gateway = setup.gateway("file", &[format!("--authentication-config={}", file.display())])?;
    setup.until_known(&gateway, &setup.provider.login("alice")?)?;
    let another = setup.provider.login("alice")?;
    drop(setup.provider);
    let (code, body) = whoami(servers, &gateway, &another)?;
    if code != StatusCode::CREATED {
        return Err(format!("its keys are known: {code} {body}"));
    }
    Ok(())
}
