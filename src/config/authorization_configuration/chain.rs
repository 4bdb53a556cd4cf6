//! The gateway's part of a chain of authorizers some of which only the backend has.
//!
//! kube-apiserver asks its authorizers in order, and the first that allows or denies decides
//! (`k8s.io/apiserver/pkg/authorization/union`). Node, RBAC and ABAC allow or have no opinion; they never deny. The gateway
//! does not know what they decide, and the backend decides by them after the gateway. It must never let through what
//! the chain would refuse, so:
//!
//! - It asks the others that stand before the last one of the backend about every request, also about one that an authorizer
//!   of the backend before them would allow. A request that one of them denies is refused, whatever the backend decides.
//! - Then it leaves the request to the backend.
//! - It never asks those behind the last one of the backend: a request that the backend allows is allowed before they are
//!   asked, and one that it refuses stays refused.
//!
//! The result is that of the chain, or stricter: a request needs the backend's consent even if a webhook allows it, and a
//! webhook can deny what an authorizer of the backend before it allows.

use super::gateway::BACKEND_MODES;

/// The positions in a chain by what the gateway does with the authorizers there.
// threat: authorizer-order
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct GatewayChain {
    /// Those of the backend.
    pub(crate) of_backend: Vec<usize>,
    /// Those that the gateway asks, in order, before it leaves a request to the backend.
    pub(crate) asked: Vec<usize>,
    /// Those that it does not ask.
    pub(crate) behind: Vec<usize>,
}

impl GatewayChain {
    /// The parts of a chain with these modes; `None` if the backend has none of them.
    pub(crate) fn of(modes: &[&str]) -> Option<Self> {
        let is_of_backend = |mode: &&str| BACKEND_MODES.contains(mode);
        let last = modes.iter().rposition(is_of_backend)?;
        let mut chain = Self::default();
        for (index, mode) in modes.iter().enumerate() {
            let part = match (is_of_backend(mode), index < last) {
                (true, _) => &mut chain.of_backend,
                (false, true) => &mut chain.asked,
                (false, false) => &mut chain.behind,
            };
            part.push(index);
        }
        Some(chain)
    }

    /// Those that the gateway asks although one of the backend stands before them.
    pub(crate) fn overtaking(&self) -> impl Iterator<Item = usize> {
        let first = self.of_backend.first().copied().unwrap_or(usize::MAX);
        self.asked.iter().copied().filter(move |index| *index > first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What kube-apiserver decides: the first authorizer that allows or denies; nothing is a refusal.
    // apiserver: pkg/authorization/union/union.go
    fn allows(opinions: impl IntoIterator<Item = Option<bool>>) -> bool {
        opinions.into_iter().flatten().next().unwrap_or(false)
    }

    /// What the gateway and its backend decide, with the same opinions.
    fn gateway_allows(modes: &[&str], opinions: &[Option<bool>]) -> bool {
        let Some(chain) = GatewayChain::of(modes) else { return allows(opinions.iter().copied()) };
        let asked = chain.asked.iter().map(|index| opinions[*index]);
        allows(asked.chain([Some(true)])) && allows(chain.of_backend.iter().map(|index| opinions[*index]))
    }

    #[test]
    fn the_gateway_never_allows_what_the_chain_refuses() {
        const MODES: [&str; 5] = ["Node", "RBAC", "Webhook", "AlwaysDeny", "AlwaysAllow"];
        let opinions = |mode: &str| match mode {
            "Webhook" => vec![Some(true), Some(false), None],
            "AlwaysAllow" => vec![Some(true)],
            "AlwaysDeny" => vec![None],
            _ => vec![Some(true), None],
        };
        let (mut checked, mut stricter) = (0, 0);
        let mut chains: Vec<Vec<&str>> = vec![Vec::new()];
        for _ in 0..5 {
            chains = chains
                .iter()
                .flat_map(|chain| MODES.map(|mode| chain.iter().copied().chain([mode]).collect()))
                .collect();
            for chain in &chains {
                let mut all: Vec<Vec<Option<bool>>> = vec![Vec::new()];
                for mode in chain {
                    all = all
                        .iter()
                        .flat_map(|given| {
                            let extended = |one| [given.as_slice(), &[one]].concat();
                            opinions(mode).into_iter().map(extended).collect::<Vec<_>>()
                        })
                        .collect();
                }
                for opinions in &all {
                    let (reference, gateway) =
                        (allows(opinions.iter().copied()), gateway_allows(chain, opinions));
                    assert!(reference || !gateway, "{chain:?} {opinions:?}");
                    checked += 1;
                    stricter += usize::from(reference && !gateway);
                }
            }
        }
        assert!(checked > 10_000 && stricter > 0, "{checked} {stricter}");
    }

    #[test]
    fn the_usual_chains_are_divided() {
        let parts = |modes: &[&str]| {
            let chain = GatewayChain::of(modes).unwrap();
            let overtaking = chain.overtaking().collect::<Vec<_>>();
            (chain.of_backend, chain.asked, chain.behind, overtaking)
        };
        assert_eq!(GatewayChain::of(&["Webhook", "AlwaysAllow"]), None);
        assert_eq!(parts(&["Node", "RBAC"]), (vec![0, 1], vec![], vec![], vec![]));
        assert_eq!(parts(&["Node", "RBAC", "Webhook"]), (vec![0, 1], vec![], vec![2], vec![]));
        assert_eq!(parts(&["Webhook", "Node", "RBAC"]), (vec![1, 2], vec![0], vec![], vec![]));
        assert_eq!(parts(&["Node", "Webhook", "RBAC"]), (vec![0, 2], vec![1], vec![], vec![1]));
    }
}
