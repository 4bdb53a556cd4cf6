//! The user of a request to the embedded backend: the one in the gateway's identity headers, read by the code that
//! reads a front proxy's headers in the gateway itself, or the one that the client impersonates.

use std::sync::Arc;

use http::HeaderMap;

use super::access;
use super::pki::GATEWAY_CLIENT_NAME;
use crate::authn::chain::AuthnChain;
use crate::authn::request_header::{RequestHeaderAuthenticator, RequestHeaderNames};
use crate::authn::trace::AuthnTrace;
use crate::authn::x509::FrontProxyVerifier;
use crate::authn::{AuthnInput, ConnInfo};
use crate::clock::UnixTime;
use crate::http::status::Status;
use crate::pki::x509::CaBundle;
use crate::request::credentials::Credentials;
use crate::user::UserInfo;

/// Reads identities.
#[derive(Debug)]
pub(super) struct Identities {
    asserted: AuthnChain,
    impersonated: AuthnChain,
}

impl Identities {
    /// Trusts the gateway alone; `None` if the names below are not header names, which cannot happen.
    pub(super) fn new(front_proxies: &Arc<CaBundle>) -> Option<Self> {
        let chain = |prefix: &str| {
            let [user, uid, group, extra] =
                ["user", "uid", "group", "extra-"].map(|name| vec![format!("{prefix}{name}")]);
            let names = RequestHeaderNames::new(&user, &uid, &group, &extra).ok()?;
            let verifier =
                FrontProxyVerifier::new(Arc::clone(front_proxies), vec![GATEWAY_CLIENT_NAME.to_owned()]);
            AuthnChain::new(vec![Box::new(RequestHeaderAuthenticator::new(verifier, names))], None).ok()
        };
        Some(Self { asserted: chain("x-remote-")?, impersonated: chain("impersonate-")? })
    }

    /// The user of the request. A request without identity headers, or from another peer than the gateway, is refused,
    /// and so is impersonation without the right to it.
    pub(super) async fn caller(
        &self,
        conn: &ConnInfo,
        headers: &HeaderMap,
        now: UnixTime,
    ) -> Result<UserInfo, Status> {
        let credentials =
            Credentials { authorization: None, front_proxy: headers.clone(), ..Credentials::default() };
        let trace = AuthnTrace::default();
        let (credentials, trace) = (&credentials, &trace);
        let input = AuthnInput { conn, credentials, path: "", audiences: &[], generation: 0, now, trace };
        let asserted = self.asserted.authenticate(&input).await.map_err(|_| Status::unauthorized())?;
        if !headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            return Ok(asserted.user().clone());
        }
        let incomplete = |_| Status::bad_impersonation("impersonation headers without impersonating a user");
        let impersonated = self.impersonated.authenticate(&input).await.map_err(incomplete)?;
        access::authorize_impersonation(asserted.user(), &impersonated.user().name)?;
        Ok(impersonated.user().clone())
    }
}
