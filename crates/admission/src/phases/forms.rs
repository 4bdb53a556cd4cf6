//! The objects of a request in the forms that its webhooks expect: as requested, or in the version or group of their rules.
//!
//! As upstream, one form is the current one. What a webhook changes in it is converted to the next one, so that the other forms
//! are out of date then; as long as no webhook changes anything, each form is made once.
// apiserver: pkg/admission/conversion.go, ConvertVersionedAttributes

use std::sync::{Arc, OnceLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use portcullis_cel::Bindings;
use serde_json::Value;

use super::call::ReviewTexts;
use super::policies::SeenNamespace;
use crate::matching::{ConditionObjects, RequestMatcher};
use crate::review::{ReviewError, ReviewText};
use crate::{
    Attributes, Conversions, GroupVersionKind, GroupVersionResource, ServedResource, SharedObjects,
    Surroundings,
};

/// The forms of the objects of one request.
pub(super) struct Forms<'a, C> {
    attributes: Arc<Attributes>,
    conversions: &'a C,
    /// The stored object as requested.
    old: Option<Arc<Value>>,
    /// The same in other kinds. It never changes.
    converted_old: Vec<(GroupVersionKind, Arc<Value>)>,
    current: Form,
    others: Vec<Form>,
}

/// The objects as one resource.
struct Form {
    of: Arc<ServedResource>,
    objects: SharedObjects,
    texts: ReviewTexts,
    bindings: OnceLock<Arc<Bindings>>,
    /// Those of policies, without the namespace of the request and with it.
    policy_bindings: [OnceLock<Arc<Bindings>>; 2],
}

impl Form {
    fn new(of: Arc<ServedResource>, objects: SharedObjects) -> Self {
        Self {
            of,
            objects,
            texts: ReviewTexts::default(),
            bindings: OnceLock::new(),
            policy_bindings: [OnceLock::new(), OnceLock::new()],
        }
    }
}

impl<'a, C: Conversions> Forms<'a, C> {
    /// The objects as requested.
    pub(super) fn new(attributes: &Arc<Attributes>, objects: SharedObjects, conversions: &'a C) -> Self {
        Self {
            attributes: Arc::clone(attributes),
            conversions,
            old: objects.old_object.clone(),
            converted_old: Vec::new(),
            current: Form::new(Arc::new(attributes.requested()), objects),
            others: Vec::new(),
        }
    }

    /// Forms of the same objects, of which only the current one is known. What is changed in them changes nothing here.
    pub(super) fn branch(&self) -> Self {
        Self {
            attributes: Arc::clone(&self.attributes),
            conversions: self.conversions,
            old: self.old.clone(),
            converted_old: self.converted_old.clone(),
            current: Form::new(Arc::clone(&self.current.of), self.current.objects.clone()),
            others: Vec::new(),
        }
    }

    /// The resource, and the kind, of the current form.
    pub(super) fn of(&self) -> &ServedResource {
        &self.current.of
    }

    /// The objects in the current form.
    pub(super) fn objects(&self) -> &SharedObjects {
        &self.current.objects
    }

    /// What match conditions see.
    pub(super) fn condition_objects(&self) -> ConditionObjects<'_> {
        let Form { of, objects, bindings, .. } = &self.current;
        ConditionObjects { kind: &of.kind, objects, bindings }
    }

    /// The values of the variables of a policy that sees the current form: of its conditions, and of its other expressions.
    pub(super) async fn policy_bindings(
        &self,
        matcher: &RequestMatcher<'_, C>,
        namespace: &SeenNamespace,
        surroundings: &impl Surroundings,
    ) -> Result<[Arc<Bindings>; 2], Box<Status>> {
        let of_conditions = matcher.bindings(self.condition_objects(), surroundings).await?;
        let [without, with] = &self.current.policy_bindings;
        let known = if namespace.object.is_some() { with } else { without };
        if let Some(of_policy) = known.get() {
            return Ok([of_conditions, Arc::clone(of_policy)]);
        }
        let is_large = self.current.objects.are_large || namespace.is_large;
        let seen = (&*self.current.of, namespace.object.clone(), is_large);
        let of_policy = matcher.policy_bindings(&of_conditions, seen, surroundings).await?;
        Ok([of_conditions, Arc::clone(known.get_or_init(|| of_policy))])
    }

    /// The text of a review in the current form.
    pub(super) async fn text(
        &mut self,
        dry_run: bool,
        surroundings: &impl Surroundings,
    ) -> Result<ReviewText, ReviewError> {
        let Form { of, objects, texts, .. } = &mut self.current;
        texts.of((&self.attributes, of, objects), dry_run, surroundings).await
    }

    /// Whether the objects are known as this resource without asking the API server.
    pub(super) fn is_known(&self, of: &ServedResource) -> bool {
        self.current.of.kind == of.kind || self.position(of).is_some()
    }

    /// Makes the form of `to` the current one; the reason, if the objects cannot be converted.
    // threat: unreviewed-write
    pub(super) async fn convert(&mut self, to: &Arc<ServedResource>) -> Result<(), String> {
        if *self.current.of == **to {
            return Ok(());
        }
        let next = match self.position(to) {
            Some(known) => self.others.swap_remove(known),
            None if self.current.of.kind == to.kind => Form::new(Arc::clone(to), self.objects().clone()),
            None => Form::new(Arc::clone(to), self.converted(to).await?),
        };
        self.others.push(std::mem::replace(&mut self.current, next));
        Ok(())
    }

    /// The same for the form of the request.
    pub(super) async fn convert_to_requested(&mut self) -> Result<(), String> {
        let requested = Arc::new(self.attributes.requested());
        self.convert(&requested).await
    }

    /// Takes over a changed object in the current form.
    pub(super) fn replace(&mut self, object: Value) {
        let mut objects = std::mem::take(&mut self.current.objects);
        objects.set_object(object);
        self.current = Form::new(Arc::clone(&self.current.of), objects);
        self.others.clear();
    }

    /// The objects in the current form.
    pub(super) fn into_objects(self) -> SharedObjects {
        self.current.objects
    }

    fn position(&self, of: &ServedResource) -> Option<usize> {
        self.others.iter().position(|form| *form.of == *of)
    }

    async fn converted(&mut self, to: &ServedResource) -> Result<SharedObjects, String> {
        let object = match &self.current.objects.object {
            Some(object) => Some(Arc::new(self.conversions.convert(object, to).await?)),
            None => None,
        };
        Ok(SharedObjects::of(object, self.old_as(to).await?))
    }

    async fn old_as(&mut self, to: &ServedResource) -> Result<Option<Arc<Value>>, String> {
        let Some(old) = self.old.as_ref().filter(|_| to.kind != self.attributes.kind) else {
            return Ok(self.old.clone());
        };
        if let Some((_, known)) = self.converted_old.iter().find(|(kind, _)| *kind == to.kind) {
            return Ok(Some(Arc::clone(known)));
        }
        let converted = Arc::new(self.conversions.convert_old(old, to).await?);
        self.converted_old.push((to.kind.clone(), Arc::clone(&converted)));
        Ok(Some(converted))
    }
}

/// Why a webhook is not called whose rules may match an equivalent resource only.
pub(super) fn unknown(requested: &GroupVersionResource) -> String {
    format!(
        "its rules may match another version or group of {} than {} only, and the gateway cannot tell which ones the API server \
         serves: {}",
        requested.resource,
        requested.api_version(),
        advice(requested)
    )
}

/// Why a webhook is not called whose rules match `to` only.
pub(super) fn unconverted(requested: &GroupVersionResource, to: &ServedResource, reason: &str) -> String {
    format!(
        "its rules match {} of {} only, and the gateway cannot show it the request for {}: {reason}; {}",
        to.resource.resource,
        to.resource.api_version(),
        requested.api_version(),
        advice(requested)
    )
}

fn advice(requested: &GroupVersionResource) -> String {
    let requested = requested.api_version();
    format!(
        "give the webhook, or the policy, a rule for {requested}, or \"matchPolicy: Exact\" if it need not see {requested}"
    )
}
