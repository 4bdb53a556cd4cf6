//! The flags that describe an OpenID provider and a client of it, and their validated form.
//!
//! The same flags stand in the exec stanza of a kubeconfig. A client secret is never a flag: process arguments are
//! visible to every user of the machine.

mod certificate;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, ValueEnum};
use http::Uri;
use portcullis_http::client_tls::TrustedRoots;
use portcullis_pki::x509::CaBundle;
use portcullis_system::{input_file, platform};
use secrecy::SecretString;
use serde::Deserialize;

use super::cache::{CacheError, CredentialStoreKind, LoginCache};
use super::error::LoginError;
use super::provider::{OpenIdClientSettings, ScopeChoice};
use crate::token::duration;

use certificate::CertificateFlags;
pub(super) use certificate::CertificateSettings;

/// The environment variable of the client secret.
pub(super) const SECRET_VARIABLE: &str = "PORTCULLIS_CLIENT_SECRET";
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(5);
/// Parameters of the protocol, which `--extra-parameter` must not replace.
const RESERVED_PARAMETERS: [&str; 16] = [
    "client_id",
    "client_secret",
    "code",
    "code_challenge",
    "code_challenge_method",
    "code_verifier",
    "device_code",
    "grant_type",
    "nonce",
    "prompt",
    "redirect_uri",
    "refresh_token",
    "response_mode",
    "response_type",
    "scope",
    "state",
];

/// The provider, the client, and how to log in.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct ProviderFlags {
    /// The issuer URL of the OpenID provider, as in the `iss` claim of its tokens.
    #[arg(long, value_name = "URL", help_heading = "Provider")]
    pub issuer: Option<String>,
    /// The client ID, which the cluster requires as audience of the ID token.
    #[arg(long, value_name = "ID", help_heading = "Provider")]
    pub client_id: Option<String>,
    /// A file with the client secret, for confidential clients.
    #[arg(long, value_name = "FILE", help_heading = "Provider")]
    client_secret_file: Option<PathBuf>,
    /// $PORTCULLIS_CLIENT_SECRET is the client secret. Without this flag, only --flow client-credentials reads it.
    #[arg(long, help_heading = "Provider", conflicts_with = "client_secret_file")]
    client_secret_from_environment: bool,
    /// The CAs of the provider, PEM. Default: the system's.
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Provider",
        conflicts_with = "issuer_certificate_authority_data"
    )]
    issuer_certificate_authority: Option<PathBuf>,
    /// The CAs of the provider, base64 of PEM.
    // Of kubeconfigs, not of people.
    #[arg(long, value_name = "BASE64", help_heading = "Provider", hide_short_help = true)]
    issuer_certificate_authority_data: Option<String>,
    /// Scopes to request beside openid. Default: offline_access where the provider has it, but not with --no-cache.
    #[arg(long = "scope", value_name = "SCOPE", value_delimiter = ',', help_heading = "Provider")]
    scopes: Vec<String>,
    /// A further parameter of the authorization and token requests, such as audience=URL.
    #[arg(long = "extra-parameter", value_name = "NAME=VALUE", help_heading = "Provider")]
    extra_parameters: Vec<String>,
    /// What the provider asks for at a login: OpenID Connect's values, separated by blanks, such as login, consent or
    /// select_account. Default: what the provider thinks fit.
    #[arg(long, value_name = "VALUES", help_heading = "Login")]
    prompt: Option<String>,
    /// How to log in.
    #[arg(long, value_enum, value_name = "FLOW", default_value_t = Flow::Auto, help_heading = "Login")]
    pub(super) flow: Flow,
    /// The token that the cluster is given.
    #[arg(long, value_enum, value_name = "KIND", default_value_t = TokenKind::Id, help_heading = "Login")]
    token: TokenKind,
    /// A file with a token that another program renews; with --flow token-file.
    #[arg(long, value_name = "FILE", help_heading = "Login")]
    token_file: Option<PathBuf>,
    /// The account to log in with, as a hint for the provider. Each has its own cache entry.
    #[arg(long, value_name = "NAME", help_heading = "Login")]
    user: Option<String>,
    /// When a browser is opened. Default: auto.
    #[arg(long, value_enum, value_name = "WHEN", help_heading = "Login")]
    open_browser: Option<OpenBrowser>,
    /// The program that opens a URL, with its arguments; the URL is added. Default: $BROWSER, then xdg-open or open.
    #[arg(long, value_name = "COMMAND", help_heading = "Login")]
    browser_command: Option<String>,
    /// Ports for the redirect from the browser, of which the first free one is used. Default: any free port.
    #[arg(long, value_name = "PORTS", value_delimiter = ',', help_heading = "Login")]
    callback_port: Vec<u16>,
    /// The host of the redirect URL.
    #[arg(long, value_enum, value_name = "HOST", default_value_t = CallbackHost::Ipv4, help_heading = "Login")]
    callback_host: CallbackHost,
    /// How long a login may take.
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "5m", help_heading = "Login")]
    login_timeout: Duration,
    /// The directory of cached tokens. Default: $XDG_CACHE_HOME/portcullis/login, or ~/.cache/portcullis/login; on macOS
    /// below ~/Library/Caches, on Windows below %LOCALAPPDATA%.
    #[arg(long, value_name = "DIR", help_heading = "Cache")]
    cache_dir: Option<PathBuf>,
    /// Where tokens and certificates are kept. Default: file.
    #[arg(long, value_enum, value_name = "STORE", help_heading = "Cache")]
    pub(super) credential_store: Option<CredentialStoreKind>,
    /// Neither read nor write cached tokens.
    #[arg(long, help_heading = "Cache")]
    pub(super) no_cache: bool,
    #[command(flatten)]
    certificate: CertificateFlags,
}

/// The ways to log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Flow {
    /// A browser where there is one, otherwise a device code.
    Auto,
    /// The authorization code flow with PKCE: a browser on this machine.
    Browser,
    /// A code to enter in a browser on another device.
    Device,
    /// The client's own secret, for machines.
    ClientCredentials,
    /// A token from a file, for machines.
    TokenFile,
}

/// When a browser is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum OpenBrowser {
    /// Where there is a display, also for programs without a terminal; and where standard input is a terminal.
    #[default]
    Auto,
    /// Only where standard input is a terminal that the client leaves to the command.
    Terminal,
    /// Never: the address is printed.
    Never,
}

/// Which token is the credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum TokenKind {
    /// The ID token, as kube-apiserver expects. The client-credentials flow uses the access token if there is none.
    Id,
    /// The access token, for clusters that verify it as a JSON Web Token or by a webhook.
    Access,
}

/// The host of the redirect URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CallbackHost {
    /// 127.0.0.1, as RFC 8252 recommends.
    #[value(name = "127.0.0.1")]
    Ipv4,
    /// `[::1]`.
    #[value(name = "[::1]")]
    Ipv6,
    /// localhost, for providers that accept no address; listens on 127.0.0.1.
    #[value(name = "localhost")]
    Localhost,
}

/// Settings of a cluster that its kubeconfig gives every exec plugin; they stand in for absent flags.
// client-go: pkg/apis/clientauthentication/v1, Cluster.Config
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ClusterConfig {
    issuer: Option<String>,
    #[serde(rename = "clientID")]
    client_id: Option<String>,
    issuer_certificate_authority_data: Option<String>,
    #[serde(default)]
    scopes: Vec<String>,
}

/// The validated settings of a login.
#[derive(Debug, Clone)]
pub(super) struct ClientSettings {
    pub(super) issuer: String,
    pub(super) client_id: String,
    pub(super) secret: Option<SecretString>,
    pub(super) roots: TrustedRoots,
    /// The provider's CAs, PEM; `None`: those of the system.
    pub(super) authorities: Option<Vec<u8>>,
    pub(super) scopes: ScopeChoice,
    pub(super) extra: Vec<(String, String)>,
    pub(super) flow: Flow,
    pub(super) token: TokenKind,
    pub(super) user: Option<String>,
    pub(super) prompt: Option<String>,
    pub(super) open_browser: OpenBrowser,
    pub(super) browser_command: Option<String>,
    pub(super) callback_ports: Vec<u16>,
    pub(super) callback_host: CallbackHost,
    pub(super) login_timeout: Duration,
}

impl ProviderFlags {
    /// Fills absent flags from the cluster's configuration.
    pub(super) fn or(mut self, config: ClusterConfig) -> Self {
        self.issuer = self.issuer.or(config.issuer);
        self.client_id = self.client_id.or(config.client_id);
        if self.issuer_certificate_authority.is_none() && self.issuer_certificate_authority_data.is_none() {
            self.issuer_certificate_authority_data = config.issuer_certificate_authority_data;
        }
        if self.scopes.is_empty() {
            self.scopes = config.scopes;
        }
        self
    }

    // threat: hostile-kubeconfig
    /// The arguments that only the user may choose, and has not given: all but those that name the provider and how the user
    /// logs in there. Others name a program or a file, send a secret of this machine to the issuer, or decide which token the
    /// cluster gets, and for what.
    pub(super) fn choices_of_another(&self, of_user: &Self) -> Result<Vec<String>, LoginError> {
        // As an argument, the content of the file would stand in its place.
        if of_user.issuer_certificate_authority.is_none()
            && let Some(file) = &self.issuer_certificate_authority
        {
            return Ok(vec![format!("--issuer-certificate-authority={}", file.display())]);
        }
        let of_user = of_user.argument_values()?;
        let mut choices = self.argument_values()?;
        choices.retain(|choice| !is_choice_of_file(choice) && !of_user.contains(choice));
        Ok(choices)
    }

    /// A flag that accepts what a file of someone else has, and that none of its contexts has.
    pub(super) fn choice_of_none<'a>(
        &self,
        contexts: impl Iterator<Item = &'a Self>,
    ) -> Result<Option<String>, LoginError> {
        for (flag, is_given) in [("issuer", self.issuer.is_some()), ("client-id", self.client_id.is_some())] {
            if is_given {
                return Ok(Some(flag.to_owned()));
            }
        }
        let mut of_contexts = Vec::new();
        for context in contexts {
            of_contexts.extend(context.argument_values()?);
        }
        let scopes = self.scopes.iter().map(|scope| format!("--scope={scope}"));
        let parameters = self.extra_parameters.iter().map(|text| format!("--extra-parameter={text}"));
        let token = (self.token != TokenKind::Id).then(|| "--token=access".to_owned());
        let mut given = scopes.chain(parameters).chain(token);
        let unknown = given.find(|flag| !of_contexts.contains(flag));
        Ok(unknown.map(|flag| flag.trim_start_matches('-').to_owned()))
    }

    /// As [`arguments`](Self::arguments), with an argument for each scope.
    fn argument_values(&self) -> Result<Vec<String>, LoginError> {
        let without_scopes = Self { scopes: Vec::new(), ..self.clone() };
        let scopes = self.scopes.iter().map(|scope| format!("--scope={scope}"));
        Ok(without_scopes.arguments()?.into_iter().chain(scopes).collect())
    }

    /// A flag by which a client secret of the user is sent.
    pub(super) fn sends_secret(&self) -> Option<&'static str> {
        let flags = [
            ("client-secret-file", self.client_secret_file.is_some()),
            ("client-secret-from-environment", self.client_secret_from_environment),
            ("flow client-credentials", self.flow == Flow::ClientCredentials),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    /// The variables of the environment by which a command finds the cached login and its secret.
    pub(super) fn variables(&self) -> Vec<&'static str> {
        let has_keyring = self.credential_store == Some(CredentialStoreKind::Keyring);
        let reads_secret = self.client_secret_from_environment
            || self.flow == Flow::ClientCredentials && self.client_secret_file.is_none();
        let groups: [(bool, &[&str]); 3] = [
            (has_keyring || self.cache_dir.is_none() && !self.no_cache, platform::CACHE_VARIABLES),
            (has_keyring, &["DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR"]),
            (reads_secret, &[SECRET_VARIABLE]),
        ];
        groups
            .into_iter()
            .filter(|(counts, _)| *counts)
            .flat_map(|(_, names)| names.iter().copied())
            .collect()
    }

    /// A given flag that [`with_login_of`](Self::with_login_of) does not take over: a context keeps its own.
    pub(super) fn choice_of_context(&self) -> Option<&'static str> {
        let flags = [
            ("issuer", self.issuer.is_some()),
            ("client-id", self.client_id.is_some()),
            ("scope", !self.scopes.is_empty()),
            ("extra-parameter", !self.extra_parameters.is_empty()),
            ("token", self.token != TokenKind::Id),
        ];
        flags.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    /// Replaces the flags of this machine and user by those that were given to `login`.
    pub(super) fn with_login_of(mut self, given: &Self) -> Self {
        let replace = |own: &mut Option<PathBuf>, given: &Option<PathBuf>| {
            if given.is_some() {
                own.clone_from(given);
            }
        };
        if given.client_secret_file.is_some() || given.client_secret_from_environment {
            self.client_secret_file.clone_from(&given.client_secret_file);
            self.client_secret_from_environment = given.client_secret_from_environment;
        }
        replace(&mut self.token_file, &given.token_file);
        replace(&mut self.cache_dir, &given.cache_dir);
        if given.issuer_certificate_authority.is_some() || given.issuer_certificate_authority_data.is_some() {
            self.issuer_certificate_authority.clone_from(&given.issuer_certificate_authority);
            self.issuer_certificate_authority_data.clone_from(&given.issuer_certificate_authority_data);
        }
        self.credential_store = given.credential_store.or(self.credential_store);
        self.user = given.user.clone().or(self.user);
        self.prompt = given.prompt.clone().or(self.prompt);
        self.open_browser = given.open_browser.or(self.open_browser);
        self.browser_command = given.browser_command.clone().or(self.browser_command);
        if given.flow != Flow::Auto {
            self.flow = given.flow;
        }
        if !given.callback_port.is_empty() {
            self.callback_port.clone_from(&given.callback_port);
        }
        if given.callback_host != CallbackHost::Ipv4 {
            self.callback_host = given.callback_host;
        }
        if given.login_timeout != DEFAULT_TIMEOUT {
            self.login_timeout = given.login_timeout;
        }
        self.no_cache |= given.no_cache;
        self.certificate.with_login_of(&given.certificate);
        self
    }

    /// The settings of the client certificate; `None`: the token is the credential.
    pub fn certificate(&self) -> Result<Option<CertificateSettings>, LoginError> {
        let settings = self.certificate.settings()?;
        if settings.is_some() && self.flow == Flow::TokenFile {
            return Err(LoginError::usage(
                "--client-certificate: not with --flow token-file, which uses the token of the file as it is",
            ));
        }
        if settings.is_some() && self.no_cache {
            return Err(LoginError::usage(
                "--client-certificate: not with --no-cache: each command would create a request",
            ));
        }
        Ok(settings)
    }

    /// The cache; `may_prompt`: whether the keyring may ask the user to unlock it.
    pub(super) fn cache(&self, may_prompt: bool) -> Result<LoginCache, CacheError> {
        self.cache_in(self.store(), may_prompt)
    }

    /// The cache in a store.
    pub(super) fn cache_in(
        &self,
        store: CredentialStoreKind,
        may_prompt: bool,
    ) -> Result<LoginCache, CacheError> {
        LoginCache::open(self.cache_dir.as_deref(), store, may_prompt)
    }

    /// The store of the cache.
    pub(super) fn store(&self) -> CredentialStoreKind {
        self.credential_store.unwrap_or_default()
    }

    /// The caches that `logout --all` empties: without a flag, those in all stores.
    pub(super) fn caches(&self, may_prompt: bool) -> Vec<Result<LoginCache, CacheError>> {
        match self.credential_store {
            Some(_) => vec![self.cache(may_prompt)],
            None => LoginCache::open_all(self.cache_dir.as_deref(), may_prompt).collect(),
        }
    }

    /// The value of `--token`.
    pub(super) fn token_name(&self) -> String {
        self.token.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// The file of the token-file flow.
    pub(super) fn token_file(&self) -> Result<Option<&PathBuf>, LoginError> {
        match (self.flow, &self.token_file) {
            (Flow::TokenFile, Some(file)) => Ok(Some(file)),
            (Flow::TokenFile, None) => Err(LoginError::usage("--flow token-file: give --token-file FILE")),
            (_, Some(_)) => Err(LoginError::usage("--token-file: give --flow token-file, too")),
            (_, None) => Ok(None),
        }
    }

    /// Validates the flags; `secret` is the value of [`SECRET_VARIABLE`].
    pub(super) fn settings(&self, secret: Option<String>) -> Result<ClientSettings, LoginError> {
        let issuer = self.issuer.clone().ok_or_else(|| LoginError::usage("give --issuer URL"))?;
        check_issuer(&issuer)?;
        let client_id = self.client_id.clone().filter(|id| !id.is_empty());
        let client_id = client_id.ok_or_else(|| LoginError::usage("give --client-id ID"))?;
        let secret = self.secret(secret)?;
        let scopes = self.scope_choice()?;
        Ok(ClientSettings {
            issuer,
            client_id,
            secret,
            roots: self.roots()?,
            authorities: self.authorities()?,
            scopes,
            extra: self.parameters()?,
            flow: self.flow,
            token: self.token,
            user: self.user.clone(),
            prompt: self.prompt.as_deref().map(prompt).transpose()?,
            open_browser: self.open_browser.unwrap_or_default(),
            browser_command: self.browser_command.clone(),
            callback_ports: if self.callback_port.is_empty() { vec![0] } else { self.callback_port.clone() },
            callback_host: self.callback_host,
            login_timeout: self.login_timeout,
        })
    }

    /// The scopes beside `openid`, sorted. A refresh token that is not kept is not asked for.
    fn scope_choice(&self) -> Result<ScopeChoice, LoginError> {
        if self.scopes.is_empty() && !self.no_cache {
            return Ok(ScopeChoice::Offline);
        }
        let is_scope = |scope: &String| {
            !scope.is_empty() && !scope.contains(|c: char| c.is_whitespace() || c.is_control())
        };
        let scopes: BTreeSet<_> = self.scopes.iter().filter(|scope| *scope != "openid").cloned().collect();
        if !scopes.iter().all(is_scope) {
            return Err(LoginError::usage("--scope: a scope is not empty and has no blanks"));
        }
        Ok(ScopeChoice::These(scopes.into_iter().collect()))
    }

    /// The further parameters. One that is sent twice makes a request invalid.
    // RFC 6749, section 3.1; RFC 8707, section 2: several resources are allowed
    fn parameters(&self) -> Result<Vec<(String, String)>, LoginError> {
        let parameters = self.extra_parameters.iter().map(|text| parameter(text));
        let parameters = parameters.collect::<Result<Vec<_>, _>>()?;
        let mut known = BTreeSet::new();
        if self.user.is_some() {
            known.insert("login_hint");
        }
        for (name, _) in parameters.iter().filter(|(name, _)| name != "resource") {
            if !known.insert(name) {
                let by_user = if name == "login_hint" { "; --user sends it, too" } else { "" };
                return Err(LoginError::usage(&format!(
                    "--extra-parameter {name}: the parameter would be sent twice{by_user}"
                )));
            }
        }
        Ok(parameters)
    }

    /// The client secret. The variable is that of one client: other issuers do not get it.
    // threat: client-secret-leak
    fn secret(&self, variable: Option<String>) -> Result<Option<SecretString>, LoginError> {
        let Some(file) = &self.client_secret_file else {
            let flag = match self.flow {
                _ if self.client_secret_from_environment => "--client-secret-from-environment: ",
                Flow::ClientCredentials => "--flow client-credentials: give --client-secret-file FILE, or ",
                _ => return Ok(None),
            };
            let secret = variable.filter(|secret| !secret.is_empty()).map(SecretString::from);
            let absent = || LoginError::usage(&format!("{flag}set {SECRET_VARIABLE}"));
            return secret.ok_or_else(absent).map(Some);
        };
        let problem =
            |problem: &str| LoginError::usage(&format!("--client-secret-file {}: {problem}", file.display()));
        let content =
            input_file::read(file).map_err(|error| problem(&format!("{error}; {}", error.fix())))?;
        let text = String::from_utf8(content).map_err(|_| problem("is not UTF-8 text"))?;
        match text.trim_end_matches(['\r', '\n']) {
            "" => Err(problem("is empty")),
            secret => Ok(Some(SecretString::from(secret))),
        }
    }

    /// The PEM of the provider's CAs, if given.
    pub fn authorities(&self) -> Result<Option<Vec<u8>>, LoginError> {
        if let Some(file) = &self.issuer_certificate_authority {
            let read = input_file::read(file).map_err(|error| {
                LoginError::usage(&format!(
                    "--issuer-certificate-authority {}: {error}; {}",
                    file.display(),
                    error.fix()
                ))
            });
            return read.map(Some);
        }
        let data =
            self.issuer_certificate_authority_data.as_deref().map(|data| STANDARD.decode(data)).transpose();
        data.map_err(|_| LoginError::usage("--issuer-certificate-authority-data: must be base64 of PEM"))
    }

    fn roots(&self) -> Result<TrustedRoots, LoginError> {
        let Some(pem) = self.authorities()? else { return Ok(TrustedRoots::system()) };
        roots(&pem).map_err(|problem| LoginError::usage(&format!("the CAs of the provider: {problem}")))
    }

    /// The arguments of `portcullis credential` with these flags, for the exec stanza of a kubeconfig. Files are given
    /// by their absolute path: kubectl runs the plugin in any directory.
    pub fn arguments(&self) -> Result<Vec<String>, LoginError> {
        let mut arguments = Vec::new();
        let mut add = |name: &str, value: Option<String>| {
            arguments.extend(value.map(|value| format!("--{name}={value}")));
        };
        let absolute = |file: &Option<PathBuf>| {
            let file = file.as_ref().map(std::path::absolute).transpose();
            file.map(|file| file.map(|file| file.to_string_lossy().into_owned()))
                .map_err(|error| LoginError::usage(&error.to_string()))
        };
        let name =
            |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        add("issuer", self.issuer.clone());
        add("client-id", self.client_id.clone());
        add("client-secret-file", absolute(&self.client_secret_file)?);
        add("issuer-certificate-authority-data", self.authorities()?.map(|pem| STANDARD.encode(pem)));
        add("scope", (!self.scopes.is_empty()).then(|| self.scopes.join(",")));
        for parameter in &self.extra_parameters {
            add("extra-parameter", Some(parameter.clone()));
        }
        add("flow", name(self.flow.to_possible_value()).filter(|_| self.flow != Flow::Auto));
        add("token", name(self.token.to_possible_value()).filter(|_| self.token != TokenKind::Id));
        add("token-file", absolute(&self.token_file)?);
        add("user", self.user.clone());
        add("prompt", self.prompt.clone());
        add("open-browser", name(self.open_browser.and_then(|when| when.to_possible_value())));
        add("browser-command", self.browser_command.clone());
        let ports: Vec<String> = self.callback_port.iter().map(ToString::to_string).collect();
        add("callback-port", (!ports.is_empty()).then(|| ports.join(",")));
        let host = name(self.callback_host.to_possible_value());
        add("callback-host", host.filter(|_| self.callback_host != CallbackHost::Ipv4));
        let timeout = self.login_timeout;
        add("login-timeout", (timeout != DEFAULT_TIMEOUT).then(|| format!("{}ms", timeout.as_millis())));
        add("cache-dir", absolute(&self.cache_dir)?);
        add("credential-store", name(self.credential_store.and_then(|store| store.to_possible_value())));
        let switches = [
            ("--client-secret-from-environment", self.client_secret_from_environment),
            ("--no-cache", self.no_cache),
        ];
        arguments.extend(switches.into_iter().filter(|(_, is_on)| *is_on).map(|(flag, _)| flag.to_owned()));
        arguments.extend(self.certificate.arguments());
        Ok(arguments)
    }
}

impl ClientSettings {
    /// The part that the provider's requests need.
    pub(super) fn client(&self) -> OpenIdClientSettings {
        OpenIdClientSettings {
            issuer: self.issuer.clone(),
            client_id: self.client_id.clone(),
            secret: self.secret.clone(),
            roots: self.roots.clone(),
            scopes: self.scopes.clone(),
            extra: self.extra.clone(),
            user: self.user.clone(),
        }
    }
}

/// Trusts all certificates of a PEM bundle.
pub(super) fn roots(pem: &[u8]) -> Result<TrustedRoots, String> {
    CaBundle::from_pem(pem).map(TrustedRoots::from_bundle).map_err(|error| error.to_string())
}

// OpenID Connect Discovery 1.0, section 2: https, without query and fragment
fn check_issuer(issuer: &str) -> Result<(), LoginError> {
    let problem = |problem: &str| Err(LoginError::usage(&format!("--issuer {issuer:?}: {problem}")));
    let Ok(url) = issuer.parse::<Uri>() else { return problem("must be a URL") };
    match (url.scheme_str(), url.authority(), url.query()) {
        (Some("https"), Some(authority), None)
            if !authority.as_str().contains('@') && !issuer.contains('#') =>
        {
            Ok(())
        }
        (Some("https"), Some(_), _) => problem("must have no user name, query or fragment"),
        _ => problem("must be an https:// URL"),
    }
}

/// Whether an argument may be that of a file of someone else: it names the provider, the client and how to log in there.
fn is_choice_of_file(argument: &str) -> bool {
    const SCOPES: [&str; 5] = ["openid", "offline_access", "profile", "email", "groups"];
    const NAMES: [&str; 14] = [
        "issuer",
        "client-id",
        "issuer-certificate-authority-data",
        "user",
        "prompt",
        "open-browser",
        "callback-port",
        "login-timeout",
        "credential-store",
        "no-cache",
        "client-certificate",
        "signer-name",
        "certificate-duration",
        "certificate-timeout",
    ];
    let argument = argument.trim_start_matches("--");
    match argument.split_once('=') {
        Some(("flow", flow)) => matches!(flow, "browser" | "device"),
        // Both loopback addresses are listened to, or none. Some providers accept no address.
        Some(("callback-host", host)) => host == "localhost",
        Some(("scope", scope)) => SCOPES.contains(&scope),
        Some((name, _)) => NAMES.contains(&name),
        None => NAMES.contains(&argument),
    }
}

/// The values of `prompt`. Providers have values of their own.
// OpenID Connect Core 1.0, section 3.1.2.1
fn prompt(text: &str) -> Result<String, LoginError> {
    let is_value = |value: &str| {
        !value.is_empty()
            && value
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':'))
    };
    let values: Vec<&str> = text.split_ascii_whitespace().collect();
    if values.is_empty() || !values.iter().all(|value| is_value(value)) {
        return Err(LoginError::usage(
            "--prompt: give values such as login, consent or select_account, separated by blanks",
        ));
    }
    if values.len() > 1 && values.contains(&"none") {
        return Err(LoginError::usage("--prompt: none excludes other values"));
    }
    Ok(values.join(" "))
}

fn parameter(text: &str) -> Result<(String, String), LoginError> {
    match text.split_once('=') {
        Some(("prompt", _)) => {
            Err(LoginError::usage("--extra-parameter prompt: give --prompt VALUES instead"))
        }
        Some((name, _)) if RESERVED_PARAMETERS.contains(&name) => Err(LoginError::usage(&format!(
            "--extra-parameter {name}: portcullis sets this parameter itself"
        ))),
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(LoginError::usage("--extra-parameter: give NAME=VALUE")),
    }
}

#[cfg(test)]
pub(in crate::login) mod tests;
