//! Programs that write to a cluster, with three admission webhooks at once: Helm, kubectl, kube-controller-manager and kube-scheduler. In
//! front of one cluster the gateway calls the webhooks; the other cluster has the same webhooks in its own API. What the programs
//! print, what is stored, and what the webhooks have reviewed must be equal.
//!
//! Each cluster has its own data, so both have the same names. `tests/twin` compares single commands of kubectl.

mod clusters;
mod helm;
mod normal;
mod webhooks;
mod workloads;

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use libtest_mimic::Trial;
use serde_json::Value;
use testkit::go_tool::HELM;
use testkit::real::Source;
use tokio::sync::RwLock;

use crate::Test;
use crate::servers::RealServers;
use clusters::{Clusters, Output, Program, Side};
use normal::{Item, Normal, differences};
use webhooks::Review;

/// The clusters, which the first test starts. The components of the control plane run for one test alone, because they write to the
/// objects of all tests.
type SharedClusters = Arc<RwLock<OnceLock<Result<Clusters, String>>>>;

/// The most differences that are reported.
const MAX_REPORTED: usize = 30;

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    let clusters = SharedClusters::default();
    let of_helm = |name: &str, test: fn(&Clusters) -> Result<(), String>| {
        let clusters = Arc::clone(&clusters);
        trial(name, Box::new(move |servers| test(started(servers, &clusters.blocking_read())?)))
    };
    let alone = Arc::clone(&clusters);
    vec![
        of_helm("helm applies on the server", helm::on_the_server),
        of_helm("helm patches from the client", helm::from_the_client),
        trial(
            "controllers and the scheduler",
            Box::new(move |servers| workloads::run(servers, started(servers, &alone.blocking_write())?)),
        ),
    ]
}

/// Why the tests cannot run, if they cannot.
pub(crate) fn absent(source: &Source) -> Option<String> {
    source.without_controllers().or_else(|| source.without_scheduler()).or_else(|| HELM.absent())
}

fn started<'a>(
    servers: &RealServers,
    clusters: &'a OnceLock<Result<Clusters, String>>,
) -> Result<&'a Clusters, String> {
    clusters.get_or_init(|| Clusters::start(servers)).as_ref().map_err(Clone::clone)
}

/// A command, and what the reference answers.
#[derive(Debug, Clone)]
struct Command<'a> {
    program: Program,
    arguments: String,
    stdin: &'a str,
    code: i32,
    /// A part of what is printed.
    prints: &'a str,
}

impl<'a> Command<'a> {
    fn new(program: Program, arguments: impl Into<String>) -> Self {
        Self { program, arguments: arguments.into(), stdin: "", code: 0, prints: "" }
    }

    fn stdin(self, stdin: &'a str) -> Self {
        Self { stdin, ..self }
    }

    fn fails(self, prints: &'a str) -> Self {
        Self { code: 1, prints, ..self }
    }

    /// Runs the command on both sides; the differences.
    fn run(&self, clusters: &Clusters) -> Result<Vec<String>, String> {
        let outputs = clusters.both(|side| {
            let output = side.run(self.program, &self.arguments, self.stdin)?;
            let normal = Normal::of(side);
            let Output { code, stdout, stderr } = output;
            Ok(Output { code, stdout: normal.text(&stdout), stderr: normal.text(&stderr) })
        })?;
        let [reference, subject] = &outputs;
        let shown = format!(
            "{:?} {}\nreference: {reference:#?}\nsubject: {subject:#?}",
            self.program, self.arguments
        );
        let printed = [&reference.stdout, &reference.stderr].map(|text| text.contains(self.prints));
        if reference.code != Some(self.code) || printed == [false; 2] {
            return Err(format!(
                "the reference does not exit with {} and print {:?}\n{shown}",
                self.code, self.prints
            ));
        }
        let equal = (reference.code, &reference.stdout, &reference.stderr)
            == (subject.code, &subject.stdout, &subject.stderr);
        Ok(if equal { Vec::new() } else { vec![format!("the output differs\n{shown}")] })
    }
}

impl Normal {
    fn of(side: &Side) -> Self {
        let reviews = side.webhooks.reviews();
        let prefixes =
            reviews.iter().filter_map(|review| review.request["object"]["metadata"]["generateName"].as_str());
        Self::new(side.address.to_string(), &prefixes.map(str::to_owned).collect())
    }
}

/// The differences of the objects of these resources in a namespace, with everything that the API server stores.
fn stored(clusters: &Clusters, namespace: &str, resources: &str) -> Result<Vec<String>, String> {
    let [reference, subject] = clusters.both(|side| {
        let arguments = format!("get {resources} -n {namespace} -o json --show-managed-fields");
        let list: Value =
            serde_json::from_str(&side.succeeds(&arguments, "")?).map_err(|error| error.to_string())?;
        let normal = Normal::of(side);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = list["items"].as_array().cloned().unwrap_or_default().into_iter().map(|object| {
            let name = format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
            normal.item(&name, object)
        });
        Ok(items.collect::<Vec<Item>>())
    })?;
    if reference.is_empty() {
        return Err(format!("the reference stores no {resources} in {namespace}"));
    }
    Ok(differences(&reference, &subject))
}

/// A difference in what webhooks see, with a heading in `docs/conformance.md`: the webhook, the operation, the resource and the field.
type Declared = (&'static str, &'static str, &'static str, &'static str);

/// The differences of what `shown` keeps of the reviews, and the declared ones that do not occur.
fn reviewed(
    clusters: &Clusters,
    declared: &[Declared],
    shown: impl Fn(&Review) -> Option<Value> + Sync,
) -> Result<Vec<String>, String> {
    let [reference, subject] = clusters.both(|side| {
        let normal = Normal::of(side);
        let mut removed = vec![BTreeSet::new(); declared.len()];
        let mut items = BTreeSet::new();
        for review in side.webhooks.reviews() {
            let Some(mut value) = shown(&review) else { continue };
            let text = |field: &str| review.request[field].as_str().unwrap_or_default();
            let resource = review.request["resource"]["resource"].as_str().unwrap_or_default();
            for ((webhook, operation, of, field), removed) in declared.iter().zip(&mut removed) {
                if (review.webhook.as_str(), text("operation"), resource) == (*webhook, *operation, *of) {
                    removed.insert(normal.text(&remove(&mut value, field).to_string()));
                }
            }
            let name = format!(
                "{} reviews {} {resource}/{} {} of {}",
                review.webhook,
                text("operation"),
                text("subResource"),
                text("name"),
                review.request["userInfo"]["username"]
            );
            // The API server repeats the admission of a write if its cache was old.
            items.insert(normal.item(&name, value));
        }
        Ok((items, removed))
    })?;
    if reference.0.is_empty() {
        return Err("the webhooks of the reference have reviewed nothing".to_owned());
    }
    let mut found = differences(&Vec::from_iter(reference.0), &Vec::from_iter(subject.0));
    for ((declared, left), right) in declared.iter().zip(reference.1).zip(subject.1) {
        if left == right {
            found.push(format!("{declared:?} is declared, but equal: {left:?}"));
        }
    }
    Ok(found)
}

/// Takes the field that a JSON pointer names, or null.
fn remove(value: &mut Value, pointer: &str) -> Value {
    let Some((parent, field)) = pointer.rsplit_once('/') else { return Value::Null };
    let field = field.replace("~1", "/");
    let parent = value.pointer_mut(parent).and_then(Value::as_object_mut);
    parent.and_then(|parent| parent.remove(&field)).unwrap_or_default()
}

fn judge(mut found: Vec<String>) -> Result<(), String> {
    if found.is_empty() {
        return Ok(());
    }
    let all = found.len();
    found.truncate(MAX_REPORTED);
    Err(format!("{all} differences:\n{}", found.join("\n")))
}
