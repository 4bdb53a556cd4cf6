//! The cases, by group. Every group has cases for which the backend without the gateway responds differently.

mod admission;
mod answers;
mod audit;
mod authorization;
mod bootstrap;
mod cors;
mod credentials;
mod front_proxy;
mod health;
mod impersonation;
mod legacy_accounts;
mod malformed;
mod oidc;
mod oidc_flags;
mod oidc_mappings;
mod paths;
mod reviews;
mod service_accounts;
mod streams;
mod tokens;
mod webhook;
mod writes;
mod x509;

use crate::case::Case;

/// Every HTTP case.
pub(crate) fn all() -> Vec<Case> {
    [
        x509::cases(),
        tokens::cases(),
        bootstrap::cases(),
        service_accounts::cases(),
        legacy_accounts::cases(),
        oidc::cases(),
        oidc_mappings::cases(),
        oidc_flags::cases(),
        webhook::cases(),
        reviews::cases(),
        front_proxy::cases(),
        impersonation::cases(),
        authorization::cases(),
        admission::cases(),
        audit::cases(),
        paths::cases(),
        answers::cases(),
        cors::cases(),
        writes::cases(),
        streams::cases(),
        health::cases(),
        malformed::cases(),
    ]
    .concat()
}
