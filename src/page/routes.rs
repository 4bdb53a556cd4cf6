//! Which requests the page answers. Every one is checked first: its method, its host, and what the browser says about where
//! it comes from.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_DISPOSITION, CONTENT_TYPE, HOST, HeaderName, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt as _, Collected, Full};
use openidconnect::url::form_urlencoded;
use portcullis_go::url::decode_path;
use tracing::warn;

use super::clusters;
use super::problem::{Next, Problem};
use super::session::Session;
use super::{Page, PageInForce, cookies, html, kubeconfig, login};
use crate::cluster::address::ClusterAddress;
use crate::telemetry::LogPermit;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");
/// By which browsers say that they guess that the user will follow a link: Fetch's header, and the older ones of Chromium,
/// Safari and Firefox.
const PURPOSES: [HeaderName; 4] = [
    HeaderName::from_static("sec-purpose"),
    HeaderName::from_static("purpose"),
    HeaderName::from_static("x-purpose"),
    HeaderName::from_static("x-moz"),
];
/// What they say, perhaps with parameters.
const GUESSES: [&[u8]; 3] = [b"prefetch", b"prerender", b"preview"];
const SIGN_IN: &str = "/sign-in";
const SIGN_OUT: &str = "/sign-out";

type PageResponse = Response<Full<Bytes>>;

impl Page {
    /// Answers a request.
    pub(super) async fn answer<B>(&self, peer: SocketAddr, request: Request<B>) -> PageResponse
    where
        B: Body<Data = Bytes>,
    {
        let Some(in_force) = self.in_force() else { return html::fallback(StatusCode::SERVICE_UNAVAILABLE) };
        if let Err(refusal) = check(&in_force, &request) {
            return refusal;
        }
        let (head, body) = request.into_parts();
        let session = Session::of(&in_force, &head.headers, self.clock().now());
        let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
        let answer = match (path, session) {
            (html::STYLE_PATH, _) => Ok(html::style_sheet()),
            (html::ICON_PATH, _) => Ok(html::icon()),
            ("/", None) => Ok(html::welcome(&in_force)),
            ("/", Some(session)) => Ok(self.clusters(&in_force, &session, peer).await),
            (SIGN_IN, _) => login::begin(self, &in_force, &head.headers).await,
            (login::CALLBACK, _) => login::complete(self, &in_force, peer.ip(), query, &head.headers).await,
            (SIGN_OUT, session) if head.method == Method::POST => {
                // The layer in front of this has bounded it.
                let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
                sign_out(&in_force, &head.headers, &body, session.as_ref())
            }
            ("/signed-out", _) => Ok(html::signed_out(login::end_session_url(&in_force).await)),
            (path, session) => match (path.strip_prefix("/kubeconfig"), session) {
                (None, _) => Err(Problem::not_found()),
                (Some(_), None) => Err(Problem::signed_out()),
                (Some(rest), Some(session)) => self.download(&in_force, &session, peer, rest).await,
            },
        };
        answer.unwrap_or_else(|problem| self.refuse(&problem, peer.ip()))
    }

    /// The page of a problem. Clients that are not signed in cause problems: the log has a few lines of each.
    // threat: log-flood
    pub(super) fn refuse(&self, problem: &Problem, client: IpAddr) -> PageResponse {
        if let Some(cause) = &problem.cause
            && let Some(LogPermit { suppressed }) = self.parts.gateway.throttle.permit_client(client)
        {
            warn!(%client, error = %cause, suppressed, "page: a login failed");
        }
        html::problem(problem)
    }

    async fn clusters(&self, in_force: &PageInForce, session: &Session, peer: SocketAddr) -> PageResponse {
        let shown = clusters::of_user(self, in_force, session, peer).await;
        let snapshot = self.live().snapshot();
        let rows = shown.iter().map(|shown| {
            let cluster = snapshot.cluster(&shown.name).filter(|_| shown.is_known);
            html::ClusterRow::of(shown, cluster.map(self.parts.health))
        });
        html::clusters(session, rows.collect())
    }

    /// A kubeconfig of all clusters of the user, or of the one in `rest`.
    async fn download(
        &self,
        in_force: &PageInForce,
        session: &Session,
        peer: SocketAddr,
        rest: &str,
    ) -> Result<PageResponse, Problem> {
        let chosen = match rest.strip_prefix('/').map(decode_path) {
            Some(Ok(name)) => Some(name),
            None if rest.is_empty() => None,
            _ => return Err(Problem::not_found()),
        };
        let shown = clusters::of_user(self, in_force, session, peer).await;
        let is_chosen = |name: &str| chosen.as_deref().is_none_or(|chosen| chosen == name);
        let snapshot = self.live().snapshot();
        let api = &in_force.settings.kubeconfig.api_authority;
        let found =
            shown.iter().filter(|shown| shown.is_known && is_chosen(&shown.name)).filter_map(|shown| {
                let routes = &snapshot.cluster(&shown.name)?.settings.routes;
                Some((shown.name.clone(), ClusterAddress::of(routes, api)?))
            });
        let found: Vec<_> = found.collect();
        if found.is_empty() {
            return Err(Problem::not_found());
        }
        let name = kubeconfig::file_name(chosen.as_deref().unwrap_or("clusters"));
        let text = kubeconfig::render(in_force, &found).ok_or_else(Problem::not_found)?;
        let mut response = Response::new(Full::from(text));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        let disposition = HeaderValue::try_from(format!("attachment; filename=\"{name}\""));
        headers.extend(disposition.ok().map(|value| (CONTENT_DISPOSITION, value)));
        Ok(response)
    }
}

/// Refuses a request that a browser at this page does not make.
fn check<B>(in_force: &PageInForce, request: &Request<B>) -> Result<(), PageResponse> {
    check_host(in_force.settings.authority(), request)?;
    check_method(request.method(), request.uri().path())?;
    check_purpose(request.headers(), request.uri().path())?;
    check_origin(request.headers(), request.uri().path())
}

/// The host must be the page's own: a request for another one was led here by its name server, or by a client that mixes
/// up connections.
// threat: page-shared-origin
fn check_host<B>(own: &str, request: &Request<B>) -> Result<(), PageResponse> {
    let mut hosts = request.headers().get_all(HOST).into_iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let target = request.uri().authority().map(http::uri::Authority::as_str);
    if hosts.next().is_some() || target.is_some_and(|target| Some(target) != host) {
        return Err(html::fallback(StatusCode::BAD_REQUEST));
    }
    let host = host.unwrap_or_default();
    // A browser leaves the default port out; another client may not.
    let is_own = |host: &str| host.eq_ignore_ascii_case(own);
    if is_own(host) || (!own.contains(':') && host.strip_suffix(":443").is_some_and(is_own)) {
        Ok(())
    } else {
        Err(html::fallback(StatusCode::MISDIRECTED_REQUEST))
    }
}

fn check_method(method: &Method, path: &str) -> Result<(), PageResponse> {
    let (is_allowed, allowed) = match path {
        SIGN_OUT => (method == Method::POST, "POST"),
        _ => (matches!(*method, Method::GET | Method::HEAD), "GET, HEAD"),
    };
    if is_allowed {
        return Ok(());
    }
    let mut response = html::fallback(StatusCode::METHOD_NOT_ALLOWED);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    Err(response)
}

/// A login begins when the user wants it, and its redirect counts once. A browser discards what it has prefetched with
/// this status, and asks again when the user follows the link.
// Fetch standard: `Sec-Purpose` header
fn check_purpose(headers: &HeaderMap, path: &str) -> Result<(), PageResponse> {
    let is_guess = PURPOSES.iter().flat_map(|name| headers.get_all(name)).any(|value| {
        let purpose = value.as_bytes().split(|octet| *octet == b';').next().unwrap_or_default().trim_ascii();
        GUESSES.iter().any(|guess| purpose.eq_ignore_ascii_case(guess))
    });
    if is_guess && matches!(path, SIGN_IN | login::CALLBACK) {
        return Err(html::fallback(StatusCode::FORBIDDEN));
    }
    Ok(())
}

/// Other sites may link to the page, and do nothing else with it. Browsers without these headers still send no cookies
/// with such requests, because of `SameSite`.
// W3C: Fetch Metadata Request Headers
// threat: page-cross-site
fn check_origin(headers: &HeaderMap, path: &str) -> Result<(), PageResponse> {
    let text = |name| headers.get(name).map(|value: &HeaderValue| value.as_bytes());
    let is_own = matches!(text(SITE), None | Some(b"same-origin" | b"none"));
    let is_link = matches!(text(MODE), Some(b"navigate"))
        && matches!(text(DESTINATION), None | Some(b"document"))
        && !path.starts_with("/kubeconfig")
        && path != SIGN_OUT;
    if is_own || is_link { Ok(()) } else { Err(html::fallback(StatusCode::FORBIDDEN)) }
}

/// Ends the session in this browser.
// threat: page-cross-site
fn sign_out(
    in_force: &PageInForce,
    headers: &HeaderMap,
    body: &[u8],
    session: Option<&Session>,
) -> Result<PageResponse, Problem> {
    let forged = || {
        let text = "The request to sign out does not come from this page.";
        Problem::new(StatusCode::FORBIDDEN, "Not signed out", text, Next::Clusters)
    };
    let origin = headers.get(ORIGIN).map(HeaderValue::as_bytes);
    if origin.is_some_and(|origin| origin != in_force.settings.origin.as_bytes()) {
        return Err(forged());
    }
    // `SameSite` keeps the cookies away from a form of another site, so that it seems to have no session. It must change
    // nothing, even if the browser sends no `Origin`.
    let Some(session) = session else { return Ok(login::see_other("/signed-out", [])) };
    let given = form_urlencoded::parse(body).find(|(name, _)| name == html::FORM_SECRET);
    if !given.is_some_and(|(_, given)| session.has_form_secret(&given)) {
        return Err(forged());
    }
    Ok(login::see_other("/signed-out", cookies::delete_session()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(request: &Request<()>) -> Option<StatusCode> {
        let checked = check_host("clusters.test", request)
            .and_then(|()| check_method(request.method(), request.uri().path()))
            .and_then(|()| check_purpose(request.headers(), request.uri().path()))
            .and_then(|()| check_origin(request.headers(), request.uri().path()));
        checked.err().map(|response| response.status())
    }

    #[test]
    fn only_the_pages_own_host_is_served() {
        let cases: [(&str, &[&str], Option<u16>); 8] = [
            ("/", &["clusters.test"], None),
            ("/", &["CLUSTERS.test:443"], None),
            ("/", &["clusters.test:8443"], Some(421)),
            ("/", &["api.test"], Some(421)),
            ("/", &[], Some(421)),
            ("/", &["clusters.test", "clusters.test"], Some(400)),
            ("https://clusters.test/", &["clusters.test"], None),
            ("https://api.test/", &["clusters.test"], Some(400)),
        ];
        for (target, hosts, expected) in cases {
            let mut request = Request::get(target);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            let refused = refusal(&request.body(()).unwrap()).map(|status| status.as_u16());
            assert_eq!(refused, expected, "{target} {hosts:?}");
        }
    }

    #[test]
    fn only_the_methods_of_each_path_are_answered() {
        let cases = [
            (Method::GET, "/", None),
            (Method::HEAD, "/", None),
            (Method::POST, "/", Some(405)),
            (Method::OPTIONS, "/", Some(405)),
            (Method::PUT, "/sign-out", Some(405)),
            (Method::GET, "/sign-out", Some(405)),
            (Method::POST, "/sign-out", None),
            (Method::TRACE, "/callback", Some(405)),
        ];
        for (method, path, expected) in cases {
            let request = Request::builder().method(&method).uri(path).header(HOST, "clusters.test");
            let refused = refusal(&request.body(()).unwrap()).map(|status| status.as_u16());
            assert_eq!(refused, expected, "{method} {path}");
        }
    }

    #[test]
    fn a_prefetch_neither_begins_nor_completes_a_login() {
        for (path, name, value, is_answered) in [
            ("/sign-in", "sec-purpose", "prefetch", false),
            ("/sign-in", "sec-purpose", "prefetch;prerender", false),
            ("/sign-in", "sec-purpose", "prefetch; anonymous-client-ip", false),
            ("/sign-in", "purpose", "Prefetch", false),
            ("/sign-in", "x-purpose", "preview", false),
            ("/sign-in", "x-moz", "prefetch", false),
            ("/callback", "sec-purpose", "prefetch", false),
            ("/sign-in", "sec-purpose", "other", true),
            ("/", "sec-purpose", "prefetch", true),
        ] {
            let request = Request::get(path).header(HOST, "clusters.test").header(name, value);
            let refused = refusal(&request.body(()).unwrap()).map(|status| status.as_u16());
            let expected = if is_answered { None } else { Some(403) };
            assert_eq!(refused, expected, "{path} {name} {value}");
        }
    }

    #[test]
    fn other_sites_may_link_and_nothing_else() {
        let cases: [(&str, &str, &str, &str, bool); 13] = [
            ("/", "none", "navigate", "document", true),
            ("/", "same-origin", "navigate", "document", true),
            ("/style.css", "same-origin", "no-cors", "style", true),
            ("/", "cross-site", "navigate", "document", true),
            ("/callback", "cross-site", "navigate", "document", true),
            ("/", "same-site", "navigate", "document", true),
            ("/", "cross-site", "navigate", "iframe", false),
            ("/", "same-site", "navigate", "frame", false),
            ("/", "same-site", "cors", "empty", false),
            ("/", "cross-site", "no-cors", "image", false),
            ("/style.css", "same-site", "no-cors", "style", false),
            ("/kubeconfig", "cross-site", "navigate", "document", false),
            ("/", "", "navigate", "document", true),
        ];
        for (path, site, mode, destination, is_answered) in cases {
            let mut request = Request::get(path).header(HOST, "clusters.test");
            for (name, value) in [(SITE, site), (MODE, mode), (DESTINATION, destination)] {
                if !value.is_empty() {
                    request = request.header(name, value);
                }
            }
            let refused = refusal(&request.body(()).unwrap()).map(|status| status.as_u16());
            let expected = if is_answered { None } else { Some(403) };
            assert_eq!(refused, expected, "{path} {site} {mode} {destination}");
        }
        let forged = Request::post("/sign-out").header(HOST, "clusters.test").header(SITE, "cross-site");
        let forged = forged.header(MODE, "navigate").header(DESTINATION, "document").body(()).unwrap();
        assert_eq!(refusal(&forged), Some(StatusCode::FORBIDDEN));
    }
}
