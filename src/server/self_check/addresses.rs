//! The addresses of an endpoint. One that is given by a name may have several, and others at any time, so each address is
//! checked by itself: requests go only to those that have passed.

// threat: renamed-endpoint

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::select_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::warn;

use super::{CheckOutcome, EndpointCheck, test_user, version};
use crate::backend::endpoint::{ConnectError, TrustVersion};
use crate::backend::probe::ProbeClient;
use crate::backend::settings::HostPort;

/// The most addresses of one name that are checked and used.
const MAX_ADDRESSES: usize = 16;
/// How long an address is used that the name servers no longer list: some list a few of many in turn.
const KEEP: Duration = Duration::from_mins(10);
/// How long a lookup may delay the check of known addresses.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the version of an API server is read, while its endpoint is trusted without a break.
const VERSION_INTERVAL: Duration = Duration::from_mins(10);
/// How much later than another one an address may answer.
const SILENCE_LIMIT: Duration = Duration::from_secs(3);

/// The addresses of one endpoint, with the connections of their self-checks.
#[derive(Debug, Default)]
pub(super) struct CheckedAddresses {
    addresses: Vec<CheckedAddress>,
    /// Beyond [`MAX_ADDRESSES`].
    excess: Vec<SocketAddr>,
}

#[derive(Debug)]
struct CheckedAddress {
    /// `None`: that which the configuration gives, or a name that was not resolved yet.
    address: Option<SocketAddr>,
    client: ProbeClient,
    last_listed: Instant,
    has_passed: bool,
    /// Why it has not passed, as the log says.
    logged: Option<String>,
    version: Option<ReadVersion>,
}

/// The version that an API server has reported.
#[derive(Debug, Clone)]
struct ReadVersion {
    text: String,
    at: Instant,
    /// The trust of the endpoint when the check began that has read it.
    trust: TrustVersion,
}

impl ReadVersion {
    /// Whether it need not be read again by a check that begins now: the same process has reported it a short while ago.
    fn is_current(&self, trust: TrustVersion) -> bool {
        self.trust.is_of_same_process(trust) && self.at.elapsed() < VERSION_INTERVAL
    }
}

impl CheckedAddresses {
    /// Takes over the addresses of now.
    pub(super) async fn follow(&mut self, check: &EndpointCheck) {
        let found = if check.endpoint.is_named() {
            timeout(LOOKUP_TIMEOUT, check.endpoint.addresses()).await.ok().and_then(Result::ok)
        } else {
            None
        };
        if let Some(found) = found {
            self.replace(&found, |address| {
                ProbeClient::at(address, Arc::clone(&check.backend), &check.endpoint, &check.live.gateway_id)
            });
        } else if self.addresses.is_empty() {
            let client =
                ProbeClient::new(Arc::clone(&check.backend), &check.endpoint, &check.live.gateway_id);
            self.addresses.push(CheckedAddress::new(None, client));
        }
    }

    fn replace(&mut self, found: &[SocketAddr], client: impl Fn(SocketAddr) -> ProbeClient) {
        let now = Instant::now();
        let is_listed = |one: &CheckedAddress| one.address.is_some_and(|address| found.contains(&address));
        self.addresses.iter_mut().filter(|one| is_listed(one)).for_each(|one| one.last_listed = now);
        self.addresses.retain(|one| {
            let is_recent = one.has_passed && now.duration_since(one.last_listed) < KEEP;
            one.address.is_some() && (is_listed(one) || is_recent)
        });
        let is_known =
            |known: &[CheckedAddress], address| known.iter().any(|one| one.address == Some(address));
        self.excess.clear();
        for address in found.iter().copied() {
            if is_known(&self.addresses, address) {
                continue;
            }
            // Those that are no longer listed make room.
            if self.addresses.len() >= MAX_ADDRESSES
                && let Some(unlisted) = self.addresses.iter().position(|one| !is_listed(one))
            {
                self.addresses.remove(unlisted);
            }
            if self.addresses.len() >= MAX_ADDRESSES {
                self.excess.push(address);
            } else {
                self.addresses.push(CheckedAddress::new(Some(address), client(address)));
            }
        }
    }

    /// Checks every address, puts those in force that have passed, with their versions, and returns the outcome for the
    /// endpoint: it has passed if one of its addresses has.
    pub(super) async fn check(&mut self, check: &EndpointCheck, before: TrustVersion) -> CheckOutcome {
        let attempts = self.addresses.iter().map(|one| async move {
            let outcome = check.attempt(&one.client).await;
            let known = one.version.clone().filter(|version| version.is_current(before));
            let version = match (&outcome, known) {
                (CheckOutcome::Passed(_), None) => version::read(&one.client, &test_user())
                    .await
                    .map(|text| ReadVersion { text, at: Instant::now(), trust: before }),
                (_, known) => known,
            };
            (outcome, version)
        });
        let (outcomes, versions): (Vec<_>, Vec<_>) =
            until_silent(attempts, |(outcome, _)| matches!(outcome, CheckOutcome::Passed(_)))
                .await
                .into_iter()
                .map(Option::unzip)
                .unzip();
        for (one, version) in self.addresses.iter_mut().zip(versions) {
            one.learn(version.flatten(), before);
        }
        if !check.endpoint.is_named() {
            check.endpoint.learn_version(before, &self.versions(|_| true));
            return worst_or_passed(outcomes.into_iter().flatten().collect());
        }
        let outcomes: Vec<CheckOutcome> = self
            .addresses
            .iter()
            .zip(outcomes)
            .map(|(one, outcome)| match outcome.unwrap_or_else(|| silent(check.endpoint.address())) {
                CheckOutcome::Passed(_) if one.address.is_none() => {
                    CheckOutcome::Inconclusive("its name could not be resolved in time".to_owned())
                }
                outcome => outcome,
            })
            .collect();
        let (passed, failed) = self.note(&outcomes, before);
        // No address gets requests by the version of another one: not before its own counts, nor after it counts no more.
        let versions = self.versions(|one| one.has_passed);
        check.endpoint.narrow_version(before, &versions);
        check.endpoint.set_vetted(&passed, &failed);
        check.endpoint.learn_version(before, &versions);
        self.log(check, &outcomes);
        worst_or_passed(outcomes)
    }

    /// The versions of the addresses that requests go to.
    fn versions(&self, is_used: impl Fn(&CheckedAddress) -> bool) -> Vec<Option<String>> {
        let used = self.addresses.iter().filter(|one| is_used(one));
        used.map(|one| one.version.as_ref().map(|version| version.text.clone())).collect()
    }

    /// Records the outcomes. Returns the addresses to use, and all others.
    fn note(
        &mut self,
        outcomes: &[CheckOutcome],
        before: TrustVersion,
    ) -> (Vec<SocketAddr>, Vec<SocketAddr>) {
        let (mut passed, mut failed) = (Vec::new(), self.excess.clone());
        for (one, outcome) in self.addresses.iter_mut().zip(outcomes) {
            one.has_passed = match outcome {
                CheckOutcome::Passed(_) => true,
                // As for an endpoint of one address.
                outcome if outcome.keeps_trust() => one.has_passed && before.is_trusted(),
                CheckOutcome::Failed(_) | CheckOutcome::Unreachable(_) | CheckOutcome::Inconclusive(_) => {
                    false
                }
            };
            let Some(address) = one.address else { continue };
            if one.has_passed { passed.push(address) } else { failed.push(address) }
        }
        (passed, failed)
    }

    /// Logs why single addresses of an endpoint are not used that has passed.
    fn log(&mut self, check: &EndpointCheck, outcomes: &[CheckOutcome]) {
        let has_passed = outcomes.iter().any(|outcome| matches!(outcome, CheckOutcome::Passed(_)));
        for (one, outcome) in self.addresses.iter_mut().zip(outcomes) {
            let cause = if has_passed { outcome.cause(check.backend.identity()) } else { None };
            if let (Some(cause), Some(address)) = (&cause, one.address)
                && one.logged.as_ref() != Some(cause)
            {
                let (cluster, endpoint) = (&check.cluster, check.endpoint.address().to_string());
                let used = one.has_passed;
                warn!(
                    cluster,
                    endpoint,
                    %address,
                    used,
                    "self-check of one address of the endpoint has not passed, others are used: {cause}"
                );
            }
            one.logged = cause;
        }
    }

    /// Whether an address has not passed.
    pub(super) fn has_failed(&self) -> bool {
        self.addresses.iter().any(|one| !one.has_passed && one.address.is_some())
    }

    /// The connections to an address that has passed, else to any.
    pub(super) fn client(&self) -> Option<&ProbeClient> {
        let passed = self.addresses.iter().find(|one| one.has_passed);
        passed.or_else(|| self.addresses.first()).map(|one| &one.client)
    }

    /// Waits until a connection of a self-check ends.
    pub(super) async fn disconnected(&self) {
        if self.addresses.is_empty() {
            return pending().await;
        }
        select_all(self.addresses.iter().map(|one| Box::pin(one.client.disconnected()))).await;
    }
}

impl CheckedAddress {
    fn new(address: Option<SocketAddr>, client: ProbeClient) -> Self {
        let last_listed = Instant::now();
        Self { address, client, last_listed, has_passed: false, logged: None, version: None }
    }

    /// Takes what a check that began at `before` has read. If it has read nothing, the version stays that the same process
    /// has reported before.
    fn learn(&mut self, read: Option<ReadVersion>, before: TrustVersion) {
        let known = self.version.take().filter(|known| known.trust.is_of_same_process(before));
        self.version = read.or(known);
    }
}

/// The results of all checks. Once one has passed, the others have [`SILENCE_LIMIT`] left: an address that accepts
/// connections and never answers delays no other, and has `None`.
async fn until_silent<T>(
    checks: impl Iterator<Item = impl Future<Output = T>>,
    has_passed: impl Fn(&T) -> bool,
) -> Vec<Option<T>> {
    let mut running: FuturesUnordered<_> =
        checks.enumerate().map(|(index, check)| async move { (index, check.await) }).collect();
    let mut outcomes: Vec<_> = (0..running.len()).map(|_| None).collect();
    let mut end = None;
    loop {
        let next = match end {
            Some(end) => timeout_at(end, running.next()).await.ok().flatten(),
            None => running.next().await,
        };
        let Some((index, outcome)) = next else { return outcomes };
        if has_passed(&outcome) {
            end.get_or_insert_with(|| Instant::now() + SILENCE_LIMIT);
        }
        if let Some(place) = outcomes.get_mut(index) {
            *place = Some(outcome);
        }
    }
}

/// The outcome of an address that did not answer although another one of the name did.
fn silent(address: &HostPort) -> CheckOutcome {
    let cause = format!("no answer within {SILENCE_LIMIT:?} of that of another address");
    CheckOutcome::Unreachable(ConnectError::Tcp { address: address.to_string(), cause })
}

/// The outcome for the endpoint.
fn worst_or_passed(outcomes: Vec<CheckOutcome>) -> CheckOutcome {
    let rank = |outcome: &CheckOutcome| match outcome {
        CheckOutcome::Passed(_) => 0,
        CheckOutcome::Failed(_) => 1,
        // An address that may still answer counts before one that is gone.
        CheckOutcome::Inconclusive(_) => 2,
        CheckOutcome::Unreachable(_) => 3,
    };
    let nothing = || CheckOutcome::Inconclusive("the endpoint has no address".to_owned());
    outcomes.into_iter().min_by_key(rank).unwrap_or_else(nothing)
}

#[cfg(test)]
mod tests {
    use portcullis_http::loop_detection::GatewayId;
    use tokio::time::sleep;

    use super::super::{AcceptedIdentity, SelfCheckFailure};
    use super::*;
    use crate::backend::testing::backend;

    fn addresses(last: std::ops::Range<u8>) -> Vec<SocketAddr> {
        last.map(|last| SocketAddr::from(([192, 0, 2, last], 6443))).collect()
    }

    fn follow(checked: &mut CheckedAddresses, found: &[SocketAddr]) {
        let (backend, id) = (Arc::new(backend()), GatewayId::default());
        let endpoint = Arc::clone(&backend.endpoints()[0]);
        checked.replace(found, |address| ProbeClient::at(address, Arc::clone(&backend), &endpoint, &id));
    }

    fn passed() -> CheckOutcome {
        CheckOutcome::Passed(AcceptedIdentity::Complete)
    }

    fn refused() -> CheckOutcome {
        let (address, cause) = ("a".to_owned(), "refused".to_owned());
        CheckOutcome::Unreachable(ConnectError::Tcp { address, cause })
    }

    fn unclear() -> CheckOutcome {
        CheckOutcome::Inconclusive("500".to_owned())
    }

    fn trust(is_trusted: bool) -> TrustVersion {
        let backend = backend();
        let endpoint = &backend.endpoints()[0];
        if is_trusted {
            endpoint.set_trusted(endpoint.trust_version());
        }
        endpoint.trust_version()
    }

    #[tokio::test(start_paused = true)]
    async fn each_address_is_trusted_by_itself() {
        let mut checked = CheckedAddresses::default();
        let all = addresses(1..4);
        follow(&mut checked, &all[..2]);
        assert_eq!(checked.note(&[passed(), refused()], trust(false)), (vec![all[0]], vec![all[1]]));
        assert!(checked.has_failed());
        // One more, which answers nothing useful, and the first one is overloaded.
        follow(&mut checked, &all);
        // An administrator who forbids the review takes no address that has passed, and adds none.
        let forbidden = || CheckOutcome::Failed(SelfCheckFailure::ReviewForbidden);
        let refused = [forbidden(), passed(), forbidden()];
        assert_eq!(checked.note(&refused, trust(true)), (vec![all[0], all[1]], vec![all[2]]));
        let outcomes = [unclear(), passed(), unclear()];
        assert_eq!(checked.note(&outcomes, trust(true)), (vec![all[0], all[1]], vec![all[2]]));
        assert_eq!(
            checked.note(&outcomes, trust(false)),
            (vec![all[1]], vec![all[0], all[2]]),
            "after a break of its trust it must pass again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_no_longer_listed_is_used_for_a_while() {
        let mut checked = CheckedAddresses::default();
        let all = addresses(1..4);
        follow(&mut checked, &all[..2]);
        checked.note(&[passed(), refused()], trust(false));
        follow(&mut checked, &all[2..]);
        let known: Vec<_> = checked.addresses.iter().filter_map(|one| one.address).collect();
        assert_eq!(known, [all[0], all[2]], "one that has not passed is dropped at once");
        tokio::time::advance(KEEP).await;
        follow(&mut checked, &all[2..]);
        assert_eq!(checked.addresses.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_addresses_of_a_name_are_bounded() {
        let mut checked = CheckedAddresses::default();
        follow(&mut checked, &addresses(1..3));
        checked.note(&[passed(), passed()], trust(false));
        follow(&mut checked, &addresses(10..200));
        assert_eq!(checked.addresses.len(), MAX_ADDRESSES);
        assert!(
            checked
                .addresses
                .iter()
                .all(|one| one.address.is_some_and(|at| addresses(10..200).contains(&at)))
        );
        assert_eq!(checked.excess.len(), 190 - MAX_ADDRESSES);
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_address_delays_no_other() {
        let answers = |after: [Option<u64>; 3]| {
            after.into_iter().map(|after| async move {
                match after {
                    Some(seconds) => sleep(Duration::from_secs(seconds)).await,
                    None => pending().await,
                }
                passed()
            })
        };
        let has_passed = |outcome: &CheckOutcome| matches!(outcome, CheckOutcome::Passed(_));
        let began = Instant::now();
        let outcomes = until_silent(answers([None, Some(2), Some(4)]), has_passed).await;
        assert_eq!(outcomes.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true]);
        assert_eq!(began.elapsed(), Duration::from_secs(2) + SILENCE_LIMIT);
        // It is not used, also if it was.
        let mut checked = CheckedAddresses::default();
        let all = addresses(1..4);
        follow(&mut checked, &all);
        checked.note(&[passed(), passed(), passed()], trust(false));
        let address = HostPort { host: "name".to_owned(), port: 6443 };
        let outcomes: Vec<_> =
            outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| silent(&address))).collect();
        assert_eq!(checked.note(&outcomes, trust(true)).1, [all[0]]);
        // None has passed: each has its own time.
        let late = answers([Some(20), Some(60), Some(0)]).take(2);
        assert!(
            until_silent(
                late.map(|check| async move {
                    check.await;
                    unclear()
                }),
                has_passed
            )
            .await
            .iter()
            .all(Option::is_some)
        );
    }

    #[test]
    fn an_endpoint_has_passed_if_one_of_its_addresses_has() {
        let cases = [
            (vec![refused(), unclear(), passed()], 0),
            (vec![refused(), unclear()], 2),
            (vec![refused()], 3),
            (vec![], 2),
        ];
        for (outcomes, expected) in cases {
            let found = match worst_or_passed(outcomes) {
                CheckOutcome::Passed(_) => 0,
                CheckOutcome::Failed(_) => 1,
                CheckOutcome::Inconclusive(_) => 2,
                CheckOutcome::Unreachable(_) => 3,
            };
            assert_eq!(found, expected);
        }
    }
}
