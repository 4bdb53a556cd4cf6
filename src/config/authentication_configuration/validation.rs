//! Validates an `AuthenticationConfiguration` and converts it to settings. Reports every error at once.
//!
//! Follows `k8s.io/apiserver/pkg/apis/apiserver/validation/validation.go`.

mod extra;

use std::collections::BTreeSet;

use portcullis_cel::{CelGo, Environment, Expression, ResultType};
use portcullis_openid::jwt::keys::JwsAlgorithm;

use super::{
    AuthenticationConfiguration, ClaimMappings, ClaimOrExpression, ClaimValidationRule, ExtraMapping,
    JwtAuthenticator, PrefixedClaimOrExpression, UserValidationRule,
};
use crate::authn::oidc::settings::{self, AttributeMapping, ClaimRule, ExpressionRule};
use crate::config::apiserver_config::field::{FieldError, json_string};

/// The maximum number of issuers.
const MAX_JWT_ISSUERS: usize = 64;
const BOTH: &str = "claim and expression can't both be set";
const ONE_OF_BOTH: &str = "remove one of the two";
const EITHER: &str = "claim or expression is required";
const UNVERIFIED_EMAIL: &str = "claims.email_verified must be used in claimMappings.username.expression or \
                                claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when \
                                claims.email is used in claimMappings.username.expression";

/// Validates a configuration and returns the settings of its issuers. No issuer may be one of `disallowed`.
pub(in crate::config) fn validate(
    configuration: &AuthenticationConfiguration,
    disallowed: &[String],
    algorithms: &[JwsAlgorithm],
    cel_go: CelGo,
) -> Result<Vec<settings::JwtAuthenticator>, Vec<FieldError>> {
    let AuthenticationConfiguration { jwt, anonymous, .. } = configuration;
    if jwt.len() > MAX_JWT_ISSUERS {
        let error = FieldError::too_many("jwt", jwt.len(), MAX_JWT_ISSUERS).fix("remove issuers");
        return Err(vec![error]);
    }
    let mut errors = Vec::new();
    let mut issuers = Vec::new();
    let mut urls = BTreeSet::new();
    let mut discovery_urls = BTreeSet::new();
    for (index, authenticator) in jwt.iter().enumerate() {
        let mut validator = Validator { cel_go, field: format!("jwt[{index}]"), errors };
        issuers.extend(validator.authenticator(authenticator, disallowed, algorithms));
        let Validator { field, errors: found, .. } = validator;
        errors = found;
        let issuer = &authenticator.issuer;
        if !urls.insert(&issuer.url) {
            errors.push(FieldError::duplicate(format!("{field}.issuer.url"), &issuer.url));
        }
        if !issuer.discovery_url.is_empty() && !discovery_urls.insert(&issuer.discovery_url) {
            let field = format!("{field}.issuer.discoveryURL");
            errors.push(FieldError::duplicate(field, &issuer.discovery_url));
        }
    }
    if let Some(anonymous) = anonymous.as_ref().filter(|anonymous| !anonymous.enabled)
        && !anonymous.conditions.is_empty()
    {
        // kube-apiserver prints its internal type, whose fields begin with capitals.
        let paths = anonymous
            .conditions
            .iter()
            .map(|condition| format!("{{\"Path\":{}}}", json_string(&condition.path)));
        let value = format!("[{}]", paths.collect::<Vec<_>>().join(","));
        let problem = "enabled should be set to true when conditions are defined";
        let error = FieldError::invalid_json("anonymous.conditions", &value, problem);
        errors.push(error.fix("give enabled: true, or remove the conditions"));
    }
    if errors.is_empty() { Ok(issuers) } else { Err(errors) }
}

/// Validates one issuer.
struct Validator {
    /// By whose rules expressions are compiled.
    cel_go: CelGo,
    /// The path of the issuer.
    field: String,
    errors: Vec<FieldError>,
}

impl Validator {
    fn authenticator(
        &mut self,
        wire: &JwtAuthenticator,
        disallowed: &[String],
        algorithms: &[JwsAlgorithm],
    ) -> Option<settings::JwtAuthenticator> {
        let JwtAuthenticator { issuer, claim_validation_rules, claim_mappings, user_validation_rules } = wire;
        let before = self.errors.len();
        self.errors.extend(issuer.problems(&format!("{}.issuer", self.field), disallowed));
        let claim_rules = self.claim_rules(claim_validation_rules);
        let ClaimMappings { username, groups, uid, extra } = claim_mappings;
        let field = |name: &str| format!("{}.claimMappings.{name}", self.field);
        let [username_field, groups_field, uid_field, extra_field] =
            [field("username"), field("groups"), field("uid"), field("extra")];
        let mapped_name = self.mapping(username, &username_field, true);
        let groups = self.mapping(groups, &groups_field, false);
        let uid = self.uid(uid, &uid_field);
        let extra = self.extra(extra, &extra_field);
        if let Some(AttributeMapping::Expression(name)) = &mapped_name
            && name.uses_claim("email")
        {
            let rules = claim_rules.iter().filter_map(|rule| match rule {
                ClaimRule::Expression(rule) => Some(&rule.expression),
                ClaimRule::Required { .. } => None,
            });
            let mut others = rules.chain(extra.iter().map(|(_, expression)| expression)).chain([name]);
            if !others.any(|expression| expression.uses_claim("email_verified")) {
                let field = format!("{username_field}.expression");
                let error = FieldError::invalid(field, &username.expression, UNVERIFIED_EMAIL);
                self.errors.push(error.fix(
                    "add a claim rule with the expression claims.?email_verified.orValue(true) == true",
                ));
            }
        }
        let user_rules = self.user_rules(user_validation_rules);
        if self.errors.len() > before {
            return None;
        }
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        Some(settings::JwtAuthenticator {
            issuer: settings::IssuerSettings {
                url: issuer.url.clone(),
                discovery_url: given(&issuer.discovery_url),
                certificate_authority: issuer.roots().ok()?,
                audiences: issuer.audiences.clone(),
            },
            algorithms: algorithms.to_vec(),
            claim_rules,
            username: mapped_name?,
            groups,
            uid,
            extra,
            user_rules,
        })
    }

    fn claim_rules(&mut self, rules: &[ClaimValidationRule]) -> Vec<ClaimRule> {
        let mut claims = BTreeSet::new();
        let mut expressions = BTreeSet::new();
        let mut read = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let ClaimValidationRule { claim, required_value, expression, message } = rule;
            let field = format!("{}.claimValidationRules[{index}]", self.field);
            match (claim.is_empty(), expression.is_empty()) {
                (false, false) => {
                    self.errors.push(FieldError::invalid(field, claim, BOTH).fix(ONE_OF_BOTH));
                }
                (true, true) => {
                    self.errors.push(FieldError::required(field, EITHER).fix("give one of the two"));
                }
                (false, true) => {
                    if !message.is_empty() {
                        let problem = "may not be specified when claim is set";
                        let error = FieldError::invalid(format!("{field}.message"), message, problem);
                        self.errors.push(error.fix("remove the message"));
                    }
                    if !claims.insert(claim) {
                        self.errors.push(FieldError::duplicate(format!("{field}.claim"), claim));
                    }
                    read.push(ClaimRule::Required { claim: claim.clone(), value: required_value.clone() });
                }
                (true, false) => {
                    if !required_value.is_empty() {
                        let problem = "may not be specified when expression is set";
                        let error =
                            FieldError::invalid(format!("{field}.requiredValue"), required_value, problem);
                        self.errors.push(error.fix("remove the value"));
                    }
                    let field = format!("{field}.expression");
                    if !expressions.insert(expression) {
                        self.errors.push(FieldError::duplicate(field, expression));
                        continue;
                    }
                    let compiled = self.compile(expression, Environment::CLAIMS, ResultType::Bool, &field);
                    let rule =
                        compiled.map(|expression| ExpressionRule { expression, message: message.clone() });
                    read.extend(rule.map(ClaimRule::Expression));
                }
            }
        }
        read
    }

    fn user_rules(&mut self, rules: &[UserValidationRule]) -> Vec<ExpressionRule> {
        let mut seen = BTreeSet::new();
        let mut read = Vec::new();
        for (index, UserValidationRule { expression, message }) in rules.iter().enumerate() {
            let field = format!("{}.userValidationRules[{index}].expression", self.field);
            if expression.is_empty() {
                self.errors.push(FieldError::required(field, "").fix("give an expression over user"));
            } else if !seen.insert(expression) {
                self.errors.push(FieldError::duplicate(field, expression));
            } else if let Some(expression) =
                self.compile(expression, Environment::USER, ResultType::Bool, &field)
            {
                read.push(ExpressionRule { expression, message: message.clone() });
            }
        }
        read
    }

    fn mapping(
        &mut self,
        given: &PrefixedClaimOrExpression,
        field: &str,
        required: bool,
    ) -> Option<AttributeMapping> {
        let PrefixedClaimOrExpression { claim, prefix, expression } = given;
        match (claim.is_empty(), expression.is_empty()) {
            (false, false) => self.fail(FieldError::invalid(field, "", BOTH).fix(ONE_OF_BOTH)),
            (true, true) if required => {
                self.fail(FieldError::required(field, EITHER).fix("give claim: sub and a prefix"))
            }
            (true, true) => None,
            (true, false) => {
                if let Some(prefix) = prefix {
                    let problem = "may not be specified when expression is set";
                    let error = FieldError::invalid(format!("{field}.prefix"), prefix, problem);
                    self.errors.push(error.fix("write the prefix in the expression"));
                }
                let field = format!("{field}.expression");
                let compiled = self.compile(expression, Environment::CLAIMS, ResultType::Any, &field)?;
                prefix.is_none().then_some(AttributeMapping::Expression(compiled))
            }
            (false, true) => {
                let Some(prefix) = prefix else {
                    let problem = "prefix is required when claim is set. It can be set to an empty string to \
                                   disable prefixing";
                    let error = FieldError::required(format!("{field}.prefix"), problem);
                    return self.fail(error.fix("give a prefix, or prefix: \"\""));
                };
                Some(AttributeMapping::Claim { name: claim.clone(), prefix: prefix.clone() })
            }
        }
    }

    fn uid(
        &mut self,
        ClaimOrExpression { claim, expression }: &ClaimOrExpression,
        field: &str,
    ) -> Option<AttributeMapping> {
        match (claim.is_empty(), expression.is_empty()) {
            (false, false) => self.fail(FieldError::invalid(field, "", BOTH).fix(ONE_OF_BOTH)),
            (true, true) => None,
            (false, true) => Some(AttributeMapping::Claim { name: claim.clone(), prefix: String::new() }),
            (true, false) => {
                let field = format!("{field}.expression");
                self.compile(expression, Environment::CLAIMS, ResultType::Any, &field)
                    .map(AttributeMapping::Expression)
            }
        }
    }

    fn extra(&mut self, mappings: &[ExtraMapping], field: &str) -> Vec<(String, Expression)> {
        let mut seen = BTreeSet::new();
        let mut read = Vec::new();
        for (index, ExtraMapping { key, value_expression }) in mappings.iter().enumerate() {
            let field = format!("{field}[{index}]");
            let key_field = format!("{field}.key");
            self.errors.extend(extra::key_problems(key, &key_field));
            let field = format!("{field}.valueExpression");
            if !seen.insert(key) {
                self.errors.push(FieldError::duplicate(key_field, key));
            } else if value_expression.is_empty() {
                self.errors.push(FieldError::required(field, "").fix("give an expression over claims"));
            } else if let Some(value) =
                self.compile(value_expression, Environment::CLAIMS, ResultType::Any, &field)
            {
                read.push((key.clone(), value));
            }
        }
        read
    }

    fn compile(
        &mut self,
        text: &str,
        environment: Environment,
        result: ResultType,
        field: &str,
    ) -> Option<Expression> {
        match Expression::compile(text, environment.of(self.cel_go), result) {
            Ok(expression) => Some(expression),
            Err(error) => {
                let variable = if environment == Environment::USER { "user" } else { "claims" };
                let rule = if result == ResultType::Bool { " that is true or false" } else { "" };
                let fix = format!("give a CEL expression over {variable}{rule}");
                let fix = error.fix().map_or(fix, str::to_owned);
                self.errors.push(FieldError::invalid(field, text, &error.to_string()).fix(fix));
                None
            }
        }
    }

    fn fail<T>(&mut self, error: FieldError) -> Option<T> {
        self.errors.push(error);
        None
    }
}
