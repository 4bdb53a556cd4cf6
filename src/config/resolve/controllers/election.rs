//! Resolves the settings of leader election.
// component-base: config/validation/validation.go, ValidateLeaderElectionConfiguration; client-go:
// tools/leaderelection/leaderelection.go, NewLeaderElector

use std::time::Duration;

use crate::config::error::ConfigError;
use crate::config::flags::ControllerFlags;
use crate::config::resolve::ConfigResolver;
use crate::config::sections::MergedSection;
use crate::controllers::settings::LeaderElectionSettings;

impl ConfigResolver<'_> {
    /// The settings; `Some(None)` if leader election is disabled, `None` if there are errors.
    #[expect(clippy::option_option, reason = "invalid and disabled are different")]
    pub(super) fn election(
        &mut self,
        given: &MergedSection<ControllerFlags>,
    ) -> Option<Option<LeaderElectionSettings>> {
        let flags = &given.values;
        let [lease_key, deadline_key, period_key] =
            ["leader-elect-lease-duration", "leader-elect-renew-deadline", "leader-elect-retry-period"]
                .map(|flag| given.key(flag));
        let lease_duration = self.duration(&lease_key, &flags.leader_elect_lease_duration);
        let renew_deadline = self.duration(&deadline_key, &flags.leader_elect_renew_deadline);
        let retry_period = self.duration(&period_key, &flags.leader_elect_retry_period);
        if !flags.leader_elect {
            return lease_duration.and(renew_deadline).and(retry_period).map(|_| None);
        }
        let mut errors = Vec::new();
        for (flag, value) in [
            ("leader-elect-resource-name", &flags.leader_elect_resource_name),
            ("leader-elect-resource-namespace", &flags.leader_elect_resource_namespace),
        ] {
            if value.is_empty() {
                errors.push(ConfigError::new(given.key(flag), "is required").fix("give a name"));
            }
        }
        let (lease_duration, renew_deadline, retry_period) =
            (lease_duration?, renew_deadline?, retry_period?);
        let second = Duration::from_secs(1);
        let problems = [
            // The lease object has whole seconds.
            (lease_duration < second, &lease_key, "must be at least a second", "give 15s"),
            (renew_deadline.is_zero(), &deadline_key, "must be greater than zero", "give 10s"),
            (retry_period.is_zero(), &period_key, "must be greater than zero", "give 2s"),
            (
                lease_duration <= renew_deadline,
                &lease_key,
                "leaseDuration must be greater than renewDeadline",
                "give a longer lease duration, or a shorter renew deadline",
            ),
            (
                renew_deadline <= retry_period.mul_f64(1.2),
                &deadline_key,
                "renewDeadline must be greater than retryPeriod*JitterFactor",
                "give more than 1.2 times the retry period",
            ),
        ];
        let wrong = problems.into_iter().filter(|(is_wrong, ..)| *is_wrong);
        errors.extend(wrong.map(|(_, key, problem, fix)| ConfigError::new(key, problem).fix(fix)));
        let is_good = errors.is_empty();
        self.errors.extend(errors);
        is_good.then(|| {
            let name = flags.leader_elect_resource_name.clone();
            let namespace = flags.leader_elect_resource_namespace.clone();
            Some(LeaderElectionSettings { lease_duration, renew_deadline, retry_period, name, namespace })
        })
    }
}
