//! Legacy and bound service-account tokens with unusual JSON, compared with kube-apiserver's own authenticators: both
//! must accept the same tokens, as the same users. We may be stricter only as `docs/conformance.md` declares, and never
//! more lenient. Tokens are random; `PORTCULLIS_SEED` and `PORTCULLIS_INPUTS` change their seed and number.

mod parts;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use portcullis::internal::StaticAccountAuthenticator;
use portcullis::internal::UserInfo;
use portcullis::internal::read_key_file;
use portcullis::internal::{Audience, BoxFuture};
use portcullis::internal::{Clock, UnixTime};
use portcullis::internal::{GetResult, ObjectIdentity, Secret, ServiceAccount, TokenGetter};
use portcullis_limits::Owner;
use secrecy::SecretSlice;
use serde_json::{Value, json};
use testkit::go_program::GoProgram;
use testkit::pki;
use testkit::random::{Rng, inputs, seed};

use self::parts::{
    AUDIENCES, BONDS, FURTHER_MEMBERS, ISSUERS, NAMES, NAMESPACES, OBJECT_NAMES, REFERENCE_MEMBERS,
    REFERENCES, SUBJECTS, UIDS,
};
use crate::random_tokens::{
    Comparison, DATES, DATES_BEYOND, HEADER, RandomToken, SPELLING, TokenMint, VALUES,
};

/// A declared difference of service-account tokens: an id of `docs/conformance.md`.
const NO_NAMESPACE: &str = "D-token-namespace";
const LEGACY: &str = "kubernetes/serviceaccount";
const LEGACY_PREFIX: &str = "kubernetes.io/serviceaccount/";
const INVALID_SINCE: &str = "kubernetes.io/legacy-token-invalid-since";

/// Settings of both sides.
struct Settings {
    issuers: &'static [&'static str],
    audiences: &'static [&'static str],
    lookup: bool,
    /// The requested audiences.
    requested: &'static [&'static str],
}

const SETTINGS: &[Settings] = &[
    Settings { issuers: &["https://issuer.example"], audiences: &["api"], lookup: true, requested: &[] },
    Settings {
        issuers: &["https://issuer.example", "https://old.example"],
        audiences: &["api", "more"],
        lookup: true,
        requested: &["more", "vault"],
    },
    Settings { issuers: &["https://issuer.example"], audiences: &[], lookup: false, requested: &[] },
    Settings {
        issuers: &["https://issuer.example", LEGACY],
        audiences: &["api"],
        lookup: true,
        requested: &[],
    },
];

/// An object that both sides have.
struct Object {
    kind: &'static str,
    namespace: &'static str,
    name: &'static str,
    uid: &'static str,
    /// Seconds since 1970; zero if it is not deleted.
    deleted: u64,
    label: &'static str,
}

const fn object(
    kind: &'static str,
    namespace: &'static str,
    name: &'static str,
    uid: &'static str,
) -> Object {
    Object { kind, namespace, name, uid, deleted: 0, label: "" }
}

const fn leaving(kind: &'static str, namespace: &'static str) -> Object {
    Object { deleted: 1_000_000_000, ..object(kind, namespace, "leaving", "leaving-uid") }
}

const fn ending(kind: &'static str, namespace: &'static str) -> Object {
    Object { deleted: 4_000_000_000, ..object(kind, namespace, "ending", "ending-uid") }
}

const OBJECTS: &[Object] = &[
    object("serviceaccount", "ns", "builder", "builder-uid"),
    object("serviceaccount", "ns", "no.uid", ""),
    object("serviceaccount", "other", "builder", "other-uid"),
    leaving("serviceaccount", "ns"),
    ending("serviceaccount", "ns"),
    object("secret", "ns", "builder-token", "token-uid"),
    Object { label: INVALID_SINCE, ..object("secret", "ns", "marked", "marked-uid") },
    leaving("secret", "ns"),
    ending("secret", "ns"),
    object("pod", "ns", "web", "web-uid"),
    object("pod", "ns", "no.uid", ""),
    leaving("pod", "ns"),
    ending("pod", "ns"),
    object("node", "", "worker", "worker-uid"),
    leaving("node", ""),
    ending("node", ""),
];

/// The objects for our side. All secrets hold the same token.
#[derive(Debug, Default)]
struct Cluster {
    stored: Mutex<String>,
}

impl Cluster {
    fn find(kind: &str, namespace: &str, name: &str) -> Option<&'static Object> {
        OBJECTS.iter().find(|object| (object.kind, object.namespace, object.name) == (kind, namespace, name))
    }
}

impl Object {
    fn identity(&self) -> ObjectIdentity {
        let deleted = (self.deleted > 0).then(|| UnixTime::from_secs(self.deleted));
        ObjectIdentity { uid: self.uid.to_owned(), deleted }
    }

    fn labels(&self) -> BTreeMap<String, String> {
        [self.label]
            .into_iter()
            .filter(|label| !label.is_empty())
            .map(|l| (l.to_owned(), "x".into()))
            .collect()
    }

    fn to_json(&self) -> Value {
        let Self { kind, namespace, name, uid, deleted, .. } = self;
        json!({
            "kind": kind, "namespace": namespace, "name": name, "uid": uid, "deleted": deleted,
            "labels": self.labels(),
        })
    }
}

impl TokenGetter for Cluster {
    fn service_account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, GetResult<ServiceAccount>> {
        let found = Self::find("serviceaccount", namespace, name);
        let account = |object: &Object| ServiceAccount { identity: object.identity(), secrets: Vec::new() };
        Box::pin(async move { Ok(found.map(account).map(Arc::new)) })
    }
    fn secret<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<Secret>> {
        let found = Self::find("secret", namespace, name);
        let token = SecretSlice::from(self.stored.lock().unwrap().as_bytes().to_vec());
        let data = BTreeMap::from([("token".to_owned(), token)]);
        let secret = |object: &Object| Secret {
            identity: object.identity(),
            labels: object.labels(),
            data,
            ..Secret::default()
        };
        Box::pin(async move { Ok(found.map(secret).map(Arc::new)) })
    }
    fn bootstrap_secret<'a>(&'a self, _: &'a str, _: &'a Owner) -> BoxFuture<'a, GetResult<Secret>> {
        Box::pin(async { Ok(None) })
    }
    fn pod<'a>(&'a self, namespace: &'a str, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        let found = Self::find("pod", namespace, name);
        Box::pin(async move { Ok(found.map(Object::identity).map(Arc::new)) })
    }
    fn node<'a>(&'a self, name: &'a str) -> BoxFuture<'a, GetResult<ObjectIdentity>> {
        let found = Self::find("node", "", name);
        Box::pin(async move { Ok(found.map(Object::identity).map(Arc::new)) })
    }
    fn label_secret(&self, _: &str, _: &str, _: &'static str, _: String) {}
}

/// The value of a claim or of a member of `kubernetes.io`, usually one that fits its name.
fn value(rng: &mut Rng, name: &str) -> String {
    if rng.one_in(8) {
        return (*rng.pick(VALUES)).to_owned();
    }
    let name = name.strip_prefix(LEGACY_PREFIX).unwrap_or(name).to_lowercase();
    let choice = match name.as_str() {
        "iss" => ISSUERS,
        "sub" => SUBJECTS,
        "aud" | "\\u0061ud" => AUDIENCES,
        "exp" | "e\\u0078p" | "iat" | "nbf" | "warnafter" => DATES,
        "namespace" => NAMESPACES,
        "secret.name" | "service-account.name" => OBJECT_NAMES,
        "service-account.uid" => UIDS,
        "serviceaccount" | "pod" | "\\u0070od" | "secret" | "node" => return reference(rng, &name),
        "kubernetes.io" | "kubernetes\\u002eio" => return bonds(rng),
        _ => VALUES,
    };
    (*rng.pick(choice)).to_owned()
}

/// A reference to an object, which may exist.
fn reference(rng: &mut Rng, kind: &str) -> String {
    if rng.one_in(12) {
        return (*rng.pick(REFERENCES)).to_owned();
    }
    let fitting: Vec<&Object> = OBJECTS.iter().filter(|object| object.kind == kind).collect();
    let quoted = |text: &str| format!("\"{text}\"");
    let (mut name, mut uid) = match fitting.first() {
        Some(first) => {
            let object = if rng.one_in(3) { rng.pick(&fitting) } else { first };
            (quoted(object.name), quoted(object.uid))
        }
        None => ("\"web\"".to_owned(), "\"web-uid\"".to_owned()),
    };
    if rng.one_in(12) {
        (*rng.pick(OBJECT_NAMES)).clone_into(&mut name);
    }
    if rng.one_in(12) {
        (*rng.pick(UIDS)).clone_into(&mut uid);
    }
    let mut members = vec![format!("\"name\": {name}"), format!("\"uid\": {uid}")];
    if rng.one_in(12) {
        members.push((*rng.pick(REFERENCE_MEMBERS)).to_owned());
    }
    if rng.one_in(16) {
        members.remove(rng.below(members.len()));
    }
    format!("{{{}}}", rng.shuffled(members).join(", "))
}

/// The claim `kubernetes.io`.
fn bonds(rng: &mut Rng) -> String {
    let mut members = vec![
        "\"namespace\": \"ns\"".to_owned(),
        format!("\"serviceaccount\": {}", {
            if rng.one_in(3) {
                reference(rng, "serviceaccount")
            } else {
                "{\"name\": \"builder\", \"uid\": \"builder-uid\"}".to_owned()
            }
        }),
    ];
    for kind in ["pod", "secret", "node"] {
        if rng.one_in(4) {
            members.push(format!("\"{kind}\": {}", reference(rng, kind)));
        }
    }
    if rng.one_in(10) {
        members.push(format!("\"warnafter\": {}", rng.pick(DATES)));
    }
    if rng.one_in(5) {
        let name = *rng.pick(BONDS);
        members.push(format!("\"{name}\": {}", value(rng, name)));
    }
    if rng.one_in(20) {
        members.push((*rng.pick(FURTHER_MEMBERS)).to_owned());
    }
    if rng.one_in(20) {
        members.remove(rng.below(members.len()));
    }
    // The namespace within the name, since a cache may concatenate both to a key.
    if rng.one_in(40) {
        members = vec!["\"serviceaccount\": {\"name\": \"ns/builder\", \"uid\": \"builder-uid\"}".to_owned()];
    }
    format!("{{{}}}", rng.shuffled(members).join(", "))
}

/// The claims of a random token: legacy, bound, or both at once.
fn claims(mint: &mut TokenMint) -> String {
    let rng = &mut mint.rng;
    let (is_legacy, is_bound) = match rng.below(8) {
        0..3 => (true, false),
        3..7 => (false, true),
        _ => (true, true),
    };
    let issuer = if is_legacy && (!is_bound || rng.one_in(2)) { LEGACY } else { "https://issuer.example" };
    let mut members =
        vec![format!("\"iss\": \"{issuer}\""), "\"sub\": \"system:serviceaccount:ns:builder\"".to_owned()];
    if is_legacy {
        for (name, value) in [
            ("namespace", "ns"),
            ("secret.name", if rng.one_in(10) { "ending" } else { "builder-token" }),
            ("service-account.name", "builder"),
            ("service-account.uid", "builder-uid"),
        ] {
            members.push(format!("\"{LEGACY_PREFIX}{name}\": \"{value}\""));
        }
    }
    if is_bound {
        members.push("\"exp\": 4000000000".to_owned());
        members.push("\"jti\": \"some-id\"".to_owned());
        members.push(format!("\"kubernetes.io\": {}", bonds(rng)));
    }
    if is_bound || rng.one_in(4) {
        members.push("\"aud\": [\"api\", \"more\"]".to_owned());
    }
    if rng.one_in(12) {
        members.remove(rng.below(members.len()));
    }
    // Replaces or duplicates a member.
    let changes = if rng.one_in(2) { 1 + rng.below(2) } else { 0 };
    for _ in 0..changes {
        let name = *rng.pick(NAMES);
        if !rng.one_in(6) {
            let start = format!("\"{name}\":");
            members.retain(|member| !member.starts_with(&start));
        }
        members.push(format!("\"{name}\": {}", value(rng, name)));
    }
    if rng.one_in(16) {
        members.push((*rng.pick(FURTHER_MEMBERS)).to_owned());
    }
    mint.claims(members)
}

fn token(mint: &mut TokenMint) -> RandomToken {
    let claims = claims(mint);
    let mut token = mint.token(&claims);
    // Any number beyond the last date.
    if ["922337203685477580", "1e19", "1e300", "99999999999999999999999"]
        .iter()
        .any(|date| token.shown.contains(date))
    {
        token.declared.push(DATES_BEYOND);
    }
    if token.shown.contains("\"name\": \"ns/") {
        token.declared.push(NO_NAMESPACE);
    }
    token
}

fn audiences(texts: &[&str]) -> Vec<Audience> {
    texts.iter().map(|text| Audience((*text).to_owned())).collect()
}

fn identity(answer: &Value) -> (UserInfo, Vec<Audience>) {
    let mut user = UserInfo::named(answer["username"].as_str().unwrap());
    user.uid = answer["uid"].as_str().filter(|uid| !uid.is_empty()).map(str::to_owned);
    user.groups = serde_json::from_value(answer["groups"].clone()).unwrap();
    user.extra = serde_json::from_value::<Option<_>>(answer["extra"].clone()).unwrap().unwrap_or_default();
    let names = answer["audiences"].as_array().map(Vec::as_slice).unwrap_or_default();
    (user, names.iter().map(|name| Audience(name.as_str().unwrap().to_owned())).collect())
}

#[tokio::test]
async fn service_account_tokens_are_judged_as_the_api_server_judges_them() {
    const AT_ONCE: usize = 10_000;
    let Some(program) = GoProgram::build("accounttokens") else { return };
    let (seed, rounds) = (seed(), inputs(10_000));
    let mut mint = TokenMint::new(seed);
    let keys: String =
        [TokenMint::new(seed).spki(), mint.spki()].iter().map(|key| pki::pem("PUBLIC KEY", key)).collect();
    let cluster = Arc::new(Cluster::default());
    let judges: Vec<StaticAccountAuthenticator> = SETTINGS
        .iter()
        .map(|settings| {
            let keys = read_key_file(keys.as_bytes()).unwrap();
            let issuers = settings.issuers.iter().map(|issuer| (*issuer).to_owned()).collect();
            let lookup = Arc::<Cluster>::clone(&cluster);
            StaticAccountAuthenticator::new(
                keys,
                issuers,
                settings.lookup,
                lookup,
                audiences(settings.audiences),
            )
            .unwrap()
        })
        .collect();
    let authenticators: Vec<Value> = SETTINGS
        .iter()
        .map(|Settings { issuers, audiences, lookup, .. }| {
            json!({"issuers": issuers, "audiences": audiences, "lookup": lookup})
        })
        .collect();
    let objects: Vec<Value> = OBJECTS.iter().map(Object::to_json).collect();
    let configuration = json!({"keys": keys, "objects": objects, "authenticators": authenticators});
    let now = Clock::system().now();
    let mut comparison = Comparison::default();
    for round in (0..rounds).step_by(AT_ONCE) {
        let tokens: Vec<RandomToken> = (0..AT_ONCE.min(rounds - round)).map(|_| token(&mut mint)).collect();
        let stored: Vec<&str> =
            tokens.iter().map(|token| if mint.rng.one_in(20) { "" } else { &token.text }).collect();
        let mut questions = vec![configuration.clone()];
        questions.extend(tokens.iter().zip(&stored).enumerate().map(|(at, (token, stored))| {
            let at = at % SETTINGS.len();
            let requested = SETTINGS[at].requested;
            json!({"authenticator": at, "token": token.text, "stored": stored, "audiences": requested})
        }));
        let answers = program.ask(&questions).into_iter().skip(1);
        for (at, ((token, stored), answer)) in tokens.iter().zip(stored).zip(answers).enumerate() {
            let at = at % SETTINGS.len();
            stored.clone_into(&mut cluster.stored.lock().unwrap());
            let theirs = (answer["known"] == true).then(|| identity(&answer));
            let ours = judges[at].authenticate(&token.text, &audiences(SETTINGS[at].requested), now).await;
            comparison.add(token, &ours, theirs.as_ref(), &answer);
        }
        comparison.assert_no_failures(seed);
    }
    comparison.assert_meaningful(&[SPELLING, HEADER, DATES_BEYOND, NO_NAMESPACE]);
}
