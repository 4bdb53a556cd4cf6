//! The controller `tokencleaner`: deletes bootstrap tokens that have expired, when they expire.

use std::convert::Infallible;

use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Preconditions};
use kube::runtime::watcher;
use kube::{Api, ResourceExt as _};
use tracing::{info, warn};

use super::Context;
use super::name::Name;
use super::queue::{Outcome, Pace};
use super::worker::{self, Key};
use crate::bootstrap::secret::{NAMESPACE, SECRET_TYPE, TokenData};
use crate::bootstrap::token_cleaner::{Fate, fate};

const NAME: Name = Name::TokenCleaner;

/// Looks at every token when it changes, and when it is to expire.
// kube-controller-manager: pkg/controller/bootstrap/tokencleaner.go
pub(crate) async fn run(context: Context) -> Infallible {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), NAMESPACE);
    let tokens = watcher::Config::default().fields(&format!("type={SECRET_TYPE}"));
    let (store, changes) = worker::watch(&context, "secrets", secrets.clone(), tokens);
    let look = async |key: Key| match key.within(&store) {
        Some(secret) => {
            let now = context.clock.now();
            match fate(&TokenData::of(&secret), now) {
                Fate::Keep => Outcome::Done,
                Fate::KeepFor(remaining) => Outcome::After(remaining),
                Fate::Delete => delete(&context, &secrets, &secret).await,
            }
        }
        None => Outcome::Done,
    };
    worker::work(&context, NAME, Pace::CERTIFICATES, changes, look).await
}

/// Deletes a token if it is still the one that was looked at. If it is not, the watch tells of what it is now.
async fn delete(context: &Context, secrets: &Api<Secret>, secret: &Secret) -> Outcome {
    let name = secret.name_any();
    let preconditions = Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
    let options = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let cluster = &*context.cluster;
    match secrets.delete(&name, &options).await {
        Ok(_) => {
            info!(cluster, secret = name, "an expired bootstrap token is deleted");
            Outcome::Done
        }
        Err(kube::Error::Api(status)) if status.is_not_found() => Outcome::Done,
        Err(kube::Error::Api(status)) if status.is_conflict() => {
            context.metrics.controllers.conflicts.with_label_values(&[cluster, NAME.alias()]).inc();
            Outcome::Done
        }
        // kube-controller-manager leaves it at that; an expired token would stay until it changes.
        Err(error) => {
            warn!(cluster, secret = name, "an expired bootstrap token cannot be deleted: {error}");
            Outcome::Retry
        }
    }
}
