//! Performance goals of the gateway, and whether the measurement meets them.

use serde::Serialize;

use crate::audit;
use crate::figures::{Figure, Figures, Measure};
use crate::handshakes;
use crate::proxies::ProxyKind;
use crate::senders;

/// Minimum ratio of requests to the faster HAProxy configuration.
const REQUESTS: [(&str, f64); 4] =
    [("HTTP/1.1, 1 KiB", 1.1), ("HTTP/1.1, 100 KiB", 1.1), ("HTTP/2, 1 KiB", 1.0), ("HTTP/2, 100 KiB", 1.0)];
/// Methods with a minimum ratio of requests to certificates.
const SENDERS: [(&str, f64); 3] = [
    (senders::STATIC_TOKEN, SENDERS_RATIO),
    (senders::BOUND_TOKEN, SENDERS_RATIO),
    (senders::IMPERSONATION, IMPERSONATION_RATIO),
];
const SENDERS_RATIO: f64 = 0.97;
/// The same for impersonation: at most 5 % more processor time.
const IMPERSONATION_RATIO: f64 = 1.0 / 1.05;
/// Minimum ratio of requests with audit to those without: at most 10 % fewer.
const AUDIT_RATIO: f64 = 0.9;
/// Minimum per second of processor time.
const HANDSHAKES: f64 = 2500.0;
/// Maximum in microseconds.
const ADDED: f64 = 135.0;
/// Maximum in KiB.
const WATCH: f64 = 30.0;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Aim {
    pub(crate) measure: Measure,
    pub(crate) case: String,
    pub(crate) of: String,
    /// The other side of a ratio; `None` for an absolute goal.
    pub(crate) compared_with: Option<String>,
    pub(crate) wanted: f64,
    pub(crate) measured: f64,
    pub(crate) met: bool,
}

impl Aim {
    /// A goal for the ratio of two figures.
    fn ratio(own: &Figure, other: &Figure, wanted: f64) -> Self {
        let measured = own.ratio(other);
        Self {
            compared_with: Some(other.of.clone()),
            measured,
            met: measured >= wanted,
            ..Self::of(own, wanted)
        }
    }

    /// A goal for the figure itself, which depends on the machine.
    fn of(own: &Figure, wanted: f64) -> Self {
        let (measure, measured) = (own.measure, own.median);
        let met = if measure.less_is_better() { measured <= wanted } else { measured >= wanted };
        let (case, of) = (own.case.clone(), own.of.clone());
        Self { measure, case, of, compared_with: None, wanted, measured, met }
    }

    /// A description for the report.
    pub(crate) fn description(&self) -> String {
        let Self { measure, case, of, .. } = self;
        let ratio = self.compared_with.as_ref().map(|other| format!(" as a ratio to {other}"));
        format!("{}, {case}: {of}{}", measure.title(), ratio.unwrap_or_default())
    }
}

/// The goals for which there are figures.
pub(crate) fn aims(figures: &Figures) -> Vec<Aim> {
    let mut aims = Vec::new();
    let gateway = ProxyKind::Gateway.name();
    for (case, wanted) in REQUESTS {
        let own = figures.find(Measure::Requests, case, gateway);
        let other = faster_haproxy(figures, Measure::Requests, case);
        if let (Some(own), Some(other)) = (own, other) {
            aims.push(Aim::ratio(own, other, wanted));
        }
    }
    for (measure, case) in figures.cases() {
        let own = figures.find(measure, case, gateway);
        match (measure, own) {
            (Measure::Senders, _) => {
                let certificate = figures.find(measure, case, senders::CERTIFICATE);
                for (sender, wanted) in SENDERS {
                    let other = figures.find(measure, case, sender);
                    aims.extend(other.zip(certificate).map(|(other, own)| Aim::ratio(other, own, wanted)));
                }
            }
            (Measure::Audit, _) => {
                let without = figures.find(measure, case, audit::WITHOUT);
                for mode in audit::MODES {
                    let with = figures.find(measure, case, mode);
                    aims.extend(with.zip(without).map(|(with, own)| Aim::ratio(with, own, AUDIT_RATIO)));
                }
            }
            (Measure::Handshakes, Some(own)) if case == handshakes::CASE => {
                aims.push(Aim::of(own, HANDSHAKES));
            }
            (Measure::AddedMedian, Some(own)) => aims.push(Aim::of(own, ADDED)),
            (Measure::Watches, Some(own)) => aims.push(Aim::of(own, WATCH)),
            _ => {}
        }
    }
    aims
}

/// The faster HAProxy configuration of the case.
pub(crate) fn faster_haproxy<'a>(
    figures: &'a Figures,
    measure: Measure,
    case: &'a str,
) -> Option<&'a Figure> {
    let all = figures.of_case(measure, case);
    let ours = all.filter(|figure| ProxyKind::HAPROXIES.iter().any(|kind| kind.name() == figure.of));
    let better = |one: &&Figure, other: &&Figure| one.median.total_cmp(&other.median);
    if measure.less_is_better() { ours.min_by(better) } else { ours.max_by(better) }
}
