//! The OpenID provider of `portcullis dev --full`, which asks for no password: a click on a name is the login.
//!
//! It has the flows that `portcullis login` and the page use: authorization code with PKCE (RFC 7636), device code (RFC
//! 8628), refresh and revocation. It is for demonstrations only, and says so on its page: any process and any user of the
//! machine can log in as any of its users, so none of them may be an administrator. It sends a browser only back to
//! loopback and to the page, sets no cookie, and keeps everything in memory: with the process, its key and all logins are
//! gone.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use askama::Template;
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, LOCATION, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use openidconnect::url::{Url, form_urlencoded};
use portcullis_system::clock::{Clock, UnixTime};
use portcullis_system::sync::lock;
use serde_json::json;
use uuid::Uuid;

use super::https::{Body, BoxError, Handler, json_response, response};
use super::json::set;
use crate::authn::ConnInfo;

/// The client of the page.
pub(super) const PAGE_CLIENT: &str = "page";
/// The client with which users log in on the terminal.
pub(super) const KUBECTL_CLIENT: &str = "kubectl";

const USERS: [DemoUser; 2] = [
    DemoUser { name: "alice", email: "alice@example.com", groups: &["developers"] },
    DemoUser { name: "bob", email: "bob@example.com", groups: &["developers", "testers"] },
];
const TOKEN_LIFETIME: Duration = Duration::from_hours(1);
const CODE_LIFETIME: Duration = Duration::from_mins(5);
const DEVICE_INTERVAL: Duration = Duration::from_secs(2);
/// The codes and refresh tokens of each kind; an older one gives way.
const MAX_LOGINS: usize = 1_000;
const MAX_FORM_BYTES: usize = 64 << 10;

const STYLE: &str =
    concat!(include_str!("../../templates/page/style.css"), include_str!("../../templates/dev/provider.css"));
const ICON: &str = include_str!("../../templates/page/icon.svg");
const HEADERS: [(HeaderName, &str); 4] = [
    (
        CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
];

/// The parameters of a query or a form.
type Parameters = BTreeMap<String, String>;

/// A user. The claims are what the provider asserts of it.
#[derive(Debug, Clone, Copy)]
struct DemoUser {
    name: &'static str,
    email: &'static str,
    groups: &'static [&'static str],
}

/// What a token is issued for.
#[derive(Debug, Clone)]
struct Grant {
    client: String,
    user: DemoUser,
    nonce: Option<String>,
    /// Whether a refresh token was asked for.
    is_offline: bool,
}

/// A grant that waits for the request with its code, and what that must have.
#[derive(Debug)]
struct CodeGrant {
    grant: Grant,
    redirect: String,
    challenge: String,
    until: UnixTime,
}

/// A login on a device without a browser.
#[derive(Debug)]
struct DeviceLogin {
    user_code: String,
    client: String,
    is_offline: bool,
    user: Option<DemoUser>,
    until: UnixTime,
}

/// Secrets with what they stand for, the oldest first.
#[derive(Debug)]
struct Secrets<T>(VecDeque<(String, T)>);

impl<T> Default for Secrets<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Secrets<T> {
    fn add(&mut self, value: T) -> String {
        if self.0.len() == MAX_LOGINS {
            self.0.pop_front();
        }
        let secret = Uuid::new_v4().simple().to_string();
        self.0.push_back((secret.clone(), value));
        secret
    }

    /// Removes a secret: each counts once.
    fn take(&mut self, secret: &str) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| known == secret)?;
        self.0.remove(at).map(|(_, value)| value)
    }
}

#[derive(Debug, Default)]
struct Logins {
    codes: Secrets<CodeGrant>,
    devices: Secrets<DeviceLogin>,
    refresh: Secrets<Grant>,
}

/// The provider.
pub(super) struct Provider {
    issuer: String,
    /// The only redirect URI of the page.
    page_redirect: String,
    key: EcdsaKeyPair,
    key_id: String,
    clock: Clock,
    logins: Mutex<Logins>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.issuer).finish_non_exhaustive()
    }
}

#[derive(Template)]
#[template(path = "dev/provider.html")]
struct ProviderPage {
    title: String,
    text: String,
    asks_for_code: bool,
    choices: Vec<Choice>,
}

/// A user to choose.
struct Choice {
    user: DemoUser,
    groups: String,
    href: String,
}

impl Handler for Provider {
    async fn respond(&self, _: &ConnInfo, request: Request<Incoming>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let query = parameters(head.uri.query().unwrap_or_default().as_bytes());
        let Ok(form) = Limited::new(body, MAX_FORM_BYTES).collect().await else {
            return error(413, "invalid_request");
        };
        let form = parameters(&form.to_bytes());
        let mut response = match (head.method.as_str(), head.uri.path()) {
            ("GET", "/.well-known/openid-configuration") => self.document(),
            ("GET", "/keys") => self.keys(),
            ("GET", "/authorize") => self.authorize(&query),
            ("POST", "/token") => self.token(&form),
            ("POST", "/device/code") => self.begin_device(&form),
            ("GET", "/device") => self.device(&query),
            ("POST", "/revoke") => {
                lock(&self.logins).refresh.take(of(&form, "token"));
                json_response(200, &json!({}))
            }
            ("GET", "/style.css") => file("text/css; charset=utf-8", STYLE),
            ("GET", "/icon.svg") => file("image/svg+xml", ICON),
            _ => notice(404, "Not found", "This provider has no such page."),
        };
        for (name, value) in &HEADERS {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl Provider {
    /// A provider with a new key, for a page at this origin.
    pub(super) fn new(issuer: String, page_origin: &str, clock: Clock) -> Result<Self, BoxError> {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING)?;
        let page_redirect = format!("{page_origin}/callback");
        let key_id = Uuid::new_v4().simple().to_string();
        Ok(Self { issuer, page_redirect, key, key_id, clock, logins: Mutex::default() })
    }

    // OpenID Connect Discovery 1.0, section 3
    fn document(&self) -> Response<Body> {
        let at = |path: &str| format!("{}{path}", self.issuer);
        json_response(
            200,
            &json!({
                "issuer": self.issuer,
                "authorization_endpoint": at("/authorize"),
                "token_endpoint": at("/token"),
                "device_authorization_endpoint": at("/device/code"),
                "revocation_endpoint": at("/revoke"),
                "jwks_uri": at("/keys"),
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token", DEVICE_GRANT],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
                "token_endpoint_auth_methods_supported": ["none"],
                "code_challenge_methods_supported": ["S256"],
                "scopes_supported": ["openid", "email", "groups", "offline_access"],
                "authorization_response_iss_parameter_supported": true,
            }),
        )
    }

    // RFC 7518, section 6.2
    fn keys(&self) -> Response<Body> {
        // The uncompressed point: 4, x, y.
        let point = self.key.public_key().as_ref();
        let (x, y) = point.get(1..).unwrap_or_default().split_at_checked(32).unwrap_or_default();
        let [x, y] = [x, y].map(|part| URL_SAFE_NO_PAD.encode(part));
        let key = json!({
            "kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": self.key_id, "x": x, "y": y,
        });
        json_response(200, &json!({"keys": [key]}))
    }

    /// Shows the users to choose; with a chosen one, redirects to the client with a code.
    // RFC 6749, section 4.1; RFC 7636; RFC 9207
    fn authorize(&self, query: &Parameters) -> Response<Body> {
        let redirect = of(query, "redirect_uri");
        // Before any redirect: an address that the client does not have must not get a code.
        let Some(mut back) = self.redirect_of(of(query, "client_id"), redirect) else {
            return notice(
                400,
                "This is no login",
                "The address has no client of this provider, or another redirect.",
            );
        };
        let is_code = of(query, "response_type") == "code" && of(query, "code_challenge_method") == "S256";
        if !is_code || of(query, "code_challenge").is_empty() {
            return notice(400, "This is no login", "The address has no code challenge (PKCE).");
        }
        let Some(user) = user(query) else {
            let client =
                if of(query, "client_id") == PAGE_CLIENT { "the page of your clusters" } else { "kubectl" };
            return page(
                200,
                "Who are you?",
                format!("Choose a user for {client}."),
                choices("/authorize", query),
            );
        };
        let grant = Grant {
            client: of(query, "client_id").to_owned(),
            user,
            nonce: query.get("nonce").cloned(),
            is_offline: is_offline(query),
        };
        let (redirect, challenge) = (redirect.to_owned(), of(query, "code_challenge").to_owned());
        let until = self.clock.now() + CODE_LIFETIME;
        let code = lock(&self.logins).codes.add(CodeGrant { grant, redirect, challenge, until });
        back.query_pairs_mut()
            .append_pair("code", &code)
            .append_pair("state", of(query, "state"))
            .append_pair("iss", &self.issuer);
        let mut response = response(302, "text/plain", Body::default());
        response.headers_mut().extend(HeaderValue::from_str(back.as_str()).ok().map(|to| (LOCATION, to)));
        response
    }

    /// The redirect URI, if the client has it: a loopback address with any port, or that of the page.
    // RFC 8252, section 7.3
    fn redirect_of(&self, client: &str, redirect: &str) -> Option<Url> {
        let url = Url::parse(redirect).ok()?;
        let is_loopback = url.scheme() == "http"
            && matches!(url.host_str(), Some("127.0.0.1" | "[::1]" | "localhost"))
            && url.username().is_empty()
            && url.password().is_none();
        let has = match client {
            PAGE_CLIENT => redirect == self.page_redirect,
            KUBECTL_CLIENT => is_loopback,
            _ => false,
        };
        has.then_some(url)
    }

    // RFC 6749, sections 4.1.3 and 6; RFC 8628, section 3.4
    fn token(&self, form: &Parameters) -> Response<Body> {
        let (client, now) = (of(form, "client_id"), self.clock.now());
        let mut logins = lock(&self.logins);
        let grant = match of(form, "grant_type") {
            "authorization_code" => {
                let verifier = digest(&SHA256, of(form, "code_verifier").as_bytes());
                let challenge = URL_SAFE_NO_PAD.encode(verifier);
                let code = logins.codes.take(of(form, "code"));
                let code = code.filter(|code| code.until > now && code.redirect == of(form, "redirect_uri"));
                code.filter(|code| code.challenge == challenge).map(|code| code.grant)
            }
            // A new one is issued with the tokens: each counts once.
            "refresh_token" => logins.refresh.take(of(form, "refresh_token")),
            DEVICE_GRANT => {
                let secret = of(form, "device_code");
                let known = logins.devices.0.iter().find(|(known, _)| known == secret);
                if known.is_some_and(|(_, device)| device.user.is_none() && device.until > now) {
                    return error(400, "authorization_pending");
                }
                logins.devices.take(secret).filter(|device| device.until > now).and_then(DeviceLogin::grant)
            }
            _ => return error(400, "unsupported_grant_type"),
        };
        let Some(grant) = grant.filter(|grant| grant.client == client) else {
            return error(400, "invalid_grant");
        };
        let Some(id_token) = self.id_token(&grant, now) else { return error(500, "server_error") };
        let mut tokens = json!({
            "access_token": Uuid::new_v4().simple().to_string(),
            "token_type": "Bearer",
            "expires_in": TOKEN_LIFETIME.as_secs(),
            "id_token": id_token,
        });
        if grant.is_offline {
            set(&mut tokens, "/refresh_token", logins.refresh.add(grant));
        }
        json_response(200, &tokens)
    }

    /// An ID token of alice for kubectl, by which the tour sees that the gateway knows this provider.
    pub(super) fn sample_token(&self) -> Option<String> {
        let [user, ..] = USERS;
        let grant = Grant { client: KUBECTL_CLIENT.to_owned(), user, nonce: None, is_offline: false };
        self.id_token(&grant, self.clock.now())
    }

    // OpenID Connect Core 1.0, section 2
    fn id_token(&self, grant: &Grant, now: UnixTime) -> Option<String> {
        let Grant { client, user, nonce, .. } = grant;
        let header = json!({"alg": "ES256", "kid": self.key_id, "typ": "JWT"});
        let mut claims = json!({
            "iss": self.issuer,
            "sub": user.name,
            "aud": client,
            "iat": now.as_secs(),
            "exp": (now + TOKEN_LIFETIME).as_secs(),
            "jti": Uuid::new_v4().to_string(),
            "name": user.name,
            "email": user.email,
            "email_verified": true,
            "groups": user.groups,
        });
        if let Some(nonce) = nonce {
            set(&mut claims, "/nonce", nonce.as_str());
        }
        let [header, claims] = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{claims}");
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).ok()?;
        Some(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    // RFC 8628, sections 3.1 and 3.2
    fn begin_device(&self, form: &Parameters) -> Response<Body> {
        let client = of(form, "client_id");
        if client != KUBECTL_CLIENT {
            return error(400, "invalid_client");
        }
        // Digits and consonants, in which no word can be read.
        let code: String = Uuid::new_v4().simple().to_string().to_uppercase().chars().take(8).collect();
        let (first, second) = code.split_at_checked(4).unwrap_or_default();
        let user_code = format!("{first}-{second}");
        let device = DeviceLogin {
            user_code: user_code.clone(),
            client: client.to_owned(),
            is_offline: is_offline(form),
            user: None,
            until: self.clock.now() + CODE_LIFETIME,
        };
        let device_code = lock(&self.logins).devices.add(device);
        let page = format!("{}/device", self.issuer);
        json_response(
            200,
            &json!({
                "device_code": device_code,
                "verification_uri_complete": format!("{page}?user_code={user_code}"),
                "user_code": user_code,
                "verification_uri": page,
                "expires_in": CODE_LIFETIME.as_secs(),
                "interval": DEVICE_INTERVAL.as_secs(),
            }),
        )
    }

    // RFC 8628, section 3.3
    fn device(&self, query: &Parameters) -> Response<Body> {
        let code = of(query, "user_code").trim().to_uppercase();
        if code.is_empty() {
            let text = "Enter the code that the terminal shows.".to_owned();
            return rendered(
                200,
                &ProviderPage {
                    title: "Log in a device".to_owned(),
                    text,
                    asks_for_code: true,
                    choices: vec![],
                },
            );
        }
        let now = self.clock.now();
        let mut logins = lock(&self.logins);
        let device = logins.devices.0.iter_mut().map(|(_, device)| device);
        let mut device = device.filter(|device| device.user.is_none() && device.until > now);
        let Some(device) = device.find(|device| device.user_code == code) else {
            let text = "No login waits for this code. Check it, or begin again.".to_owned();
            return rendered(
                404,
                &ProviderPage {
                    title: "Unknown code".to_owned(),
                    text,
                    asks_for_code: true,
                    choices: vec![],
                },
            );
        };
        let Some(user) = user(query) else {
            let text = format!("Choose a user for the login with the code {code}.");
            return page(200, "Who are you?", text, choices("/device", query));
        };
        device.user = Some(user);
        notice(
            200,
            &format!("You are logged in as {}", user.name),
            "Close this page, and go on in the terminal.",
        )
    }
}

const DEVICE_GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

impl DeviceLogin {
    fn grant(self) -> Option<Grant> {
        let Self { client, is_offline, user, .. } = self;
        user.map(|user| Grant { client, user, nonce: None, is_offline })
    }
}

fn parameters(text: &[u8]) -> Parameters {
    form_urlencoded::parse(text).into_owned().collect()
}

fn of<'a>(parameters: &'a Parameters, name: &str) -> &'a str {
    parameters.get(name).map_or("", String::as_str)
}

fn is_offline(parameters: &Parameters) -> bool {
    of(parameters, "scope").split(' ').any(|scope| scope == "offline_access")
}

/// The user that was chosen.
fn user(query: &Parameters) -> Option<DemoUser> {
    USERS.into_iter().find(|user| user.name == of(query, "as"))
}

/// A link for each user: the same request with the user in `as`.
fn choices(path: &str, query: &Parameters) -> Vec<Choice> {
    let link = |user: DemoUser| {
        let mut link = form_urlencoded::Serializer::new(String::new());
        link.extend_pairs(query.iter().filter(|(name, _)| *name != "as")).append_pair("as", user.name);
        Choice { user, groups: user.groups.join(", "), href: format!("{path}?{}", link.finish()) }
    };
    USERS.into_iter().map(link).collect()
}

fn notice(code: u16, title: &str, text: &str) -> Response<Body> {
    page(code, title, text.to_owned(), vec![])
}

fn page(code: u16, title: &str, text: String, choices: Vec<Choice>) -> Response<Body> {
    rendered(code, &ProviderPage { title: title.to_owned(), text, asks_for_code: false, choices })
}

fn rendered(code: u16, page: &ProviderPage) -> Response<Body> {
    let text = page.render().unwrap_or_default();
    response(code, "text/html; charset=utf-8", Full::from(text).boxed_unsync())
}

fn file(media_type: &'static str, text: &'static str) -> Response<Body> {
    response(200, media_type, Full::from(text).boxed_unsync())
}

// RFC 6749, section 5.2
fn error(code: u16, name: &str) -> Response<Body> {
    json_response(code, &json!({"error": name}))
}

#[cfg(test)]
mod tests {
    use portcullis_go::json::JsonValue;

    use super::super::json::text;
    use super::*;

    const CALLBACK: &str = "http://127.0.0.1:5/callback";

    fn provider() -> Provider {
        Provider::new("https://127.0.0.1:9".to_owned(), "https://localhost:8", Clock::system()).unwrap()
    }

    fn request(pairs: &[(&str, &str)]) -> Parameters {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn login<'a>(client: &'a str, redirect: &'a str, challenge: &'a str) -> Vec<(&'a str, &'a str)> {
        vec![
            ("client_id", client),
            ("redirect_uri", redirect),
            ("response_type", "code"),
            ("code_challenge_method", "S256"),
            ("code_challenge", challenge),
            ("scope", "openid offline_access"),
            ("as", "alice"),
        ]
    }

    async fn read(response: Response<Body>) -> (u16, serde_json::Value) {
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice::<JsonValue>(&body).unwrap().0)
    }

    fn code_of(response: &Response<Body>) -> String {
        let to = Url::parse(response.headers()[LOCATION].to_str().unwrap()).unwrap();
        to.query_pairs().find(|(name, _)| name == "code").unwrap().1.into_owned()
    }

    #[test]
    fn a_code_goes_only_to_an_address_of_the_client() {
        let (provider, page) = (provider(), "https://localhost:8/callback");
        for (client, redirect, want) in [
            ("kubectl", CALLBACK, 302),
            ("kubectl", "http://localhost:7/x", 302),
            ("kubectl", "http://[::1]:7/x", 302),
            ("page", page, 302),
            ("page", CALLBACK, 400),
            ("page", "https://localhost:8/callback/x", 400),
            ("kubectl", page, 400),
            ("kubectl", "http://127.0.0.1.example.com/", 400),
            ("kubectl", "http://127.0.0.1@example.com/", 400),
            ("kubectl", "https://example.com/", 400),
            ("kubectl", "javascript:alert(1)", 400),
            ("other", CALLBACK, 400),
        ] {
            let got = provider.authorize(&request(&login(client, redirect, "c"))).status().as_u16();
            assert_eq!(got, want, "{client} {redirect}");
        }
        let mut without_pkce = request(&login("kubectl", CALLBACK, "c"));
        without_pkce.remove("code_challenge");
        assert_eq!(provider.authorize(&without_pkce).status(), 400);
    }

    #[tokio::test]
    async fn a_code_counts_once_and_needs_its_verifier() {
        let provider = provider();
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, b"v"));
        let begin = || code_of(&provider.authorize(&request(&login("kubectl", CALLBACK, &challenge))));
        let ask = |code: &str, verifier: &str, client: &str| {
            provider.token(&request(&[
                ("grant_type", "authorization_code"),
                ("code", code),
                ("code_verifier", verifier),
                ("client_id", client),
                ("redirect_uri", CALLBACK),
            ]))
        };
        for (verifier, client) in [("w", "kubectl"), ("", "kubectl"), ("v", "page")] {
            let (code, answer) = read(ask(&begin(), verifier, client)).await;
            assert_eq!((code, text(&answer, "/error")), (400, "invalid_grant"), "{verifier} {client}");
        }
        let code = begin();
        let (status, tokens) = read(ask(&code, "v", "kubectl")).await;
        assert_eq!(status, 200, "{tokens}");
        assert_eq!(read(ask(&code, "v", "kubectl")).await.0, 400, "used twice");

        let refresh = |token: &str| {
            let form = [("grant_type", "refresh_token"), ("refresh_token", token), ("client_id", "kubectl")];
            provider.token(&request(&form))
        };
        let first = text(&tokens, "/refresh_token");
        let (status, renewed) = read(refresh(first)).await;
        assert_eq!(status, 200);
        assert_eq!(read(refresh(first)).await.0, 400, "rotated");
        assert_eq!(read(refresh(text(&renewed, "/refresh_token"))).await.0, 200);
    }

    #[tokio::test]
    async fn a_device_waits_for_its_user() {
        let provider = provider();
        let (_, begun) = read(provider.begin_device(&request(&[("client_id", "kubectl")]))).await;
        let form = [
            ("grant_type", DEVICE_GRANT),
            ("device_code", text(&begun, "/device_code")),
            ("client_id", "kubectl"),
        ];
        let poll = || provider.token(&request(&form));
        assert_eq!(text(&read(poll()).await.1, "/error"), "authorization_pending");
        assert_eq!(provider.device(&request(&[("user_code", "AAAA-AAAA"), ("as", "bob")])).status(), 404);
        let entered = text(&begun, "/user_code").to_lowercase();
        assert_eq!(provider.device(&request(&[("user_code", &entered), ("as", "bob")])).status(), 200);
        let (status, tokens) = read(poll()).await;
        assert_eq!(status, 200, "{tokens}");
        assert!(tokens["refresh_token"].is_null(), "nothing asked for one");
        assert_eq!(text(&read(poll()).await.1, "/error"), "invalid_grant");
    }

    #[test]
    fn no_parameter_becomes_markup_and_no_user_is_an_administrator() {
        let attack = "\"><script>alert(1)</script>";
        let query = request(&[("state", attack), ("client_id", attack)]);
        let page = ProviderPage {
            title: attack.to_owned(),
            text: attack.to_owned(),
            asks_for_code: true,
            choices: choices("/authorize", &query),
        };
        let text = page.render().unwrap();
        assert!(!text.contains("<script") && text.contains("Log in as alice"), "{text}");
        assert!(USERS.iter().all(|user| !user.groups.iter().any(|group| group.starts_with("system:"))));
    }

    #[test]
    fn old_secrets_give_way() {
        let mut secrets = Secrets::default();
        let first = secrets.add(0);
        let rest: Vec<_> = (1..=MAX_LOGINS).map(|number| secrets.add(number)).collect();
        assert_eq!((secrets.take(&first), secrets.take(&rest[MAX_LOGINS - 1])), (None, Some(MAX_LOGINS)));
    }
}
