//! Who a request to the embedded backend is made as: what the gateway's identity headers say, read by the same code
//! that reads a front proxy's headers in the gateway itself, and whom a client of the gateway wants to act as.

use std::sync::Arc;

use http::HeaderMap;

use super::pki::GATEWAY_CLIENT_NAME;
use crate::authn::chain::Chain;
use crate::authn::request_header::{RequestHeaderAuthenticator, RequestHeaderNames};
use crate::authn::x509::{CaBundle, FrontProxyVerifier};
use crate::authn::{AuthnInput, ConnInfo, Warnings};
use crate::clock::UnixTime;
use crate::request::credentials::Credentials;
use crate::status::Status;
use crate::user::UserInfo;

/// Who asks.
#[derive(Debug)]
pub(super) struct Caller {
    /// Who the request is made as.
    pub(super) user: UserInfo,
    /// Who asked for that, if it is somebody else; they still have to be allowed to.
    pub(super) impersonator: Option<UserInfo>,
}

/// Reads identities.
#[derive(Debug)]
pub(super) struct Identities {
    asserted: Chain,
    impersonated: Chain,
}

impl Identities {
    /// Believes the gateway alone; `None` if the names below are no headers, which cannot be.
    pub(super) fn new(front_proxies: &Arc<CaBundle>) -> Option<Self> {
        let chain = |names: [&str; 4]| {
            let [user, uid, group, extra] = names.map(|name| vec![name.to_owned()]);
            let names = RequestHeaderNames::new(&user, &uid, &group, &extra).ok()?;
            let verifier =
                FrontProxyVerifier::new(Arc::clone(front_proxies), vec![GATEWAY_CLIENT_NAME.to_owned()]);
            Chain::new(vec![Box::new(RequestHeaderAuthenticator::new(verifier, names))], None).ok()
        };
        Some(Self {
            asserted: chain(["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-"])?,
            impersonated: chain([
                "impersonate-user",
                "impersonate-uid",
                "impersonate-group",
                "impersonate-extra-",
            ])?,
        })
    }

    /// Who asks. Without identity headers, or from anybody but the gateway, the request is refused.
    pub(super) async fn caller(
        &self,
        conn: &ConnInfo,
        headers: &HeaderMap,
        now: UnixTime,
    ) -> Result<Caller, Status> {
        let credentials =
            Credentials { authorization: None, front_proxy: headers.clone(), ..Credentials::default() };
        let warnings = Warnings::default();
        let (credentials, warnings) = (&credentials, &warnings);
        let input = AuthnInput { conn, credentials, path: "", audiences: &[], generation: 0, now, warnings };
        let asserted = self.asserted.authenticate(&input).await.map_err(|_| Status::unauthorized())?;
        if !headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
            return Ok(Caller { user: asserted.user().clone(), impersonator: None });
        }
        let incomplete = |_| Status::bad_impersonation("impersonation headers without impersonating a user");
        let impersonated = self.impersonated.authenticate(&input).await.map_err(incomplete)?;
        Ok(Caller { user: impersonated.user().clone(), impersonator: Some(asserted.user().clone()) })
    }
}
