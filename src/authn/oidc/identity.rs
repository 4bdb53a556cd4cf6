//! Maps the claims of a verified token to a user and evaluates the validation rules.
//!
//! Follows `AuthenticateToken` of kube-apiserver's `plugin/pkg/authenticator/token/oidc/oidc.go`, error by error and in
//! its order: user mapping, claim rules, user rules.
//!
//! A user name from the claim `email` is refused here if `email_verified` says so. One from an expression must use
//! `email_verified`, which `config/authentication_configuration/validation.rs` checks when it reads the configuration.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use portcullis_cel::{Bindings, Expression, Value};
use portcullis_go::quote::{Quoted, QuotedList};
use portcullis_kubernetes::user::{CREDENTIAL_ID_KEY, UserInfo};

use super::claims::{self, IdTokenClaims, present};
use super::settings::{AttributeMapping, ClaimRule, ExpressionRule, JwtAuthenticator};
use super::steps::StepRecorder;
use crate::authn::trace::Check;

/// Maps claims to a user, or fails if a rule rejects them.
pub(super) fn identify(
    all: &IdTokenClaims,
    settings: &JwtAuthenticator,
    steps: StepRecorder<'_>,
) -> Result<UserInfo, String> {
    // Built lazily: most issuers do not use expressions.
    let variable = LazyCell::new(|| Bindings::claims(all));
    let mapper = ClaimMapper { claims: all, evaluate: &|expression| evaluate(expression, &variable), steps };
    let user = UserInfo {
        name: steps
            .check(Check::Username, mapper.username(&settings.username), |name| Quoted(name).to_string())?,
        groups: steps.check(Check::Groups, mapper.groups(settings.groups.as_ref()), |groups| {
            QuotedList(groups).to_string()
        })?,
        uid: steps.check(Check::Uid, mapper.uid(settings.uid.as_ref()), |uid| {
            Quoted(uid.as_deref().unwrap_or_default()).to_string()
        })?,
        extra: steps.check(Check::Extra, mapper.extra(&settings.extra), |extra| {
            extra
                .iter()
                .map(|(key, values)| format!("{key}={}", QuotedList(values)))
                .collect::<Vec<_>>()
                .join(", ")
        })?,
    };
    mapper.check_required(settings)?;
    let expressions = settings.claim_rules.iter().filter_map(|rule| match rule {
        ClaimRule::Expression(rule) => Some(rule),
        ClaimRule::Required { .. } => None,
    });
    check_rules(expressions, mapper.evaluate, &Check::ClaimRule, steps)
        .map_err(|error| format!("oidc: error evaluating claim validation expression: {error}"))?;
    let uid = user.uid.as_deref().unwrap_or_default();
    let variable = LazyCell::new(|| Bindings::user(&user.name, uid, &user.groups, &user.extra));
    check_rules(
        settings.user_rules.iter(),
        &|expression| evaluate(expression, &variable),
        &Check::UserRule,
        steps,
    )
    .map_err(|error| format!("oidc: error evaluating user info validation rule: {error}"))?;
    Ok(user)
}

/// Maps claims to user attributes.
struct ClaimMapper<'a> {
    claims: &'a IdTokenClaims,
    evaluate: &'a dyn Fn(&Expression) -> Result<Value, String>,
    steps: StepRecorder<'a>,
}

impl ClaimMapper<'_> {
    fn username(&self, mapping: &AttributeMapping) -> Result<String, String> {
        let (claim, prefix) = match mapping {
            AttributeMapping::Expression(expression) => {
                let name = self.text_of(expression, "username")?;
                if name.is_empty() {
                    return Err("oidc: empty username via CEL expression is not allowed".to_owned());
                }
                return Ok(name);
            }
            AttributeMapping::Claim { name, prefix } => (name, prefix),
        };
        let name = present(self.claims, claim)
            .and_then(claims::text)
            .map_err(|error| format!("oidc: parse username claims {}: {error}", Quoted(claim)))?;
        // Expressions must check `email_verified` themselves; configuration validation enforces it.
        if claim == "email"
            && let Some(verified) = self.claims.get("email_verified")
        {
            let verified = match claims::boolean(verified) {
                Ok(true) => Ok(()),
                Ok(false) => Err("oidc: email not verified".to_owned()),
                Err(error) => Err(format!("oidc: parse 'email_verified' claim: {error}")),
            };
            self.steps.check(Check::EmailVerified, verified, |()| "true".to_owned())?;
        }
        Ok(format!("{prefix}{name}"))
    }

    fn groups(&self, mapping: Option<&AttributeMapping>) -> Result<Vec<String>, String> {
        match mapping {
            None => Ok(Vec::new()),
            Some(AttributeMapping::Claim { name, prefix }) => {
                let groups = self.claims.get(name).map_or_else(|| Ok(Vec::new()), claims::texts);
                let groups =
                    groups.map_err(|error| format!("oidc: parse groups claim {}: {error}", Quoted(name)))?;
                Ok(groups.into_iter().map(|group| format!("{prefix}{group}")).collect())
            }
            Some(AttributeMapping::Expression(expression)) => (self.evaluate)(expression)
                .and_then(|value| texts(value).map_err(str::to_owned))
                .map_err(|error| format!("oidc: error evaluating group claim expression: {error}")),
        }
    }

    fn uid(&self, mapping: Option<&AttributeMapping>) -> Result<Option<String>, String> {
        let uid = match mapping {
            None => return Ok(None),
            Some(AttributeMapping::Claim { name, .. }) => present(self.claims, name)
                .and_then(claims::text)
                .map(str::to_owned)
                .map_err(|error| format!("oidc: parse uid claim {}: {error}", Quoted(name)))?,
            Some(AttributeMapping::Expression(expression)) => self.text_of(expression, "uid")?,
        };
        Ok(Some(uid).filter(|uid| !uid.is_empty()))
    }

    fn extra(&self, mappings: &[(String, Expression)]) -> Result<BTreeMap<String, Vec<String>>, String> {
        let mut extra = BTreeMap::new();
        // A `jti` that is not a string is ignored.
        if let Some(id) = self.claims.get("jti").and_then(|id| id.as_str()).filter(|id| !id.is_empty()) {
            extra.insert(CREDENTIAL_ID_KEY.to_owned(), vec![format!("JTI={id}")]);
        }
        let values: Vec<_> =
            mappings.iter().map(|(_, expression)| (self.evaluate)(expression)).collect::<Result<_, _>>()?;
        for ((key, expression), value) in mappings.iter().zip(values) {
            let values = texts(value).map_err(|error| {
                format!("oidc: error evaluating extra claim expression: {}: {error}", expression.text())
            })?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        Ok(extra)
    }

    fn check_required(&self, settings: &JwtAuthenticator) -> Result<(), String> {
        for rule in &settings.claim_rules {
            if let ClaimRule::Required { claim, value } = rule {
                let found = self.required(claim, value);
                self.steps
                    .check(Check::RequiredClaim(claim.clone()), found, |()| Quoted(value).to_string())?;
            }
        }
        Ok(())
    }

    fn required(&self, claim: &str, want: &str) -> Result<(), String> {
        let found = self
            .claims
            .get(claim)
            .ok_or_else(|| format!("oidc: required claim {claim} not present in ID token"))?;
        let got = claims::text(found).map_err(|error| format!("oidc: parse claim {claim}: {error}"))?;
        if got == want {
            return Ok(());
        }
        Err(format!("oidc: required claim {claim} value does not match. Got = {got}, want = {want}"))
    }

    fn text_of(&self, expression: &Expression, what: &str) -> Result<String, String> {
        let text = match (self.evaluate)(expression) {
            Ok(Value::String(text)) => return Ok(text),
            Ok(_) => format!("{what} claim expression must return a string"),
            Err(error) => error,
        };
        Err(format!("oidc: error evaluating {what} claim expression: {text}"))
    }
}

// apiserver: pkg/authentication/cel/mapper.go
fn evaluate(expression: &Expression, bindings: &Bindings) -> Result<Value, String> {
    let value = expression.evaluate(bindings);
    value.map_err(|error| format!("expression '{}' resulted in error: {error}", expression.text()))
}

/// Converts a string or a list of strings; drops empty strings and `null`.
// apiserver: oidc.go, convertCELValueToStringList
fn texts(value: Value) -> Result<Vec<String>, &'static str> {
    const ERROR: &str = "expression must return a string or a list of strings";
    let text = |value| match value {
        Value::String(text) => Ok(text),
        _ => Err(ERROR),
    };
    let texts = match value {
        Value::Null => Vec::new(),
        Value::List(values) => values.into_iter().map(text).collect::<Result<_, _>>()?,
        one => vec![text(one)?],
    };
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect())
}

/// Evaluates all rules before checking any result, as kube-apiserver does: an evaluation error wins over a false rule.
fn check_rules<'a>(
    rules: impl Iterator<Item = &'a ExpressionRule>,
    evaluate: &dyn Fn(&Expression) -> Result<Value, String>,
    check: &Check,
    steps: StepRecorder<'_>,
) -> Result<(), String> {
    let mut values = Vec::new();
    for rule in rules {
        match evaluate(&rule.expression) {
            Ok(value) => values.push((rule, value)),
            Err(error) => return steps.check(check.clone(), Err(error), |()| String::new()),
        }
    }
    for (rule, value) in values {
        let text = rule.expression.text();
        let outcome = match value {
            Value::Bool(true) => Ok(()),
            Value::Bool(false) => Err(format!("validation expression '{text}' failed: {}", rule.message)),
            _ => Err("validation expression must return a boolean".to_owned()),
        };
        steps.check(check.clone(), outcome, |()| text.to_owned())?;
    }
    Ok(())
}
