//! What is made of the claims of a verified token: the user, and whether the rules let it be.
//!
//! Follows `AuthenticateToken` of kube-apiserver's `plugin/pkg/authenticator/token/oidc/oidc.go`, error by error. The
//! order is part of it: the user first, then the claims, then the user again.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use super::claims::{self, Claims, present};
use super::settings::{ClaimRule, JwtAuthenticator, Mapping, Rule};
use super::steps::Steps;
use crate::authn::trace::Check;
use crate::go::quote::{Quoted, QuotedList};
use crate::user::{CREDENTIAL_ID_KEY, UserInfo};
use portcullis_cel::{Expression, Value, Variable};

/// Makes the user of a token.
pub(super) fn identify(
    all: &Claims,
    settings: &JwtAuthenticator,
    steps: Steps<'_>,
) -> Result<UserInfo, String> {
    // Most issuers need no expression at all.
    let variable = LazyCell::new(|| Variable::claims(all));
    let mapper = Mapper { claims: all, evaluate: &|expression| evaluate(expression, &variable), steps };
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
    let variable = LazyCell::new(|| Variable::user(&user.name, uid, &user.groups, &user.extra));
    check_rules(
        settings.user_rules.iter(),
        &|expression| evaluate(expression, &variable),
        &Check::UserRule,
        steps,
    )
    .map_err(|error| format!("oidc: error evaluating user info validation rule: {error}"))?;
    Ok(user)
}

/// Reads the user out of claims.
struct Mapper<'a> {
    claims: &'a Claims,
    evaluate: &'a dyn Fn(&Expression) -> Result<Value, String>,
    steps: Steps<'a>,
}

impl Mapper<'_> {
    fn username(&self, mapping: &Mapping) -> Result<String, String> {
        let (claim, prefix) = match mapping {
            Mapping::Expression(expression) => {
                let name = self.text_of(expression, "username")?;
                if name.is_empty() {
                    return Err("oidc: empty username via CEL expression is not allowed".to_owned());
                }
                return Ok(name);
            }
            Mapping::Claim { name, prefix } => (name, prefix),
        };
        let name = present(self.claims, claim)
            .and_then(claims::text)
            .map_err(|error| format!("oidc: parse username claims {}: {error}", Quoted(claim)))?;
        // An expression has to look at `email_verified` itself, which the configuration is checked for.
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

    fn groups(&self, mapping: Option<&Mapping>) -> Result<Vec<String>, String> {
        match mapping {
            None => Ok(Vec::new()),
            Some(Mapping::Claim { name, prefix }) => {
                let groups = self.claims.get(name).map_or_else(|| Ok(Vec::new()), claims::texts);
                let groups =
                    groups.map_err(|error| format!("oidc: parse groups claim {}: {error}", Quoted(name)))?;
                Ok(groups.into_iter().map(|group| format!("{prefix}{group}")).collect())
            }
            Some(Mapping::Expression(expression)) => (self.evaluate)(expression)
                .and_then(|value| texts(value).map_err(str::to_owned))
                .map_err(|error| format!("oidc: error evaluating group claim expression: {error}")),
        }
    }

    fn uid(&self, mapping: Option<&Mapping>) -> Result<Option<String>, String> {
        let uid = match mapping {
            None => return Ok(None),
            Some(Mapping::Claim { name, .. }) => present(self.claims, name)
                .and_then(claims::text)
                .map(str::to_owned)
                .map_err(|error| format!("oidc: parse uid claim {}: {error}", Quoted(name)))?,
            Some(Mapping::Expression(expression)) => self.text_of(expression, "uid")?,
        };
        Ok(Some(uid).filter(|uid| !uid.is_empty()))
    }

    fn extra(&self, mappings: &[(String, Expression)]) -> Result<BTreeMap<String, Vec<String>>, String> {
        let mut extra = BTreeMap::new();
        // One that is not text is none.
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
fn evaluate(expression: &Expression, variable: &Variable) -> Result<Value, String> {
    let value = expression.evaluate(variable);
    value.map_err(|error| format!("expression '{}' resulted in error: {error}", expression.text()))
}

/// Text or a list of texts; empty ones and `null` are none.
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

/// All are evaluated before the first one can fail, as upstream does: an error goes before a refusal.
fn check_rules<'a>(
    rules: impl Iterator<Item = &'a Rule>,
    evaluate: &dyn Fn(&Expression) -> Result<Value, String>,
    check: &Check,
    steps: Steps<'_>,
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
