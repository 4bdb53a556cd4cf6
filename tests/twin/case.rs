//! A case: one or more requests to the reference and to a subject, and the expected responses of the reference.
//!
//! Every step has an expected status, so that a case fails if both sides are wrong in the same way, for example because
//! the certificate of a case about expired certificates is valid.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine as _;
use bytes::Bytes;

use crate::authenticators::Setting;
use crate::client::{Request, Until, Version};
use crate::mint::{Mint, Token};

pub(crate) const BOTH: &[Version] = &[Version::H1, Version::H2];
pub(crate) const H1: &[Version] = &[Version::H1];
pub(crate) const H2: &[Version] = &[Version::H2];

const SELF: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// The reviews that admission webhooks receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedReviews {
    /// The same on both sides.
    Equal,
    /// The same on both sides, but for repetitions.
    Repeated,
    /// Some, which are not compared.
    Uncompared,
    /// None.
    None,
}

/// A named sequence of requests by one client.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    pub(crate) versions: &'static [Version],
    pub(crate) steps: Vec<Step>,
    pub(crate) setting: Setting,
    /// Tokens, signed at the start of the case separately for each side.
    pub(crate) tokens: BTreeMap<&'static str, Token>,
    pub(crate) declared: Option<Declared>,
    /// Whether `managedFields` are compared.
    pub(crate) managed_fields: bool,
    pub(crate) reviews: ExpectedReviews,
    /// Whether the audit policy omits the requests.
    pub(crate) unaudited: bool,
}

/// A difference of the gateway with a heading in `docs/conformance.md`. The case fails if it does not occur, or if the
/// difference is another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Declared {
    pub(crate) id: &'static str,
    /// The gateway's status in the last step.
    pub(crate) status: u16,
    /// Whether the responses must be equal, and only the reviews of admission webhooks may differ.
    pub(crate) only_reviews: bool,
    /// Only of a gateway that decides on impersonations itself.
    pub(crate) only_by_decision: bool,
}

/// One request. Text may contain the placeholders `{unique}`, which differs per side and run, `{addr}`, `{rv}`, at
/// which all fixtures exist, `{continue}` of the previous list, `{version}` of the previous object, `{token:NAME}` of the case and its base64url form
/// `{token64:NAME}`, and the placeholders of tokens (`mint.rs`). The token `minted` is from the last `TokenRequest`.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) certificate: Option<&'static str>,
    method: String,
    target: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    raw: Option<Vec<u8>>,
    frames: Vec<(u8, Vec<u8>)>,
    until: Until,
    pub(crate) expected: Expected,
    pub(crate) contains: Vec<String>,
    pub(crate) lacks: Vec<String>,
    /// The beginning of a `Warning` header of the reference.
    pub(crate) warning: Option<&'static str>,
    /// The reason why the body is not compared.
    pub(crate) any_body: Option<&'static str>,
}

/// The reference's response, from its documentation or by observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Unstated,
    Status(u16),
    /// The server closes the connection without a response.
    Broken,
}

/// Values of the placeholders on one side.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    pub(crate) unique: String,
    /// `side-` and the side's name, for fixtures of one side.
    pub(crate) side: String,
    pub(crate) address: String,
    pub(crate) resource_version: String,
    /// The last continue token of a list.
    pub(crate) next: String,
    /// The `resourceVersion` in the last response.
    pub(crate) version: String,
    pub(crate) tokens: BTreeMap<&'static str, String>,
    /// `None` in tests without servers.
    pub(crate) mint: Option<Arc<Mint>>,
}

impl Values {
    pub(crate) fn fill(&self, text: &str) -> String {
        let mut text = text
            .replace("{unique}", &self.unique)
            .replace("{side}", &self.side)
            .replace("{addr}", &self.address)
            .replace("{rv}", &self.resource_version)
            .replace("{continue}", &self.next)
            .replace("{version}", &self.version);
        for (name, token) in &self.tokens {
            let encoded = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(token);
            text = text
                .replace(&format!("{{token:{name}}}"), token)
                .replace(&format!("{{token64:{name}}}"), &encoded);
        }
        self.mint.as_ref().map_or(text.clone(), |mint| mint.fill(&text))
    }

    /// Signs the tokens of a case.
    pub(crate) fn mint(&mut self, tokens: &BTreeMap<&'static str, Token>) {
        if let Some(mint) = &self.mint {
            let signed =
                tokens.iter().map(|(name, token)| (*name, mint.mint(token, &self.unique, &self.side)));
            self.tokens = signed.collect();
        }
    }

    fn fill_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.fill(text).into_bytes(),
            Err(_) => bytes.to_vec(),
        }
    }
}

/// A case of one request.
pub(crate) fn case(group: &'static str, name: &str, method: &str, target: &str) -> Case {
    Case {
        group,
        name: name.to_owned(),
        versions: BOTH,
        steps: vec![Step::new(None, method, target)],
        setting: Setting::Config,
        tokens: BTreeMap::new(),
        declared: None,
        managed_fields: true,
        reviews: ExpectedReviews::Equal,
        unaudited: false,
    }
}

/// A GET.
pub(crate) fn get(group: &'static str, name: &str, target: &str) -> Case {
    case(group, name, "GET", target)
}

/// A SelfSubjectReview, which a server answers with 201 and the user, or rejects.
pub(crate) fn whoami(group: &'static str, name: &str) -> Case {
    case(group, name, "POST", SELF)
        .json(r#"{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}"#)
}

impl Step {
    fn new(certificate: Option<&'static str>, method: &str, target: &str) -> Self {
        Self {
            certificate,
            method: method.to_owned(),
            target: target.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            raw: None,
            frames: Vec::new(),
            until: Until::End,
            expected: Expected::Unstated,
            contains: Vec::new(),
            lacks: Vec::new(),
            warning: None,
            any_body: None,
        }
    }

    /// The request for one side.
    pub(crate) fn request(&self, version: Version, values: &Values) -> Request {
        Request {
            version,
            method: self.method.clone(),
            target: values.fill(&self.target),
            headers: self
                .headers
                .iter()
                .map(|(name, value)| (name.clone(), values.fill_bytes(value)))
                .collect(),
            body: Bytes::from(values.fill_bytes(&self.body)),
            raw: self.raw.as_ref().map(|raw| values.fill_bytes(raw)),
            frames: self.frames.clone(),
            until: self.until,
        }
    }

    /// The request, which has no placeholders.
    pub(crate) fn plain(&self, version: Version) -> Request {
        Request {
            version,
            method: self.method.clone(),
            target: self.target.clone(),
            headers: self.headers.clone(),
            body: Bytes::from(self.body.clone()),
            raw: None,
            frames: Vec::new(),
            until: self.until,
        }
    }

    /// A description of the request for failure messages, with long parts truncated.
    pub(crate) fn describe(&self) -> String {
        let mut text = match &self.raw {
            Some(raw) => raw.escape_ascii().to_string(),
            None => format!("{} {}", self.method, self.target),
        };
        for (name, value) in &self.headers {
            text.push_str(&format!("\n    {name}: {}", value.escape_ascii()));
        }
        if !self.body.is_empty() {
            let shown = self.body.get(..400).unwrap_or(&self.body);
            text.push_str(&format!("\n    ({} bytes) {}", self.body.len(), shown.escape_ascii()));
        }
        text.push_str(&format!("\n    client certificate: {}", self.certificate.unwrap_or("none")));
        text
    }

    /// The `Audit-ID` that was sent, if exactly one was.
    pub(crate) fn audit_id(&self) -> Option<String> {
        let mut sent = self.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("audit-id"));
        match (sent.next(), sent.next()) {
            (Some((_, value)), None) if !value.is_empty() => {
                Some(String::from_utf8_lossy(value).into_owned())
            }
            _ => None,
        }
    }
}

impl Case {
    fn last(&mut self) -> &mut Step {
        self.steps.last_mut().expect("a case has a step")
    }

    /// Sets the client certificate, by its name in `people.rs`.
    pub(crate) fn cert(mut self, name: &'static str) -> Self {
        self.last().certificate = Some(name);
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    /// Uses the servers with `--oidc-*` flags.
    pub(crate) fn by_flags(mut self) -> Self {
        self.setting = Setting::Flags;
        self
    }

    /// Uses the servers with authorization webhooks.
    pub(crate) fn by_webhooks(mut self) -> Self {
        self.setting = Setting::Webhooks;
        self
    }

    /// Uses the servers with admission webhooks. `managedFields` are compared by [`Self::with_managed_fields`] only
    /// (D-admission-managed-fields).
    pub(crate) fn by_admission(mut self) -> Self {
        self.setting = Setting::Admission;
        self.managed_fields = false;
        self
    }

    /// Uses the servers with an audit policy, and compares their events.
    pub(crate) fn by_audit(mut self) -> Self {
        self.setting = Setting::Audit;
        self
    }

    /// Expects no event.
    pub(crate) fn unaudited(mut self) -> Self {
        self.unaudited = true;
        self
    }

    /// Compares `managedFields` as well.
    pub(crate) fn with_managed_fields(mut self) -> Self {
        self.managed_fields = true;
        self
    }

    /// Expects that no admission webhook receives a review.
    pub(crate) fn unreviewed(mut self) -> Self {
        self.reviews = ExpectedReviews::None;
        self
    }

    /// Compares each review once: kube-apiserver repeats the admission of a write if its watch cache was stale, which depends on
    /// time.
    // apiserver: pkg/storage/etcd3/store.go, conditionalDelete
    pub(crate) fn repeated_reviews(mut self) -> Self {
        self.reviews = ExpectedReviews::Repeated;
        self
    }

    /// Does not compare the reviews: kube-apiserver begins a write again, with other values, if those that it has drawn are taken
    /// meanwhile.
    pub(crate) fn uncompared_reviews(mut self) -> Self {
        self.reviews = ExpectedReviews::Uncompared;
        self
    }

    /// Adds a token that the steps may send as `{token:NAME}`.
    pub(crate) fn token(mut self, name: &'static str, token: impl Into<Token>) -> Self {
        self.tokens.insert(name, token.into());
        self
    }

    /// Adds a header line; a name may be repeated.
    pub(crate) fn header(self, name: &str, value: &str) -> Self {
        self.header_bytes(name, value.as_bytes())
    }

    pub(crate) fn header_bytes(mut self, name: &str, value: &[u8]) -> Self {
        self.last().headers.push((name.to_owned(), value.to_vec()));
        self
    }

    pub(crate) fn body(mut self, content_type: &str, body: &[u8]) -> Self {
        self.last().body = body.to_vec();
        self.header("Content-Type", content_type)
    }

    /// Sends a body without `Content-Type`.
    pub(crate) fn json_without_type(mut self, body: &str) -> Self {
        self.last().body = body.as_bytes().to_vec();
        self
    }

    pub(crate) fn json(self, body: &str) -> Self {
        self.body("application/json", body.as_bytes())
    }

    /// Sends these bytes over HTTP/1.1 instead of a request.
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.versions = H1;
        self.last().raw = Some(bytes.to_vec());
        self
    }

    pub(crate) fn only(mut self, versions: &'static [Version]) -> Self {
        self.versions = versions;
        self
    }

    /// Reads this many lines of the body, then closes the connection.
    pub(crate) fn lines(mut self, lines: usize) -> Self {
        self.last().until = Until::Lines(lines);
        self
    }

    /// Upgrades to WebSocket, sends frames, and reads until the server closes.
    pub(crate) fn websocket(self, protocols: &str, frames: &[(u8, &[u8])]) -> Self {
        let mut case = self
            .only(H1)
            .header("Connection", "Upgrade")
            .header("Upgrade", "websocket")
            .header("Sec-WebSocket-Version", "13")
            .header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==");
        if !protocols.is_empty() {
            case = case.header("Sec-WebSocket-Protocol", protocols);
        }
        let last = case.last();
        last.until = Until::WebSocketClose;
        last.frames = frames.iter().map(|(channel, data)| (*channel, data.to_vec())).collect();
        case
    }

    /// Expects this status of the reference.
    pub(crate) fn answers(mut self, status: u16) -> Self {
        self.last().expected = Expected::Status(status);
        self
    }

    /// Expects that the reference closes the connection without a response.
    pub(crate) fn breaks(mut self) -> Self {
        self.last().expected = Expected::Broken;
        self
    }

    /// Expects this text in the reference's body.
    pub(crate) fn contains(mut self, text: &str) -> Self {
        self.last().contains.push(text.to_owned());
        self
    }

    /// Expects that the reference's body does not contain this text.
    pub(crate) fn lacks(mut self, text: &str) -> Self {
        self.last().lacks.push(text.to_owned());
        self
    }

    /// Expects a `Warning` header of the reference that begins with this text.
    pub(crate) fn warns(mut self, text: &'static str) -> Self {
        self.last().warning = Some(text);
        self
    }

    /// Expects that the reference authenticates the client as this user with exactly these groups.
    pub(crate) fn is(self, user: &str, groups: &[&str]) -> Self {
        let quoted = |text: &str| serde_json::to_string(text).expect("a string");
        let groups = groups.iter().map(|group| quoted(group)).collect::<Vec<_>>().join(",");
        let user = if user.is_empty() {
            // The JSON omits an empty name.
            return self.answers(201).contains(&format!(r#""groups":[{groups}]"#)).lacks(r#""username""#);
        } else {
            quoted(user)
        };
        self.answers(201)
            .contains(&format!(r#""username":{user}"#))
            .contains(&format!(r#""groups":[{groups}]"#))
    }

    /// Expects a 401 with the fixed body.
    pub(crate) fn unauthorized(self) -> Self {
        self.answers(401).contains(r#""message":"Unauthorized","reason":"Unauthorized","code":401"#)
    }

    /// Expects that the client is anonymous, and therefore may not create a SelfSubjectReview.
    pub(crate) fn anonymous(self) -> Self {
        self.answers(403).contains(r#"User \"system:anonymous\" cannot create resource"#)
    }

    /// Declares a difference of the gateway by its ID in `docs/conformance.md`, with the gateway's status in the last
    /// step.
    pub(crate) fn declared(mut self, id: &'static str, status: u16) -> Self {
        self.declared = Some(Declared { id, status, only_reviews: false, only_by_decision: false });
        self
    }

    /// Declares a difference of a gateway that decides on the impersonation, which it does not by default.
    pub(crate) fn declared_by_decision(mut self, id: &'static str, status: u16) -> Self {
        self.declared = Some(Declared { id, status, only_reviews: false, only_by_decision: true });
        self
    }

    /// Declares a difference in the reviews of admission webhooks only.
    pub(crate) fn declared_reviews(mut self, id: &'static str, status: u16) -> Self {
        self.declared = Some(Declared { id, status, only_reviews: true, only_by_decision: false });
        self
    }

    /// Excludes the body of the last step from the comparison.
    pub(crate) fn any_body(mut self, reason: &'static str) -> Self {
        self.last().any_body = Some(reason);
        self
    }

    /// Adds a step.
    pub(crate) fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Adds a request with the same client certificate.
    pub(crate) fn then(mut self, method: &str, target: &str) -> Self {
        let certificate = self.last().certificate;
        self.steps.push(Step::new(certificate, method, target));
        self
    }
}
