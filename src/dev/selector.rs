//! Label and field selectors (`apimachinery/pkg/{labels,fields}`).

use serde_json::Value;

use super::failure::Failure;
use super::json::at;
use super::resources::Resource;
use super::target::Query;

/// Which objects of a collection are meant.
#[derive(Debug, Clone, Default)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl Selector {
    /// Reads `labelSelector` and `fieldSelector`.
    pub(super) fn parse(query: &Query, resource: &Resource) -> Result<Self, Failure> {
        let labels = requirements(query.value("labelSelector"))?;
        let fields = requirements(query.value("fieldSelector"))?;
        for field in &fields {
            let known = ["metadata.name", "metadata.namespace"].contains(&field.key.as_str());
            if !known && !resource.fields.contains(&field.key.as_str()) {
                return Err(Failure::bad_request(format!(
                    "field label not supported: {}",
                    field.key
                )));
            }
        }
        Ok(Self { labels, fields })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = self
            .labels
            .iter()
            .all(|wanted| wanted.accepts(at(object, "/metadata/labels").get(&wanted.key)));
        let fields = self.fields.iter().all(|wanted| {
            let path = format!("/{}", wanted.key.replace('.', "/"));
            wanted.accepts(Some(object.pointer(&path).unwrap_or(&Value::Null)))
        });
        labels && fields
    }
}

impl Requirement {
    fn accepts(&self, value: Option<&Value>) -> bool {
        let text = value.map(|value| value.as_str().unwrap_or_default());
        match &self.test {
            Test::In(values) => text.is_some_and(|text| values.iter().any(|value| value == text)),
            Test::NotIn(values) => !text.is_some_and(|text| values.iter().any(|value| value == text)),
            Test::Exists => text.is_some(),
            Test::Missing => text.is_none(),
        }
    }
}

/// Splits at the commas that are not inside `(…)`.
fn requirements(text: &str) -> Result<Vec<Requirement>, Failure> {
    let mut depth = 0_i32;
    let parts = text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    parts
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(requirement)
        .collect()
}

fn requirement(text: &str) -> Result<Requirement, Failure> {
    let one = |value: &str| vec![value.trim().to_owned()];
    let (key, test) = if let Some((key, value)) = text.split_once("!=") {
        (key, Test::NotIn(one(value)))
    } else if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (key, Test::In(one(value)))
    } else if let Some((rest, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let values = values.split(',').map(|value| value.trim().to_owned()).collect();
        match rest
            .trim()
            .split_once(char::is_whitespace)
            .map(|(key, operator)| (key, operator.trim()))
        {
            Some((key, "in")) => (key, Test::In(values)),
            Some((key, "notin")) => (key, Test::NotIn(values)),
            _ => return Err(unreadable(text)),
        }
    } else if let Some(key) = text.strip_prefix('!') {
        (key, Test::Missing)
    } else {
        (text, Test::Exists)
    };
    let key = key.trim();
    if key.is_empty() || key.contains(|c: char| c.is_whitespace() || "!(),<>".contains(c)) {
        return Err(unreadable(text));
    }
    Ok(Requirement {
        key: key.to_owned(),
        test,
    })
}

fn unreadable(text: &str) -> Failure {
    Failure::bad_request(format!("unable to parse requirement: {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dev::resources::find;
    use serde_json::json;

    const CASES: &[(&str, &str, Option<bool>)] = &[
        ("", "", Some(true)),
        ("app=web", "", Some(true)),
        ("app==web,tier!=back", "", Some(true)),
        ("app=db", "", Some(false)),
        ("none!=x", "", Some(true)),
        ("app in (db, web)", "", Some(true)),
        ("app notin (db,web),tier", "", Some(false)),
        ("tier,!none", "", Some(true)),
        ("!tier", "", Some(false)),
        ("none", "", Some(false)),
        ("app in db", "", None),
        ("app>1", "", None),
        ("", "metadata.name=a,metadata.namespace=n", Some(true)),
        ("", "metadata.name!=a", Some(false)),
        ("", "type=Opaque", Some(true)),
        ("", "data.x=1", None),
    ];

    #[test]
    fn selectors_choose_as_kubernetes_does() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "web", "tier": "front"}},
            "type": "Opaque",
        });
        let secrets = find("", "secrets").unwrap();
        for (labels, fields, want) in CASES {
            let query = format!("labelSelector={labels}&fieldSelector={fields}").replace("==", "%3D%3D");
            let got = Selector::parse(&Query::parse(Some(&query)), secrets)
                .ok()
                .map(|s| s.matches(&object));
            assert_eq!(got, *want, "{labels} {fields}");
        }
    }
}
