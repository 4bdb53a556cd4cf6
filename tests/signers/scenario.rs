//! Cases other than certificate requests: a function runs on a cluster and returns its outcome as a JSON value.

use futures_util::future::LocalBoxFuture;
use serde_json::Value;
use tokio::sync::OnceCell;

use crate::case::explained;
use crate::clusters::{Cluster, Clusters, Side};

type Play =
    Box<dyn for<'a> Fn(&'a Clusters, &'a Cluster) -> LocalBoxFuture<'a, Result<Value, String>> + Send + Sync>;

pub(crate) struct Scenario {
    pub(crate) group: &'static str,
    pub(crate) name: String,
    /// The upstream test or rule that the scenario reproduces.
    from: &'static str,
    play: Play,
    /// The expected outcome on the reference, if known in advance.
    expected: Option<Value>,
    /// The ID of a difference in `docs/conformance.md`, and the outcome on our side.
    declared: Option<(&'static str, Value)>,
    /// Whether controllers change anything: then the outcome without controllers must differ.
    pub(crate) acts: bool,
    reference: OnceCell<Result<Value, String>>,
}

impl Scenario {
    pub(crate) fn new(
        group: &'static str,
        name: &str,
        from: &'static str,
        expected: Option<Value>,
        play: impl for<'a> Fn(&'a Clusters, &'a Cluster) -> LocalBoxFuture<'a, Result<Value, String>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let (name, play): (_, Play) = (name.to_owned(), Box::new(play));
        Self { group, name, from, play, expected, declared: None, acts: true, reference: OnceCell::new() }
    }

    pub(crate) fn acts(mut self, acts: bool) -> Self {
        self.acts = acts;
        self
    }

    pub(crate) fn declared(mut self, id: &'static str, ours: Value) -> Self {
        self.declared = Some((id, ours));
        self
    }

    /// Compares the outcomes on the reference and on another side. The error describes the difference.
    pub(crate) async fn compare(&self, clusters: &Clusters, side: Side) -> Result<(), String> {
        let subject = clusters.cluster(side)?;
        let reference = async {
            let play = async || (self.play)(clusters, clusters.cluster(Side::Reference)?).await;
            let outcome = self.reference.get_or_init(play).await.clone();
            outcome.map_err(|error| format!("reference ({}): {error}", self.from))
        };
        let (reference, subject) = tokio::join!(reference, (self.play)(clusters, subject));
        let (reference, subject) =
            (reference?, subject.map_err(|error| format!("{} ({}): {error}", side.name(), self.from))?);
        if let Some(expected) = self.expected.as_ref().filter(|expected| **expected != reference) {
            return Err(format!(
                "the reference differs from the case's expectation ({}):\n  {reference}\n  {expected}",
                self.from
            ));
        }
        if let Some((id, ours)) = self.declared.as_ref().filter(|_| side == Side::Gateway) {
            explained(id)?;
            return match (reference == subject, subject == *ours) {
                (true, _) => Err(format!("the declared difference {id} no longer occurs")),
                (_, false) => {
                    Err(format!("the difference is not the one that {id} declares:\n  {subject}\n  {ours}"))
                }
                _ => Ok(()),
            };
        }
        if reference == subject {
            Ok(())
        } else {
            Err(format!(
                "the {} differs from the reference ({}):\n  {reference}\n  {subject}",
                side.name(),
                self.from
            ))
        }
    }
}
