//! Kubeconfigs: errors name the file and never contain a token; an accepted kubeconfig has endpoints, roots and a
//! credential.

use std::io::Write as _;

use kube::config::{Kubeconfig, NamedAuthInfo};
use portcullis_http::identity::IdentityMode;

use crate::config::inputs::InputReader;
use crate::config::kubeconfig::load;

/// A token that must not occur in messages.
const TOKEN: &str = "token-that-nobody-may-see";
const KEY: &str = "--backend-kubeconfig";

/// The input is a kubeconfig. Skips inputs that may name a device, which would be read, or an exec plugin, which would
/// be run.
pub fn kubeconfig(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let plugin = |named: &NamedAuthInfo| named.auth_info.as_ref().is_some_and(|user| user.exec.is_some());
    if text.contains("dev")
        || text.contains("proc")
        || Kubeconfig::from_yaml(&text).is_ok_and(|config| config.auth_infos.iter().any(plugin))
    {
        return;
    }
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    if file.write_all(data).is_err() {
        return;
    }
    // If the marker occurs once, as the token, no message may contain it.
    let secret = text.split(TOKEN).count() == 2 && text.contains(&format!("\n    token: {TOKEN}\n"));
    for identity in [IdentityMode::RequestHeader, IdentityMode::Impersonate] {
        let mut errors = Vec::new();
        let backend = load(KEY, file.path(), None, &[], identity, &mut InputReader::default(), &mut errors);
        assert_eq!(backend.is_none(), !errors.is_empty(), "{errors:?}");
        for error in &errors {
            assert_eq!(error.file.as_deref(), Some(file.path()));
            assert!(error.fix.is_some(), "{error}");
            assert!(!secret || !error.to_string().contains(TOKEN), "{error}");
        }
        let Some(backend) = backend else { continue };
        assert!(!backend.endpoints.is_empty() && !backend.roots.is_empty());
        assert!(backend.endpoints.iter().all(|endpoint| !endpoint.address.host.is_empty()));
        assert!(!backend.path_prefix.ends_with('/') && backend.identity == identity);
        match identity {
            IdentityMode::RequestHeader => {
                assert!(backend.client_certificate.is_some() && backend.bearer_token.is_none());
            }
            IdentityMode::Impersonate => {
                assert!(backend.client_certificate.is_some() || backend.bearer_token.is_some());
            }
        }
        assert!(!secret || !format!("{backend:?}").contains(TOKEN));
    }
}
