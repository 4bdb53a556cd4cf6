//! What the user decides before a login with a kubeconfig of someone else: whether these servers get tokens of these issuers.
//!
//! A person is shown the contexts and asked once. A script has decided by running the command, unless the file would send tokens
//! of a login that the user has already to a new server: those are accepted by the servers of that login, too.
// threat: hostile-kubeconfig

use std::io::{self, IsTerminal as _};
use std::path::Path;

use serde_json::Value;

use super::command::{LoginTarget, plugin_flags};
use super::error::LoginError;
use super::kubeconfig_file::{Kubeconfigs, cluster_config};
use super::settings::ProviderFlags;
use crate::print_error;
use crate::table::columns;

/// What to do about contexts of someone else's file.
#[derive(Debug, PartialEq, Eq)]
enum Consent {
    /// The user has given it, or nothing is new.
    Given,
    /// A person can be asked.
    Ask,
    /// The command line must give it, for this reason.
    Needed(String),
}

/// Shows the contexts, and asks the user once where a terminal is.
pub(super) async fn ask(
    file: &Path,
    targets: &[LoginTarget],
    before: &Kubeconfigs,
    is_given: bool,
) -> Result<(), LoginError> {
    let merged = before.merged();
    let is_new = |target: &LoginTarget| merged.target(&target.entry.context).as_ref() != Ok(&target.entry);
    if !targets.iter().any(is_new) {
        return Ok(());
    }
    print_error(&format!("the contexts of {}:\n{}", file.display(), table(targets).trim_end()));
    // The question must be seen, too.
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    match consent(targets, before, is_given, is_terminal) {
        Consent::Given => Ok(()),
        Consent::Ask => {
            // A thread of its own reads the answer: Ctrl-C ends the command meanwhile.
            let asked = tokio::task::spawn_blocking(|| answer(io::stdin().lock(), io::stderr()));
            let has_agreed = asked.await.map_err(LoginError::other)?.map_err(LoginError::other)?;
            let refused = || LoginError::Other("not logged in: you have not agreed".to_owned());
            has_agreed.then_some(()).ok_or_else(refused)
        }
        Consent::Needed(reason) => Err(LoginError::usage(&format!(
            "{}: {reason}\n  fix: run the command in a terminal, or give --yes if you trust the file",
            file.display()
        ))),
    }
}

fn table(targets: &[LoginTarget]) -> String {
    let rows = targets.iter().map(|target| {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let LoginTarget { entry, provider, .. } = target;
        let token = provider.token_name();
        [
            entry.context.clone(),
            server(&entry.cluster),
            text(&provider.issuer),
            text(&provider.client_id),
            token,
        ]
    });
    columns(["CONTEXT", "SERVER", "ISSUER", "CLIENT", "TOKEN"], rows)
}

fn server(cluster: &Value) -> String {
    let server = cluster.get("server").and_then(Value::as_str).unwrap_or_default();
    server.trim_end_matches('/').to_owned()
}

fn consent(targets: &[LoginTarget], before: &Kubeconfigs, is_given: bool, is_terminal: bool) -> Consent {
    match (is_given, is_terminal) {
        (true, _) => Consent::Given,
        (false, true) => Consent::Ask,
        (false, false) => shared_login(targets, before).map_or(Consent::Given, Consent::Needed),
    }
}

/// A server of the targets that the user does not know yet, and that gets tokens which other servers of the user accept.
fn shared_login(targets: &[LoginTarget], before: &Kubeconfigs) -> Option<String> {
    let known = known_logins(before);
    targets.iter().find_map(|target| {
        let server = server(&target.entry.cluster);
        let client = client(&target.provider);
        let same: Vec<&KnownLogin> = known.iter().filter(|login| login.client == client).collect();
        if same.iter().any(|login| login.server == server) {
            return None;
        }
        let KnownLogin { context, server: other, .. } = same.first()?;
        Some(format!(
            "the new server {server} would get tokens that your context {context:?} uses for {other}: each server can use \
             them at the other"
        ))
    })
}

/// A context of the user that logs in with this program.
struct KnownLogin {
    context: String,
    server: String,
    client: (Option<String>, Option<String>),
}

fn client(provider: &ProviderFlags) -> (Option<String>, Option<String>) {
    (provider.issuer.clone(), provider.client_id.clone())
}

fn known_logins(before: &Kubeconfigs) -> Vec<KnownLogin> {
    let all = before.all();
    let login = |context: &str| {
        let target = all.target(context).ok()?;
        let provider = plugin_flags(&target.user).ok()?.or(cluster_config(&target.cluster).ok()?);
        Some(KnownLogin {
            context: context.to_owned(),
            server: server(&target.cluster),
            client: client(&provider),
        })
    };
    all.contexts().into_iter().filter_map(login).collect()
}

/// Asks; anything but yes is no.
fn answer(mut input: impl io::BufRead, mut output: impl io::Write) -> io::Result<bool> {
    write!(output, "portcullis: log in, and send these servers your tokens? [y/N] ")?;
    output.flush()?;
    let mut line = String::new();
    input.read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use serde_json::json;

    use super::super::command::tests::target_of;
    use super::super::kubeconfig_file::{KubeconfigFile, exec_user};
    use super::*;

    /// The kubeconfig of a user who has logged in to a server.
    fn of_login(server: &str, issuer: &str, client: &str) -> Kubeconfigs {
        let user = exec_user("portcullis", &[format!("--issuer={issuer}"), format!("--client-id={client}")]);
        let file = json!({"clusters": [{"name": "mine", "cluster": {"server": server}}],
            "users": [{"name": "mine", "user": user}],
            "contexts": [{"name": "mine", "context": {"cluster": "mine", "user": "mine"}}]});
        let file = KubeconfigFile::parse(file.to_string().as_bytes()).unwrap();
        Kubeconfigs::of([(PathBuf::from("kubeconfig"), Some(file))], &[])
    }

    #[test]
    fn a_person_is_asked_and_a_script_only_where_a_login_is_shared() {
        let targets = [target_of("https://new.test")];
        let (issuer, client) = ("https://issuer.test", "kubernetes");
        let empty = Kubeconfigs::of([(PathBuf::from("kubeconfig"), None)], &[]);
        for (before, is_shared) in [
            (empty, false),
            (of_login("https://new.test/", issuer, client), false),
            (of_login("https://old.test", issuer, "another"), false),
            (of_login("https://old.test", "https://other.test", client), false),
            (of_login("https://old.test", issuer, client), true),
        ] {
            assert_eq!(consent(&targets, &before, true, false), Consent::Given);
            assert_eq!(consent(&targets, &before, false, true), Consent::Ask);
            match consent(&targets, &before, false, false) {
                Consent::Needed(reason) if is_shared => {
                    for part in ["https://new.test", "\"mine\"", "https://old.test"] {
                        assert!(reason.contains(part), "{reason}");
                    }
                }
                other => assert!(other == Consent::Given && !is_shared, "{other:?}"),
            }
        }
    }

    #[test]
    fn the_table_names_what_gets_which_token_from_where() {
        let table = table(&[target_of("https://new.test/")]);
        assert_eq!(
            table,
            "CONTEXT  SERVER            ISSUER               CLIENT      TOKEN\n\
             c        https://new.test  https://issuer.test  kubernetes  id\n"
        );
    }

    #[test]
    fn only_yes_is_yes() {
        for (given, expected) in [
            ("y\n", true),
            ("YES\n", true),
            (" yes \n", true),
            ("\n", false),
            ("", false),
            ("n\n", false),
            ("yep\n", false),
        ] {
            let mut shown = Vec::new();
            assert_eq!(answer(given.as_bytes(), &mut shown).unwrap(), expected, "{given:?}");
            assert!(String::from_utf8(shown).unwrap().ends_with("[y/N] "));
        }
    }
}
