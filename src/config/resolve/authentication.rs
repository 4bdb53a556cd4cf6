//! Resolves the authentication methods of a cluster. The rules between flags and their error texts are
//! kube-apiserver's.

mod oidc;
mod revocation;
mod service_account;
mod webhook;

use std::path::Path;
use std::sync::Arc;

use http::HeaderName;
use portcullis_http::identity_headers::RequestHeaderNames;
use portcullis_pki::x509::CaBundle;

use super::{ConfigResolver, listed};
use crate::authn::Audience;
use crate::authn::anonymous::AnonymousAuth;
use crate::authn::settings::{Authentication, RequestHeaderConfig};
use crate::authn::static_token::StaticTokenAuthenticator;
use crate::config::cluster_authorities::related_ca;
use crate::config::error::ConfigError;
use crate::config::flags::AuthenticationFlags;
use crate::config::sections::{KeyLocation, MergedSection};
use revocation::ClientCas;

impl ConfigResolver<'_> {
    /// The authentication methods. Leaves out methods with invalid files; `self.errors` has the errors, and the
    /// configuration then fails as a whole.
    pub(super) fn authentication(&mut self, given: &MergedSection<AuthenticationFlags>) -> Authentication {
        let flags = &given.values;
        let client_ca = flags
            .client_ca_file
            .as_ref()
            .and_then(|file| self.ca_bundle(&given.place("client-ca-file"), file));
        let request_header = if let Some(file) = &flags.requestheader_client_ca_file {
            self.request_header(file, given, client_ca.as_deref())
        } else {
            self.unused_request_header_flags(given);
            None
        };
        let pod_client_ca = self.pod_client_ca(given, client_ca.as_deref(), request_header.as_ref());
        let static_tokens = flags
            .token_auth_file
            .as_ref()
            .and_then(|file| self.static_tokens(&given.place("token-auth-file"), file));
        let errors = self.errors.len();
        let (jwt, anonymous) = self.issuers(given);
        let none_enabled = flags.client_ca_file.is_none()
            && flags.pod_client_ca_file.is_none()
            && flags.requestheader_client_ca_file.is_none()
            && flags.token_auth_file.is_none()
            && !flags.enable_bootstrap_token_auth
            && flags.service_account_issuer.is_empty()
            && flags.service_account_key_file.is_empty()
            && flags.authentication_token_webhook_config_file.is_none()
            && jwt.is_empty()
            && self.errors.len() == errors;
        if none_enabled && anonymous == AnonymousAuth::Disabled {
            let [certificates, tokens, front_proxies] =
                ["client-ca-file", "token-auth-file", "requestheader-client-ca-file"]
                    .map(|flag| given.key(flag));
            let problem = "is disabled, and no other authentication method is enabled";
            self.errors.push(
                ConfigError::new(given.key("anonymous-auth"), problem)
                    .fix(format!("give {certificates}, {tokens} or {front_proxies}")),
            );
        }
        let cas = ClientCas {
            users: client_ca.as_deref(),
            pods: pod_client_ca.as_deref(),
            front_proxies: request_header.as_ref().map(|proxies| proxies.ca.as_ref()),
        };
        let revocation = self.revocation(given, cas);
        let mut audiences = listed(&flags.api_audiences);
        if audiences.is_empty() {
            audiences.clone_from(&flags.service_account_issuer);
        }
        Authentication {
            client_ca,
            pod_client_ca,
            request_header,
            static_tokens,
            bootstrap_tokens: flags.enable_bootstrap_token_auth,
            service_accounts: self.service_accounts(given),
            jwt,
            webhook: self.webhook(given),
            anonymous,
            revocation,
            audiences: audiences.into_iter().map(Audience).collect(),
            ends_streams: flags.terminate_streams_on_credential_expiry,
        }
    }

    fn static_tokens(&mut self, place: &KeyLocation, file: &Path) -> Option<Arc<StaticTokenAuthenticator>> {
        let file = place.path(file);
        let csv = self.read(&place.key, &file)?;
        let parsed = StaticTokenAuthenticator::parse(&file.display().to_string(), &csv).map_err(|error| {
            // The text names the file, as kube-apiserver's does.
            ConfigError::new(&place.key, error.to_string())
                .fix("give CSV lines of token,user,uid[,\"group1,group2\"]")
        });
        self.ok(parsed).map(Arc::new)
    }

    pub(super) fn ca_bundle(&mut self, place: &KeyLocation, file: &Path) -> Option<Arc<CaBundle>> {
        self.ca_bundle_and_pem(place, file).map(|(bundle, _)| bundle)
    }

    /// A CA bundle and its PEM text.
    fn ca_bundle_and_pem(&mut self, place: &KeyLocation, file: &Path) -> Option<(Arc<CaBundle>, Vec<u8>)> {
        let file = &place.path(file);
        let pem = self.read(&place.key, file)?;
        let parsed = CaBundle::from_pem(&pem).map_err(|error| {
            ConfigError::new(&place.key, error.to_string())
                .in_file(file)
                .fix("give PEM certificates of the CAs")
        });
        let bundle = self.ok(parsed)?;
        self.warn_of_dates(&place.key, file, "", bundle.certificates());
        Some((Arc::new(bundle), pem))
    }

    /// The CAs of pods, which must be those of no other client: otherwise a pod would be a user, without a check of its
    /// objects.
    // threat: pod-certificate-as-user
    fn pod_client_ca(
        &mut self,
        given: &MergedSection<AuthenticationFlags>,
        client_ca: Option<&CaBundle>,
        request_header: Option<&RequestHeaderConfig>,
    ) -> Option<Arc<CaBundle>> {
        let file = given.values.pod_client_ca_file.as_ref()?;
        let place = given.place("pod-client-ca-file");
        let ca = self.ca_bundle(&place, file)?;
        let others = [
            ("client-ca-file", client_ca),
            ("requestheader-client-ca-file", request_header.map(|proxies| proxies.ca.as_ref())),
        ];
        let mut is_separate = true;
        for (flag, other) in others {
            let Some(related) = other.and_then(|other| related_ca(&ca, other)) else { continue };
            let problem = format!(
                "the CA {:?} is that of other clients too, or signs one of theirs, or is signed by one: {}; its certificates \
                 would be accepted without a check of their pods",
                related.label(),
                given.key(flag)
            );
            let error = ConfigError::new(&place.key, problem).in_file(&place.path(file));
            self.errors.push(error.fix("give pods a CA of their own, under no CA of other clients"));
            is_separate = false;
        }
        is_separate.then_some(ca)
    }

    // threat: client-as-front-proxy
    fn request_header(
        &mut self,
        file: &Path,
        given: &MergedSection<AuthenticationFlags>,
        client_ca: Option<&CaBundle>,
    ) -> Option<RequestHeaderConfig> {
        let flags = &given.values;
        let ca = self.ca_bundle(&given.place("requestheader-client-ca-file"), file);
        let allowed_names = listed(&flags.requestheader_allowed_names);
        // kubernetes: pkg/kubeapiserver/options/authentication.go, RequestHeaderAuthenticationOptions.Validate
        for (name, values) in request_header_lists(flags) {
            if listed(values).iter().any(|value| value.trim().is_empty()) {
                let error = ConfigError::new(given.key(name), format!("empty value in {name:?}"));
                self.errors.push(error.fix("remove the empty entry"));
            }
        }
        for (flag, values, standard) in [
            ("requestheader-username-headers", &flags.requestheader_username_headers, "X-Remote-User"),
            ("requestheader-group-headers", &flags.requestheader_group_headers, "X-Remote-Group"),
            (
                "requestheader-extra-headers-prefix",
                &flags.requestheader_extra_headers_prefix,
                "X-Remote-Extra-",
            ),
        ] {
            if !values.is_empty() && !values.iter().any(|value| value.eq_ignore_ascii_case(standard)) {
                self.warnings.push(format!(
                    "{} is set without specifying the standard {standard} header - API aggregation will not work",
                    given.key(flag)
                ));
            }
        }
        let uids = listed(&flags.requestheader_uid_headers);
        if !uids.is_empty() && !uids.iter().any(|value| value.eq_ignore_ascii_case("X-Remote-Uid")) {
            let key = given.key("requestheader-uid-headers");
            let problem = format!(
                "{key} is set without specifying the standard X-Remote-Uid header - API aggregation will not work"
            );
            self.errors.push(ConfigError::new(key, problem).fix("add X-Remote-Uid"));
        }
        if listed(&flags.requestheader_username_headers).is_empty() {
            let problem = format!(
                "is required with {}: without it no front proxy can name a user",
                given.key("requestheader-client-ca-file")
            );
            self.errors.push(
                ConfigError::new(given.key("requestheader-username-headers"), problem)
                    .fix("give X-Remote-User"),
            );
        }
        let ca = ca?;
        if allowed_names.is_empty()
            && client_ca.is_some_and(|client_ca| client_ca.shares_certificate_with(&ca))
        {
            let [front_proxies, clients, names] =
                ["requestheader-client-ca-file", "client-ca-file", "requestheader-allowed-names"]
                    .map(|flag| given.key(flag));
            let problem = format!(
                "{front_proxies} and {clients} contain overlapping certificates; {names} must be specified to \
                 ensure regular client certificates cannot set authenticating proxy headers for arbitrary users"
            );
            return self.fail(
                ConfigError::new(names, problem).fix("give the CommonName of the front proxy's certificate"),
            );
        }
        let headers = RequestHeaderNames::new(
            &listed(&flags.requestheader_username_headers),
            &uids,
            &listed(&flags.requestheader_group_headers),
            &listed(&flags.requestheader_extra_headers_prefix),
        );
        let headers = headers.map_err(|error| {
            ConfigError::new(given.key("requestheader-username-headers"), error.to_string())
                .fix("give valid header names")
        });
        let headers = self.ok(headers)?;
        self.warn_of_wide_prefixes(given, &headers);
        Some(RequestHeaderConfig { ca, allowed_names, headers })
    }

    /// Warns of prefixes of extra attributes that match more than the headers of these. A front proxy must remove every header
    /// with such a prefix from its clients' requests.
    fn warn_of_wide_prefixes(
        &mut self,
        given: &MergedSection<AuthenticationFlags>,
        headers: &RequestHeaderNames,
    ) {
        let others = [HeaderName::from_static("x-forwarded-for")];
        let names = || [&headers.user, &headers.uid, &headers.group].into_iter().flatten().chain(&others);
        for prefix in &headers.extra_prefixes {
            if let Some(matched) = names().find(|name| name.as_str().starts_with(prefix.as_str())) {
                let key = given.key("requestheader-extra-headers-prefix");
                self.warnings.push(format!(
                    "{key}: the prefix {prefix} also matches {matched}, which becomes an extra attribute of the user; give a \
                     prefix that no other header has, such as X-Remote-Extra-"
                ));
            }
        }
    }

    fn unused_request_header_flags(&mut self, given: &MergedSection<AuthenticationFlags>) {
        let flags = &given.values;
        let used = request_header_lists(flags).into_iter().filter(|(_, values)| !listed(values).is_empty());
        for (name, _) in used {
            self.warn_of_no_effect(given, name, "requestheader-client-ca-file");
        }
    }
}

/// The list flags of front proxies.
fn request_header_lists(flags: &AuthenticationFlags) -> [(&'static str, &Vec<String>); 5] {
    [
        ("requestheader-username-headers", &flags.requestheader_username_headers),
        ("requestheader-uid-headers", &flags.requestheader_uid_headers),
        ("requestheader-group-headers", &flags.requestheader_group_headers),
        ("requestheader-extra-headers-prefix", &flags.requestheader_extra_headers_prefix),
        ("requestheader-allowed-names", &flags.requestheader_allowed_names),
    ]
}
