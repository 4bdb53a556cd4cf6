//! What was measured, and what is made of it.

use serde::Serialize;

use crate::cost::median;
use crate::progress;

/// What a figure is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Measure {
    /// Requests per second of the proxy's processor time.
    Requests,
    /// The same by how the sender is known.
    Senders,
    /// TLS handshakes with a client certificate and one request each, per second of processor time.
    Handshakes,
    /// Time that a request takes longer than without a proxy, in microseconds: half of them take no more.
    AddedMedian,
    /// The same for 99 in 100.
    AddedTail,
    /// Memory of an idle watch, in KiB.
    Watches,
}

impl Measure {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Requests => "requests per CPU-second",
            Self::Senders => "requests per CPU-second by how the sender is known",
            Self::Handshakes => "full handshakes with a client certificate, one request each, per CPU-second",
            Self::AddedMedian => "added time at 500 requests per second, median, µs",
            Self::AddedTail => "added time at 500 requests per second, 99th percentile, µs",
            Self::Watches => "memory per idle watch (PSS), KiB",
        }
    }

    pub(crate) fn less_is_better(self) -> bool {
        matches!(self, Self::AddedMedian | Self::AddedTail | Self::Watches)
    }
}

/// One value of each round, which belong together over all figures of the same measure and case.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) measure: Measure,
    /// Under which load, e.g. `HTTP/2, 1 KiB`.
    pub(crate) case: String,
    /// Which proxy, or which kind of sender.
    pub(crate) of: String,
    pub(crate) median: f64,
    pub(crate) rounds: Vec<f64>,
}

#[derive(Default)]
pub(crate) struct Figures(pub Vec<Figure>);

impl Figures {
    /// Adds a value of the round.
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
    /// How many times the other it is, in the median of rounds.
    pub(crate) fn ratio(&self, other: &Self) -> f64 {
        median(self.rounds.iter().zip(&other.rounds).map(|(own, other)| own / other))
    }
}
