//! The dashboard and the alerts: each metric is one of the binary's, with its labels, and each alert has its page.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use libtest_mimic::Trial;
use portcullis::internal::metric_labels;
use regex::Regex;
use serde_json::Value;
use testkit::paths::workspace_root;

use crate::chart::documents;
use crate::{PROMTOOL, Test};

const ALERTS: &str = "deploy/monitoring/alerts.yaml";
const DASHBOARD: &str = "deploy/monitoring/dashboard.json";
const ALERTS_PAGE: &str = "docs/alerts.md";
const METRICS_PAGE: &str = "docs/metrics.md";
const OPERATIONS_PAGE: &str = "docs/operations.md";

pub(crate) fn trials(trial: &impl Fn(&str, Test) -> Trial) -> Vec<Trial> {
    vec![
        trial(
            "promtool_accepts_the_alerts",
            Box::new(|_| PROMTOOL.run(["check", "rules", "--lint=all", "--lint-fatal", ALERTS]).map(drop)),
        ),
        trial(
            "alerts_fire_when_they_should",
            Box::new(|_| PROMTOOL.run(["test", "rules", "deploy/monitoring/alerts_test.yaml"]).map(drop)),
        ),
        trial("metrics_of_the_alerts_exist", Box::new(|_| exist(&alert_expressions()?))),
        trial("metrics_of_the_dashboard_exist", Box::new(|_| exist(&dashboard_expressions()?))),
        trial("an_unknown_metric_or_label_is_found", Box::new(|_| unknown_is_found())),
        trial("metrics_of_the_page_exist", Box::new(|_| page_metrics())),
        trial("each_alert_has_its_page", Box::new(|_| pages())),
        trial("promtool_parses_the_dashboard", Box::new(|_| dashboard_parses())),
        trial("prometheus_parses_open_metrics", Box::new(|_| open_metrics())),
        trial("the_metric_of_the_autoscaler_exists", Box::new(|_| autoscaler())),
    ]
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(workspace_root().join(path)).map_err(|error| format!("{path}: {error}"))
}

/// The rules of the alerts.
fn alerts() -> Result<Vec<Value>, String> {
    let rules = documents(&read(ALERTS)?)?[0]["groups"][0]["rules"].as_array().cloned();
    rules.filter(|rules| rules.len() > 5).ok_or_else(|| "no alerts".to_owned())
}

fn alert_expressions() -> Result<Vec<String>, String> {
    Ok(alerts()?.iter().map(|rule| rule["expr"].as_str().unwrap().to_owned()).collect())
}

fn dashboard_expressions() -> Result<Vec<String>, String> {
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)?).map_err(|error| error.to_string())?;
    let panels = dashboard["panels"].as_array().ok_or("no panels")?;
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let found: Vec<String> = targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect();
    if found.len() > 20 { Ok(found) } else { Err(format!("{} expressions", found.len())) }
}

/// The metrics of an expression, each with the labels of its selector.
fn selectors(expression: &str) -> Vec<(String, Vec<String>)> {
    let metric = Regex::new(r"\b([a-z]+(?:_[a-z0-9]+)+|up)\b(?:\{([^}]*)\})?").unwrap();
    let label = Regex::new(r"([a-z_]+)\s*[=!]").unwrap();
    let grouping = Regex::new(r"\b(?:by|on|without|ignoring)\s*\([^)]*\)").unwrap();
    let bare = grouping.replace_all(expression, "");
    let functions = ["histogram_quantile", "max_over_time", "request_kind"];
    let found = metric.captures_iter(&bare);
    let found = found.filter(|found| !functions.contains(&found.get(1).unwrap().as_str()));
    found
        .map(|found| {
            let labels = found.get(2).map(|labels| label.captures_iter(labels.as_str()));
            let labels = labels.into_iter().flatten().map(|found| found[1].to_owned()).collect();
            (found[1].to_owned(), labels)
        })
        .collect()
}

/// What is wrong with the metrics and labels of an expression.
fn faults(expression: &str, known: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let of_target = ["job", "instance"].map(str::to_owned);
    let mut allowed: BTreeSet<String> = of_target.into();
    let mut faults = Vec::new();
    let found = selectors(expression);
    if found.is_empty() {
        faults.push(format!("no metric in {expression}"));
    }
    for (metric, labels) in found {
        if metric == "up" {
            continue;
        }
        // The series of a histogram have suffixes, and it has the label `le`.
        let of_histogram =
            ["_bucket", "_count", "_sum"].iter().find_map(|suffix| metric.strip_suffix(suffix));
        let is_histogram =
            |name: &str| known.get(name).is_some_and(|labels| labels.iter().any(|label| label == "le"));
        let name = of_histogram.filter(|name| is_histogram(name)).unwrap_or(&metric);
        let Some(own) = known.get(name).filter(|_| name != metric || !is_histogram(name)) else {
            faults.push(format!("unknown metric {metric} in {expression}"));
            continue;
        };
        allowed.extend(own.iter().cloned());
        faults.extend(
            labels
                .iter()
                .filter(|label| !own.contains(label) && *label != "job")
                .map(|label| format!("{metric} has no label {label}: {expression}")),
        );
    }
    let grouping = Regex::new(r"\b(?:by|on)\s*\(([^)]*)\)").unwrap();
    for labels in grouping.captures_iter(expression) {
        for label in labels[1].split(',').map(str::trim).filter(|label| !allowed.contains(*label)) {
            faults.push(format!("no metric has the label {label}: {expression}"));
        }
    }
    faults
}

fn exist(expressions: &[String]) -> Result<(), String> {
    let known = metric_labels();
    let faults: Vec<String> = expressions.iter().flat_map(|expression| faults(expression, &known)).collect();
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn unknown_is_found() -> Result<(), String> {
    for expression in [
        "portcullis_endpoints_trusted == 0",
        "portcullis_endpoint_trusted{name=\"a\"} == 0",
        "sum by (resource) (portcullis_endpoint_trusted)",
        "rate(apiserver_request_total_bucket[5m])",
        "rate(apiserver_request_duration_seconds[5m])",
        "1",
    ] {
        if exist(&[expression.to_owned()]).is_ok() {
            return Err(format!("{expression} passes"));
        }
    }
    exist(&["sum by (verb, le) (rate(apiserver_request_duration_seconds_bucket{job=\"a\"}[5m]))".to_owned()])
}

/// The metrics of the table of the page, where they are spelled out.
fn page_metrics() -> Result<(), String> {
    let (page, known) = (read(METRICS_PAGE)?, metric_labels());
    let name = Regex::new(
        r"`((?:apiserver|portcullis|authentication|authenticated|workqueue|leader|serviceaccount)_[a-z_]+)`",
    )
    .unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let unknown: BTreeSet<&str> = rows
        .flat_map(|row| name.captures_iter(row.split('|').nth(1).unwrap_or_default()))
        .map(|found| found.get(1).unwrap().as_str())
        .filter(|name| !known.contains_key(*name))
        .collect();
    if unknown.is_empty() {
        Ok(())
    } else {
        Err(format!("{METRICS_PAGE} names unknown metrics: {unknown:?}"))
    }
}

/// Each alert names its section, which has all parts; each section is of an alert; five have the severity `page`.
fn pages() -> Result<(), String> {
    let (page, alerts) = (read(ALERTS_PAGE)?, alerts()?);
    let mut wrong = Vec::new();
    let sections: BTreeMap<&str, &str> = page
        .split("\n## ")
        .filter_map(|section| section.split_once('\n'))
        .filter(|(title, _)| title.starts_with("Portcullis"))
        .collect();
    let mut names = BTreeSet::new();
    for alert in &alerts {
        let name = alert["alert"].as_str().unwrap();
        names.insert(name);
        let link = format!("{ALERTS_PAGE}#{}", name.to_lowercase());
        if alert["annotations"]["runbook_url"] != link.as_str() {
            wrong.push(format!("{name}: the runbook_url is not {link}"));
        }
        let body = sections.get(name).copied().unwrap_or_default();
        for part in ["**Meaning.**", "**Causes.**", "**Look at.**", "**Do.**"] {
            if !body.contains(part) {
                wrong.push(format!("{name}: its section has no {part}"));
            }
        }
    }
    wrong.extend(
        sections.keys().filter(|name| !names.contains(**name)).map(|name| format!("no alert {name}")),
    );
    let first: BTreeSet<&str> = alerts
        .iter()
        .filter(|alert| alert["labels"]["severity"] == "page")
        .map(|alert| alert["alert"].as_str().unwrap())
        .collect();
    let operations = read(OPERATIONS_PAGE)?;
    let beginning = operations.split("\n## ").nth(1).unwrap_or_default();
    if first.len() != 5 || !first.iter().all(|name| beginning.contains(&format!("[{name}]"))) {
        wrong.push(format!("the first section of {OPERATIONS_PAGE} does not list {first:?}"));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// Grafana's variables are replaced, and the expressions are then rules.
fn dashboard_parses() -> Result<(), String> {
    let rules: Vec<Value> = dashboard_expressions()?
        .into_iter()
        .enumerate()
        .map(|(index, expression)| {
            let expression = expression.replace("$__rate_interval", "5m").replace("$job", ".+");
            serde_json::json!({"record": format!("panel:{index}"), "expr": expression})
        })
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("panels.json");
    let groups = serde_json::json!({"groups": [{"name": "panels", "rules": rules}]});
    fs::write(&file, groups.to_string()).unwrap();
    PROMTOOL.run(["check", "rules", &file.display().to_string()]).map(drop)
}

/// Prometheus' own parser reads the exposition with exemplars. promtool has it for imports alone, whose samples have times.
fn open_metrics() -> Result<(), String> {
    let sample = Regex::new(r"(?m)^([^#\n]\S* \S+)").unwrap();
    let text = portcullis::internal::open_metrics();
    if !text.contains(" # {trace_id=") {
        return Err(format!("no exemplar in {text}"));
    }
    let dir = tempfile::tempdir().unwrap();
    let import = |text: &str| {
        let (file, out) = (dir.path().join("metrics.txt"), dir.path().join("blocks"));
        fs::write(&file, sample.replace_all(text, "$1 1700000000").as_bytes()).unwrap();
        let arguments = [file, out].map(|path| path.display().to_string());
        let arguments =
            ["tsdb", "create-blocks-from", "openmetrics"].map(str::to_owned).into_iter().chain(arguments);
        PROMTOOL.run(arguments.collect::<Vec<_>>()).map(drop)
    };
    // It finds faults.
    for (from, to) in [("# EOF", ""), (" # {trace_id=", " # {trace_id"), ("} 1.0", "} one")] {
        if import(&text.replace(from, to)).is_ok() {
            return Err(format!("without {from:?} it passes"));
        }
    }
    import(&text)
}

fn autoscaler() -> Result<(), String> {
    let template = read("deploy/chart/portcullis/templates/horizontalpodautoscaler.yaml")?;
    let name = Regex::new(r"metric: \{name: ([a-z_]+)\}").unwrap();
    let name = name.captures(&template).ok_or("no metric")?[1].to_owned();
    if metric_labels().contains_key(&name) { Ok(()) } else { Err(format!("unknown metric {name}")) }
}
