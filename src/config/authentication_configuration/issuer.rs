//! Validates an issuer.
//!
//! Follows `k8s.io/apiserver/pkg/apis/apiserver/validation/validation.go`, `validateIssuer`.

use std::collections::BTreeSet;

use portcullis_go::url::Url;
use portcullis_http::client_tls::TrustedRoots;
use portcullis_pki::x509::CaBundle;

use super::Issuer;
use crate::config::apiserver_config::field::FieldError;

const MATCH_ANY: &str = "MatchAny";

impl Issuer {
    /// All errors of the issuer. `field` is its path.
    pub(super) fn problems(&self, field: &str, disallowed: &[String]) -> Vec<FieldError> {
        let mut errors = url_problems(&self.url, &format!("{field}.url"), disallowed);
        errors.extend(self.discovery_problems(&format!("{field}.discoveryURL")));
        errors.extend(self.audience_problems(field));
        let field = |name: &str| format!("{field}.{name}");
        if let Err(problem) = self.roots() {
            let error = FieldError::invalid(field("certificateAuthority"), "<omitted>", &problem);
            errors.push(error.fix("give PEM certificates of the issuer's CAs"));
        }
        if !["", "controlplane", "cluster"].contains(&self.egress_selector_type.as_str()) {
            let problem = "egress selector must be either controlplane or cluster";
            let error = FieldError::invalid(field("egressSelectorType"), &self.egress_selector_type, problem);
            errors.push(error.fix("remove it: the gateway has no egress selectors"));
        }
        errors
    }

    /// The CAs of the issuer's certificate, if configured. Fails if they cannot be used.
    pub(super) fn roots(&self) -> Result<Option<TrustedRoots>, String> {
        if self.certificate_authority.is_empty() {
            return Ok(None);
        }
        let bundle = CaBundle::from_pem(self.certificate_authority.as_bytes());
        bundle.map(|bundle| Some(TrustedRoots::from_bundle(bundle))).map_err(|error| error.to_string())
    }

    fn discovery_problems(&self, field: &str) -> Vec<FieldError> {
        let url = &self.discovery_url;
        if url.is_empty() {
            return Vec::new();
        }
        let mut errors = Vec::new();
        if !self.url.is_empty() && self.url.trim_end_matches('/') == url.trim_end_matches('/') {
            let error = FieldError::invalid(field, url, "discoveryURL must be different from URL");
            errors.push(error.fix("remove it, or give the whole URL of the discovery document"));
        }
        // Disallowed issuers do not apply: this is not an issuer URL.
        errors.extend(url_problems(url, field, &[]));
        errors
    }

    fn audience_problems(&self, issuer: &str) -> Vec<FieldError> {
        let field = format!("{issuer}.audiences");
        if self.audiences.is_empty() {
            let error = FieldError::required(&field, &format!("at least one {field} is required"));
            return vec![error.fix("give the client IDs that its tokens are issued for")];
        }
        let mut errors = Vec::new();
        let mut seen = BTreeSet::new();
        for (index, audience) in self.audiences.iter().enumerate() {
            let field = format!("{field}[{index}]");
            if audience.is_empty() {
                errors.push(FieldError::required(&field, "").fix("remove the empty audience"));
            }
            if !seen.insert(audience) {
                errors.push(FieldError::duplicate(&field, audience));
            }
        }
        let policy = &self.audience_match_policy;
        let problem = match self.audiences.len() {
            _ if policy == MATCH_ANY => return errors,
            1 if policy.is_empty() => return errors,
            1 => "audienceMatchPolicy must be empty or MatchAny for single audience",
            _ => "audienceMatchPolicy must be MatchAny for multiple audiences",
        };
        let error = FieldError::invalid(format!("{issuer}.audienceMatchPolicy"), policy, problem);
        errors.push(error.fix("give MatchAny"));
        errors
    }
}

fn url_problems(url: &str, field: &str, disallowed: &[String]) -> Vec<FieldError> {
    if url.is_empty() {
        return vec![FieldError::required(field, "").fix("give the issuer's https URL")];
    }
    let mut errors = Vec::new();
    let mut refuse = |problem: &str, fix| errors.push(FieldError::invalid(field, url, problem).fix(fix));
    if disallowed.iter().any(|issuer| issuer == url) {
        let all: BTreeSet<&str> = disallowed.iter().map(String::as_str).collect();
        let all = all.into_iter().collect::<Vec<_>>().join(" ");
        let problem = format!("URL must not overlap with disallowed issuers: [{all}]");
        refuse(&problem, "remove this issuer: it issues service account tokens");
    }
    let fix = "give the https URL of the issuer, such as https://idp.example.com";
    match Url::parse(url) {
        Err(problem) => refuse(&problem.to_string(), fix),
        Ok(url) => {
            let rules = [
                (url.scheme != "https", "URL scheme must be https"),
                (url.user.is_some(), "URL must not contain a username or password"),
                (url.query.is_some_and(|query| !query.is_empty()), "URL must not contain a query"),
                (!url.fragment.is_empty(), "URL must not contain a fragment"),
            ];
            let broken = rules.into_iter().filter(|(broken, _)| *broken);
            broken.for_each(|(_, problem)| refuse(problem, fix));
        }
    }
    errors
}
