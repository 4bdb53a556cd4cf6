//! What the comparison with kube-apiserver's own code needs, and nothing else does.

use portcullis_go::{hex, regexp};
use serde_json::{Value as Json, json};

use super::access::{AccessDecision, AccessReview};
use super::bindings::Bindings;
use super::composition::VariableValues;
use super::environment::Environment;
use super::evaluation::Extent;
use super::expression::{Expression, Outcome};
use super::float;
use super::libraries::time;
use super::value::{Datum, GoForm};

/// The overloads of a function in the reference's format.
pub fn overloads(environment: Environment, function: &str) -> Option<Vec<String>> {
    let function = environment.functions().find(function)?;
    Some(function.overloads.iter().map(ToString::to_string).collect())
}

/// The begin of the error of a value that is none of a patch.
pub const MISFIT: &str = "misfit: ";

/// Evaluates an expression to a description of its value, whatever the type, or to the patch of a mutation. `authorize` is the
/// authorizer.
pub fn evaluate(
    expression: &Expression,
    bindings: &Bindings,
    authorize: impl Fn(&AccessReview) -> AccessDecision,
) -> (Result<Json, String>, u64) {
    let mut decisions = Vec::new();
    loop {
        let evaluated = expression.evaluate_with(bindings, &decisions);
        let cost = evaluated.cost;
        match evaluated.outcome {
            Outcome::Review(review) => {
                let decision = authorize(&review);
                decisions.push((*review, decision));
            }
            Outcome::Variable(name) => return (Err(format!("no value of variable {name}")), cost),
            Outcome::Error(error) => return (Err(error.to_string()), cost),
            Outcome::Unsupported(error) => return (Err(error), cost),
            Outcome::Patch(Ok(value)) => return (Ok(value), cost),
            Outcome::Patch(Err(error)) => return (Err(format!("{MISFIT}{error}")), cost),
            Outcome::Value(_) => {
                let (value, _) = expression.run(
                    bindings,
                    (&decisions, &VariableValues::default()),
                    Extent::Whole,
                    |value| Ok(describe(value)),
                );
                return (value.map_err(|halt| format!("{halt:?}")), cost);
            }
        }
    }
}

/// A value; those of libraries as their type and text.
fn describe(value: &Datum) -> Json {
    let list = |items: &[Datum]| Json::Array(items.iter().map(describe).collect());
    let text = |text: String| json!({ value.type_name(): text });
    match value {
        Datum::Null => json!({"null": true}),
        Datum::Bool(value) => json!({ "bool": value }),
        Datum::String(text) => json!({ "string": &**text }),
        Datum::Int(number) => text(number.to_string()),
        Datum::Uint(number) => text(number.to_string()),
        Datum::Double(number) if number.is_nan() => text("NaN".to_owned()),
        Datum::Double(number) => text(format!("{:x}", number.to_bits())),
        Datum::Bytes(bytes) => text(hex::hex(bytes)),
        Datum::List(items) if items.form == GoForm::Texts => json!({ "opaque": list(&items.items) }),
        Datum::List(items) => json!({ "list": list(&items.items) }),
        Datum::Map(map) => {
            let entries =
                map.entries.iter().map(|(key, value)| json!([describe(&key.datum()), describe(value)]));
            json!({ "map": entries.collect::<Vec<_>>() })
        }
        Datum::Optional(held) => json!({ "optional": held.as_deref().map(describe) }),
        Datum::Type(name) => json!({ "type": &**name }),
        Datum::Root(_) | Datum::Message(_) | Datum::Failed(_) => json!({ "other": value.type_name() }),
        Datum::Duration(duration) => text(duration.0.to_string()),
        Datum::Timestamp(timestamp) => text(timestamp.in_utc()),
        Datum::Native(native) => match native.shown() {
            Some(shown) => text(shown),
            None => json!({ "other": native.type_name() }),
        },
    }
}

/// All matches of a pattern in texts, to compare with Go's `regexp`.
pub fn pattern_matches(pattern: &str, texts: &[String]) -> Result<Vec<Vec<String>>, String> {
    regexp::find_all(pattern, texts)
}

/// The characters that a pattern for one character matches, as ranges; `None` for other patterns.
pub fn pattern_characters(pattern: &str) -> Result<Option<Vec<(char, char)>>, String> {
    regexp::characters(pattern)
}

/// The names of the bundled time zones.
pub fn time_zones() -> Vec<String> {
    time::zone_names()
}

/// Parses a double, to compare with Go's `ParseFloat`.
pub fn read_double(text: &str) -> Option<f64> {
    float::parse(text)
}
