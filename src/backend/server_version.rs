//! The version that the API servers at an endpoint have reported, and which rules of authorization they have by it.
//!
//! The self-check reads it from each address of the endpoint before requests go there. A version counts for as long as the
//! endpoint is trusted without a break: afterwards another process may listen there, whose version is not known.

use arc_swap::ArcSwapOption;
use portcullis_kubernetes::release::Release;

use super::endpoint::TrustVersion;

/// What the API servers at one endpoint have reported last.
#[derive(Debug, Default)]
pub(super) struct ReportedVersion(ArcSwapOption<Report>);

#[derive(Debug)]
struct Report {
    /// As the API servers write it, such as `v1.36.3+k3s1`, without repetitions.
    texts: Vec<String>,
    /// The oldest; `None` if one of them is not known.
    release: Option<Release>,
    /// The trust of the endpoint when the self-check began that has read it.
    trust: TrustVersion,
}

impl ReportedVersion {
    /// Records the versions of all addresses that requests go to, each `None` if it is not known.
    pub(super) fn learn(&self, trust: TrustVersion, versions: &[Option<String>]) {
        self.0.store(Some(Report::new(trust, versions).into()));
    }

    /// The same, but what was known of the same trust counts as well.
    pub(super) fn narrow(&self, trust: TrustVersion, versions: &[Option<String>]) {
        let mut report = Report::new(trust, versions);
        if let Some(known) = self.0.load().as_deref().filter(|known| known.trust.is_of_same_process(trust)) {
            // `None`, which is not known, is less than any release.
            report.release = report.release.min(known.release);
        }
        self.0.store(Some(report.into()));
    }

    /// The release of the oldest API server there, if that is known of all of them, and if trust has not been broken since.
    pub(super) fn release(&self, now: TrustVersion) -> Option<Release> {
        let report = self.0.load();
        report.as_deref().filter(|report| report.trust.is_of_same_process(now))?.release
    }

    /// What they have reported last, also of an endpoint that is not trusted any more.
    pub(super) fn texts(&self) -> Vec<String> {
        self.0.load().as_deref().map(|report| report.texts.clone()).unwrap_or_default()
    }
}

impl Report {
    fn new(trust: TrustVersion, versions: &[Option<String>]) -> Self {
        let releases: Option<Vec<Release>> =
            versions.iter().map(|version| Release::of_server(version.as_deref()?)).collect();
        let mut texts: Vec<String> = versions.iter().flatten().cloned().collect();
        texts.sort_unstable();
        texts.dedup();
        let release = releases.and_then(|releases| releases.into_iter().min());
        Self { texts, release, trust }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(versions: &[Option<&str>], at: u64, now: u64) -> Option<Release> {
        let reported = ReportedVersion::default();
        let versions: Vec<_> = versions.iter().map(|version| version.map(str::to_owned)).collect();
        reported.learn(TrustVersion::of_test(at), &versions);
        reported.release(TrustVersion::of_test(now))
    }

    #[test]
    fn the_oldest_version_counts_and_an_unknown_one_is_no_version() {
        let (old, new) = (Some("v1.34.4-eks-a1b2"), Some("v1.37.2+k3s1"));
        assert_eq!(ReportedVersion::default().release(TrustVersion::of_test(1)), None, "nothing was read");
        for (versions, expected) in [
            (vec![new], Some(Release::V1_37)),
            (vec![new, new], Some(Release::V1_37)),
            (vec![new, old], Some(Release::V1_34)),
            (vec![old, new], Some(Release::V1_34)),
            (vec![new, None], None),
            (vec![None], None),
            (vec![new, Some("unknown")], None),
            (vec![], None),
        ] {
            assert_eq!(learned(&versions, 0, 1), expected, "{versions:?}");
        }
    }

    #[test]
    fn an_older_version_counts_while_its_address_may_be_used() {
        let (old, new) = (Some("v1.34.4".to_owned()), Some("v1.37.2".to_owned()));
        let cases = [
            (vec![old.clone()], 2, Some(Release::V1_34)),
            (vec![None], 2, None),
            (vec![new.clone()], 2, Some(Release::V1_37)),
            // Its process is gone.
            (vec![old], 1, Some(Release::V1_37)),
        ];
        for (before, at, expected) in cases {
            let reported = ReportedVersion::default();
            reported.learn(TrustVersion::of_test(at), &before);
            reported.narrow(TrustVersion::of_test(3), std::slice::from_ref(&new));
            assert_eq!(reported.release(TrustVersion::of_test(3)), expected, "{before:?}");
            reported.learn(TrustVersion::of_test(3), std::slice::from_ref(&new));
            assert_eq!(reported.release(TrustVersion::of_test(3)), Some(Release::V1_37));
        }
    }

    #[test]
    fn a_version_counts_until_trust_is_broken() {
        let new = [Some("v1.37.2")];
        // The check has begun at 2, and has made the endpoint trusted, 3.
        for (now, expected) in [(2, true), (3, true), (4, false), (5, false), (1, false), (0, false)] {
            assert_eq!(learned(&new, 2, now).is_some(), expected, "read before trust, at {now}");
            assert_eq!(learned(&new, 3, now).is_some(), expected, "read again, at {now}");
        }
    }
}
