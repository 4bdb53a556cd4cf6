//! What a request costs the gateway by how its sender is known.

use crate::Options;
use crate::figures::{Figures, Measure};
use crate::proxies::{Kind, Proxy};
use crate::rates::{SHAPES, rate};
use crate::setup::{CommonSetup, SMALL};
use crate::wire::Ask;

/// What the others are compared with.
pub(crate) const CERTIFICATE: &str = "certificate";
/// Looked up in a file, and verified once and then remembered.
pub(crate) const STATIC_TOKEN: &str = "static-token";
pub(crate) const BOUND_TOKEN: &str = "bound-token";

pub(crate) async fn measure(
    options: &Options,
    setup: &CommonSetup,
    proxies: &[(Kind, Proxy)],
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
    for (version, shape) in SHAPES.into_iter().filter(|(version, _)| options.wants(version)) {
        for turn in options.turns(senders.len() * gateways.len()) {
            let (kind, gateway) = gateways[turn % gateways.len()];
            let (sender, token) = senders[turn / gateways.len()];
            let name = match kind {
                Kind::Baseline => format!("{}, {sender}", kind.name()),
                _ => sender.to_owned(),
            };
            let (door, ask) = match token {
                None => (setup.by_certificate(gateway.address()), Ask::of(SMALL)),
                Some(token) => (CommonSetup::by_token(gateway.address()), Ask::of(SMALL).with_token(token)),
            };
            let rate = rate(options, gateway, &door, &ask, shape).await;
            figures.add(Measure::Senders, version, &name, rate);
        }
    }
}
