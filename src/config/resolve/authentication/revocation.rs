//! Resolves what revokes credentials: the CRLs of client CAs, and the deny list.

use std::path::PathBuf;
use std::sync::Arc;

use portcullis_go::time::format_utc;
use portcullis_pki::x509::CaBundle;
use portcullis_pki::x509::certificate::Certificate;

use crate::authn::revocation::RevocationSettings;
use crate::authn::revocation::crls::ClientCrls;
use crate::authn::revocation::watch::LoadedDenyList;
use crate::config::error::ConfigError;
use crate::config::flags::AuthenticationFlags;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::MergedSection;

const CRL_FIX: &str = "give complete CRLs (RFC 5280, version 2) of these CAs, PEM or DER, or revoke by --credential-deny-list-file";

const COMPLETE_FIX: &str =
    "if the CA has no other CRL, set --client-ca-crl-complete-url to this URL, else give the complete CRL";

/// The CAs of a cluster's clients.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClientCas<'a> {
    pub(super) users: Option<&'a CaBundle>,
    pub(super) pods: Option<&'a CaBundle>,
    pub(super) front_proxies: Option<&'a CaBundle>,
}

impl ConfigResolver<'_> {
    /// What revokes credentials, with the CAs of all clients.
    pub(super) fn revocation(
        &mut self,
        given: &MergedSection<AuthenticationFlags>,
        cas: ClientCas<'_>,
    ) -> RevocationSettings {
        let flags = &given.values;
        // A bundle that could not be read is an error already, and would make its CRLs look foreign.
        let ClientCas { users, pods, front_proxies } = cas;
        let is_complete = flags.client_ca_file.is_some() == users.is_some()
            && flags.pod_client_ca_file.is_some() == pods.is_some()
            && flags.requestheader_client_ca_file.is_some() == front_proxies.is_some();
        let bundles = [users, pods, front_proxies].into_iter().flatten();
        let authorities: Vec<&Certificate> = bundles.flat_map(CaBundle::certificates).collect();
        let crls = is_complete.then(|| self.client_crls(given, &authorities)).flatten();
        RevocationSettings { crls: crls.map(Arc::new), deny_list: self.deny_list(given) }
    }

    fn client_crls(
        &mut self,
        given: &MergedSection<AuthenticationFlags>,
        authorities: &[&Certificate],
    ) -> Option<ClientCrls> {
        let flags = &given.values;
        let complete = &flags.client_ca_crl_complete_url;
        if flags.client_ca_crl_file.is_empty() {
            if !complete.is_empty() {
                let key = given.key("client-ca-crl-complete-url");
                let error = ConfigError::new(key, "is given without a CRL");
                self.errors.push(error.fix("set --client-ca-crl-file, too, or remove it"));
            }
            return None;
        }
        let place = given.place("client-ca-crl-file");
        let paths = flags.client_ca_crl_file.iter().map(|file| place.path(file));
        let files: Vec<(PathBuf, Option<Vec<u8>>)> =
            paths.map(|file| (file.clone(), self.read(&place.key, &file))).collect();
        let files: Option<Vec<_>> = files.into_iter().map(|(file, content)| Some((file, content?))).collect();
        let now = self.inputs.now();
        let crls =
            match ClientCrls::load(&files?, complete, authorities, flags.client_ca_crl_failure_policy, now) {
                Ok(crls) => crls,
                Err(errors) => {
                    self.errors.extend(errors.into_iter().map(|error| {
                        let fix = if error.may_be_complete { COMPLETE_FIX } else { CRL_FIX };
                        ConfigError::new(&place.key, error.to_string()).in_file(&error.file).fix(fix)
                    }));
                    return None;
                }
            };
        for list in crls.lists() {
            self.inputs.note_boundary(list.next_update);
        }
        for list in crls.lists().into_iter().filter(|list| list.is_stale(now)) {
            let (key, issuer, time) = (&place.key, &list.issuer, format_utc(list.next_update));
            self.warnings.push(format!("{key}: the CRL of {issuer} is stale since {time} (nextUpdate)"));
        }
        for authority in authorities.iter().filter(|authority| !crls.covers(authority)) {
            let (key, authority) = (&place.key, authority.label());
            self.warnings
                .push(format!("{key}: there is no CRL of {authority:?}; its certificates are not checked"));
        }
        Some(crls)
    }

    fn deny_list(&mut self, given: &MergedSection<AuthenticationFlags>) -> Option<LoadedDenyList> {
        let place = given.place("credential-deny-list-file");
        let file = place.path(given.values.credential_deny_list_file.as_ref()?);
        let loaded = LoadedDenyList::load(&file).map_err(|error| {
            // Its watch starts with a list that is in force. Until then, a repaired file must cause another load.
            self.inputs.read(&file).ok();
            ConfigError::new(&place.key, error.to_string())
                .in_file(&file)
                .fix("correct the line: an entry that does not parse would deny nothing")
        });
        self.ok(loaded)
    }
}
