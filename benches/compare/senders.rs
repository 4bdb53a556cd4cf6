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

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(ProxyKind, Proxy)],
    figures: &mut Figures,
) {
    let gateways: Vec<_> = proxies.iter().filter(|(kind, _)| kind.is_gateway()).collect();
    let tokens = &setup.tokens;
    let senders = [
        (CERTIFICATE, None),
        (STATIC_TOKEN, Some(&tokens.short)),
        ("long-static-token", Some(&tokens.long)),
        (BOUND_TOKEN, Some(&tokens.bound)),
    ];
    for (version, shape) in SHAPES.into_iter().filter(|(version, _)| options.includes(version)) {
        for turn in options.turns(senders.len() * gateways.len()) {
            let (kind, gateway) = gateways[turn % gateways.len()];
            let (sender, token) = senders[turn / gateways.len()];
            let name = match kind {
                ProxyKind::Baseline => format!("{}, {sender}", kind.name()),
                _ => sender.to_owned(),
            };
            let (connector, template) = match token {
                None => (setup.certificate_connector(gateway.address()), RequestTemplate::get(SMALL)),
                Some(token) => (
                    CommonSetup::token_connector(gateway.address()),
                    RequestTemplate::get(SMALL).with_token(token),
                ),
            };
            let rate = rate(options, gateway, &connector, &template, shape).await;
            figures.add(Measure::Senders, version, &name, rate);
        }
    }
}
