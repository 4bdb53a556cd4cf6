//! `portcullis login`: logs in, asks the cluster who the user is, and writes the kubeconfig.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::{Args, Parser};
use portcullis_system::clock::Clock;
use portcullis_system::text::is_obeyed;
use portcullis_system::{input_file, platform};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use super::api_server::{ApiServer, ClusterEntry};
use super::browser::BrowserEnvironment;
use super::cache::CacheEntry;
use super::client_certificate::{CertificateError, CertificateSession};
use super::consent;
use super::error::LoginError;
use super::kubeconfig_file::{
    KubeconfigFile, KubeconfigLocks, KubeconfigPaths, KubeconfigTarget, Kubeconfigs, PLUGIN,
    check_environment, cluster_config, credential_arguments, exec_user, has_cluster_info, with_arguments,
};
use super::review::{self, review};
use super::secret_of_environment;
use super::session::{Credential, Session, UserAccess, from_file};
use super::settings::{ProviderFlags, roots};
use crate::output::print;
use crate::print_error;
use crate::table::columns;
use crate::terminal::plain;

/// The flags of `portcullis login`.
#[derive(Debug, Clone, Args)]
pub struct LoginFlags {
    /// The URL of the cluster at the gateway.
    #[arg(long, value_name = "URL", help_heading = "Cluster", requires = "issuer")]
    server: Option<String>,
    /// The CAs of the cluster, PEM. Default: the system's.
    #[arg(long, value_name = "FILE", help_heading = "Cluster", requires = "server")]
    certificate_authority: Option<PathBuf>,
    /// The name of cluster and context in the kubeconfig. Default: the host of --server.
    #[arg(long, value_name = "NAME", help_heading = "Cluster", requires = "server")]
    name: Option<String>,
    /// A kubeconfig of an administrator, whose contexts are added: see portcullis kubeconfig.
    #[arg(long, value_name = "FILE", help_heading = "Cluster", conflicts_with_all = ["server", "issuer"])]
    from: Option<PathBuf>,
    /// The contexts of --from to add. Default: the only one.
    #[arg(
        long = "cluster",
        value_name = "NAME",
        value_delimiter = ',',
        help_heading = "Cluster",
        requires = "from"
    )]
    clusters: Vec<String>,
    /// Add all contexts of --from.
    #[arg(long, help_heading = "Cluster", requires = "from", conflicts_with = "clusters")]
    all: bool,
    /// Log in to the contexts of --from without asking.
    #[arg(long, help_heading = "Cluster", requires = "from")]
    yes: bool,
    /// The kubeconfig to write. Default: the files of $KUBECONFIG as kubectl config writes them, then ~/.kube/config.
    #[arg(long, value_name = "FILE", help_heading = "Cluster")]
    kubeconfig: Option<PathBuf>,
    /// The context to log in to again, without --server and --from. Default: the current context.
    #[arg(long, value_name = "NAME", help_heading = "Cluster", conflicts_with_all = ["server", "from"])]
    context: Option<String>,
    /// Replace entries of the same name that are not of portcullis login.
    #[arg(long, help_heading = "Cluster")]
    overwrite: bool,
    /// Do not ask the cluster who you are.
    #[arg(long, help_heading = "Cluster")]
    no_review: bool,
    #[command(flatten)]
    provider: ProviderFlags,
}

/// The flags of `portcullis credential`, out of a kubeconfig.
#[derive(Debug, Parser)]
#[command(no_binary_name = false)]
pub(super) struct ParsedProvider {
    #[command(flatten)]
    pub(super) provider: ProviderFlags,
}

/// The user runs the command to log in: a keyring may ask.
const INTERACTIVE: bool = true;

/// A context to log in to.
#[derive(PartialEq)]
pub(super) struct LoginTarget {
    pub(super) entry: KubeconfigTarget,
    /// With the settings of the cluster.
    pub(super) provider: ProviderFlags,
    /// What relative paths of the entry are relative to.
    directory: PathBuf,
    origin: Origin,
}

pub(super) async fn run(flags: &LoginFlags) -> Result<ExitCode, LoginError> {
    let paths = KubeconfigPaths::of(flags.kubeconfig.as_deref())?;
    let before = paths.read()?;
    let targets = targets(flags, &before)?;
    let change = planned_change(flags, &before, &targets).await?;
    if let Some(from) = &flags.from {
        consent::ask(from, &targets, &before, flags.yes).await?;
    }
    let mut rows = Vec::new();
    let mut logins = Logins::default();
    for target in &targets {
        let credential = logins.credential(&target.provider).await?;
        if !flags.no_review {
            let server = target.server()?;
            let user = review(&server, &credential).await?;
            rows.push([
                target.entry.context.clone(),
                plain(&user.username).into_owned(),
                user.groups.join(","),
            ]);
            get_certificate(&target.provider, &server).await?;
        }
    }
    write(flags, &paths, before, &targets, change).await?;
    Ok(if rows.is_empty() { ExitCode::SUCCESS } else { print(&columns(["CONTEXT", "USER", "GROUPS"], rows)) })
}

/// What a login changes in the kubeconfigs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct KubeconfigChange {
    /// Whether entries of others are replaced.
    overwrite: bool,
    /// Whether the context becomes the current one.
    sets_current: bool,
}

/// Fails if the kubeconfigs cannot be changed as planned: the logins would be in vain. A context that is there already is of use
/// without being the current one.
async fn planned_change(
    flags: &LoginFlags,
    before: &Kubeconfigs,
    targets: &[LoginTarget],
) -> Result<KubeconfigChange, LoginError> {
    let change = KubeconfigChange { overwrite: flags.overwrite, sets_current: true };
    let planned = merged(before, targets, change)?;
    let Err(error) = KubeconfigLocks::check(&planned.changed_paths(before)).await else { return Ok(change) };
    let change = KubeconfigChange { sets_current: false, ..change };
    if merged(before, targets, change)? != *before {
        return Err(error);
    }
    print_error(&format!("warning: the current context stays as it is: {error}"));
    Ok(change)
}

/// Writes the contexts that are logged in to. A change meanwhile stays, and costs the logins only if it is one of their
/// contexts.
async fn write(
    flags: &LoginFlags,
    paths: &KubeconfigPaths,
    before: Kubeconfigs,
    targets: &[LoginTarget],
    change: KubeconfigChange,
) -> Result<(), LoginError> {
    let mut now = paths.read()?;
    loop {
        if now != before && !is_unchanged(flags, targets, &now) {
            return Err(LoginError::Other(format!(
                "{now}: another program has changed it meanwhile; repeat the command"
            )));
        }
        let after = merged(&now, targets, change)?;
        let locks = KubeconfigLocks::acquire(&after.changed_paths(&now)).await?;
        let locked = paths.read()?;
        if locked != now {
            now = locked;
            continue;
        }
        for file in after.write(&now, &locks)? {
            if let Some(backup) = file.backup {
                print_error(&format!("{} written; the old one is {}", file.path.display(), backup.display()));
            }
        }
        return Ok(());
    }
}

/// The kubeconfigs with the contexts that are logged in to. They must not change what the names of other entries stand for, in
/// any file that kubectl reads together with them.
// threat: hostile-kubeconfig
fn merged(
    before: &Kubeconfigs,
    targets: &[LoginTarget],
    change: KubeconfigChange,
) -> Result<Kubeconfigs, LoginError> {
    let problem = |problem: String| LoginError::usage(&format!("{before}: {problem}"));
    let contexts: Vec<&str> = targets.iter().map(|target| target.entry.context.as_str()).collect();
    let all = before.all();
    let (mut after, mut all_after) = (before.clone(), all.clone());
    for LoginTarget { entry, origin, .. } in targets {
        if *origin == Origin::Other && !change.overwrite {
            all.check_shared_user(entry, &contexts).map_err(problem)?;
        }
        all_after.merge(entry, change.overwrite).map_err(problem)?;
        // With what the context has in another file, such as a namespace.
        after.copy(entry, &all_after);
    }
    match targets {
        _ if !change.sets_current => {}
        [target] => after.set_current_context(&target.entry.context),
        [first, ..] if all.current_context().is_none() => after.set_current_context(&first.entry.context),
        _ => {}
    }
    Ok(after)
}

/// Whether the contexts that are logged in to are the same in the kubeconfigs as they are now.
fn is_unchanged(flags: &LoginFlags, targets: &[LoginTarget], now: &Kubeconfigs) -> bool {
    let mut flags = flags.clone();
    if let ([target], None, None) = (targets, &flags.server, &flags.from) {
        // Another context may have become the current one.
        flags.context = Some(target.entry.context.clone());
    }
    self::targets(&flags, now).is_ok_and(|now| now == targets)
}

/// The logins of one command: contexts of the same cache entry need one.
#[derive(Default)]
struct Logins {
    /// By the arguments, for a cache that keeps nothing.
    credentials: Vec<(Vec<String>, Credential)>,
    /// The places of the cache entries that have their tokens.
    entries: Vec<String>,
}

impl Logins {
    async fn credential(&mut self, provider: &ProviderFlags) -> Result<Credential, LoginError> {
        let arguments = provider.arguments()?;
        if let Some((_, credential)) = self.credentials.iter().find(|(known, _)| *known == arguments) {
            return Ok(credential.clone());
        }
        let credential = self.log_in(provider).await?;
        self.credentials.push((arguments, credential.clone()));
        Ok(credential)
    }

    async fn log_in(&mut self, provider: &ProviderFlags) -> Result<Credential, LoginError> {
        let clock = Clock::system();
        provider.certificate()?;
        if let Some(file) = provider.token_file()? {
            return from_file(file, clock.now());
        }
        let settings = provider.settings(secret_of_environment())?;
        if provider.no_cache {
            return Err(LoginError::usage(
                "--no-cache: login keeps its tokens in the cache; kubectl would ask again each time",
            ));
        }
        let cache = provider.cache(INTERACTIVE)?;
        let entry = cache.entry(&settings).ok();
        let is_known = entry.as_ref().is_some_and(|entry| self.entries.contains(&entry.place()));
        let session = Session {
            settings: &settings,
            cache: Some(&cache),
            clock: &clock,
            user: UserAccess::of_command(),
            force: !is_known,
            browser: BrowserEnvironment::current(),
        };
        let credential = session.credential().await?;
        if let Some(entry) = entry
            && is_kept(&entry, &credential).await
        {
            self.entries.push(entry.place());
        }
        Ok(credential)
    }
}

/// Whether the cache has this credential, and not that of an earlier login.
async fn is_kept(entry: &CacheEntry, credential: &Credential) -> bool {
    let kept = entry.read().await.ok().flatten();
    kept.is_some_and(|tokens| tokens.token.expose() == credential.token.expose_secret())
}

impl LoginTarget {
    fn server(&self) -> Result<ApiServer, LoginError> {
        let problem = |problem: String| LoginError::answer(review::DOING, problem);
        let entry: ClusterEntry =
            serde_json::from_value(self.entry.cluster.clone()).map_err(|error| problem(error.to_string()))?;
        ApiServer::of(&entry, &self.directory).map_err(problem)
    }
}

/// Gets the client certificate, if that is the credential. One that is not approved yet costs a warning: kubectl goes on
/// with the same request.
async fn get_certificate(provider: &ProviderFlags, server: &ApiServer) -> Result<(), LoginError> {
    let Some(settings) = provider.certificate()? else { return Ok(()) };
    let (clock, client) = (Clock::system(), provider.settings(secret_of_environment())?);
    let cache = provider.cache(INTERACTIVE)?;
    let session = CertificateSession {
        session: Session {
            settings: &client,
            cache: Some(&cache),
            clock: &clock,
            user: UserAccess::of_command(),
            // The login was just made.
            force: false,
            browser: BrowserEnvironment::current(),
        },
        cache: &cache,
        server,
        settings: &settings,
        force: true,
    };
    match session.credential().await {
        Err(error @ CertificateError::Pending { .. }) => {
            print_error(&format!("warning: {error}"));
            Ok(())
        }
        done => Ok(done.map(drop)?),
    }
}

fn targets(flags: &LoginFlags, before: &Kubeconfigs) -> Result<Vec<LoginTarget>, LoginError> {
    if let Some(server) = &flags.server {
        return Ok(vec![new_target(flags, server)?]);
    }
    let own_choice = |flag: &str| {
        LoginError::usage(&format!(
            "--{flag}: a context that exists has its own; give --server and --issuer for another login"
        ))
    };
    if let Some(from) = &flags.from {
        let targets = targets_of(flags, from)?;
        // Here these flags accept what the file has.
        let of_targets = targets.iter().map(|target| &target.provider);
        return match flags.provider.choice_of_none(of_targets)? {
            Some(flag) => Err(own_choice(&flag)),
            None => Ok(targets),
        };
    }
    if let Some(flag) = flags.provider.choice_of_context() {
        return Err(own_choice(flag));
    }
    let entry = before.target(flags.context.as_deref())?;
    let file = before.user_path(&entry.user_name);
    let directory = before.cluster_path(&entry.cluster_name).parent().unwrap_or(Path::new(""));
    Ok(vec![existing(entry, file, directory, &flags.provider, Origin::OwnKubeconfig)?])
}

fn new_target(flags: &LoginFlags, server: &str) -> Result<LoginTarget, LoginError> {
    let host = https_host(server).ok_or_else(|| {
        LoginError::usage(&format!("--server {server:?}: must be an https:// URL without a user"))
    })?;
    let name = flags.name.clone().unwrap_or(host);
    Ok(LoginTarget {
        entry: KubeconfigTarget {
            context: name.clone(),
            cluster_name: name.clone(),
            cluster: cluster_entry(server, flags.certificate_authority.as_deref())?,
            user_name: format!("{name}-login"),
            user: exec_user(&own_command(), &flags.provider.arguments()?),
        },
        provider: flags.provider.clone(),
        directory: PathBuf::new(),
        origin: Origin::OwnKubeconfig,
    })
}

/// The host of an `https://` URL. One with a user is none: `https://good.test@evil.test` reads like another host.
fn https_host(server: &str) -> Option<String> {
    let url: http::Uri = server.parse().ok()?;
    match (url.scheme_str(), url.authority()) {
        (Some("https"), Some(authority)) if !authority.as_str().contains('@') => {
            Some(authority.host().to_owned())
        }
        _ => None,
    }
}

/// The cluster entry of a kubeconfig.
pub fn cluster_entry(server: &str, authority: Option<&Path>) -> Result<Value, LoginError> {
    let mut cluster = json!({"server": server.trim_end_matches('/')});
    if let (Some(file), Some(entry)) = (authority, cluster.as_object_mut()) {
        let problem = |problem: &str| {
            LoginError::usage(&format!("--certificate-authority {}: {problem}", file.display()))
        };
        let pem = input_file::read(file).map_err(|error| problem(&format!("{error}; {}", error.fix())))?;
        roots(&pem).map_err(|error| problem(&error))?;
        // Certificates only: the file may also contain a key.
        let bundle =
            portcullis_pki::x509::CaBundle::from_pem(&pem).map_err(|error| problem(&error.to_string()))?;
        let certificates = bundle.certificates().iter();
        let pem: String = certificates
            .map(|certificate| portcullis_go::pem::encode_pem("CERTIFICATE", &certificate.der))
            .collect();
        entry.insert("certificate-authority-data".to_owned(), json!(STANDARD.encode(pem)));
    }
    Ok(cluster)
}

/// This program, as kubectl finds it: by its name if that is in the `PATH`, otherwise by its path.
fn own_command() -> String {
    let Some(own) = std::env::current_exe().ok().and_then(|path| platform::real_path(&path).ok()) else {
        return "portcullis".to_owned();
    };
    let name = own.file_name().unwrap_or("portcullis".as_ref());
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let is_own = |name: &&OsStr| {
        let mut files = std::env::split_paths(&directories).map(|directory| directory.join(name));
        let first = files.find(|file| file.is_file());
        first.and_then(|file| platform::real_path(&file).ok()).as_ref() == Some(&own)
    };
    // krew installs each version into a directory of its own, and has a link to it in the PATH.
    let command = [name, PLUGIN.as_ref()].into_iter().find(is_own).unwrap_or(own.as_os_str());
    command.to_string_lossy().into_owned()
}

fn targets_of(flags: &LoginFlags, from: &Path) -> Result<Vec<LoginTarget>, LoginError> {
    let problem = |problem: &str| LoginError::usage(&format!("--from {}: {problem}", from.display()));
    if !from.exists() {
        return Err(problem("there is no such file"));
    }
    let file = KubeconfigFile::read(from)?;
    let known: Vec<String> = file.contexts().into_iter().map(str::to_owned).collect();
    let names = match (flags.all, flags.clusters.as_slice(), known.as_slice()) {
        (true, ..) | (false, [], [_]) => known,
        (false, [], _) => {
            return Err(problem(&format!("give --all, or --cluster with some of {}", known.join(", "))));
        }
        (false, chosen, _) => chosen.to_vec(),
    };
    let directory = from.parent().unwrap_or(Path::new(""));
    let targets = names.iter().map(|name| {
        let entry = file.target(name).map_err(|error| problem(&error))?;
        existing(entry, from, directory, &flags.provider, Origin::Other)
    });
    let targets: Vec<_> = targets.collect::<Result<_, _>>()?;
    // A secret is that of one client.
    // threat: client-secret-leak
    let client = |target: &LoginTarget| (target.provider.issuer.clone(), target.provider.client_id.clone());
    let has_several = targets.iter().any(|target| Some(client(target)) != targets.first().map(client));
    if let Some(flag) = flags.provider.sends_secret().filter(|_| has_several) {
        return Err(problem(&format!(
            "--{flag} is for one client, and the contexts have several; give --cluster with those of one"
        )));
    }
    Ok(targets)
}

/// The flags of the exec plugin of a user.
pub(super) fn plugin_flags(user: &Value) -> Result<ProviderFlags, String> {
    let arguments = credential_arguments(user)
        .ok_or("it does not log in with portcullis credential; give --issuer, and to login --server")?;
    let parsed = ParsedProvider::try_parse_from(std::iter::once("credential".to_owned()).chain(arguments));
    Ok(parsed.map_err(|error| format!("its arguments: {error}"))?.provider)
}

/// Where a context comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The user's kubeconfig, which could run any program anyway, or flags.
    OwnKubeconfig,
    /// A file of someone else.
    Other,
}

/// A context that exists, with the flags of its exec plugin. The file of someone else does not choose programs to run, files to
/// read, or the kind and the rights of a token, and sends no secret of the user to its issuers: the command of the new entry is
/// this one, and flags that do so are refused unless the user gives them, too. `directory` is that of the cluster's entry.
// threat: hostile-kubeconfig
fn existing(
    mut entry: KubeconfigTarget,
    file: &Path,
    directory: &Path,
    given: &ProviderFlags,
    origin: Origin,
) -> Result<LoginTarget, LoginError> {
    let problem = |problem: &str| {
        LoginError::usage(&format!("{}: the user {:?}: {problem}", file.display(), entry.user_name))
    };
    let before = plugin_flags(&entry.user).map_err(|error| problem(&error))?;
    let own = before.clone().with_login_of(given);
    if origin == Origin::OwnKubeconfig {
        check_environment(&entry.user, &own.variables(), |name| std::env::var_os(name))
            .map_err(|error| problem(&error))?;
    }
    // The entry of the cluster keeps what is its own.
    let config = cluster_config(&entry.cluster).map_err(|error| {
        LoginError::usage(&format!("{}: the cluster {:?}: {error}", file.display(), entry.cluster_name))
    })?;
    let provider = own.clone().or(config);
    // client-go gives the plugin the cluster only if its user says so.
    let needs_cluster = provider.certificate()?.is_some() || provider != own;
    let is_unchanged = own == before && (!needs_cluster || has_cluster_info(&entry.user));
    if origin == Origin::Other {
        let choices = provider.choices_of_another(given)?;
        if !choices.is_empty() {
            return Err(problem(&only_by_user(&choices, cfg!(windows))));
        }
    }
    let arguments = own.arguments()?;
    entry.user = match origin {
        // As its owner has written it: the file may be one that the user cannot write.
        Origin::OwnKubeconfig if is_unchanged => entry.user,
        Origin::OwnKubeconfig => with_arguments(entry.user, &own_command(), &arguments),
        Origin::Other => exec_user(&own_command(), &arguments),
    };
    if origin == Origin::Other {
        entry.cluster = cluster_of_other(&entry, file, directory)?;
    }
    Ok(LoginTarget { entry, provider, directory: directory.to_owned(), origin })
}

/// What to do about arguments of someone else's file that only the user may choose.
fn only_by_user(choices: &[String], is_windows: bool) -> String {
    let mut words = Vec::new();
    for choice in choices {
        let Some(word) = shell_word(choice, is_windows) else {
            let flag = choice.split('=').next().unwrap_or_default();
            return format!(
                "it has what only you may choose, and the value of {flag:?} has characters that a shell may obey; ask for \
                 another file"
            );
        };
        words.push(word);
    }
    format!(
        "it has what only you may choose; if you trust the file with it, give portcullis login the same: {}",
        words.join(" ")
    )
}

/// An argument as each shell of the system reads it; `None`: they differ, or a terminal obeys it. Users copy it out of an error,
/// and a file of someone else has chosen it.
fn shell_word(argument: &str, is_windows: bool) -> Option<String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@+".contains(c) || c == '%' && !is_windows;
    if argument.chars().all(is_plain) {
        return Some(argument.to_owned());
    }
    // fish has escapes between single quotes; cmd.exe has no such quotes.
    let may_end = |c: char| matches!(c, '\'' | '\\') || is_obeyed(c);
    (!is_windows && !argument.contains(may_end)).then(|| format!("'{argument}'"))
}

/// A cluster of someone else's file: with its CAs in place of a file that could change, and no TLS that anyone can end.
// threat: hostile-kubeconfig
fn cluster_of_other(entry: &KubeconfigTarget, file: &Path, directory: &Path) -> Result<Value, LoginError> {
    let mut cluster = entry.cluster.clone();
    let refused = |what: &str| {
        let name = &entry.cluster_name;
        Err(LoginError::usage(&format!("{}: the cluster {name:?} {what}", file.display())))
    };
    let server = cluster.get("server").and_then(Value::as_str).unwrap_or_default();
    if https_host(server).is_none() {
        return refused(&format!("has the server {server:?}, which is not an https:// URL without a user"));
    }
    if cluster.get("insecure-skip-tls-verify").is_some_and(|skips| *skips != json!(false)) {
        return refused("has insecure-skip-tls-verify; ask for a file with its CAs");
    }
    let Some(authority) = cluster.get("certificate-authority").cloned() else { return Ok(cluster) };
    let path = Path::new(authority.as_str().unwrap_or_default());
    let is_beside = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !is_beside {
        return refused("names a CA file elsewhere; ask for a file with certificate-authority-data");
    }
    let embedded = cluster_entry("", Some(&directory.join(path)))?;
    if let (Some(cluster), Some(data)) = (cluster.as_object_mut(), embedded.get("certificate-authority-data"))
    {
        cluster.remove("certificate-authority");
        cluster.insert("certificate-authority-data".to_owned(), data.clone());
    }
    Ok(cluster)
}

#[cfg(test)]
pub(in crate::login) mod tests {
    use testkit::pki::Ca;

    use super::*;

    /// What `login --from` makes of a cluster and the arguments of its user, and of those that are given to `login`.
    fn from_other(
        directory: &Path,
        cluster: Value,
        arguments: &[&str],
        given: &[&str],
    ) -> Result<LoginTarget, String> {
        let own = ["credential", "--issuer=https://issuer.test", "--client-id=kubernetes"];
        let arguments: Vec<_> = own.iter().chain(arguments).collect();
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "portcullis", "args": arguments});
        let entry = KubeconfigTarget {
            context: "c".to_owned(),
            cluster_name: "c".to_owned(),
            cluster,
            user_name: "c-login".to_owned(),
            user: json!({"exec": exec}),
        };
        let given = ParsedProvider::try_parse_from(["credential"].iter().chain(given)).unwrap().provider;
        let file = directory.join("company.kubeconfig");
        let target = existing(entry, &file, directory, &given, Origin::Other);
        target.map_err(|error| error.to_string())
    }

    /// A context `c` of someone else's file, for this server.
    pub(in crate::login) fn target_of(server: &str) -> LoginTarget {
        target_of_cluster(json!({"server": server}))
    }

    /// The same for a cluster.
    pub(in crate::login) fn target_of_cluster(cluster: Value) -> LoginTarget {
        from_other(Path::new(""), cluster, &[], &[]).unwrap()
    }

    #[derive(Debug, Parser)]
    struct Parsed {
        #[command(flatten)]
        flags: LoginFlags,
    }

    /// The file of `--kubeconfig`, with others that `$KUBECONFIG` lists.
    fn kubeconfig(file: KubeconfigFile, others: &[KubeconfigFile]) -> Kubeconfigs {
        Kubeconfigs::of([(PathBuf::from("kubeconfig"), Some(file))], others)
    }

    /// What a login makes of a file beside others.
    fn merged(
        before: &KubeconfigFile,
        others: &[KubeconfigFile],
        targets: &[LoginTarget],
        overwrite: bool,
    ) -> Result<KubeconfigFile, String> {
        let change = KubeconfigChange { overwrite, sets_current: true };
        let after = super::merged(&kubeconfig(before.clone(), others), targets, change);
        let after = after.map_err(|error| error.to_string())?;
        Ok(after.content(Path::new("kubeconfig")).unwrap().clone())
    }

    #[test]
    fn a_flag_that_a_context_has_needs_a_server() {
        let login = |arguments: &[&str]| {
            let parsed = Parsed::try_parse_from(["login"].iter().chain(arguments));
            let parsed = parsed.map_err(|error| error.to_string())?;
            let targets = targets(&parsed.flags, &kubeconfig(KubeconfigFile::new(), &[]));
            targets.map(|targets| targets.len()).map_err(|error| error.to_string())
        };
        for (flag, arguments) in [
            ("--issuer", &["--issuer=https://b.test", "--client-id=c"][..]),
            ("--client-id", &["--client-id=c"]),
            ("--scope", &["--scope=groups"]),
            ("--extra-parameter", &["--extra-parameter=a=b"]),
            ("--token", &["--token=access", "--context=c"]),
        ] {
            let refused = login(arguments).unwrap_err();
            assert!(refused.starts_with(flag) && refused.contains("give --server"), "{refused}");
            let new = ["--server=https://s.test", "--issuer=https://b.test"];
            let new = new.iter().chain(arguments).filter(|flag| !flag.starts_with("--context"));
            let mut new: Vec<_> = new.copied().collect();
            new.dedup();
            assert_eq!(login(&new), Ok(1), "{new:?}");
        }
    }

    #[test]
    fn a_secret_goes_to_one_client_of_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("company.kubeconfig");
        let user = |name: &str, issuer: &str| {
            let arguments = ["credential", &format!("--issuer=https://{issuer}.test"), "--client-id=c"];
            json!({"name": name, "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1", "command": "portcullis", "args": arguments}}})
        };
        let context = |name: &str| json!({"name": name, "context": {"cluster": "c", "user": name}});
        let file = json!({"apiVersion": "v1", "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": "https://s.test"}}],
            "users": [user("one", "a"), user("two", "b")], "contexts": [context("one"), context("two")]});
        std::fs::write(&path, file.to_string()).unwrap();
        let login = |arguments: &[&str]| {
            let from = format!("--from={}", path.display());
            let arguments = ["login", &from].into_iter().chain(arguments.iter().copied());
            let flags = Parsed::try_parse_from(arguments).unwrap().flags;
            targets(&flags, &kubeconfig(KubeconfigFile::new(), &[])).map(|targets| targets.len())
        };
        for secret in
            ["--client-secret-from-environment", "--client-secret-file=f", "--flow=client-credentials"]
        {
            let refused = login(&["--all", secret]).unwrap_err().to_string();
            assert!(refused.contains("give --cluster"), "{refused}");
            assert_eq!(login(&["--cluster=one", secret]).unwrap(), 1);
        }
        assert_eq!(login(&["--all"]).unwrap(), 2);
    }

    #[test]
    fn a_context_logs_in_as_its_exec_plugin_does() {
        let cluster = json!({"server": "https://s", "extensions": [
            {"name": "other", "extension": {"issuer": "https://other.test"}},
            {"name": "client.authentication.k8s.io/exec", "extension": {"scopes": ["groups"], "clientID": "other"}},
        ]});
        let target = from_other(Path::new(""), cluster, &[], &[]).unwrap();
        let settings = target.provider.settings(None).unwrap();
        let expected = portcullis_openid::provider::ScopeChoice::These(vec!["groups".to_owned()]);
        assert_eq!((settings.scopes, settings.client_id.as_str()), (expected, "kubernetes"));
        let arguments = target.entry.user["exec"]["args"].to_string();
        assert!(!arguments.contains("scope"), "the cluster may change it: {arguments}");
        let misspelled = json!({"server": "https://s", "extensions": [
            {"name": "client.authentication.k8s.io/exec", "extension": {"isuer": "x"}}]});
        let refused = from_other(Path::new(""), misspelled, &[], &[]).err().unwrap();
        assert!(refused.contains("unknown field `isuer`"), "{refused}");
    }

    #[test]
    fn a_file_of_someone_else_changes_no_user_of_another_context() {
        let home = tempfile::tempdir().unwrap();
        let target = |arguments: &[&str]| {
            let cluster = json!({"server": "https://s"});
            let mut target = from_other(home.path(), cluster, arguments, &[]).unwrap();
            // As of the installed program, whose users `login` may replace.
            target.entry.user["exec"]["command"] = json!("portcullis");
            target
        };
        let mut before = merged(&KubeconfigFile::new(), &[], &[target(&[])], false).unwrap();
        let own = |target: LoginTarget, cluster: &str| {
            let (context, cluster_name) = ("own".to_owned(), cluster.to_owned());
            LoginTarget { entry: KubeconfigTarget { context, cluster_name, ..target.entry }, ..target }
        };
        assert!(
            merged(&before, &[], &[target(&["--scope=email"])], false).is_ok(),
            "only its own context uses the user"
        );
        let mut of_one_cluster = before.clone();
        let cluster_name = target(&[]).entry.cluster_name;
        of_one_cluster.merge(&own(target(&[]), &cluster_name).entry, false).unwrap();
        assert!(merged(&of_one_cluster, &[], &[target(&["--scope=email"])], false).is_ok());
        before.merge(&own(target(&[]), "another").entry, false).unwrap();
        assert!(merged(&before, &[], &[target(&[])], false).is_ok(), "nothing changes");
        let changed = || target(&["--scope=email"]);
        let refused = merged(&before, &[], &[changed()], false).unwrap_err();
        assert!(
            refused.contains("your context \"own\" uses it") && refused.contains("--overwrite"),
            "{refused}"
        );
        assert!(merged(&before, &[], &[changed()], true).is_ok());
        let both = [changed(), own(changed(), "another")];
        assert!(merged(&before, &[], &both, false).is_ok(), "both contexts are of the file");
        // kubectl reads several files, and the first one decides what a name stands for.
        let written = KubeconfigFile::new();
        let refused = merged(&written, std::slice::from_ref(&before), &[changed()], false).unwrap_err();
        assert!(refused.contains("your context \"own\" uses it"), "{refused}");
        let elsewhere = || {
            let mut target = changed();
            target.entry.cluster["server"] = json!("https://elsewhere");
            target.entry.user_name = "another".to_owned();
            target
        };
        let others = [KubeconfigFile::new(), before];
        let refused = merged(&written, &others, &[elsewhere()], false).unwrap_err();
        assert!(refused.contains("exists with another server"), "{refused}");
        let after = merged(&written, &others, &[elsewhere()], true).unwrap();
        assert_eq!(after.contexts(), ["c"], "the entries of the other files stay there");
    }

    #[test]
    fn what_another_file_says_of_a_context_stays() {
        let target = |context: &str| {
            let target = from_other(Path::new(""), json!({"server": "https://s"}), &[], &[]).unwrap();
            LoginTarget { entry: KubeconfigTarget { context: context.to_owned(), ..target.entry }, ..target }
        };
        let KubeconfigTarget { cluster, user, .. } = target("a").entry;
        let context = json!({"cluster": "c", "user": "c-login", "namespace": "prod"});
        let other = json!({"current-context": "a", "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "c-login", "user": user}], "contexts": [{"name": "a", "context": context}]});
        let other = KubeconfigFile::parse(other.to_string().as_bytes()).unwrap();
        let written = KubeconfigFile::new();
        let both = [target("a"), target("b")];
        let after = merged(&written, &[other], &both, false).unwrap();
        assert!(after.to_yaml().unwrap().contains("namespace: prod"), "{after:?}");
        assert_eq!(after.current_context(), None, "the other file has one");
        let after = merged(&written, &[], &both, false).unwrap();
        assert_eq!(after.current_context(), Some("a"));
    }

    #[test]
    fn a_file_of_someone_else_reads_no_file_elsewhere_and_weakens_no_tls() {
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("ca.crt"), Ca::new("company").cert_pem()).unwrap();
        let cluster = |more: Value| {
            let mut cluster = json!({"server": "https://s", "tls-server-name": "n"});
            cluster.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            cluster
        };
        let beside = cluster(json!({"certificate-authority": "./ca.crt"}));
        let made = from_other(home.path(), beside, &[], &[]).unwrap().entry.cluster;
        assert!(
            made.get("certificate-authority").is_none() && made["certificate-authority-data"].is_string()
        );
        assert_eq!((&made["server"], &made["tls-server-name"]), (&json!("https://s"), &json!("n")));
        let absolute = home.path().join("ca.crt").display().to_string();
        for (more, arguments, expected) in [
            (json!({"certificate-authority": absolute}), &[][..], "names a CA file elsewhere"),
            (json!({"certificate-authority": "../ca.crt"}), &[], "names a CA file elsewhere"),
            (json!({"certificate-authority": "none.crt"}), &[], "none.crt"),
            (json!({"insecure-skip-tls-verify": true}), &[], "has insecure-skip-tls-verify"),
            (
                json!({"server": "https://good.test@evil.test"}),
                &[],
                "has the server \"https://good.test@evil",
            ),
            (json!({"server": "http://s"}), &[], "not an https:// URL"),
            (json!({}), &["--flow=client-credentials"], "--flow=client-credentials"),
            (json!({}), &["--token-file=/etc/passwd"], "--token-file"),
            (
                json!({}),
                &["--issuer-certificate-authority=/etc/passwd"],
                "--issuer-certificate-authority=/etc/passwd",
            ),
            (json!({}), &["--browser-command=sh -c $(id)"], "'--browser-command=sh -c $(id)'"),
        ] {
            let refused = from_other(home.path(), cluster(more), arguments, &[]).err().unwrap();
            assert!(refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn the_user_chooses_the_kind_and_the_rights_of_a_token() {
        let scopes = |scopes: &[&str]| {
            json!({"server": "https://s", "extensions": [
                {"name": "client.authentication.k8s.io/exec", "extension": {"scopes": scopes}}]})
        };
        let refused = |cluster: &Value, arguments: &[&str], given: &[&str]| {
            let refused = from_other(Path::new(""), cluster.clone(), arguments, given).err()?;
            Some(refused.split_once("the same: ").expect(&refused).1.to_owned())
        };
        let plain = json!({"server": "https://s"});
        let usual = [
            "--scope=openid,offline_access,profile,email,groups",
            "--flow=device",
            "--user=alice",
            "--callback-port=18000",
            "--callback-host=localhost",
            "--login-timeout=9m",
            "--client-certificate",
            "--signer-name=company.test/clients",
            "--certificate-duration=1h",
            "--credential-store=file",
        ];
        assert_eq!(refused(&plain, &usual, &[]), None);
        assert_eq!(refused(&scopes(&["groups", "email"]), &[], &[]), None);
        // Each of them, and together, until the user gives the same.
        let unusual =
            ["--token=access", "--extra-parameter=resource=https://graph.test", "--scope=mail.read"];
        for choice in unusual {
            assert_eq!(refused(&plain, &[choice], &[]).as_deref(), Some(choice));
            assert_eq!(refused(&plain, &[choice], &[choice]), None, "{choice}");
            assert!(refused(&plain, &[choice], &["--callback-port=1"]).is_some(), "{choice}");
        }
        assert!(from_other(Path::new(""), plain.clone(), &["--callback-host=[::1]"], &[]).is_err());
        let all = refused(&plain, &unusual, &[]).unwrap();
        assert!(unusual.iter().all(|choice| all.split(' ').any(|named| named == *choice)), "{all}");
        for (cluster, arguments, given, expected) in [
            (&plain, &["--scope=groups,a,b"][..], &["--scope=a"][..], Some("--scope=b")),
            (&plain, &["--scope=groups,a,b"], &["--scope=b,a"], None),
            (&scopes(&["groups", "a"]), &[], &[], Some("--scope=a")),
            (&scopes(&["groups", "a"]), &[], &["--scope=a"], None),
            (&plain, &["--extra-parameter=a=b"], &["--extra-parameter=a=c"], Some("--extra-parameter=a=b")),
        ] {
            assert_eq!(refused(cluster, arguments, given).as_deref(), expected, "{arguments:?} {given:?}");
        }
    }

    #[test]
    fn what_is_copied_out_of_an_error_is_one_word_for_each_shell() {
        for (argument, posix, windows) in [
            ("--scope=a,b", Some("--scope=a,b"), Some("--scope=a,b")),
            ("--scope=a%b", Some("--scope=a%b"), None),
            ("--scope=$(id)", Some("'--scope=$(id)'"), None),
            ("--scope=a & calc", Some("'--scope=a & calc'"), None),
            ("--scope=a'; id;'", None, None),
            (r"--scope=a\' id", None, None),
            ("--scope=a\nid\n", None, None),
            ("--scope=a\u{202e}b", None, None),
            ("--scope=\u{1b}[A", None, None),
        ] {
            assert_eq!(shell_word(argument, false).as_deref(), posix, "{argument:?}");
            assert_eq!(shell_word(argument, true).as_deref(), windows, "{argument:?}");
        }
        let choices = ["--token=access", "--scope=a'b"].map(str::to_owned);
        let refused = only_by_user(&choices, false);
        assert!(refused.contains("the value of \"--scope\" has characters"), "{refused}");
        assert!(!refused.contains("a'b"), "{refused}");
    }

    #[test]
    fn a_choice_that_no_context_of_the_file_has_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("company.kubeconfig");
        let arguments =
            ["credential", "--issuer=https://a.test", "--client-id=c", "--token=access", "--scope=a,groups"];
        let user = json!({"exec": {"command": "portcullis", "args": arguments}});
        let file = json!({"clusters": [{"name": "c", "cluster": {"server": "https://s.test"}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        std::fs::write(&path, file.to_string()).unwrap();
        let login = |given: &[&str]| {
            let from = format!("--from={}", path.display());
            let arguments = ["login", &from].into_iter().chain(given.iter().copied());
            let flags = Parsed::try_parse_from(arguments).unwrap().flags;
            targets(&flags, &kubeconfig(KubeconfigFile::new(), &[]))
                .map(drop)
                .map_err(|error| error.to_string())
        };
        assert_eq!(login(&["--token=access", "--scope=a"]), Ok(()));
        assert_eq!(login(&["--token=access", "--scope=groups,a"]), Ok(()));
        for (given, flag) in [
            (&["--token=access", "--scope=a,b"][..], "--scope=b:"),
            (&["--token=access", "--scope=a", "--extra-parameter=a=b"], "--extra-parameter=a=b:"),
            (&["--token=access", "--scope=a", "--client-id=d"], "--client-id:"),
        ] {
            let refused = login(given).unwrap_err();
            assert!(refused.starts_with(flag) && refused.contains("has its own"), "{refused}");
        }
    }

    #[test]
    fn a_context_of_several_files_is_read_beside_its_cluster() {
        let [first, second] = ["/a/config", "/b/config"].map(PathBuf::from);
        let user =
            exec_user("portcullis", &["--issuer=https://i.test".to_owned(), "--client-id=c".to_owned()]);
        let of_users = json!({"users": [{"name": "u", "user": user}]});
        let of_clusters = json!({
            "clusters": [{"name": "c", "cluster": {"server": "https://s", "certificate-authority": "ca.crt"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"});
        let parse = |file: Value| Some(KubeconfigFile::parse(file.to_string().as_bytes()).unwrap());
        let files =
            [(PathBuf::from("/absent"), None), (first, parse(of_users)), (second, parse(of_clusters))];
        let flags = Parsed::try_parse_from(["login"]).unwrap().flags;
        let target = targets(&flags, &Kubeconfigs::of(files, &[])).unwrap().remove(0);
        assert_eq!((target.entry.context.as_str(), target.directory.as_path()), ("c", Path::new("/b")));
    }

    #[test]
    fn a_context_that_a_login_does_not_change_stays_as_its_owner_has_written_it() {
        let user = |arguments: &[&str], has_cluster_info: bool| {
            let own = ["credential", "--client-id=c", "--issuer", "https://i.test", "--scope=a"];
            let arguments = [&own[..], arguments].concat();
            json!({"as": "b", "exec": {"command": "/opt/company/portcullis", "apiVersion": "client.authentication.k8s.io/v1",
                "args": arguments, "provideClusterInfo": has_cluster_info}})
        };
        let file = |user: &Value, extension: &Value| {
            let cluster = json!({"server": "https://s", "extensions": [
                {"name": "client.authentication.k8s.io/exec", "extension": extension}]});
            let file = json!({"clusters": [{"name": "c", "cluster": cluster}], "users": [{"name": "u", "user": user}],
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}], "current-context": "c"});
            kubeconfig(KubeconfigFile::parse(file.to_string().as_bytes()).unwrap(), &[])
        };
        let data = json!({"issuerCertificateAuthorityData": "YQ=="});
        for (arguments, has_cluster_info, extension, given, is_changed) in [
            (&[][..], false, &json!({}), &[][..], false),
            (&["--user=alice"], false, &json!({}), &["--user=alice"], false),
            (&["--user=alice"], false, &json!({}), &["--user=bob"], true),
            (&["--client-certificate"], true, &json!({}), &[], false),
            // Without the cluster, kubectl's command would not do what the login does.
            (&["--client-certificate"], false, &json!({}), &[], true),
            (&[], true, &data, &[], false),
            (&[], false, &data, &[], true),
        ] {
            let before = file(&user(arguments, has_cluster_info), extension);
            let flags = Parsed::try_parse_from(["login"].iter().chain(given)).unwrap().flags;
            let targets = targets(&flags, &before).unwrap();
            let change = KubeconfigChange { overwrite: false, sets_current: true };
            let after = super::merged(&before, &targets, change).unwrap();
            assert_eq!(after != before, is_changed, "{arguments:?} {has_cluster_info} {extension} {given:?}");
        }
    }

    #[test]
    fn a_file_of_someone_else_gets_the_secret_of_the_environment_only_from_the_user() {
        let home = tempfile::tempdir().unwrap();
        let cluster = json!({"server": "https://s"});
        let of_environment = "--client-secret-from-environment";
        for (arguments, given, expected) in [
            (&[][..], &[][..], Ok(false)),
            (&["--flow=device"], &[], Ok(false)),
            (&[of_environment], &[], Err(of_environment)),
            (&["--flow=client-credentials"], &["--flow=device"], Ok(false)),
            (&["--flow=client-credentials"], &["--flow=client-credentials"], Ok(true)),
            (&[], &[of_environment], Ok(true)),
        ] {
            let target = from_other(home.path(), cluster.clone(), arguments, given);
            let secret = target.map(|target| {
                let settings = target.provider.settings(Some("of another client".to_owned())).unwrap();
                settings.secret.is_some()
            });
            match (&secret, expected) {
                (Err(refused), Err(flag)) => assert!(refused.contains(flag), "{refused}"),
                (secret, expected) => {
                    assert_eq!(secret.as_ref().ok(), expected.ok().as_ref(), "{arguments:?}");
                }
            }
        }
    }
}
