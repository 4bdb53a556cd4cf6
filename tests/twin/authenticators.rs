//! The flags and files of the token authenticators, equal for the reference, the second reference and the gateway.
//!
//! There are two sets of authenticators, because `--oidc-*` and `--authentication-config` are mutually exclusive: see [`Setting`].

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use testkit::pki::pem;

use crate::mint::{Jwt, Mint, Token, jwt};
use crate::outside::MOVED;

/// The set of authenticators that a case needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Setting {
    /// An `AuthenticationConfiguration`, and recommended settings for the rest.
    Config,
    /// `--oidc-*` flags, default API audiences, service accounts without lookup, and a v1 webhook without a cache.
    Flags,
    /// Authorization webhooks instead of RBAC, or in front of the backend's.
    Webhooks,
    /// Admission webhooks.
    Admission,
    /// Audit.
    Audit,
    /// Limits on requests in flight.
    Limits,
}

/// The issuers of service-account tokens; the first one signs.
const ISSUERS: [&str; 2] = ["https://kubernetes.default.svc", "https://old.issuer.example"];

/// The API audiences of [`Setting::Config`], and of the backend, which signs the tokens of `TokenRequests` through the
/// gateway.
pub(crate) const AUDIENCES: &str = "--api-audiences=https://api.twin.example,second.twin";

/// Writes the files of the flags.
pub(crate) fn write(dir: &Path, mint: &Mint, ca: &str) -> std::io::Result<()> {
    let public = |name: &str| pem("PUBLIC KEY", &mint.key(name).spki());
    fs::write(dir.join("sa.key"), mint.key("accounts").pem())?;
    fs::write(dir.join("sa.pub"), public("accounts"))?;
    fs::write(dir.join("sa-rsa.pub"), public("accounts-rsa"))?;
    let many =
        [public("accounts-p384"), mint.key("accounts-private").pem(), public("accounts-p521")].concat();
    fs::write(dir.join("sa-many.pem"), many)?;
    let config = fill(&configuration(ca), mint);
    fs::write(dir.join("authentication.json"), config.to_string())?;
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "webhook",
        "contexts": [{"name": "webhook", "context": {"cluster": "webhook", "user": "webhook"}}],
        "clusters": [{"name": "webhook", "cluster": {
            "server": format!("{}/webhook/reviews", mint.issuer), "certificate-authority": dir.join("server-ca.crt")}}],
        "users": [{"name": "webhook", "user": {}}],
    });
    fs::write(dir.join("webhook.kubeconfig"), kubeconfig.to_string())
}

/// The flags for service account tokens, for all API servers and the gateway.
pub(crate) fn accounts(dir: &Path) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let mut flags: Vec<_> =
        ISSUERS.iter().map(|issuer| format!("--service-account-issuer={issuer}")).collect();
    let keys = ["sa.pub", "sa-rsa.pub", "sa-many.pem"];
    flags.extend(keys.iter().map(|name| format!("--service-account-key-file={}", file(name))));
    flags
}

/// The flags of the reference and the gateway, in addition to [`accounts`].
pub(crate) fn flags(dir: &Path, mint: &Mint, setting: Setting) -> Vec<String> {
    let file = |name: &str| dir.join(name).display().to_string();
    let mut flags = vec![
        "--enable-bootstrap-token-auth=true".to_owned(),
        format!("--authentication-token-webhook-config-file={}", file("webhook.kubeconfig")),
    ];
    match setting {
        Setting::Config | Setting::Webhooks | Setting::Admission | Setting::Audit | Setting::Limits => {
            flags.push(AUDIENCES.to_owned());
            flags.push(format!("--authentication-config={}", file("authentication.json")));
        }
        Setting::Flags => flags.extend([
            "--service-account-lookup=false".to_owned(),
            "--authentication-token-webhook-version=v1".to_owned(),
            "--authentication-token-webhook-cache-ttl=0s".to_owned(),
            format!("--oidc-issuer-url={}/flags", mint.issuer),
            "--oidc-client-id=portcullis".to_owned(),
            format!("--oidc-ca-file={}", file("server-ca.crt")),
            "--oidc-groups-claim=groups".to_owned(),
            "--oidc-groups-prefix=oidc:".to_owned(),
            "--oidc-required-claim=hd=example.com".to_owned(),
            "--oidc-required-claim=tier=gold".to_owned(),
            r"--cors-allowed-origins=^https://app\.example\.com(:|$),//localhost:".to_owned(),
        ]),
    }
    flags
}

/// The issuers of the configuration with valid discovery documents and keys.
const USABLE: &[&str] = &[
    "plain",
    "email",
    "bare",
    "required",
    "multi",
    "distributed",
    "rotating",
    "slash/",
    "cel",
    "celemail",
    "celraw",
    "dots",
];

/// A token that satisfies all rules of this issuer.
pub(crate) fn token(issuer: &str) -> Jwt {
    let issuer = if issuer == MOVED { MOVED.to_owned() } else { format!("{{issuer}}/{issuer}") };
    jwt(
        "issuer-rsa",
        json!({"iss": issuer, "aud": "portcullis", "exp": "{now+3600}", "iat": "{now-5}", "sub": "jane"}),
    )
}

/// Tokens to check that a server has the fixtures in its caches and has fetched the issuers' keys.
pub(crate) fn probes(setting: Setting) -> Vec<Token> {
    let distant = json!({"_claim_names": {"groups": "src"},
        "_claim_sources": {"src": {"endpoint": "{issuer}/distributed/claims/good"}}});
    let rich = |issuer: &str| {
        token(issuer).with(json!({
            "aud": ["portcullis", "first"], "email": "jane@example.com", "hd": "example.com", "blank": "", "oid": "o-1",
            "tier": "gold", "name": "jane", "roles": [], "uid": "u-1", "raw": "r", "user.name": "jane",
            "nested": [{"group.name": "n"}], "outer.er": {"inner": "i"},
        }))
    };
    let mut probes: Vec<Token> = vec!["last00.0123456789abcdef".into(), "{made:legacy-opaque}".into()];
    match setting {
        Setting::Flags => probes.push(rich("flags").into()),
        Setting::Config | Setting::Webhooks | Setting::Admission | Setting::Audit | Setting::Limits => {
            probes.extend(USABLE.iter().chain([&MOVED]).map(|issuer| Token::from(rich(issuer))));
            probes.push(token("distributed").with(distant).into());
        }
    }
    probes
}

/// `--authentication-config`.
fn configuration(ca: &str) -> Value {
    let issuer = |path: &str| json!({"url": format!("{{issuer}}/{path}"), "certificateAuthority": ca, "audiences": ["portcullis"]});
    let by_sub = |path: &str| json!({"issuer": issuer(path), "claimMappings": {"username": {"claim": "sub", "prefix": format!("{path}:")}}});
    let plain = |path: &str, prefix: &str| {
        let mut plain = by_sub(path);
        plain["claimMappings"]["groups"] = json!({"claim": "groups", "prefix": prefix});
        plain
    };
    let mut multi = by_sub("multi");
    multi["issuer"]["audiences"] = json!(["first", "second"]);
    multi["issuer"]["audienceMatchPolicy"] = json!("MatchAny");
    let mut moved = by_sub("moved");
    moved["issuer"]["url"] = json!(MOVED);
    moved["issuer"]["discoveryURL"] = json!("{issuer}/moved/metadata.json");
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "jwt": [
            plain("plain", "g:"),
            {"issuer": issuer("email"), "claimMappings": {
                "username": {"claim": "email", "prefix": ""}, "groups": {"claim": "roles", "prefix": ""}}},
            {"issuer": issuer("bare"), "claimMappings": {
                "username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""}}},
            {"issuer": issuer("required"), "claimMappings": {
                "username": {"claim": "sub", "prefix": "required:"}, "uid": {"claim": "oid"}},
             "claimValidationRules": [
                {"claim": "hd", "requiredValue": "example.com"}, {"claim": "blank", "requiredValue": ""}]},
            multi, moved,
            by_sub("down"), by_sub("keyless"), by_sub("silent"), by_sub("liar"),
            plain("distributed", "d:"),
            by_sub("rotating"), by_sub("slash/"),
            {"issuer": issuer("cel"),
             "claimValidationRules": [
                {"expression": "claims.?hd.orValue('example.com') == 'example.com'", "message": "hd must be example.com"},
                {"expression": "claims.exp - claims.iat <= 86400", "message": "must not live longer than a day"},
                {"expression": "!has(claims.revoked)"}],
             "claimMappings": {
                "username": {"expression": "'cel:' + claims.sub"},
                "groups": {"expression": "dyn(claims.?roles.orValue([])).map(role, 'r:' + role)"},
                "uid": {"expression": "claims.?uid.orValue('none')"},
                "extra": [
                    {"key": "twin.example/tenant", "valueExpression": "claims.?tenant.orValue('')"},
                    {"key": "twin.example/scopes", "valueExpression": "dyn(claims.?scopes.orValue([]))"},
                    {"key": "twin.example/constant", "valueExpression": "'constant'"}]},
             "userValidationRules": [
                {"expression": "!user.username.startsWith('cel:system:')", "message": "system names are ours"},
                {"expression": "user.groups.all(group, !group.startsWith('r:system:'))", "message": "system groups are ours"},
                {"expression": "user.uid != 'forbidden'"},
                {"expression": "!('twin.example/tenant' in user.extra && 'evil' in user.extra['twin.example/tenant'])"},
                {"expression": "!('system:authenticated' in user.groups)", "message": "groups as mapped"}]},
            {"issuer": issuer("celemail"), "claimMappings": {"username": {"expression": "claims.email"}},
             "claimValidationRules": [{"expression": "claims.?email_verified.orValue(true) == true",
                "message": "email must be verified"}]},
            {"issuer": issuer("celraw"), "claimMappings": {
                "username": {"expression": "claims.name"}, "groups": {"expression": "claims.roles"},
                "uid": {"expression": "claims.uid"},
                "extra": [{"key": "twin.example/raw", "valueExpression": "claims.raw"}]}},
            {"issuer": issuer("dots"), "claimMappings": {
                "username": {"expression": "claims.user__dot__name"},
                "groups": {"expression": "[claims.nested[0].group__dot__name]"},
                "extra": [{"key": "twin.example/dotted", "valueExpression": "claims.outer__dot__er.inner"},
                    {"key": "twin.example/iterated", "valueExpression":
                        "dyn(claims.nested).all(one, has(one.group__dot__name)) ? 'seen' : 'unseen'"}]},
             "userValidationRules": [
                {"expression": "user.extra['twin.example/dotted'] != ['refused']", "message": "refused"}]},
        ],
    })
}

/// Replaces the placeholders in every string.
fn fill(value: &Value, mint: &Mint) -> Value {
    serde_json::from_str(&mint.fill(&value.to_string())).expect("placeholders hold nothing that JSON escapes")
}
