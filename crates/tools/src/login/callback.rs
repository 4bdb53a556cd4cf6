//! The loopback listener that receives the redirect from the browser: RFC 8252, section 7.3.
//!
//! Every program and user of the machine, and every web page in the browser, can reach it. It accepts one redirect, that
//! with the state of this login; the code in it is worthless without the PKCE verifier, which never leaves this process.
//! The login begins at an address of the listener, so that another user who has read it is refused where the system tells users apart. Where it
//! does not, the address works once: the login ends as soon as a second one opens it, and one who completes the login before that is seen
//! only by the account that the login prints.
// threat: forged-callback

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::select_all;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderMap, HeaderName,
    HeaderValue, LOCATION, ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use openidconnect::CsrfToken;
use openidconnect::url::form_urlencoded;
use portcullis_system::platform::{self, PeerUser, peer_user};
use portcullis_system::sync::lock;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::error::{CallbackError, ProviderRefusal, shortened};
use super::settings::CallbackHost;

pub(super) const PATH: &str = "/callback";
/// Open connections. One more closes the one that has waited longest for its request.
const MAX_CONNECTIONS: usize = 128;
/// How long the header of a request may take: it comes from the same machine.
const HEADER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection may take to send its request and receive the page.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request: codes have some hundred bytes.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// How often another free port is tried, if the system's choice is taken on the other loopback address.
const MAX_PORT_ATTEMPTS: usize = 16;
/// The bytes of the random path of the start address.
const START_PATH_BYTES: u32 = 32;
/// What another user of the machine reads.
const OTHER_USER: &str =
    "This is the login of another user of this machine. Open the address as the user who runs the command.";
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// By which browsers say that they fetch a page that the user may never see: Fetch Metadata's `Sec-Purpose`, and the older
/// names of Chromium, Safari and Firefox.
const PURPOSES: [HeaderName; 4] = [
    HeaderName::from_static("sec-purpose"),
    HeaderName::from_static("purpose"),
    HeaderName::from_static("x-purpose"),
    HeaderName::from_static("x-moz"),
];

/// What the redirect must say.
#[derive(Debug, Clone)]
pub(super) struct ExpectedCallback {
    pub(super) state: SecretString,
    pub(super) issuer: String,
    /// The provider announces `iss` in its redirects.
    pub(super) has_issuer: bool,
}

/// The outcome of the redirect with the right state.
#[derive(Debug)]
pub(super) enum Callback {
    Code(SecretString),
    Refused(ProviderRefusal),
}

/// The listener, before the login begins.
#[derive(Debug)]
pub(super) struct CallbackListener {
    /// One, or one for each loopback address that `localhost` stands for.
    listeners: Vec<TcpListener>,
    host: String,
}

impl CallbackListener {
    /// Listens on the first free port.
    pub(super) async fn bind(host: CallbackHost, ports: &[u16]) -> Result<Self, CallbackError> {
        const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
        const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
        let (addresses, name): (&[IpAddr], _) = match host {
            CallbackHost::Ipv4 => (&[V4], "127.0.0.1"),
            CallbackHost::Ipv6 => (&[V6], "[::1]"),
            CallbackHost::Localhost => (&[V4, V6], "localhost"),
        };
        let mut cause = io::Error::other("no port is given");
        for port in ports {
            match bind_all(addresses, *port).await {
                Ok((port, listeners)) => return Ok(Self { listeners, host: format!("{name}:{port}") }),
                Err(error) => cause = error,
            }
        }
        let ports = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        Err(CallbackError::Ports { host: addresses.join(" and "), ports, cause })
    }

    /// The redirect URL.
    pub(super) fn redirect_url(&self) -> String {
        format!("http://{}{PATH}", self.host)
    }

    /// Serves the redirect of this login, and an address that leads to `authorization_url`. Until the server is dropped, every
    /// other request gets an answer that changes nothing.
    pub(super) fn serve(self, expected: ExpectedCallback, authorization_url: &str) -> CallbackServer {
        self.serve_users(expected, authorization_url, peer_user)
    }

    /// The same; `user_of` says whose a connection is, of which it gets this and the other address.
    fn serve_users(
        self,
        expected: ExpectedCallback,
        authorization_url: &str,
        user_of: impl Fn(SocketAddr, SocketAddr) -> PeerUser + Send + Sync + 'static,
    ) -> CallbackServer {
        let (sender, outcome) = mpsc::channel(1);
        let path = format!("/{}", CsrfToken::new_random_len(START_PATH_BYTES).secret());
        let start_url = format!("http://{}{path}", self.host);
        let desk = Arc::new(CallbackDesk {
            host: self.host,
            start: StartPage {
                path: SecretString::from(path),
                authorization_url: SecretString::from(authorization_url),
                opened: Mutex::default(),
            },
            expected,
            user_of: Box::new(user_of),
            sender: Mutex::new(Some(sender)),
            answered: Notify::new(),
        });
        let mut task = JoinSet::new();
        task.spawn(accept_all(self.listeners, Arc::clone(&desk)));
        CallbackServer { desk, start_url, outcome, _task: task }
    }
}

/// Listens on the same port of all these addresses that the machine has. A port that another program has on one of them is
/// taken: the browser may try that address first.
// threat: forged-callback
async fn bind_all(addresses: &[IpAddr], port: u16) -> io::Result<(u16, Vec<TcpListener>)> {
    let mut bound = bind_once(addresses, port).await;
    for _ in 1..MAX_PORT_ATTEMPTS {
        if port != 0 || bound.is_ok() {
            break;
        }
        bound = bind_once(addresses, port).await;
    }
    bound
}

async fn bind_once(addresses: &[IpAddr], mut port: u16) -> io::Result<(u16, Vec<TcpListener>)> {
    let mut listeners = Vec::new();
    let mut absent = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in addresses {
        match TcpListener::bind(SocketAddr::new(*address, port)).await {
            Ok(listener) => {
                port = listener.local_addr()?.port();
                listeners.push(listener);
            }
            Err(error) if is_absent(&error) => absent = error,
            Err(error) => return Err(error),
        }
    }
    if listeners.is_empty() { Err(absent) } else { Ok((port, listeners)) }
}

/// Whether an address cannot be listened to because the machine does not have it: one without IPv6 has no `::1`. Another user who
/// occupies its ports must not make it look so.
fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable || platform::is_unknown_family(error)
}

/// The server of one login, which ends when it is dropped.
pub(super) struct CallbackServer {
    desk: Arc<CallbackDesk>,
    start_url: String,
    outcome: mpsc::Receiver<Result<Callback, CallbackError>>,
    /// Accepts the connections.
    _task: JoinSet<()>,
}

impl CallbackServer {
    /// The address for the browser. It is for the user alone, or counts once where users of connections are not known: the URL
    /// of the provider, to which it leads, would let another user of the machine who sees it in the process list complete the
    /// login unnoticed.
    // threat: forged-callback
    pub(super) fn start_url(&self) -> &str {
        &self.start_url
    }

    /// Waits for the redirect of this login.
    pub(super) async fn wait(&mut self) -> Result<Callback, CallbackError> {
        let outcome = self.outcome.recv().await.unwrap_or(Err(CallbackError::Ended));
        // The browser shows the page before the command continues.
        timeout(CONNECTION_TIMEOUT, self.desk.answered.notified()).await.ok();
        outcome
    }

    /// Fails if another one has opened the start address, or may have, also after the redirect: who was faster than the user's
    /// browser is not the user.
    pub(super) fn check_start(&self) -> Result<(), CallbackError> {
        lock(&self.desk.start.opened).check()
    }
}

/// Accepts connections without end. None keeps another one out: silent and slow ones make place.
async fn accept_all(mut listeners: Vec<TcpListener>, desk: Arc<CallbackDesk>) {
    let mut connections = OpenConnections::default();
    loop {
        // Another one first each time, so that a flood of one address does not keep the other from being served.
        listeners.rotate_left(1);
        let accepts = listeners.iter().map(|listener| Box::pin(listener.accept()));
        match select_all(accepts).await.0 {
            Ok((stream, _)) => connections.add(stream, &desk),
            // Connections that end free some.
            Err(error) if platform::is_exhausted(&error) => sleep(Duration::from_millis(100)).await,
            // Of a connection that its client has given up: the next one must not wait for it.
            Err(_) => {}
        }
        // The connection reads what has arrived before the next ones can take its place.
        yield_now().await;
    }
}

/// The connections, each with a task of its own.
#[derive(Default)]
struct OpenConnections {
    tasks: JoinSet<()>,
    oldest_first: VecDeque<OpenConnection>,
}

struct OpenConnection {
    task: AbortHandle,
    /// Whether it has sent a whole request.
    has_request: Arc<AtomicBool>,
}

impl OpenConnections {
    /// Serves a connection. In a full house, it takes the place of the one that has waited longest without a whole request.
    fn add(&mut self, stream: TcpStream, desk: &Arc<CallbackDesk>) {
        while self.tasks.try_join_next().is_some() {}
        self.oldest_first.retain(|connection| !connection.task.is_finished());
        if self.oldest_first.len() >= MAX_CONNECTIONS {
            let waits = |connection: &OpenConnection| !connection.has_request.load(Ordering::Relaxed);
            let evicted = self.oldest_first.iter().position(waits).unwrap_or(0);
            if let Some(evicted) = self.oldest_first.remove(evicted) {
                evicted.task.abort();
            }
        }
        let (desk, has_request) = (Arc::clone(desk), Arc::new(AtomicBool::new(false)));
        let requested = Arc::clone(&has_request);
        let task = self.tasks.spawn(async move { desk.serve(stream, &requested).await });
        self.oldest_first.push_back(OpenConnection { task, has_request });
    }
}

/// Answers the requests to the listener.
struct CallbackDesk {
    host: String,
    start: StartPage,
    expected: ExpectedCallback,
    /// Whose a connection is, of which this gets this and the other address.
    user_of: Box<dyn Fn(SocketAddr, SocketAddr) -> PeerUser + Send + Sync>,
    /// Taken by the first redirect with the right state.
    sender: Mutex<Option<mpsc::Sender<Result<Callback, CallbackError>>>>,
    /// The connection that has carried the outcome has ended.
    answered: Notify,
}

/// The address that leads to the provider.
struct StartPage {
    path: SecretString,
    /// With the state and the challenge: it is not for logs.
    authorization_url: SecretString,
    opened: Mutex<StartUses>,
}

/// Who has opened the start address.
#[derive(Debug, Default)]
struct StartUses {
    is_opened: bool,
    /// By one who may be another user.
    is_by_unknown: bool,
    /// One of several, of whom one may be another user.
    is_by_several: bool,
    is_by_other_user: bool,
}

impl StartUses {
    /// The user may open the address as often as programs of the desktop and several browsers do. One who is not known may
    /// be another user, and opens it alone.
    fn add(&mut self, user: PeerUser) {
        let is_first = !self.is_opened;
        match user {
            PeerUser::Other => {
                self.is_by_other_user = true;
                return;
            }
            PeerUser::Own => self.is_by_several |= self.is_by_unknown,
            PeerUser::Unknown => {
                self.is_by_several |= !is_first;
                self.is_by_unknown = true;
            }
        }
        self.is_opened = true;
    }

    fn check(&self) -> Result<(), CallbackError> {
        match self {
            Self { is_by_other_user: true, .. } => Err(CallbackError::OtherUser),
            Self { is_by_several: true, .. } => Err(CallbackError::StartedTwice),
            _ => Ok(()),
        }
    }
}

impl CallbackDesk {
    /// Serves a connection.
    async fn serve(&self, stream: TcpStream, has_request: &AtomicBool) {
        let carried = AtomicBool::new(false);
        let addresses = stream.local_addr().ok().zip(stream.peer_addr().ok());
        // Asked for only where it matters: the table of all connections may be long.
        let user = || addresses.map_or(PeerUser::Unknown, |(local, peer)| (self.user_of)(local, peer));
        let service = service_fn(|request| {
            has_request.store(true, Ordering::Relaxed);
            let was_expected = lock(&self.sender).is_some();
            let answer = self.answer(&request, user);
            if was_expected && lock(&self.sender).is_none() {
                carried.store(true, Ordering::Relaxed);
            }
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(MAX_REQUEST_BYTES)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        // A broken connection is the browser's.
        timeout(CONNECTION_TIMEOUT, connection).await.ok();
        if carried.load(Ordering::Relaxed) {
            self.answered.notify_one();
        }
    }

    fn answer<B>(&self, request: &Request<B>, user: impl Fn() -> PeerUser) -> Response<Full<Bytes>> {
        let header = |name: HeaderName| request.headers().get(name);
        // A page of another origin under a name that resolves to this machine (DNS rebinding).
        if header(HOST).is_none_or(|host| host != self.host.as_str()) {
            return page(StatusCode::MISDIRECTED_REQUEST, "This is not the address of the login.");
        }
        let path = request.uri().path();
        let is_start = is_equal(path, &self.start.path);
        if path != PATH && !is_start {
            return page(StatusCode::NOT_FOUND, "There is nothing here.");
        }
        if request.method() != Method::GET {
            return page(StatusCode::METHOD_NOT_ALLOWED, "The provider must redirect with GET.");
        }
        // The browser navigates; scripts, images and frames of other pages do not.
        if header(ORIGIN).is_some() || header(SEC_FETCH_DEST).is_some_and(|dest| dest != "document") {
            return page(StatusCode::FORBIDDEN, "Only the redirect of the provider is accepted.");
        }
        if !is_start {
            return self.receive(request.uri().query().unwrap_or_default(), user);
        }
        if is_prefetch(request.headers()) {
            return page(StatusCode::SERVICE_UNAVAILABLE, "This address counts once, when it is opened.");
        }
        self.begin(user())
    }

    /// Leads to the provider. Another user who opens the address ends the login, and so does a second one where users are not
    /// known: one of the two is not the user.
    // threat: forged-callback
    fn begin(&self, user: PeerUser) -> Response<Full<Bytes>> {
        let checked = {
            let mut opened = lock(&self.start.opened);
            opened.add(user);
            opened.check()
        };
        if let Err(error) = checked {
            if let Some(sender) = lock(&self.sender).take() {
                sender.try_send(Err(error)).ok();
            }
            if user == PeerUser::Other {
                return page(StatusCode::FORBIDDEN, OTHER_USER);
            }
            return page(
                StatusCode::GONE,
                "Somebody else may have used this address: another user or program of this machine. The login in the \
                 terminal has ended; repeat the command.",
            );
        }
        let Ok(url) = HeaderValue::from_str(self.start.authorization_url.expose_secret()) else {
            return page(StatusCode::BAD_GATEWAY, "The address of the provider cannot be sent to a browser.");
        };
        let mut response = page(StatusCode::FOUND, "The login goes on at the provider.");
        response.headers_mut().insert(LOCATION, url);
        response
    }

    fn receive(&self, query: &str, user: impl Fn() -> PeerUser) -> Response<Full<Bytes>> {
        let parameters = match unique(query) {
            Ok(parameters) => parameters,
            Err(name) => {
                return page(StatusCode::BAD_REQUEST, &format!("The redirect repeats the parameter {name}."));
            }
        };
        let state = parameters.get("state").map(String::as_str).unwrap_or_default();
        if !is_equal(state, &self.expected.state) {
            return page(
                StatusCode::BAD_REQUEST,
                "This redirect belongs to another login, or was forged. The login in the terminal goes on.",
            );
        }
        if user() == PeerUser::Other {
            return page(StatusCode::FORBIDDEN, OTHER_USER);
        }
        let Some(sender) = lock(&self.sender).take() else {
            return page(StatusCode::GONE, "This login has already been completed.");
        };
        let outcome = self.expected.outcome(&parameters);
        let answer = match &outcome {
            Ok(Callback::Code(_)) => page(
                StatusCode::OK,
                "The login is complete. You can close this page; the terminal shows whether it succeeded.",
            ),
            Ok(Callback::Refused(_)) | Err(_) => page(
                StatusCode::BAD_REQUEST,
                "The login has failed. The terminal shows why. You can close this page.",
            ),
        };
        // The receiver is gone only when the command ends.
        sender.try_send(outcome).ok();
        answer
    }
}

impl ExpectedCallback {
    /// The outcome of a redirect with the right state.
    // threat: issuer-mix-up
    pub(super) fn outcome(&self, parameters: &BTreeMap<String, String>) -> Result<Callback, CallbackError> {
        match parameters.get("iss") {
            Some(issuer) if *issuer != self.issuer => return Err(CallbackError::Issuer(shortened(issuer))),
            None if self.has_issuer => return Err(CallbackError::NoIssuer),
            _ => {}
        }
        if let Some(code) = parameters.get("error") {
            let description = parameters.get("error_description").cloned();
            return Ok(Callback::Refused(ProviderRefusal { code: code.clone(), description }));
        }
        let code = parameters.get("code").filter(|code| !code.is_empty()).ok_or(CallbackError::NoCode)?;
        Ok(Callback::Code(SecretString::from(code.as_str())))
    }
}

/// The parameters of a query, or the name of one that is repeated.
pub(super) fn unique(query: &str) -> Result<BTreeMap<String, String>, &'static str> {
    const KNOWN: [&str; 5] = ["state", "code", "error", "error_description", "iss"];
    let mut parameters = BTreeMap::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        // Others are ignored, RFC 6749, section 4.1.2.
        let Some(name) = KNOWN.into_iter().find(|known| *known == name) else { continue };
        if parameters.insert(name.to_owned(), value.into_owned()).is_some() {
            return Err(name);
        }
    }
    Ok(parameters)
}

/// Whether a browser fetches a page before the user opens it.
fn is_prefetch(headers: &HeaderMap) -> bool {
    let is_early = |value: &HeaderValue| {
        let value = value.to_str().unwrap_or_default().to_ascii_lowercase();
        ["prefetch", "preload", "prerender", "preview"].iter().any(|purpose| value.contains(purpose))
    };
    PURPOSES.iter().any(|name| headers.get_all(name).iter().any(is_early))
}

/// Compares in constant time: everyone on the machine can try.
pub(super) fn is_equal(text: &str, secret: &SecretString) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(text.as_bytes(), secret.expose_secret().as_bytes())
        .is_ok()
}

/// A page without scripts, styles or references. The texts are ours, or parameter names.
fn page(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    let body = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Portcullis login</title>\n<h1>Portcullis login</h1>\n<p>{text}</p>\n</html>\n"
    );
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, "no-store"),
        (
            CONTENT_SECURITY_POLICY,
            "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
        ),
        (REFERRER_POLICY, "no-referrer"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (CONNECTION, "close"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
    }
    response
}

#[cfg(test)]
mod tests;
