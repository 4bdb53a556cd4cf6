//! Resolves the log of issued certificates: its directory, and the keys beside it.

use std::collections::BTreeSet;
use std::sync::Arc;

use portcullis_tlog::certificate_log::{key_file, verifier_file};
use portcullis_tlog::{CertificateLog, LogError};

use crate::config::error::ConfigError;
use crate::config::flags::ControllerFlags;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::MergedSection;
use crate::controllers::settings::{ControllerName, SigningLog};

const FLAG: &str = "certificate-log";

impl ConfigResolver<'_> {
    /// The log; `None` without one. Errors go to `self.errors`.
    pub(super) fn signing_log(
        &mut self,
        given: &MergedSection<ControllerFlags>,
        names: &BTreeSet<ControllerName>,
    ) -> Option<SigningLog> {
        let directory = given.values.certificate_log.as_ref()?;
        let place = given.place(FLAG);
        let key = &place.key;
        let signing = [ControllerName::CsrSigning, ControllerName::PodCertificateSigning];
        if signing.iter().all(|name| !names.contains(name)) {
            let (controllers, [csr, pods]) = (given.key("controllers"), signing.map(ControllerName::alias));
            self.warnings.push(format!("{key} has no effect without {csr} or {pods} in {controllers}"));
            return None;
        }
        let directory = place.path(directory);
        let (private, public) = (key_file(&directory), verifier_file(&directory));
        let (private, public) = (self.read(key, &private), self.read(key, &public));
        let opened = CertificateLog::new(&directory, &private?, &public?).map_err(|error| {
            let fix = match error {
                LogError::Key { .. } => {
                    "give the directory of a log whose keys are beside it, as DIR.key and DIR.vkey"
                }
                LogError::NoLog(_) => "create it: portcullis certs log init --dir DIR --origin NAME",
                _ => "restore the log from a backup, or create another one: portcullis certs log init",
            };
            ConfigError::new(key, error.to_string()).fix(fix)
        });
        let log = self.ok(opened)?;
        Some(SigningLog::new(Arc::new(log), given.values.certificate_log_failure_policy))
    }
}
