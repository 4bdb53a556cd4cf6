//! The pages, made of the templates in `templates/page`, which escape every value; and the headers of every answer.

use std::sync::LazyLock;

use askama::Template;
use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    STRICT_TRANSPORT_SECURITY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use portcullis_go::hex::hex;
use portcullis_go::time;
use portcullis_system::clock::UnixTime;

use super::clusters::UserCluster;
use super::problem::{Next, Problem};
use super::session::Session;
use super::{ClusterHealth, HealthState, PageInForce};

pub(super) const STYLE_PATH: &str = "/style.css";
pub(super) const ICON_PATH: &str = "/icon.svg";
/// The field of the form for signing out.
pub(super) const FORM_SECRET: &str = "form";
const STYLE: &str = include_str!("../../templates/page/style.css");
const ICON: &str = include_str!("../../templates/page/icon.svg");
/// Changes with the files, which browsers keep.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let digest = digest(&SHA256, [STYLE, ICON].concat().as_bytes());
    hex(digest.as_ref().get(..6).unwrap_or_default())
});

/// The headers of every answer, unless it has them already.
// threat: page-cross-site
const HEADERS: [(HeaderName, &str); 10] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (STRICT_TRANSPORT_SECURITY, "max-age=31536000"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-embedder-policy"), "require-corp"),
    (
        HeaderName::from_static("permissions-policy"),
        "accelerometer=(), camera=(), clipboard-read=(), geolocation=(), gyroscope=(), microphone=(), payment=(), usb=()",
    ),
];

/// Adds the headers that every answer has.
pub(super) fn secured<B>(mut response: Response<B>) -> Response<B> {
    let headers = response.headers_mut();
    for (name, value) in &HEADERS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// What every page has.
struct Frame<'a> {
    version: &'a str,
    /// The user, if one is signed in.
    user: Option<&'a str>,
    form_secret: &'a str,
}

impl Frame<'_> {
    fn of_anyone() -> Self {
        Self { version: &VERSION, user: None, form_secret: "" }
    }
}

#[derive(Template)]
#[template(path = "page/welcome.html")]
struct Welcome<'a> {
    frame: Frame<'a>,
    provider: &'a str,
}

#[derive(Template)]
#[template(path = "page/clusters.html")]
struct Clusters<'a> {
    frame: Frame<'a>,
    rows: Vec<ClusterRow>,
    until: String,
    /// Whether there is a kubeconfig to download.
    has_kubeconfig: bool,
}

#[derive(Template)]
#[template(path = "page/problem.html")]
struct ProblemPage<'a> {
    frame: Frame<'a>,
    problem: &'a Problem,
    wants_sign_in: bool,
    /// The query of a redirect to open again.
    again: Option<&'a str>,
}

#[derive(Template)]
#[template(path = "page/signed-out.html")]
struct SignedOut<'a> {
    frame: Frame<'a>,
    /// The page of the provider that ends its session.
    provider: Option<String>,
}

/// A row of the table of clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterRow {
    name: String,
    /// The class of the symbol, and its meaning in words.
    class: &'static str,
    symbol: &'static str,
    state: &'static str,
    /// Empty: unknown.
    version: String,
    /// Empty: unknown.
    endpoints: String,
    is_known: bool,
}

impl ClusterRow {
    /// The row of a cluster, with its health if it has answered.
    pub(super) fn of(shown: &UserCluster, health: Option<ClusterHealth>) -> Self {
        let (class, symbol, state) = match health.as_ref().map(|health| health.state) {
            Some(HealthState::Ready) => ("ready", "✓", "Ready"),
            Some(HealthState::Degraded) => ("degraded", "!", "Partly ready"),
            Some(HealthState::Checking) => ("unknown", "…", "Being checked"),
            Some(HealthState::Unavailable) => ("unavailable", "✕", "Not reachable"),
            None => ("unknown", "?", "Cannot be asked now"),
        };
        let version = health.as_ref().and_then(|health| health.version.clone());
        let endpoints = health.map(|health| format!("{} of {}", health.ready, health.endpoints));
        Self {
            name: shown.name.clone(),
            class,
            symbol,
            state,
            version: version.unwrap_or_default(),
            endpoints: endpoints.unwrap_or_default(),
            is_known: shown.is_known,
        }
    }
}

/// The page without a session.
pub(super) fn welcome(in_force: &PageInForce) -> Response<Full<Bytes>> {
    let issuer = in_force.settings.client.issuer.as_str();
    let provider = issuer.strip_prefix("https://").unwrap_or(issuer);
    let provider = provider.split('/').next().unwrap_or(provider);
    rendered(StatusCode::OK, &Welcome { frame: Frame::of_anyone(), provider })
}

/// The clusters of a user.
pub(super) fn clusters(session: &Session, rows: Vec<ClusterRow>) -> Response<Full<Bytes>> {
    let frame =
        Frame { version: &VERSION, user: Some(&session.name), form_secret: session.form_secret.expose() };
    let has_kubeconfig = rows.iter().any(|row| row.is_known);
    let until = minute(session.until);
    let mut response = rendered(StatusCode::OK, &Clusters { frame, rows, until, has_kubeconfig });
    // With `no-referrer` a browser would send `Origin: null` with the form.
    // Fetch standard: append a request `Origin` header
    response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// A time for people, to the minute: `2026-01-02 03:04 UTC`.
fn minute(seconds: u64) -> String {
    let text = time::format_since_epoch(UnixTime::from_secs(seconds)).replace('T', " ");
    format!("{} UTC", text.get(..16).unwrap_or(&text))
}

/// A problem.
pub(super) fn problem(problem: &Problem) -> Response<Full<Bytes>> {
    let wants_sign_in = problem.next == Next::SignIn;
    let again = match &problem.next {
        Next::Again(query) => Some(query.as_str()),
        Next::SignIn | Next::Clusters => None,
    };
    rendered(problem.status, &ProblemPage { frame: Frame::of_anyone(), problem, wants_sign_in, again })
}

/// The page after the end of a session. `provider` is the page that ends the provider's own.
pub(super) fn signed_out(provider: Option<String>) -> Response<Full<Bytes>> {
    rendered(StatusCode::OK, &SignedOut { frame: Frame::of_anyone(), provider })
}

/// An answer to a request that no browser at this page makes: a text.
pub(super) fn fallback(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(status.canonical_reason().unwrap_or("Error")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

pub(super) fn style_sheet() -> Response<Full<Bytes>> {
    kept(STYLE, "text/css; charset=utf-8")
}

pub(super) fn icon() -> Response<Full<Bytes>> {
    kept(ICON, "image/svg+xml")
}

/// A file that browsers keep.
fn kept(text: &'static str, kind: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
    response
}

fn rendered(status: StatusCode, page: &impl Template) -> Response<Full<Bytes>> {
    let Ok(text) = page.render() else { return fallback(StatusCode::INTERNAL_SERVER_ERROR) };
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use portcullis_openid::SecretText;
    use portcullis_openid::error::ProviderRefusal;

    use super::super::login_rate::TooManyLogins;
    use super::*;

    const ATTACKS: [&str; 8] = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror=alert(1)>",
        "' onmouseover='alert(1)",
        "</title><script>alert(1)</script>",
        "<!--",
        "javascript:alert(1)",
        "{{ 7 * 7 }}{% block main %}",
        "&lt;script&gt;",
    ];

    async fn text(response: Response<Full<Bytes>>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    /// The tags of a page, without what stands between them.
    fn tags(page: &str) -> Vec<String> {
        page.split('<').skip(1).map(|tag| tag.split('>').next().unwrap().to_owned()).collect()
    }

    fn session(name: &str) -> Session {
        Session {
            token: SecretText::new("token"),
            name: name.to_owned(),
            form_secret: SecretText::new("form-secret"),
            until: 1_800_000_000,
        }
    }

    fn row(text: &str) -> ClusterRow {
        let health = ClusterHealth {
            state: HealthState::Ready,
            version: Some(text.to_owned()),
            ready: 1,
            endpoints: 1,
        };
        ClusterRow { name: "prod".to_owned(), ..ClusterRow::of(&shown(text), Some(health)) }
    }

    fn shown(name: &str) -> UserCluster {
        UserCluster { name: name.to_owned(), is_known: true }
    }

    #[tokio::test]
    async fn no_text_of_others_becomes_markup() {
        let plain = tags(&text(clusters(&session("alice"), vec![row("v1.36.3")])).await);
        let refusal =
            |text: &str| ProviderRefusal { code: text.to_owned(), description: Some(text.to_owned()) };
        let plain_problem = tags(&text(problem(&Problem::of_refusal(&refusal("x")))).await);
        for attack in ATTACKS {
            let page = text(clusters(&session(attack), vec![row(attack)])).await;
            assert_eq!(tags(&page), plain, "{attack}");
            let page = text(problem(&Problem::of_refusal(&refusal(attack)))).await;
            assert_eq!(tags(&page), plain_problem, "{attack}");
        }
        // A query within a link, too.
        let again = |query: &str| problem(&Problem::no_turn(TooManyLogins::OfNetwork, query));
        let plain_again = tags(&text(again("x")).await).len();
        for attack in ATTACKS {
            let page = text(again(attack)).await;
            assert_eq!(tags(&page).len(), plain_again, "{attack}");
            assert!(page.contains("href=\"/callback?") && !page.contains("<script"), "{page}");
        }
        // A name within a link, too.
        let health = row("v1").version;
        for attack in ATTACKS {
            let row = ClusterRow { name: attack.to_owned(), version: health.clone(), ..row("v1") };
            let page = text(clusters(&session("alice"), vec![row])).await;
            assert_eq!(tags(&page).len(), plain.len(), "{attack}");
            assert!(!page.contains("<script") && !page.contains("<img src=x"), "{attack}");
        }
    }

    #[tokio::test]
    async fn no_page_has_a_script_or_an_inline_style() {
        let problem_page = problem(&Problem::not_found());
        for page in [clusters(&session("alice"), vec![row("v1")]), problem_page] {
            let page = text(page).await;
            for forbidden in ["<script", " style=", "<style", " onclick", "javascript:", "http://"] {
                assert!(!page.contains(forbidden), "{forbidden}");
            }
            assert!(
                page.contains("<html lang=\"en\">") && page.contains("<main") && page.contains("<title>")
            );
            assert_eq!(page.matches("<h1").count(), 1);
        }
    }

    #[test]
    fn every_answer_has_every_protection() {
        for response in [fallback(StatusCode::BAD_REQUEST), style_sheet(), problem(&Problem::not_found())] {
            let response = secured(response);
            for (name, _) in &HEADERS {
                assert!(response.headers().contains_key(name), "{name}");
            }
            assert_eq!(response.headers().get_all(CONTENT_SECURITY_POLICY).iter().count(), 1);
        }
    }
}
