//! The loopback listener that receives the redirect from the browser: RFC 8252, section 7.3.
//!
//! Every program and user of the machine, and every web page in the browser, can reach it. It accepts one redirect, that
//! with the state of this login; the code in it is worthless without the PKCE verifier, which never leaves this process.
// threat: forged-callback

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HOST, HeaderName, HeaderValue,
    ORIGIN, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use openidconnect::url::form_urlencoded;
use portcullis_system::sync::lock;
use secrecy::SecretString;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::error::{CallbackError, ProviderRefusal, shortened};
use super::settings::CallbackHost;

pub(super) const PATH: &str = "/callback";
/// Connections at the same time; more wait in the backlog.
const MAX_CONNECTIONS: usize = 16;
/// How long a connection may take to send its request and receive the page.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request: codes have some hundred bytes.
const MAX_REQUEST_BYTES: usize = 16 << 10;
const SEC_FETCH_DEST: HeaderName = HeaderName::from_static("sec-fetch-dest");

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
    listener: TcpListener,
    host: String,
}

impl CallbackListener {
    /// Listens on the first free port.
    pub(super) async fn bind(host: CallbackHost, ports: &[u16]) -> Result<Self, CallbackError> {
        let (address, name) = match host {
            CallbackHost::Ipv4 => (IpAddr::from(Ipv4Addr::LOCALHOST), "127.0.0.1"),
            CallbackHost::Ipv6 => (IpAddr::from(Ipv6Addr::LOCALHOST), "[::1]"),
            CallbackHost::Localhost => (IpAddr::from(Ipv4Addr::LOCALHOST), "localhost"),
        };
        let mut cause = std::io::Error::other("no port is given");
        for port in ports {
            let bound = TcpListener::bind(SocketAddr::new(address, *port)).await;
            match bound.and_then(|listener| Ok((listener.local_addr()?.port(), listener))) {
                Ok((port, listener)) => return Ok(Self { listener, host: format!("{name}:{port}") }),
                Err(error) => cause = error,
            }
        }
        let ports = ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        Err(CallbackError::Ports { host: address, ports, cause })
    }

    /// The redirect URL.
    pub(super) fn redirect_url(&self) -> String {
        format!("http://{}{PATH}", self.host)
    }

    /// Waits for the redirect of this login. Every other request gets an answer that changes nothing.
    pub(super) async fn wait(self, expected: ExpectedCallback) -> Result<Callback, CallbackError> {
        let (sender, mut receiver) = mpsc::channel(1);
        let desk = Arc::new(CallbackDesk { host: self.host, expected, sender: Mutex::new(Some(sender)) });
        let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let place = Arc::clone(&places).acquire_owned();
            let accepted = async {
                // Never closed.
                let place = place.await.ok();
                (self.listener.accept().await, place)
            };
            tokio::select! {
                // Before the end of the connection that has carried the redirect.
                biased;
                outcome = receiver.recv() => {
                    // The browser shows the page before the command continues; nothing else is accepted. Browsers open
                    // spare connections, on which nothing comes.
                    drop(self.listener);
                    let answered = async {
                        while connections.join_next().await.is_some_and(|carried| !carried.unwrap_or(false)) {}
                    };
                    timeout(CONNECTION_TIMEOUT, answered).await.ok();
                    return outcome.unwrap_or(Err(CallbackError::Ended));
                }
                (accepted, place) = accepted => {
                    let Ok((stream, _)) = accepted else {
                        // Out of file descriptors: connections that end free some.
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        continue;
                    };
                    let desk = Arc::clone(&desk);
                    connections.spawn(async move {
                        let carried = timeout(CONNECTION_TIMEOUT, desk.serve(stream)).await;
                        drop(place);
                        carried.unwrap_or(false)
                    });
                }
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

/// Answers the requests to the listener.
struct CallbackDesk {
    host: String,
    expected: ExpectedCallback,
    /// Taken by the first redirect with the right state.
    sender: Mutex<Option<mpsc::Sender<Result<Callback, CallbackError>>>>,
}

impl CallbackDesk {
    /// Serves a connection. Returns whether it has carried the redirect of the login.
    async fn serve(&self, stream: TcpStream) -> bool {
        let carried = AtomicBool::new(false);
        let service = service_fn(|request| {
            let was_expected = lock(&self.sender).is_some();
            let answer = self.answer(&request);
            if was_expected && lock(&self.sender).is_none() {
                carried.store(true, Ordering::Relaxed);
            }
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(CONNECTION_TIMEOUT)
            .max_buf_size(MAX_REQUEST_BYTES)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), service);
        // A broken connection is the browser's.
        connection.await.ok();
        carried.load(Ordering::Relaxed)
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let header = |name: HeaderName| request.headers().get(name);
        // A page of another origin under a name that resolves to this machine (DNS rebinding).
        if header(HOST).is_none_or(|host| host != self.host.as_str()) {
            return page(StatusCode::MISDIRECTED_REQUEST, "This is not the address of the login.");
        }
        if request.uri().path() != PATH {
            return page(StatusCode::NOT_FOUND, "There is nothing here.");
        }
        if request.method() != Method::GET {
            return page(StatusCode::METHOD_NOT_ALLOWED, "The provider must redirect with GET.");
        }
        // The browser navigates; scripts, images and frames of other pages do not.
        if header(ORIGIN).is_some() || header(SEC_FETCH_DEST).is_some_and(|dest| dest != "document") {
            return page(StatusCode::FORBIDDEN, "Only the redirect of the provider is accepted.");
        }
        self.receive(request.uri().query().unwrap_or_default())
    }

    fn receive(&self, query: &str) -> Response<Full<Bytes>> {
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

/// Compares in constant time: everyone on the machine can try.
pub(super) fn is_equal(text: &str, secret: &SecretString) -> bool {
    use secrecy::ExposeSecret as _;
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
