//! Resolves what `clustertrustbundle-publishing` publishes: the CAs of the signers, and that of the serving certificate.

use std::collections::BTreeSet;
use std::path::Path;

use portcullis_pki::issuance::profile::LEGACY_UNKNOWN;

use crate::config::error::ConfigError;
use crate::config::flags::ControllerFlags;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::{KeyLocation, MergedSection};
use crate::controllers::settings::{ControllerName, PublishedSigner, TrustAnchor};

const FLAG: &str = "cluster-trust-bundle-serving-ca-file";
/// The signer name under which kube-controller-manager publishes the CAs of API servers.
// kubernetes: api/certificates/v1, KubeAPIServerServingSignerName
const KUBE_APISERVER_SERVING: &str = "kubernetes.io/kube-apiserver-serving";

impl ConfigResolver<'_> {
    /// The CAs of the gateway's serving certificate, if they are to be published.
    pub(super) fn serving_ca(
        &mut self,
        given: &MergedSection<ControllerFlags>,
        names: &BTreeSet<ControllerName>,
    ) -> Option<Vec<TrustAnchor>> {
        let file = given.values.cluster_trust_bundle_serving_ca_file.as_ref()?;
        let place = given.place(FLAG);
        let key = &place.key;
        if !names.contains(&ControllerName::TrustBundlePublishing) {
            let controllers = given.key("controllers");
            let name = ControllerName::TrustBundlePublishing.alias();
            self.warnings.push(format!("{key} has no effect without {name} in {controllers}"));
            return None;
        }
        self.trust_anchors(&place, file)
    }

    /// The CA certificates of a file, all of which a bundle may have. Errors go to `self.errors`.
    pub(super) fn trust_anchors(&mut self, place: &KeyLocation, file: &Path) -> Option<Vec<TrustAnchor>> {
        let bundle = self.ca_bundle(place, file)?;
        // kubernetes: pkg/apis/certificates/validation/validation.go, validateTrustBundle
        for certificate in bundle.certificates() {
            if !certificate.extensions.basic_constraints.is_some_and(|constraints| constraints.is_ca) {
                let label = certificate.label();
                let problem = format!(
                    "the certificate {label:?} is not that of a CA, and API servers refuse it in a bundle"
                );
                let error = ConfigError::new(&place.key, problem).in_file(&place.path(file));
                self.errors.push(error.fix("give the certificate of the CA that has signed it"));
            }
        }
        Some(bundle.certificates().iter().map(TrustAnchor::of).collect())
    }

    /// What is published: nothing, unless the controller is enabled.
    pub(super) fn published(
        &mut self,
        given: &MergedSection<ControllerFlags>,
        names: &BTreeSet<ControllerName>,
        signers: Vec<PublishedSigner>,
        serving: Option<Vec<TrustAnchor>>,
    ) -> Vec<PublishedSigner> {
        if !names.contains(&ControllerName::TrustBundlePublishing) {
            return Vec::new();
        }
        // kubernetes: api/certificates/v1, LegacyUnknownSignerName: its certificates are trusted by nothing.
        let trusted = signers.into_iter().filter(|signer| signer.name != LEGACY_UNKNOWN);
        let serving = serving.map(|anchors| PublishedSigner {
            name: KUBE_APISERVER_SERVING.to_owned(),
            anchors,
            max_lifetime: None,
        });
        let mut published: Vec<PublishedSigner> = Vec::new();
        for signer in trusted.chain(serving) {
            // Both controllers may sign for a name; it has one bundle.
            match published.iter_mut().find(|known| known.name == signer.name) {
                Some(known) => known.add(signer),
                None => published.push(signer),
            }
        }
        if published.is_empty() {
            let [key, ca] = ["controllers", FLAG].map(|flag| given.key(flag));
            let name = ControllerName::TrustBundlePublishing.alias();
            self.warnings.push(format!("{key}: {name} publishes nothing without a signer, or {ca}"));
        }
        published
    }
}
