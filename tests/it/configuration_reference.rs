//! Generates `docs/configuration.md` from the common definition of flags and configuration file.

use std::fmt::Write as _;

use clap::{Arg, Args, Command};
use portcullis::internal::key_of;
use portcullis::internal::{
    AdmissionFlags, AuditFlags, AuthenticationFlags, AuthorizationFlags, ClusterKeys, ControllerFlags,
    LimitFlags, ManagementClusterKeys, MatchKeys, OperationFlags, PageFlags, PodRuleKeys, PodSignerKeys,
    RESTART, ServeFlags, ServingFlags, SessionFlags, SignerProfileKeys,
};

const INTRODUCTION: &str = "\
# Configuration

<!-- Written by tests/it/configuration_reference.rs; change it there, or the help of the flag. -->

The gateway takes its configuration from flags, which are kube-apiserver's own, from a file, or from both:

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
  authentication: {anonymousAuth: false}   # replaces the key for this cluster
```

Annotated samples are in [`config/`](../config): `minimal.yaml`, `sidecar.yaml`, `ingress.yaml`, `admission.yaml`,
`clusters.yaml`, `controllers.yaml`, `page.yaml`.

- **Keys**: every flag has a key, its words in camel case, with CA, SNI and UID in capitals as in Kubernetes.
  `--client-ca-file` is `clientCAFile`. A comma-separated flag is a list in the file.
- **Precedence**, from lowest to highest: the default; the section of the file; for authentication, authorization, admission,
  limits and controllers, the cluster's own section; a flag, which applies to every cluster. Each key is replaced as a whole. `null`
  restores the default.
- **One cluster** can be given by `--backend-kubeconfig` and `--identity`, beside a file without `clusters`. It gets every
  request.
- **kube-apiserver's own command line** starts the gateway with `--ignore-unknown-apiserver-flags`; `portcullis convert` prints the
  flags that are left ([Deployment](deployment.md#with-the-flags-of-your-kube-apiserver)). As there, the value of a flag may be the next word, `_`
  is `-`, and a truth value may be `1`, `T` or `True`.
- **Relative paths** in the file start at the file's directory, on the command line at the working directory.
- **Errors** are reported all at once, those of flags and those of files, each with its file, line, key and fix. An unknown key or
  flag is an error. Of a file that is not YAML, has a duplicate key, or is not a `GatewayConfiguration`, this is the only error
  beside those of the command line. The exit code is 64. `portcullis check`
  prints the errors of `serve`, or the effective configuration; `--output json` and `yaml` are for programs.
- **Files** that the configuration names must be regular files of at most 16 MiB, or symbolic links to one; a FIFO, a device
  or a directory is an error. The gateway parses every certificate in every file, and checks that it matches its key. A
  certificate that is expired or not yet valid is a warning.
- **Reload**: the gateway applies changes of the file, and of the files it names, while it runs, unless the table says
  *at the next start*. An invalid change has no effect.
";

const AUTHENTICATION: &str = "\
`authenticationConfig` names kube-apiserver's own file, an `AuthenticationConfiguration` of
`apiserver.config.k8s.io/v1`, `v1beta1` or `v1alpha1`, YAML or JSON, with up to 64 issuers. Errors in it have
kube-apiserver's text, and the line. It excludes the `oidc` keys, and also `anonymousAuth` if the file has `anonymous`; a
cluster unsets a key of the top-level section with `null`. Differences from kube-apiserver:

- `anonymous` is reloaded with the rest of the file; kube-apiserver rejects a file in which it has changed.
- `egressSelectorType` is an error, as for a kube-apiserver without egress selectors: the gateway connects to issuers from its
  own network.
- An empty `oidcCAFile` is an error; kube-apiserver trusts the system's CAs instead.

";

const AUTHORIZATION: &str = "\
The gateway's own authorizers, which narrow access: the backend authorizes every request that they allow. The first that
allows or denies decides; a request that none of them allows is refused. `AlwaysAllow`, at the end, leaves to the backend
the requests on which no authorizer before it has an opinion. Without authorizers the backend alone decides. The backend
decides by RBAC, Node and ABAC, so that these modes are an error, or with `--ignore-unknown-apiserver-flags` a warning:
[Authorization](authorization.md#authorizers-of-the-backend) has the rules.

`authorizationConfig` names kube-apiserver's own file, an `AuthorizationConfiguration` of `apiserver.config.k8s.io/v1`,
`v1beta1` or `v1alpha1`, YAML or JSON. Errors in it have kube-apiserver's text, and the line. It excludes the other keys of
this section; a cluster unsets a key of the top-level section with `null`. Each webhook has a kubeconfig, under the rules of
the backend's.

```yaml
apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- type: Webhook
  name: policy
  webhook:
    timeout: 3s
    failurePolicy: Deny
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    matchConditions:
    - expression: \"!('system:nodes' in request.groups)\"
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: /etc/portcullis/policy.kubeconfig}
- {type: AlwaysAllow, name: alwaysallow}
```

With authorizers, `--impersonation=backend` is an error: the gateway would authorize the requester instead of the
impersonated user.

";

const CONTROLLERS: &str = "\
The controllers that run in the gateway, for every cluster or, in a cluster's own `controllerManager`, for that one;
[docs/controllers.md](controllers.md) describes them. The flags are kube-controller-manager's. With several clusters, each
needs its own signing CAs: a signing CA that two clusters share, or that another cluster trusts, is an error.

";

const PROFILES: &str = "\
A file begins with `apiVersion: portcullis.dev/v1alpha1` and `kind: SignerProfiles`, and lists its signers in `signers`.
Relative paths in it start at its own directory.

";

const POD_PROFILES: &str = "\
A file begins with `apiVersion: portcullis.dev/v1alpha1` and `kind: PodSignerProfiles`, and lists its signers in `signers`
([Certificates for pods](pod-certificates.md)). Relative paths in it start at its own directory. Expressions are in CEL, over `request`,
`pod`, `serviceAccount`, `namespaceObject` and `node`.

";

const POD_RULES: &str = "\
Each signer has a list `rules` of these: all must be true, or the request is denied. Without rules, each pod of the cluster gets a
certificate.

";

const ADMISSION: &str = "\
Admission webhooks that the gateway calls ([Admission webhooks](admission.md)), before the backend does its own admission. They come from static manifests, as with
kube-apiserver's `staticManifestsDir`: `admissionControlConfigFile` names an `AdmissionConfiguration` of
`apiserver.config.k8s.io/v1`, whose plugins `MutatingAdmissionWebhook` and `ValidatingAdmissionWebhook` each name a folder.

- `mode` is required with webhooks and has no default. If you may configure the backend, register the webhooks in the cluster
  itself: there they also see requests that bypass the gateway, converted to the versions of their rules.
- Names of configurations end in `.static.k8s.io`. Webhooks have a `url`; a `service` is an error.
- Of `kubeConfigFile`, only users count. The user for a webhook is the one named `HOST:PORT`, else `*.REST:PORT`, else without the
  port if it is 443, else `*`, else that of the current context; without any, the gateway is anonymous. A user has a `token`, a
  `tokenFile`, or `client-certificate` and `client-key`.
- `impersonation: backend` cannot be combined with webhooks.
- Other plugins, in the flags and in the file, are errors, or with `--ignore-unknown-apiserver-flags` warnings: the backend decides by
  them.
- Differences from kube-apiserver: no feature gate is needed; all errors of all files are reported at once; a `caBundle` without a certificate, and a webhook at `kubernetes.default.svc:443`, are errors; a folder has at most
  10,000 manifests of 64 MiB in total.
";

const AUDIT: &str = "\
Which requests of a cluster are audited, and where their events are stored ([Audit](audit.md)), as with kube-apiserver.";

const SESSIONS: &str = "\
Which sessions (exec, attach, port-forward) are recorded, and how long they may take: [Recorded sessions](sessions.md) has the
form of the policy.

";

const LIMITS: &str = "\
Limits on the requests of each cluster in flight, and fair queues for the requests beyond them;
[limits.md](limits.md#requests-in-flight) describes them. `operation.maxRequestsInflightTotal` is the limit of the
process.

";

const PAGE: &str = "\
The page on which users find their clusters; [Login](page.md#the-page) describes it. Without `bindAddress` there is none.

";

const CLUSTERS: &str = "\
The clusters behind the gateway. The flags describe one cluster. The file lists any number of clusters, and then excludes
these flags. With several clusters each needs a `match`. A cluster's own `authentication` has the keys of
[the section](#authentication), and replaces them for this cluster; `authorization`, `admission`, `audit`, `sessions`, `limits` and
`controllerManager` work the same way.

";

const CLUSTER_DIRECTORY: &str = "\
The path of a directory with one cluster in each file, a `ClusterConfiguration` of `portcullis.dev/v1alpha1` with the keys
of [an entry of `clusters`](#clusters). Beside `clusters`, or in place of it; each cluster then needs a `match`. An error in
one file concerns one cluster: [Clusters](clusters.md) has the rules. Reloaded.
";

const MANAGEMENT_CLUSTER: &str = "\
A management cluster, whose Secrets are clusters: [Clusters](clusters.md#secrets-of-a-management-cluster) has their form.
`domain`, `pathPrefix` or both are required.

";

const MATCH: &str = "\
The requests for the cluster: those for one of the server names, and those under the path prefix. At least one of the two
is required. Two clusters must not have the same name or the same path. An exact name wins over one with `*`, and a longer
path over a shorter one. A path prefix must not begin with a path that API servers serve at their root, such as `/api` or
`/healthz`.

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
        "docs/configuration.md is out of date; regenerate it with: UPDATE_DOCS=1 cargo test --test it configuration_reference"
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
    section("## `authorization`", AUTHORIZATION, rows::<AuthorizationFlags>());
    section("## `admission`", ADMISSION, rows::<AdmissionFlags>());
    section("## `audit`", AUDIT, rows::<AuditFlags>());
    section("## `sessions`", SESSIONS, rows::<SessionFlags>());
    section("## `limits`", LIMITS, rows::<LimitFlags>());
    section("## `clusters[]`", CLUSTERS, rows::<ClusterKeys>());
    section("### `clusters[].match`", MATCH, rows::<MatchKeys>());
    section("## `managementCluster`", MANAGEMENT_CLUSTER, rows::<ManagementClusterKeys>());
    section("## `controllerManager`", CONTROLLERS, rows::<ControllerFlags>());
    section("### Signer profiles", PROFILES, rows::<SignerProfileKeys>());
    section("### Pod signer profiles", POD_PROFILES, rows::<PodSignerKeys>());
    section("### Rules of pod signer profiles", POD_RULES, rows::<PodRuleKeys>());
    section("## `operation`", "", rows::<OperationFlags>());
    section("## `page`", PAGE, rows::<PageFlags>());
    write!(text, "\n## `clusterDirectory`\n\n{CLUSTER_DIRECTORY}").unwrap();
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
