//! What the user decides before a login with a kubeconfig of someone else: whether these servers get tokens of these issuers.
//!
//! A person is shown the contexts and asked once. A script gives `--yes`, unless the user has the same login already: one of the
//! same client at the same server, which is reached and verified in the same way. The URL of a server says little without its
//! CAs and its proxy, and that of an issuer names a document, which may send the user to the page of another provider.
// threat: hostile-kubeconfig, issuer-mix-up

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::path::Path;

use portcullis_go::base64;
use portcullis_http::proxy::ProxyChoice;
use portcullis_pki::x509::CaBundle;
use portcullis_system::input_file;
use portcullis_system::text::shortened;
use serde_json::{Map, Value};

use super::command::{LoginTarget, plugin_flags};
use super::error::LoginError;
use super::kubeconfig_file::{Kubeconfigs, cluster_config};
use super::settings::ProviderFlags;
use crate::print_error;
use crate::table::columns;

/// What is shown of a name, and of a URL: the longest host name fits.
const MAX_NAME: usize = 64;
const MAX_URL: usize = 300;

/// What to do about contexts of someone else's file.
#[derive(Debug, PartialEq, Eq)]
enum Consent {
    /// The user has given it, or has the same logins.
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
    let known = known_logins(before);
    print_error(&format!("the contexts of {}:\n{}", file.display(), overview(targets, &known).trim_end()));
    // The question must be seen, too.
    let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
    match consent(targets, &known, is_given, is_terminal) {
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

/// The contexts in a table, and below it what their servers have beside a URL.
fn overview(targets: &[LoginTarget], known: &[KnownLogin]) -> String {
    let rows = targets.iter().map(|target| {
        let text = |text: &Option<String>, most| shortened(text.as_deref().unwrap_or_default(), most);
        let LoginTarget { entry, provider, .. } = target;
        [
            shortened(&entry.context, MAX_NAME),
            shortened(&server(&entry.cluster), MAX_URL),
            text(&provider.issuer, MAX_URL),
            text(&provider.client_id, MAX_NAME),
            provider.token_name(),
        ]
    });
    let table = columns(["CONTEXT", "SERVER", "ISSUER", "CLIENT", "TOKEN"], rows);
    let notes = targets.iter().flat_map(|target| {
        let context = shortened(&target.entry.context, MAX_NAME);
        notes(target, known).into_iter().map(move |note| format!("  {context:?}: {note}\n"))
    });
    table + &notes.collect::<String>()
}

/// What decides beside the URL who gets the tokens.
fn notes(target: &LoginTarget, known: &[KnownLogin]) -> Vec<String> {
    let cluster = &target.entry.cluster;
    let field = |key: &str| cluster.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let mut notes = Vec::new();
    if let Some(url) = field("proxy-url") {
        // Without its password.
        notes.push(match ProxyChoice::of_kubeconfig(Some(url)) {
            Ok(ProxyChoice::Fixed(proxy)) => {
                format!("through the proxy {:?}", shortened(&proxy.to_string(), MAX_URL))
            }
            _ => "through a proxy whose URL is not valid".to_owned(),
        });
    }
    if let Some(name) = field("tls-server-name") {
        notes.push(format!("its certificate is that of {:?}", shortened(name, MAX_URL)));
    }
    let at_server = || known.iter().filter(|login| login.server == server(cluster));
    let reached = ReachedServer::of(cluster, None);
    if let Some(login) = at_server().next()
        && !at_server().any(|login| login.reached.is_some() && login.reached == reached)
    {
        notes.push(format!(
            "WARNING: the same URL with other CAs or settings than in your context {:?}",
            login.context
        ));
    }
    notes
}

fn server(cluster: &Value) -> String {
    let server = cluster.get("server").and_then(Value::as_str).unwrap_or_default();
    server.trim_end_matches('/').to_owned()
}

fn consent(targets: &[LoginTarget], known: &[KnownLogin], is_given: bool, is_terminal: bool) -> Consent {
    match (is_given, is_terminal) {
        (true, _) => Consent::Given,
        (false, true) => Consent::Ask,
        (false, false) => {
            targets.iter().find_map(|target| newness(target, known)).map_or(Consent::Given, Consent::Needed)
        }
    }
}

/// What is new about a target; `None`: the user has the same login.
fn newness(target: &LoginTarget, known: &[KnownLogin]) -> Option<String> {
    let (client, reached) =
        (LoginClient::of(&target.provider), ReachedServer::of(&target.entry.cluster, None));
    let is_same = |login: &KnownLogin| {
        client.is_some() && login.client == client && reached.is_some() && login.reached == reached
    };
    if known.iter().any(is_same) {
        return None;
    }
    let names = |provider: &ProviderFlags| (provider.issuer.clone(), provider.client_id.clone());
    let of_client = || known.iter().filter(|login| login.names == names(&target.provider));
    let server = server(&target.entry.cluster);
    if let Some(login) = of_client().find(|login| login.server == server) {
        return Some(format!(
            "your context {:?} has the server {server:?} and its issuer with other CAs, another proxy or another TLS server \
             name",
            login.context
        ));
    }
    if let Some(KnownLogin { context, server: other, .. }) = of_client().next() {
        return Some(format!(
            "the new server {server:?} would get tokens that your context {context:?} uses for {other:?}: each server can use \
             them at the other"
        ));
    }
    let issuer = target.provider.issuer.clone().unwrap_or_default();
    Some(format!("you have no login of the issuer {issuer:?} with this client for the server {server:?}"))
}

/// A context of the user that logs in with this program.
struct KnownLogin {
    context: String,
    server: String,
    /// The issuer and the client ID.
    names: (Option<String>, Option<String>),
    client: Option<LoginClient>,
    reached: Option<ReachedServer>,
}

fn known_logins(before: &Kubeconfigs) -> Vec<KnownLogin> {
    let all = before.all();
    let login = |context: &str| {
        let target = all.target(context).ok()?;
        let provider = plugin_flags(&target.user).ok()?.or(cluster_config(&target.cluster).ok()?);
        Some(KnownLogin {
            context: context.to_owned(),
            server: server(&target.cluster),
            names: (provider.issuer.clone(), provider.client_id.clone()),
            client: LoginClient::of(&provider),
            reached: ReachedServer::of(&target.cluster, before.cluster_directory(&target.cluster_name)),
        })
    };
    all.contexts().into_iter().filter_map(login).collect()
}

/// Whose tokens they are.
#[derive(Debug, PartialEq)]
struct LoginClient {
    issuer: Option<String>,
    client_id: Option<String>,
    /// `None`: those of the system.
    authorities: Option<Certificates>,
}

/// DER.
type Certificates = BTreeSet<Vec<u8>>;

impl LoginClient {
    /// `None`: its CAs cannot be read, so that it is like no other.
    fn of(provider: &ProviderFlags) -> Option<Self> {
        Some(Self {
            issuer: provider.issuer.clone(),
            client_id: provider.client_id.clone(),
            authorities: match provider.authorities().ok()? {
                Some(pem) => Some(certificates(&pem)?),
                None => None,
            },
        })
    }
}

/// All that decides who receives what kubectl sends to a cluster.
#[derive(Debug, PartialEq)]
struct ReachedServer {
    server: String,
    /// `None`: those of the system.
    authorities: Option<Certificates>,
    /// The other fields of the entry, such as a proxy.
    settings: Map<String, Value>,
}

impl ReachedServer {
    /// `None`: its CAs cannot be read, so that it is like no other. `directory` is that of the entry's file; without it, the entry
    /// names no files.
    fn of(cluster: &Value, directory: Option<&Path>) -> Option<Self> {
        const OF_PLUGINS: &str = "extensions";
        let mut settings = cluster.as_object()?.clone();
        // As kubectl reads absent fields.
        settings.retain(|_, value| !matches!(value, Value::Null | Value::Bool(false)) && *value != "");
        settings.remove(OF_PLUGINS);
        settings.remove("server");
        let data = settings.remove("certificate-authority-data");
        let file = settings.remove("certificate-authority");
        // client-go: tools/clientcmd/api/types.go, Cluster: the data replaces the file
        let authorities = match (data, file) {
            (Some(data), _) => Some(certificates(&base64::decode(data.as_str()?).ok()?)?),
            (None, Some(file)) => {
                Some(certificates(&input_file::read(&directory?.join(file.as_str()?)).ok()?)?)
            }
            (None, None) => None,
        };
        Some(Self { server: server(cluster), authorities, settings })
    }
}

fn certificates(pem: &[u8]) -> Option<Certificates> {
    let bundle = CaBundle::from_pem(pem).ok()?;
    Some(bundle.certificates().iter().map(|certificate| certificate.der.as_ref().to_vec()).collect())
}

/// Asks; anything but yes is no.
fn answer(mut input: impl io::BufRead, mut output: impl io::Write) -> io::Result<bool> {
    write!(
        output,
        "portcullis: log in, send these servers your tokens, and trust these issuers: the page where you log in may be that of \
         another provider? [y/N] "
    )?;
    output.flush()?;
    let mut line = String::new();
    input.read_line(&mut line)?;
    Ok(matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use ::base64::Engine as _;
    use ::base64::engine::general_purpose::STANDARD;
    use serde_json::json;
    use testkit::pki::Ca;

    use super::super::command::tests::{target_of, target_of_cluster};
    use super::super::kubeconfig_file::{KubeconfigFile, exec_user};
    use super::*;

    const SERVER: &str = "https://new.test";
    const ISSUER: &str = "https://issuer.test";
    const CLIENT: &str = "kubernetes";

    /// The kubeconfig of a user who has logged in to a cluster.
    fn of_login(cluster: &Value, issuer: &str, client: &str, more: &[String]) -> Kubeconfigs {
        let arguments = [format!("--issuer={issuer}"), format!("--client-id={client}")];
        let user = exec_user("portcullis", &[&arguments[..], more].concat());
        let file = json!({"clusters": [{"name": "mine", "cluster": cluster}],
            "users": [{"name": "mine", "user": user}],
            "contexts": [{"name": "mine", "context": {"cluster": "mine", "user": "mine"}}]});
        let file = KubeconfigFile::parse(file.to_string().as_bytes()).unwrap();
        Kubeconfigs::of([(PathBuf::from("kubeconfig"), Some(file))], &[])
    }

    /// The reason why a script must agree, if there is one.
    fn needed(target: LoginTarget, before: &Kubeconfigs) -> Option<String> {
        let (targets, known) = ([target], known_logins(before));
        assert_eq!(consent(&targets, &known, true, false), Consent::Given);
        assert_eq!(consent(&targets, &known, false, true), Consent::Ask);
        match consent(&targets, &known, false, false) {
            Consent::Needed(reason) => Some(reason),
            consent => {
                assert_eq!(consent, Consent::Given);
                None
            }
        }
    }

    #[test]
    fn a_person_is_asked_and_a_script_agrees_to_whatever_is_new() {
        let empty = Kubeconfigs::of([(PathBuf::from("kubeconfig"), None)], &[]);
        let at = |server: &str, issuer, client| of_login(&json!({"server": server}), issuer, client, &[]);
        for (before, expected) in [
            (at("https://new.test/", ISSUER, CLIENT), None),
            (empty, Some("no login of the issuer \"https://issuer.test\"")),
            (at("https://old.test", ISSUER, "another"), Some("no login of the issuer")),
            // Its document may name the endpoints of another provider.
            (at(SERVER, "https://other.test", CLIENT), Some("no login of the issuer")),
            (
                at("https://old.test", ISSUER, CLIENT),
                Some("the new server \"https://new.test\" would get tokens that your context \"mine\" uses"),
            ),
        ] {
            match (needed(target_of(SERVER), &before), expected) {
                (None, None) => {}
                (Some(reason), Some(expected)) => assert!(reason.contains(expected), "{reason}"),
                other => panic!("{other:?}"),
            }
        }
    }

    /// The fields of a file beside the URL of the user's own server.
    #[test]
    fn a_server_is_known_by_all_that_decides_who_receives() {
        let [own, other] = ["company", "evil"].map(|name| Ca::new(name).cert_pem());
        let data = |pem: &str| json!(STANDARD.encode(pem));
        let with = |fields: Value| {
            let mut cluster = json!({"server": SERVER, "certificate-authority-data": data(&own)});
            cluster.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            cluster
        };
        let mut without = with(json!({}));
        without.as_object_mut().unwrap().remove("certificate-authority-data");
        let mine = of_login(&with(json!({})), ISSUER, CLIENT, &[]);
        for (cluster, is_known) in [
            (with(json!({})), true),
            (with(json!({"server": "https://new.test/", "proxy-url": "", "tls-server-name": null})), true),
            (with(json!({"certificate-authority-data": data(&format!("{own}\n"))})), true),
            (with(json!({"certificate-authority-data": data(&other)})), false),
            (with(json!({"certificate-authority-data": data(&format!("{own}{other}"))})), false),
            (without, false),
            (with(json!({"tls-server-name": "evil.test"})), false),
            (with(json!({"proxy-url": "http://evil.test:3128"})), false),
            (with(json!({"disable-compression": true})), false),
        ] {
            let reason = needed(target_of_cluster(cluster.clone()), &mine);
            assert_eq!(reason.is_none(), is_known, "{cluster}: {reason:?}");
            assert!(reason.is_none_or(|reason| reason.contains("your context \"mine\"")), "{cluster}");
            let overview = overview(&[target_of_cluster(cluster)], &known_logins(&mine));
            assert_eq!(overview.contains("WARNING: the same URL"), !is_known, "{overview}");
        }
        // The issuer is verified by other CAs.
        let more = [format!("--issuer-certificate-authority-data={}", STANDARD.encode(&other))];
        let mine = of_login(&with(json!({})), ISSUER, CLIENT, &more);
        assert!(needed(target_of_cluster(with(json!({}))), &mine).is_some());
    }

    #[test]
    fn a_file_of_the_users_authorities_counts_as_its_content() {
        let home = tempfile::tempdir().unwrap();
        let pem = Ca::new("company").cert_pem();
        let target = || {
            let data = STANDARD.encode(&pem);
            target_of_cluster(json!({"server": SERVER, "certificate-authority-data": data}))
        };
        let cluster = json!({"server": SERVER, "certificate-authority": "ca.crt"});
        let mine = of_login(&cluster, ISSUER, CLIENT, &[]);
        let file = mine.content(Path::new("kubeconfig")).unwrap().clone();
        let placed = Kubeconfigs::of([(home.path().join("kubeconfig"), Some(file.clone()))], &[]);
        assert!(needed(target(), &placed).is_some(), "it cannot be read");
        fs::write(home.path().join("ca.crt"), &pem).unwrap();
        assert_eq!(needed(target(), &placed), None);
        // The place of a file that is only read is not known.
        let beside = Kubeconfigs::of([(home.path().join("kubeconfig"), None)], &[file]);
        assert!(needed(target(), &beside).is_some());
    }

    #[test]
    fn the_table_names_what_gets_which_token_from_where() {
        let table = overview(&[target_of("https://new.test/")], &[]);
        assert_eq!(
            table,
            "CONTEXT  SERVER            ISSUER               CLIENT      TOKEN\n\
             c        https://new.test  https://issuer.test  kubernetes  id\n"
        );
        let long = format!("{SERVER}/{}", "a".repeat(1000));
        let cluster = json!({"server": long, "tls-server-name": "n\u{202e}.test",
            "proxy-url": "http://user:secret@evil.test:3128"});
        let table = overview(&[target_of_cluster(cluster)], &[]);
        let notes: Vec<&str> = table.lines().skip(2).collect();
        assert_eq!(
            notes,
            [
                r#"  "c": through the proxy "http://evil.test:3128""#,
                r#"  "c": its certificate is that of "n\u{202e}.test""#
            ]
        );
        assert!(table.contains("aaa…") && table.len() < 1500, "{table}");
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
