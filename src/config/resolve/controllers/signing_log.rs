//! Resolves the log of issued certificates: its directory, and the keys beside it.

use std::sync::Arc;

use portcullis_tlog::certificate_log::{key_file, verifier_file};
use portcullis_tlog::{CertificateLog, LogError};

use crate::config::error::ConfigError;
use crate::config::flags::ControllerFlags;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::MergedSection;
use crate::controllers::settings::SigningLog;

const FLAG: &str = "certificate-log";

impl ConfigResolver<'_> {
    /// The log; `None` without one. Errors go to `self.errors`.
    pub(super) fn signing_log(
        &mut self,
        given: &MergedSection<ControllerFlags>,
        signs: bool,
    ) -> Option<SigningLog> {
        let directory = given.values.certificate_log.as_ref()?;
        let place = given.place(FLAG);
        let key = &place.key;
        if !signs {
            let controllers = given.key("controllers");
            self.warnings.push(format!("{key} has no effect without csrsigning in {controllers}"));
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
