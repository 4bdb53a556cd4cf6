//! The attacker's process: API servers, clients, and the Secret of a tenant. It waits for the commands of the bench.

mod flood;
mod load;
mod raw_server;
mod servers;
mod tokens;
mod unread_headers;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, Request};
use rustix::process::{Signal, set_parent_process_death_signal};
use testkit::{Pki, open_files};
use tokio::sync::mpsc;

use super::attack::{Attack, FEW_CONNECTIONS};
use super::attacker_process::{BEGIN, END, Target};
use super::secret::secret;
use super::site::{ATTACKER, HELD};
use load::{Load, Reading};
use servers::{LARGE_HEADERS, Servers, UNREAD};

/// Requests in progress on one connection.
const STREAMS: usize = 100;
/// Connections with unread watches, which have smaller windows than other requests.
const WATCHING_CONNECTIONS: usize = 100;
/// Users in the tenant's token file.
const USERS: usize = 30;
/// A token of the tenant's own `system:masters`.
const MASTER_TOKEN: &str = "root-token";
const PAUSE: Duration = Duration::from_millis(100);

/// What clients of the attacker have met, by status code or failure.
#[derive(Clone, Default)]
pub(crate) struct Counts(Arc<Mutex<BTreeMap<String, u64>>>);

impl Counts {
    fn add(&self, outcome: &str) {
        let mut counts = self.0.lock().unwrap();
        match counts.get_mut(outcome) {
            Some(times) => *times += 1,
            None => {
                counts.insert(outcome.to_owned(), 1);
            }
        }
    }

    fn text(&self) -> String {
        let counts = self.0.lock().unwrap();
        let shown = counts.iter().map(|(outcome, times)| format!("{outcome}: {times}; "));
        shown.collect::<Vec<_>>().concat()
    }
}

/// Serves the tenant's API servers, and attacks between the lines of the parent process.
pub(crate) async fn run(attack: Attack) -> ExitCode {
    set_parent_process_death_signal(Some(Signal::KILL)).unwrap();
    open_files::raise_limit();
    let mut lines = input();
    let pki = Pki::new();
    let servers = Servers::start(attack, &pki).await;
    println!("{}", serde_json::to_string(&secret(&pki, &servers.addresses(), &token_file())).unwrap());
    let target: Target = serde_json::from_str(&lines.recv().await.unwrap()).unwrap();
    let counts = Counts::default();
    while let Some(line) = lines.recv().await {
        match line.as_str() {
            BEGIN => begin(attack, &target, &counts),
            END => println!("{}{}", counts.text(), servers.text()),
            _ => break,
        }
    }
    ExitCode::SUCCESS
}

/// The lines of standard input.
fn input() -> mpsc::UnboundedReceiver<String> {
    let (sender, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            sender.send(line).ok();
        }
    });
    lines
}

/// The token of a user of the tenant.
fn token(user: usize) -> String {
    format!("user-{}-token", user % USERS)
}

fn token_file() -> String {
    let users = (0..USERS).map(|user| format!("{},user-{user},{user}\n", token(user)));
    users.chain([format!("{MASTER_TOKEN},root,{USERS},\"system:masters\"\n")]).collect()
}

/// Starts the clients.
fn begin(attack: Attack, target: &Target, counts: &Counts) {
    let gateway = target.gateway;
    let clients = Clients { target, counts };
    match attack {
        Attack::None | Attack::OtherUsers | Attack::ClosingEndpoints => {}
        Attack::KeySet => clients.of_tenant(4, STREAMS, "/api", |_| tokens::made_up()).start(),
        Attack::Uploads => {
            let path = format!("/api/v1/namespaces/n/pods/p/proxy/{UNREAD}");
            Load { uploads: true, ..clients.of_tenant(32, STREAMS, &path, token) }.start();
        }
        Attack::Responses => clients.unread("/api/v1/pods").start(),
        Attack::Watches => {
            let watches = clients.unread("/api/v1/pods?watch=true");
            Load { connections: WATCHING_CONNECTIONS, ..watches }.start();
        }
        Attack::EndlessHeaders => {
            clients.of_tenant(1, USERS, "/api/v1/namespaces/n/pods/p/proxy/", token).start();
        }
        Attack::UnreadHeaders => {
            unread_headers::start(gateway, &tenant_path(LARGE_HEADERS), &token(0), counts);
        }
        Attack::Descriptors => clients.of_tenant(25, STREAMS, &held_path(), token).start(),
        Attack::Audit => flood::start(gateway, &tenant_path("/api/v1/pods/one"), &token(0), counts),
        Attack::Connections => {
            let user = clients.of_operator(2 * FEW_CONNECTIONS, 1, "/own/api");
            Load { pause: Duration::from_millis(500), ..user }.start();
        }
        Attack::Masters => {
            clients.of_tenant(5, STREAMS, &held_path(), |_| MASTER_TOKEN.to_owned()).start();
        }
        Attack::EndpointWatches => {
            clients.of_operator(6, STREAMS, &format!("/own{}?watch=true", held_path())).start();
        }
        Attack::EndpointRequests => clients.of_operator(6, STREAMS, &format!("/own{}", held_path())).start(),
        // On several connections, so that no worker thread is left out.
        Attack::Informational => clients.of_tenant(8, 1, "/api/v1/pods?watch=true", token).start(),
    }
}

/// The path of requests that no API server answers.
fn held_path() -> String {
    format!("/api/v1{HELD}pods")
}

fn tenant_path(path: &str) -> String {
    format!("/clusters/{ATTACKER}{path}")
}

/// Makes loads.
struct Clients<'a> {
    target: &'a Target,
    counts: &'a Counts,
}

impl Clients<'_> {
    /// Requests for the tenant's own cluster, each with the token of its number.
    fn of_tenant(
        &self,
        connections: usize,
        streams: usize,
        path: &str,
        token: impl Fn(usize) -> String + Send + Sync + 'static,
    ) -> Load {
        let path = tenant_path(path);
        self.load(connections, streams, move |number| (path.clone(), token(number)))
    }

    /// Requests of a user of the operator's cluster.
    fn of_operator(&self, connections: usize, streams: usize, path: &str) -> Load {
        let (path, token) = (path.to_owned(), self.target.user_token.clone());
        self.load(connections, streams, move |_| (path.clone(), token.clone()))
    }

    /// Responses that the client does not read.
    fn unread(&self, path: &str) -> Load {
        Load { reading: Reading::Nothing, ..self.of_tenant(32, STREAMS, path, token) }
    }

    fn load(
        &self,
        connections: usize,
        streams: usize,
        each: impl Fn(usize) -> (String, String) + Send + Sync + 'static,
    ) -> Load {
        Load {
            gateway: self.target.gateway,
            connections,
            streams,
            reading: Reading::Everything,
            uploads: false,
            pause: PAUSE,
            request: Arc::new(move |number| {
                let (path, token) = each(number);
                request(&path, &token)
            }),
            counts: self.counts.clone(),
        }
    }
}

/// A request over HTTP/2. An upload is sent as this, too: the pod decides on its method.
fn request(path: &str, token: &str) -> Request<()> {
    Request::builder()
        .method(Method::GET)
        .uri(format!("https://localhost{path}"))
        .header("authorization", format!("Bearer {token}"))
        .body(())
        .unwrap()
}
