//! `docs/configuration.md` is written by what it describes: the definition that flags and file share.

use std::fmt::Write as _;

use clap::{Arg, Args, Command};
use portcullis::config::flags::{
    AuthenticationFlags, ClusterKeys, ControllerFlags, MatchKeys, OperationFlags, RESTART, ServeFlags,
    ServingFlags, SignerProfileKeys,
};
use portcullis::config::sections::key_of;

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by tests/it/reference.rs; change it there, or the help of the flag. -->

There are two doors to one and the same configuration: the command line, with kube-apiserver's own flags, and a file:

```sh
portcullis serve --config gateway.yaml
```

```yaml
apiVersion: portcullis.dev/v1alpha1
kind: GatewayConfiguration
serving:
  tlsCertFile: gateway.crt
  tlsPrivateKeyFile: gateway.key
authentication:              # for every cluster
  clientCAFile: clients-ca.crt
clusters:
- name: prod
  kubeconfig: prod.kubeconfig
  match: {serverNames: [prod.example.com]}
- name: staging
  kubeconfig: staging.kubeconfig
  match: {pathPrefix: /clusters/staging}
  authentication: {anonymousAuth: false}   # what differs for this one
```

Annotated samples are in [`config/`](../config): `minimal.yaml`, `sidecar.yaml`, `ingress.yaml`,
`controllers.yaml`.

- **Every flag has a key**: the flag's words, run together, with CA, SNI and UID in capitals as Kubernetes writes them.
  `--client-ca-file` is `clientCAFile`. A flag that takes a comma-separated list is a list in the file.
- **What counts**, from the weakest to the strongest: the default; the file's section; for authentication and
  controllers, what the cluster says itself; a flag, which counts for every cluster. Each key is replaced as a whole; `null` means the
  default again.
- **One cluster** may be given by `--backend-kubeconfig` and `--identity`, beside a file that lists
  no clusters. It gets every request.
- **Relative paths** in the file begin at the file's directory, on the command line at the working directory.
- **Mistakes** are told all at once, each with its file, line, key and a way out; a key that is unknown is one of them.
  Only a file that is no YAML, has a key twice, or is no `GatewayConfiguration`, is told by itself. The exit code is
  64. `portcullis check` says what `serve` would say, and what would be served to whom; `--output json` and `yaml` are
  for programs.
- **Files** that the configuration names must be regular files of at most 16 MiB, or symbolic links to such; a FIFO, a
  device or a directory is a mistake. Every certificate in every one of them is read, and must fit its key if it has one;
  one that is expired or not valid yet is a warning.
- **Changes** of the file, or of a file it names, are taken up while the gateway runs, unless the table says that
  they wait for the next start. A change that has a mistake changes nothing: what was served goes on.
";

const AUTHENTICATION: &str = "\
`authenticationConfig` names kube-apiserver's own file, an `AuthenticationConfiguration` of
`apiserver.config.k8s.io/v1`, `v1beta1` or `v1alpha1`, YAML or JSON, with up to 64 issuers. Every mistake in it is told,
in kube-apiserver's words and with its line. Beside it no `oidc` key may be given, nor `anonymousAuth` if the file has
`anonymous`; where a template gives one of them, a cluster takes it back with `null`. Three things are not as there:

- `anonymous` is reloaded with the rest of the file; kube-apiserver refuses a file in which it has changed.
- `egressSelectorType` is a mistake, as it is for a kube-apiserver without egress selectors: issuers are reached over the
  gateway's own network.
- An empty `oidcCAFile` is a mistake; kube-apiserver trusts the system's CAs then.

";

const CONTROLLERS: &str = "\
The controllers that run beside the gateway, for every cluster or, in a cluster's own `controllerManager`, for that one;
[docs/controllers.md](controllers.md) says what they do. The flags are kube-controller-manager's. Of several clusters, each
has signing CAs of its own: the same for two, or one that another cluster believes, is an error.

";

const PROFILES: &str = "\
A file begins with `apiVersion: portcullis.dev/v1alpha1` and `kind: SignerProfiles`, and lists its signers below
`signers`. Paths in it begin at its own directory.

";

const CLUSTERS: &str = "\
The API servers behind the gateway. The flags describe one cluster; the file lists any number, and then these flags
cannot be given. With several, each has a `match`. The keys of a cluster's own `authentication` are those of
[the section](#authentication), and replace them for this cluster; so are those of its own `controllerManager`.

";

const MATCH: &str = "\
Which requests are for the cluster: those for one of the names, and those under the path; at least one of the two is
given. No two clusters have the same name or the same path. An exact name goes before one with `*`, and a longer path
before a shorter one. A path cannot begin with what API servers have at their root, such as `/api` or `/healthz`.

";

#[test]
fn configuration_reference_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/configuration.md");
    let reference = reference();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, &reference).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        written == reference,
        "docs/configuration.md is out of date; write it anew with: UPDATE_DOCS=1 cargo test --test it reference"
    );
}

#[test]
fn every_flag_that_needs_a_restart_is_a_flag() {
    let command = ServeFlags::augment_args(Command::new("serve"));
    let flags: Vec<&str> = command.get_arguments().filter_map(Arg::get_long).collect();
    for flag in RESTART {
        assert!(flags.contains(&flag), "--{flag}");
    }
}

fn reference() -> String {
    let command = ServeFlags::augment_args(Command::new("serve"));
    let [config, ignore] = ["config", "ignore_unknown_apiserver_flags"]
        .map(|id| command.get_arguments().find(|argument| argument.get_id() == id).unwrap());
    let mut text = INTRODUCTION.to_owned();
    let mut section = |title: &str, introduction: &str, rows: String| {
        let table = "| key | flag | default | meaning | reloaded |\n|---|---|---|---|---|\n";
        write!(text, "\n{title}\n\n{introduction}{table}{rows}").unwrap();
    };
    section("## `serving`", "", rows::<ServingFlags>());
    section("## `authentication`", AUTHENTICATION, rows::<AuthenticationFlags>());
    section("## `clusters[]`", CLUSTERS, rows::<ClusterKeys>());
    section("### `clusters[].match`", MATCH, rows::<MatchKeys>());
    section("## `controllerManager`", CONTROLLERS, rows::<ControllerFlags>());
    section("### Signer profiles", PROFILES, rows::<SignerProfileKeys>());
    section("## `operation`", "", rows::<OperationFlags>());
    text += "\n## On the command line alone\n\n| flag | meaning |\n|---|---|\n";
    for argument in [config, ignore] {
        writeln!(text, "| {} | {} |", flag(argument), meaning(argument)).unwrap();
    }
    text
}

/// One row for each key of a section.
fn rows<T: Args>() -> String {
    let command = T::augment_args(Command::new("section"));
    let served = ServeFlags::augment_args(Command::new("serve"));
    let row = |argument: &Arg| {
        let long = argument.get_long().unwrap();
        let is_flag = served.get_arguments().any(|flag| flag.get_long() == Some(long));
        let defaults: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
        format!(
            "| `{}` | {} | {} | {} | {} |\n",
            key_of(long),
            if is_flag { flag(argument) } else { String::new() },
            if defaults.is_empty() { String::new() } else { format!("`{}`", defaults.join(",")) },
            meaning(argument),
            if RESTART.contains(&long) { "at the next start" } else { "yes" },
        )
    };
    command.get_arguments().map(row).collect()
}

fn flag(argument: &Arg) -> String {
    let long = argument.get_long().unwrap();
    let value = argument.get_value_names().unwrap_or_default();
    let value = value.iter().find(|name| argument.get_action().takes_values() || *name == "BOOL");
    match value {
        Some(value) => format!("`--{long} {value}`"),
        None => format!("`--{long}`"),
    }
}

fn meaning(argument: &Arg) -> String {
    let help = argument.get_help().unwrap().to_string().replace('|', "\\|");
    let help = help.trim_end_matches('…').trim_end_matches([',', ' ']);
    let values =
        if argument.get_action().takes_values() { argument.get_possible_values() } else { Vec::new() };
    let values: Vec<String> = values.iter().map(|value| format!("`{}`", value.get_name())).collect();
    if values.is_empty() { format!("{help}.") } else { format!("{help}. One of {}.", values.join(", ")) }
}
