//! What the gateway wants to be, and whether it was.

use serde::Serialize;

use crate::figures::{Figure, Figures, Measure};
use crate::handshakes;
use crate::proxies::Kind;
use crate::senders;

/// At least as many requests as the better HAProxy.
const REQUESTS: [(&str, f64); 4] =
    [("HTTP/1.1, 1 KiB", 1.1), ("HTTP/1.1, 100 KiB", 1.1), ("HTTP/2, 1 KiB", 1.0), ("HTTP/2, 100 KiB", 1.0)];
/// At least as many requests as by certificate.
const SENDERS: [&str; 2] = [senders::STATIC_TOKEN, senders::BOUND_TOKEN];
const SENDERS_RATIO: f64 = 0.97;
/// In each second of processor time.
const HANDSHAKES: f64 = 2500.0;
/// Microseconds at most.
const ADDED: f64 = 135.0;
/// KiB at most.
const WATCH: f64 = 30.0;

#[derive(Serialize)]
pub struct Aim {
    /// E.g. `requests per CPU-second, HTTP/2, 1 KiB, as a ratio to haproxy-http2`.
    pub about: String,
    pub wanted: f64,
    pub measured: f64,
    pub met: bool,
}

impl Aim {
    fn new(measure: Measure, about: &str, wanted: f64, measured: f64) -> Self {
        let met = if measure.less_is_better() { measured <= wanted } else { measured >= wanted };
        Self { about: format!("{}, {about}", measure.title()), wanted, measured, met }
    }
}

/// Those that the figures say something about.
pub fn aims(figures: &Figures) -> Vec<Aim> {
    let mut aims = Vec::new();
    let gateway = Kind::Gateway.name();
    for (case, wanted) in REQUESTS {
        let own = figures.find(Measure::Requests, case, gateway);
        let other = better_haproxy(figures, Measure::Requests, case);
        if let (Some(own), Some(other)) = (own, other) {
            let about = format!("{case}, as a ratio to {}", other.of);
            aims.push(Aim::new(Measure::Requests, &about, wanted, own.ratio(other)));
        }
    }
    for (measure, case) in figures.cases() {
        match measure {
            Measure::Senders => {
                let certificate = figures.find(measure, case, senders::CERTIFICATE);
                for sender in SENDERS {
                    let own = figures.find(measure, case, sender);
                    if let (Some(own), Some(certificate)) = (own, certificate) {
                        let about = format!("{case}, {sender} as a ratio to {}", certificate.of);
                        aims.push(Aim::new(measure, &about, SENDERS_RATIO, own.ratio(certificate)));
                    }
                }
            }
            Measure::Handshakes if case == handshakes::CASE => {
                aims.extend(absolute(figures, measure, case, HANDSHAKES));
            }
            Measure::AddedMedian => aims.extend(absolute(figures, measure, case, ADDED)),
            Measure::Watches => aims.extend(absolute(figures, measure, case, WATCH)),
            _ => {}
        }
    }
    aims
}

/// The figure itself, which is worth only as much as the machine is like others.
fn absolute(figures: &Figures, measure: Measure, case: &str, wanted: f64) -> Option<Aim> {
    let own = figures.find(measure, case, Kind::Gateway.name())?;
    Some(Aim::new(measure, case, wanted, own.median))
}

/// HAProxy as it does best in this case.
pub fn better_haproxy<'a>(figures: &'a Figures, measure: Measure, case: &'a str) -> Option<&'a Figure> {
    let all = figures.of_case(measure, case);
    let ours = all.filter(|figure| {
        [Kind::HaproxyHttp1, Kind::HaproxyHttp2].iter().any(|kind| kind.name() == figure.of)
    });
    let better = |one: &&Figure, other: &&Figure| one.median.total_cmp(&other.median);
    if measure.less_is_better() { ours.min_by(better) } else { ours.max_by(better) }
}
