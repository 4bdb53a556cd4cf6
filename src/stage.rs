//! The stages of a request as types: `Received → Routed → Identified → Authorized → Admitted`. Each has private
//! fields and one constructor, which takes the stage before it by value; only [`Admitted`] can be forwarded. So a
//! request that skipped a stage does not compile.

use std::sync::Arc;

use http::Request;
use http::header::HeaderName;
use hyper::body::Incoming;
use tokio::time::Instant;

use crate::authn::Proven;
use crate::request::credentials::{Credentials, ImpersonateHeaders};
use crate::request::info::RequestInfo;
use crate::request::wellformed::{self, Malformed};
use crate::user::UserInfo;

/// A well-formed request, without its credentials.
pub(crate) struct Received {
    request: Request<Incoming>,
    credentials: Credentials,
    impersonate: ImpersonateHeaders,
}

/// A request whose meaning is known.
pub(crate) struct Routed {
    received: Received,
    info: RequestInfo,
    deadline: Option<Instant>,
}

/// A request whose sender is known.
pub(crate) struct Identified {
    routed: Routed,
    user: Arc<UserInfo>,
    by_front_proxy: bool,
}

/// A request that may be made as who it is made as.
pub(crate) struct Authorized {
    identified: Identified,
    impersonate: Option<ImpersonateHeaders>,
}

/// A request that may be forwarded.
pub(crate) struct Admitted(Authorized);

/// What forwarding needs of a request.
pub(crate) struct Outbound {
    pub(crate) request: Request<Incoming>,
    pub(crate) info: RequestInfo,
    pub(crate) deadline: Option<Instant>,
    pub(crate) user: Arc<UserInfo>,
    /// Whether the sender is a front proxy, whose `X-Forwarded-For` is believed.
    pub(crate) by_front_proxy: bool,
    /// `Impersonate-*` headers that the backend authorises.
    pub(crate) impersonate: Option<ImpersonateHeaders>,
}

impl Received {
    /// Checks the shape of a request and takes its credentials out.
    pub(crate) fn accept(
        mut request: Request<Incoming>,
        front_proxy: impl Fn(&HeaderName) -> bool,
    ) -> Result<Self, Malformed> {
        wellformed::check(&request)?;
        let (credentials, impersonate) = Credentials::take_from(request.headers_mut(), front_proxy);
        Ok(Self { request, credentials, impersonate })
    }

    /// The request, without its credentials.
    pub(crate) fn request(&self) -> &Request<Incoming> {
        &self.request
    }
}

impl Routed {
    /// A request, what it means, and when it must be answered.
    pub(crate) fn new(received: Received, info: RequestInfo, deadline: Option<Instant>) -> Self {
        Self { received, info, deadline }
    }

    /// What the request means.
    pub(crate) fn info(&self) -> &RequestInfo {
        &self.info
    }

    /// What the sender is to be judged by.
    pub(crate) fn credentials(&self) -> &Credentials {
        &self.received.credentials
    }
}

impl Identified {
    /// A request and who sent it; only a chain of authenticators makes a [`Proven`].
    pub(crate) fn new(routed: Routed, proven: Proven) -> Self {
        let authenticated = proven.into_inner();
        let by_front_proxy = authenticated.method == crate::authn::request_header::METHOD;
        Self { routed, user: authenticated.user, by_front_proxy }
    }

    /// Whom the sender asks to act as.
    pub(crate) fn impersonate(&self) -> &ImpersonateHeaders {
        &self.routed.received.impersonate
    }
}

impl Authorized {
    /// A request that asks to act as nobody else.
    pub(crate) fn as_oneself(mut identified: Identified) -> Self {
        // Nothing is passed on by accident.
        identified.routed.received.impersonate = ImpersonateHeaders::default();
        Self { identified, impersonate: None }
    }

    /// A request whose `Impersonate-*` headers the backend authorises.
    pub(crate) fn by_backend(mut identified: Identified) -> Self {
        let impersonate = std::mem::take(&mut identified.routed.received.impersonate);
        Self { identified, impersonate: Some(impersonate) }
    }
}

impl Admitted {
    /// A request that no webhook matches.
    pub(crate) fn without_webhooks(authorized: Authorized) -> Self {
        Self(authorized)
    }

    /// Takes the request apart, to be sent.
    pub(crate) fn into_outbound(self) -> Outbound {
        let Authorized { identified, impersonate } = self.0;
        let Identified { routed, user, by_front_proxy } = identified;
        let Routed { received, info, deadline } = routed;
        Outbound { request: received.request, info, deadline, user, by_front_proxy, impersonate }
    }
}
