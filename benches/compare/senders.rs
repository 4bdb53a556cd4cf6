//! Requests per CPU-second of the gateway, by authentication method.

use crate::Options;
use crate::figures::{Figures, Measure};
use crate::proxies::{Proxy, ProxyKind};
use crate::rates::{SHAPES, rate};
use crate::setup::{CommonSetup, SMALL};
use crate::wire::RequestTemplate;

/// The baseline of the other methods.
pub(crate) const CERTIFICATE: &str = "certificate";
/// A token from `--token-auth-file`.
pub(crate) const STATIC_TOKEN: &str = "static-token";
/// A bound service account token, verified once and then cached.
pub(crate) const BOUND_TOKEN: &str = "bound-token";
/// A certificate, and headers that ask for another user with the same groups; the gateway knows the answers of the API
/// server for ten seconds.
pub(crate) const IMPERSONATION: &str = "impersonation";

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(ProxyKind, Proxy)],
    figures: &mut Figures,
) {
    let gateways: Vec<_> = proxies.iter().filter(|(kind, _)| kind.is_gateway()).collect();
    let tokens = &setup.tokens;
    let own = || RequestTemplate::get(SMALL);
    let senders = [
        (CERTIFICATE, own()),
        (STATIC_TOKEN, own().with_token(&tokens.short)),
        ("long-static-token", own().with_token(&tokens.long)),
        (BOUND_TOKEN, own().with_token(&tokens.bound)),
        (IMPERSONATION, own().impersonating("bob", &["a", "b"])),
    ];
    for (version, shape) in SHAPES.into_iter().filter(|(version, _)| options.includes(version)) {
        for turn in options.turns(senders.len() * gateways.len()) {
            let (kind, gateway) = gateways[turn % gateways.len()];
            let (sender, template) = &senders[turn / gateways.len()];
            let name = match kind {
                ProxyKind::Baseline => format!("{}, {sender}", kind.name()),
                _ => (*sender).to_owned(),
            };
            let connector = if [CERTIFICATE, IMPERSONATION].contains(sender) {
                setup.certificate_connector(gateway.address())
            } else {
                CommonSetup::token_connector(gateway.address())
            };
            let rate = rate(options, gateway, &connector, template, shape).await;
            figures.add(Measure::Senders, version, &name, rate);
        }
    }
}
