//! Turns the flags of a kube-apiserver into those of the gateway in front of it.

use std::net::IpAddr;

use clap::builder::Str;
use clap::{Arg, Command};
use serde_json::{Value, json};

use super::super::command_line::{CommandLine, GivenFlag, GivenForeignFlag};
use super::super::foreign_flags::{ForeignRole, IGNORE};
use super::FlagNote;
use crate::config::ConfigError;
use crate::config::authorization_configuration::chain::GatewayChain;
use crate::config::resolve::is_backend_plugin;

const MODE: &str = "authorization-mode";
const WEBHOOK: &str = "authorization-webhook-";
const AUTHORIZATION_CONFIG: &str = "authorization-config";
const PLUGINS: [&str; 2] = ["enable-admission-plugins", "disable-admission-plugins"];
const ADMISSION_CONFIG: &str = "admission-control-config-file";
const TRUST: &str = "requestheader-client-ca-file";
/// The flags that name the headers of identities, and the header that the gateway sends by default.
const IDENTITY_HEADERS: [(&str, &str); 4] = [
    ("requestheader-username-headers", "X-Remote-User"),
    ("requestheader-uid-headers", "X-Remote-Uid"),
    ("requestheader-group-headers", "X-Remote-Group"),
    ("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
];
/// kube-apiserver's default of --secure-port.
const PORT: &str = "6443";
/// The files that the flags do not name.
pub(super) const KUBECONFIG: &str = "backend.kubeconfig";
const SERVING_CA: &str = "SERVING-CA.crt";
const TOKEN: &str = "BACKEND.token";

/// The flags of the gateway, and what they do not say.
#[derive(Debug, Default)]
pub(super) struct Conversion {
    pub(super) flags: Vec<GivenFlag>,
    pub(super) left_to_backend: Vec<FlagNote>,
    pub(super) not_supported: Vec<FlagNote>,
    pub(super) kubeconfig: Value,
    pub(super) notes: Vec<String>,
    pub(super) errors: Vec<ConfigError>,
}

impl Conversion {
    pub(super) fn of(serve: &Command, words: Vec<String>) -> Self {
        let mut line = CommandLine::split(serve, words);
        line.check(serve);
        let CommandLine { kept, foreign, errors, .. } = line;
        let given = GivenFlags(kept);
        let mut conversion = Self { errors, ..Self::default() };
        for foreign in &foreign {
            let flag = format!("--{}", foreign.flag.name);
            match foreign.flag.role {
                ForeignRole::Backend(reason) => conversion.leave(flag, reason),
                ForeignRole::Lacking(reason) => {
                    conversion.not_supported.push(FlagNote { flag, reason: reason.to_owned() });
                }
            }
        }
        conversion.backend(&given, &foreign);
        let asks_webhook = conversion.authorization(&given);
        for name in PLUGINS {
            conversion.plugins(&given, name);
        }
        conversion.configuration_files(&given);
        let is_kept = |flag: &&GivenFlag| match flag.name() {
            Some(name) if name.starts_with(WEBHOOK) => asks_webhook,
            Some(name) => name != MODE && !PLUGINS.contains(&name),
            None => true,
        };
        conversion.flags.extend(given.0.iter().filter(is_kept).cloned());
        conversion.serving(&given);
        conversion
    }

    fn leave(&mut self, flag: String, reason: &str) {
        self.left_to_backend.push(FlagNote { flag, reason: reason.to_owned() });
    }

    fn add(&mut self, word: String) {
        self.flags.push(GivenFlag { words: vec![word] });
    }

    /// The gateway's part of `--authorization-mode`, and whether a webhook is in it.
    fn authorization(&mut self, given: &GivenFlags) -> bool {
        let modes = given.list(MODE);
        let names: Vec<&str> = modes.iter().map(String::as_str).collect();
        let Some(chain) = GatewayChain::of(&names) else {
            if !modes.is_empty() {
                self.add(format!("--{MODE}={}", modes.join(",")));
            }
            return names.is_empty() || names.contains(&"Webhook");
        };
        let of = |indices: &[usize]| -> Vec<&str> {
            indices.iter().filter_map(|index| names.get(*index).copied()).collect()
        };
        let (of_backend, behind) = (of(&chain.of_backend), of(&chain.behind));
        self.leave(format!("--{MODE}={}", of_backend.join(",")), "it decides by them, after the gateway");
        let mut asked = of(&chain.asked);
        if chain.overtaking().any(|index| names.get(index) == Some(&"Webhook")) {
            self.notes.push(format!(
                "The webhook of --{MODE} is asked about every request and can refuse it, also one that {} before it would \
                 allow: only the backend knows what they decide.",
                of_backend.join(" and ")
            ));
        }
        if behind.contains(&"Webhook") {
            self.leave(
                format!("--{WEBHOOK}*"),
                "it asks the webhook about requests that its other authorizers do not allow",
            );
        }
        if !asked.contains(&"AlwaysAllow") {
            asked.push("AlwaysAllow");
        }
        if asked.len() > 1 {
            self.add(format!("--{MODE}={}", asked.join(",")));
        }
        asked.contains(&"Webhook")
    }

    /// The gateway's part of a list of admission plugins.
    fn plugins(&mut self, given: &GivenFlags, name: &str) {
        let (of_backend, own): (Vec<String>, Vec<String>) =
            given.list(name).into_iter().partition(|plugin| is_backend_plugin(plugin));
        if !of_backend.is_empty() {
            self.leave(format!("--{name}={}", of_backend.join(",")), "only it has these plugins");
        }
        if !own.is_empty() {
            self.add(format!("--{name}={}", own.join(",")));
        }
    }

    /// The files that may name authorizers and plugins of the backend.
    fn configuration_files(&mut self, given: &GivenFlags) {
        let files = [
            (AUTHORIZATION_CONFIG, "it decides by Node, RBAC and ABAC in the file, after the gateway"),
            (ADMISSION_CONFIG, "it has the plugins in the file other than webhooks"),
        ];
        let mut is_given = false;
        for (name, reason) in files {
            if given.value(name).is_some() {
                self.leave(format!("--{name}"), reason);
                is_given = true;
            }
        }
        if is_given {
            self.add(IGNORE.to_owned());
        }
    }

    /// The API server as the backend: its kubeconfig, and how it takes identities.
    fn backend(&mut self, given: &GivenFlags, foreign: &[GivenForeignFlag]) {
        let foreign = |name: &str| foreign.iter().rev().find(|one| one.flag.name == name)?.value.as_deref();
        let bound = given.value("bind-address").filter(|address| is_specific(address));
        let host = bound.or(foreign("advertise-address")).unwrap_or("127.0.0.1");
        let port = given.value("secure-port").unwrap_or(PORT);
        let host = if host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
            format!("[{host}]")
        } else {
            host.to_owned()
        };
        self.add(format!("--backend-kubeconfig={KUBECONFIG}"));
        self.notes.push(format!(
            "{KUBECONFIG}: replace {SERVING_CA} by the CA of the API server's serving certificate. kubeadm has one CA for \
             it and for clients; k3s and RKE2 have server-ca.crt."
        ));
        let user = if given.value(TRUST).is_some() {
            self.identity_headers(given);
            let certificate = foreign("proxy-client-cert-file").unwrap_or("FRONT-PROXY.crt");
            let key = foreign("proxy-client-key-file").unwrap_or("FRONT-PROXY.key");
            let allowed = given.list("requestheader-allowed-names");
            let name = match allowed.as_slice() {
                [] => "any CommonName".to_owned(),
                names => format!("the CommonName {}", names.join(" or ")),
            };
            self.notes.push(format!(
                "{KUBECONFIG} has the certificate with which the API server itself speaks to other API servers. A \
                 certificate of the gateway's own is better: signed by the CA in its --{TRUST}, with {name}."
            ));
            json!({"client-certificate": certificate, "client-key": key})
        } else {
            self.add("--identity=impersonate".to_owned());
            self.notes.push(format!(
                "The API server has no --{TRUST}, so that it takes no identities in headers: the gateway impersonates \
                 users. Put the token of a service account with the rights of deploy/rbac.yaml into {TOKEN}."
            ));
            json!({"tokenFile": TOKEN})
        };
        self.kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "backend",
            "clusters": [{
                "name": "backend",
                "cluster": {"server": format!("https://{host}:{port}"), "certificate-authority": SERVING_CA},
            }],
            "users": [{"name": "gateway", "user": user}],
            "contexts": [{"name": "backend", "context": {"cluster": "backend", "user": "gateway"}}],
        });
    }

    /// The headers in which the backend takes identities, unless they are those that the gateway sends anyway.
    fn identity_headers(&mut self, given: &GivenFlags) {
        let lists = IDENTITY_HEADERS.map(|(name, default)| (name, default, given.list(name)));
        let has = |list: &[String], default: &str| list.iter().any(|name| name.eq_ignore_ascii_case(default));
        let differs =
            |(_, default, list): &(&str, &str, Vec<String>)| !list.is_empty() && !has(list, default);
        if lists.iter().any(differs) {
            for (name, _, list) in lists.iter().filter(|(_, _, list)| !list.is_empty()) {
                self.add(format!("--backend-{name}={}", list.join(",")));
            }
        }
        for (name, default, list) in &lists {
            if list.is_empty() {
                self.notes.push(format!(
                    "Give the API server --{name}={default}; without it, this part of identities is lost."
                ));
            }
        }
    }

    /// What the gateway cannot share with an API server on the same node.
    fn serving(&mut self, given: &GivenFlags) {
        if given.value("tls-cert-file").is_none() {
            let problem =
                "is not given: the API server makes a certificate of its own, which the gateway does not";
            let fix =
                "give --tls-cert-file and --tls-private-key-file, with a certificate for the gateway's names";
            self.errors.push(ConfigError::new("--tls-cert-file", problem).fix(fix));
        }
        let port = given.value("secure-port").unwrap_or(PORT);
        self.notes.push(format!(
            "On the API server's own node, port {port} is in use: give the gateway another --secure-port or \
             --bind-address, or move the API server."
        ));
        if given.value("audit-log-path").is_some_and(|path| path != "-") {
            self.notes.push(
                "Gateway and API server must not write to one file: give the gateway another --audit-log-path on the \
                 same node."
                    .to_owned(),
            );
        }
    }
}

/// The flags with long names.
struct GivenFlags(Vec<GivenFlag>);

impl GivenFlags {
    /// The last value of a flag.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|flag| flag.name() == Some(name))?.value()
    }

    /// The values of a list, which may be given several times.
    fn list(&self, name: &str) -> Vec<String> {
        let given = self.0.iter().filter(|flag| flag.name() == Some(name)).filter_map(GivenFlag::value);
        given.flat_map(|value| value.split(',')).filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }
}

/// Whether a server that listens at an address can be reached at it.
fn is_specific(address: &str) -> bool {
    address.parse::<IpAddr>().is_ok_and(|address| !address.is_unspecified())
}

/// The files that a flag names.
pub(super) fn files(serve: &Command, flag: &GivenFlag) -> Vec<String> {
    let (Some(name), Some(value)) = (flag.name(), flag.value()) else { return Vec::new() };
    let argument = serve.get_arguments().find(|argument| argument.get_long() == Some(name));
    let form = argument.and_then(Arg::get_value_names).and_then(<[_]>::first).map(Str::as_str);
    match form {
        Some("FILE") if value != "-" => vec![value.to_owned()],
        Some("CERT,KEY[:NAMES]") => {
            let files = value.split(':').next().unwrap_or_default();
            files.split(',').map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}
