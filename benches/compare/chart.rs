//! A bar chart of the figures as SVG, with a background for light and dark colour schemes.

use std::fmt::Write as _;

use crate::aims::faster_haproxy;
use crate::figures::{Figure, Figures, Measure};
use crate::handshakes;
use crate::proxies::ProxyKind;
use crate::report::{Machine, number};

const WIDTH: usize = 840;
const MARGIN: usize = 16;
const COLUMNS: usize = 2;
const PANEL: usize = WIDTH / COLUMNS;
const GUTTER: usize = 20;
const HEADING: usize = 30;
const TITLE: usize = 22;
const BAR: usize = 16;
const STEP: usize = 22;
const GAP: usize = 14;
/// Widths of the names left of the bars and of the values right of them.
const NAMES: usize = 84;
const VALUES: usize = 66;

const STYLE: &str = "\
text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}\
.heading{font-size:15px;font-weight:600}\
.note{font-size:12px;font-weight:400;fill:#656d76}\
.ground{fill:#fff}\
.other{fill:#9aa4af}\
.own{fill:#2f81f7}\
.strong{font-weight:600}\
@media(prefers-color-scheme:dark){.ground{fill:#0d1117}text{fill:#e6edf3}.note{fill:#8d96a0}.other{fill:#6e7681}.own{fill:#4493f8}}";

/// Measures of the chart, and their headings.
const SHOWN: [(Measure, &str); 4] = [
    (Measure::Requests, "Requests per CPU-second"),
    (Measure::Handshakes, "Full TLS 1.3 handshakes with a client certificate per CPU-second"),
    (Measure::AddedMedian, "Added time at 500 requests per second, median, µs"),
    (Measure::Watches, "Memory per idle watch, KiB"),
];

pub(crate) fn svg(machine: &Machine, figures: &Figures) -> String {
    let (mut body, mut y) = (String::new(), 0);
    for (measure, heading) in SHOWN {
        let cases: Vec<&str> = figures
            .cases()
            .into_iter()
            .filter(|(of, case)| {
                *of == measure && (measure != Measure::Handshakes || *case == handshakes::CASE)
            })
            .map(|(_, case)| case)
            .collect();
        if cases.is_empty() {
            continue;
        }
        let better = if measure.less_is_better() { "less is better" } else { "more is better" };
        y += HEADING;
        writeln!(
            body,
            "<text x='0' y='{}' class='heading'>{heading} <tspan class='note'>{better}</tspan></text>",
            y - 10
        )
        .unwrap();
        for row in cases.chunks(COLUMNS) {
            let mut most = 0;
            for (column, case) in row.iter().enumerate() {
                let bars = bars(figures, measure, case);
                most = most.max(bars.len());
                panel(&mut body, column * PANEL, y, case, &bars);
            }
            y += TITLE + most * STEP + GAP;
        }
    }
    let programs = machine.programs.join(", ");
    let notes = [
        format!("{programs}; {}.", machine.threads_each()),
        "HAProxy: the faster of HTTP/1.1 and HTTP/2 to the backend.".to_owned(),
    ];
    for note in notes {
        y += STEP;
        writeln!(body, "<text x='0' y='{}' class='note'>{note}</text>", y - 8).unwrap();
    }
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='-{MARGIN} -{MARGIN} {width} {height}' width='{width}' \
         height='{height}' role='img' aria-label='Portcullis, HAProxy and nginx under the same load'>\n\
         <style>{STYLE}</style>\n\
         <rect x='-{MARGIN}' y='-{MARGIN}' width='{width}' height='{height}' rx='8' class='ground'/>\n{body}</svg>\n",
        width = WIDTH + 2 * MARGIN,
        height = y + 2 * MARGIN,
    )
}

/// The bars of a case: the gateway, the faster HAProxy configuration, nginx.
fn bars<'a>(figures: &'a Figures, measure: Measure, case: &'a str) -> Vec<(&'static str, &'a Figure)> {
    let of = |kind: ProxyKind| figures.find(measure, case, kind.name());
    let all = [
        ("Portcullis", of(ProxyKind::Gateway)),
        ("HAProxy", faster_haproxy(figures, measure, case)),
        ("nginx", of(ProxyKind::Nginx)),
    ];
    all.into_iter().filter_map(|(name, figure)| Some((name, figure?))).collect()
}

fn panel(body: &mut String, x: usize, y: usize, case: &str, bars: &[(&str, &Figure)]) {
    writeln!(body, "<text x='{x}' y='{}' class='note'>{case}</text>", y + 14).unwrap();
    let longest = bars.iter().map(|(_, figure)| figure.median).fold(f64::MIN_POSITIVE, f64::max);
    let room = f64::from(u32::try_from(PANEL - GUTTER - NAMES - VALUES).unwrap());
    for (index, (name, figure)) in bars.iter().enumerate() {
        let class = if index == 0 { ("own", " class='strong'") } else { ("other", "") };
        let (top, left) = (y + TITLE + index * STEP, x + NAMES);
        let (text, length) = (top + 13, (figure.median / longest * room).max(1.0));
        let end = f64::from(u32::try_from(left).unwrap()) + length + 6.0;
        writeln!(
            body,
            "<text x='{x}' y='{text}'{1}>{name}</text>\
             <rect x='{left}' y='{top}' width='{length:.1}' height='{BAR}' rx='3' class='{0}'/>\
             <text x='{end:.1}' y='{text}'{1}>{value}</text>",
            class.0,
            class.1,
            value = number(figure.median),
        )
        .unwrap();
    }
}
