//! The measured values and their medians.

use serde::Serialize;

use crate::cost::median;
use crate::progress;

/// The measured quantity of a figure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// Requests per second of the proxy's processor time.
    Requests,
    /// Requests per second of the gateway's processor time, by authentication method.
    Senders,
    /// Requests per second of the gateway's processor time, without and with audit.
    Audit,
    /// TLS handshakes with a client certificate, each with one request, per second of processor time.
    Handshakes,
    /// Median of the latency that the proxy adds, in microseconds.
    AddedMedian,
    /// 99th percentile of the latency that the proxy adds, in microseconds.
    AddedTail,
    /// Memory per idle watch, in KiB.
    Watches,
    /// Instructions of the gateway per request.
    Instructions,
}

impl Measure {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Requests => "requests per CPU-second",
            Self::Senders => "requests per CPU-second by authentication method",
            Self::Audit => "requests per CPU-second by mode of the audit log, level Metadata",
            Self::Handshakes => "full handshakes with a client certificate, one request each, per CPU-second",
            Self::AddedMedian => "added time at 500 requests per second, median, µs",
            Self::AddedTail => "added time at 500 requests per second, 99th percentile, µs",
            Self::Watches => "memory per idle watch (PSS), KiB",
            Self::Instructions => "instructions per request, in user space",
        }
    }

    pub(crate) fn less_is_better(self) -> bool {
        matches!(self, Self::AddedMedian | Self::AddedTail | Self::Watches | Self::Instructions)
    }
}

/// One value per round. Values of the same round are comparable across the figures of a measure and case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) measure: Measure,
    /// The load, such as `HTTP/2, 1 KiB`.
    pub(crate) case: String,
    /// The proxy, or the authentication method.
    pub(crate) of: String,
    pub(crate) median: f64,
    pub(crate) rounds: Vec<f64>,
}

#[derive(Default)]
pub(crate) struct Figures(pub Vec<Figure>);

impl Figures {
    /// Adds the value of another round.
    pub(crate) fn add(&mut self, measure: Measure, case: &str, of: &str, value: f64) {
        progress::show(&format!("{}: {case}, {of}: {value:.1}", measure.title()));
        let known = self
            .0
            .iter_mut()
            .find(|figure| figure.measure == measure && figure.case == case && figure.of == of);
        match known {
            Some(figure) => {
                figure.rounds.push(value);
                figure.median = median(figure.rounds.iter().copied());
            }
            None => self.0.push(Figure {
                measure,
                case: case.to_owned(),
                of: of.to_owned(),
                median: value,
                rounds: vec![value],
            }),
        }
    }

    /// The figures of a measure and case.
    pub(crate) fn of_case<'a>(&'a self, measure: Measure, case: &'a str) -> impl Iterator<Item = &'a Figure> {
        self.0.iter().filter(move |figure| figure.measure == measure && figure.case == case)
    }

    pub(crate) fn find<'a>(&'a self, measure: Measure, case: &'a str, of: &str) -> Option<&'a Figure> {
        self.of_case(measure, case).find(|figure| figure.of == of)
    }

    /// Measures, each with its cases in the order they were measured in.
    pub(crate) fn cases(&self) -> Vec<(Measure, &str)> {
        let mut cases = Vec::new();
        for figure in &self.0 {
            let case = (figure.measure, figure.case.as_str());
            if !cases.contains(&case) {
                cases.push(case);
            }
        }
        cases.sort_by_key(|(measure, _)| *measure);
        cases
    }
}

impl Figure {
    /// Median over the rounds of this figure divided by `other`.
    pub(crate) fn ratio(&self, other: &Self) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(own, other)| own / other))
    }
}
