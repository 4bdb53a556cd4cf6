//! The addresses of an endpoint's name that have passed the self-check. A name may resolve to another server at any time:
//! each of its addresses is trusted by itself, and connections to one that no longer is are not used again.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use portcullis_system::sync::lock;

/// The addresses that have passed, and those that have not.
#[derive(Debug, Default)]
pub(super) struct VettedAddresses(Mutex<Outcomes>);

#[derive(Debug, Default)]
struct Outcomes {
    /// Whether every address may be used.
    accepts_any: bool,
    passed: Vec<(SocketAddr, Arc<AtomicBool>)>,
    failed: Vec<SocketAddr>,
}

/// Whether requests may use the connections to an address. By default they may, for as long as the endpoint is trusted: it is
/// given by its address.
#[derive(Debug, Clone, Default)]
pub(crate) struct AddressTrust(Option<Arc<AtomicBool>>);

/// The addresses for a new connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct AddressChoice {
    pub(super) usable: Vec<SocketAddr>,
    /// Whether the name has an address that was not checked yet.
    pub(super) has_new: bool,
}

impl VettedAddresses {
    /// Lets connections use every address, checked or not.
    pub(super) fn accept_any(&self) {
        lock(&self.0).accepts_any = true;
    }

    /// Puts the addresses in force that have passed. Connections to all others are not used again.
    pub(super) fn replace(&self, passed: &[SocketAddr], failed: &[SocketAddr]) {
        let mut outcomes = lock(&self.0);
        outcomes.failed = failed.to_vec();
        let vetted = &mut outcomes.passed;
        vetted.retain(|(address, is_trusted)| {
            let stays = passed.contains(address);
            is_trusted.store(stays, Ordering::Release);
            stays
        });
        for address in passed {
            if !vetted.iter().any(|(known, _)| known == address) {
                vetted.push((*address, Arc::new(AtomicBool::new(true))));
            }
        }
    }

    /// Ends the trust in all addresses but those that are permitted. Connections to the others are not used again.
    pub(super) fn retain(&self, is_permitted: impl Fn(&SocketAddr) -> bool) {
        lock(&self.0).passed.retain(|(address, is_trusted)| {
            let stays = is_permitted(address);
            if !stays {
                is_trusted.store(false, Ordering::Release);
            }
            stays
        });
    }

    /// The addresses to connect to, of those that the name has now. While all of them are new, the former ones stay.
    pub(super) fn choose(&self, found: &[SocketAddr]) -> AddressChoice {
        let Outcomes { accepts_any, passed: vetted, failed } = &*lock(&self.0);
        if *accepts_any {
            return AddressChoice { usable: found.to_vec(), has_new: false };
        }
        let is_vetted = |address: &&SocketAddr| vetted.iter().any(|(known, _)| known == *address);
        let mut usable: Vec<SocketAddr> = found.iter().filter(is_vetted).copied().collect();
        let has_new = found.iter().any(|address| !usable.contains(address) && !failed.contains(address));
        if usable.is_empty() {
            usable = vetted.iter().map(|(address, _)| *address).collect();
        }
        AddressChoice { usable, has_new }
    }

    /// Whether connections to an address may be used, from now on.
    pub(super) fn trust(&self, address: SocketAddr) -> AddressTrust {
        let Outcomes { accepts_any, passed: vetted, .. } = &*lock(&self.0);
        if *accepts_any {
            return AddressTrust::default();
        }
        // The system may report another scope or flow label of the same address.
        let is_known = |known: SocketAddr| (known.ip(), known.port()) == (address.ip(), address.port());
        let known = vetted.iter().find(|(known, _)| is_known(*known));
        AddressTrust(Some(known.map_or_else(Arc::default, |(_, is_trusted)| Arc::clone(is_trusted))))
    }
}

impl AddressTrust {
    /// Whether requests may use the connection.
    pub(crate) fn holds(&self) -> bool {
        self.0.as_ref().is_none_or(|is_trusted| is_trusted.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(last: &[u8]) -> Vec<SocketAddr> {
        last.iter().map(|last| SocketAddr::from(([192, 0, 2, *last], 6443))).collect()
    }

    #[test]
    fn only_addresses_that_have_passed_are_used() {
        let vetted = VettedAddresses::default();
        let choice = |found: &[u8]| {
            let AddressChoice { usable, has_new } = vetted.choose(&addresses(found));
            (usable, has_new)
        };
        assert_eq!(choice(&[1]), (vec![], true));
        vetted.replace(&addresses(&[1, 2]), &[]);
        assert_eq!(choice(&[2, 1]), (addresses(&[2, 1]), false), "in the order of the name server");
        assert_eq!(choice(&[3, 2]), (addresses(&[2]), true));
        assert_eq!(choice(&[3]), (addresses(&[1, 2]), true), "the former ones, until a new one has passed");
        vetted.replace(&addresses(&[3]), &[]);
        assert_eq!(choice(&[3, 1]), (addresses(&[3]), true));
        vetted.replace(&addresses(&[3]), &addresses(&[1]));
        assert_eq!(choice(&[3, 1]), (addresses(&[3]), false), "it was checked");
    }

    #[test]
    fn for_requests_of_the_gateway_every_address_is_used() {
        let vetted = VettedAddresses::default();
        vetted.accept_any();
        let all = addresses(&[1, 2]);
        assert_eq!(vetted.choose(&all), AddressChoice { usable: all.clone(), has_new: false });
        assert!(vetted.trust(all[0]).holds());
    }

    #[test]
    fn connections_to_an_address_that_no_longer_passes_are_not_used_again() {
        let vetted = VettedAddresses::default();
        let [one, two] = [addresses(&[1])[0], addresses(&[2])[0]];
        assert!(!vetted.trust(one).holds(), "it has not passed");
        vetted.replace(&[one, two], &[]);
        let (of_one, of_two) = (vetted.trust(one), vetted.trust(two));
        assert!(of_one.holds() && of_two.holds());
        vetted.replace(&[two], &[]);
        assert!(!of_one.holds() && of_two.holds());
        vetted.replace(&[one, two], &[]);
        let of_two = vetted.trust(two);
        vetted.retain(|address| *address != two);
        assert!(!of_two.holds() && vetted.choose(&[two]).usable == [one], "it is no longer permitted");
        vetted.replace(&[one, two], &[]);
        assert!(!of_one.holds(), "another server may have answered there in between");
        assert!(vetted.trust(one).holds() && AddressTrust::default().holds());
    }
}
