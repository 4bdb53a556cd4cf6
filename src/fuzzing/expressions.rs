//! Expressions of CEL: whatever the expression and the values are, the evaluation ends within the cost limit, and the same
//! again gives the same.

use std::sync::LazyLock;

use portcullis_cel::{
    AccessDecision, Bindings, Environment, Evaluated, Expression, Outcome, ResourceTarget, ResultType, Value,
};
use serde_json::{Value as Json, json};

const COST_LIMIT: u64 = 1_000_000;

/// The input is an expression, which is evaluated with a fixed object.
pub fn cel_expression(data: &[u8]) {
    static OBJECT: LazyLock<Json> = LazyLock::new(|| {
        json!({
            "metadata": {"name": "web", "labels": {"app": "web", "a.b/c": "d"}},
            "spec": {"replicas": 3, "paused": false, "ratio": 0.5, "none": null, "list": [3, 1, 2, 1],
                "names": ["b", "a", "é"], "mixed": [1, "a", null, [1], {"a": 1}], "empty": [], "map": {"1": 1}},
            "text": "a-b-c", "time": "2026-01-02T03:04:05Z", "address": "10.1.2.3", "pattern": "(a|b)+"
        })
    });
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(expression) = compile(text) else { return };
    let found = evaluated(&expression, &OBJECT);
    // Brackets have no cost; a comment may end the text.
    match compile(&format!("({text}\n)")) {
        Ok(bracketed) => assert_eq!(evaluated(&bracketed, &OBJECT), found),
        Err(problem) => assert!(problem.contains("limit"), "{problem}"),
    }
}

/// The input is the JSON of an object, with which fixed expressions are evaluated.
pub fn cel_values(data: &[u8]) {
    static EXPRESSIONS: LazyLock<Vec<Expression>> =
        LazyLock::new(|| EXPRESSION_TEXTS.iter().flat_map(|text| compile(text)).collect());
    static EQUALITIES: LazyLock<Vec<Expression>> =
        LazyLock::new(|| EQUALITY_TEXTS.iter().flat_map(|text| compile(text)).collect());
    assert_eq!(EXPRESSIONS.len() + EQUALITIES.len(), EXPRESSION_TEXTS.len() + EQUALITY_TEXTS.len());
    let Ok(object) = serde_json::from_slice::<Json>(data) else { return };
    for expression in EXPRESSIONS.iter() {
        evaluated(expression, &object);
    }
    for expression in EQUALITIES.iter() {
        let found = evaluated(expression, &object);
        let beyond =
            matches!(&found.outcome, Outcome::Error(error) if error.to_string().contains("cost limit"));
        assert!(beyond || found.outcome == Outcome::Value(Value::Bool(true)), "{expression:?}: {found:?}");
    }
}

fn compile(text: &str) -> Result<Expression, String> {
    Expression::compile(text, Environment::ADMISSION, ResultType::Any).map_err(|error| error.to_string())
}

/// Evaluates an expression until it asks nothing, twice.
fn evaluated(expression: &Expression, object: &Json) -> Evaluated {
    let bindings = Bindings::default().with("object", object).with_authorizer(ResourceTarget::default());
    let mut decisions = Vec::new();
    loop {
        let found = expression.evaluate_with(&bindings, &decisions);
        assert_eq!(expression.evaluate_with(&bindings, &decisions), found, "the same again");
        let Outcome::Review(review) = &found.outcome else {
            assert!(found.cost <= COST_LIMIT || matches!(found.outcome, Outcome::Error(_)), "{found:?}");
            return found;
        };
        assert!(found.cost <= COST_LIMIT, "{found:?}");
        assert!(decisions.len() < 2, "the limit is two checks: {review:?}");
        let decision = AccessDecision { allowed: true, reason: "because".to_owned(), error: None };
        decisions.push((review.as_ref().clone(), decision));
    }
}

/// Expressions that are true for every object, or too costly.
const EQUALITY_TEXTS: [&str; 8] = [
    "object == object",
    "!(object != object)",
    "object in [object]",
    "[object, object].distinct().size() == 1",
    "sets.contains([object], [object])",
    "[object].indexOf(object) == 0",
    "optional.of(object) == optional.of(object)",
    "{'a': object} == {'a': object}",
];

const EXPRESSION_TEXTS: [&str; 76] = [
    "object",
    "type(object)",
    "object.a",
    "object.?a.?b.orValue(1)",
    "object[object]",
    "object[0]",
    "object[?'a']",
    "has(object.a) && object.a",
    "object ? 1 : 2",
    "!object",
    "-object",
    "object + object",
    "object - object",
    "object * object",
    "object / object",
    "object % object",
    "object < object",
    "object >= 1",
    "object < 'a'",
    "object in object",
    "'a' in object",
    "1 in object",
    "1.5 in object",
    "size(object)",
    "string(object)",
    "int(object)",
    "uint(object)",
    "double(object)",
    "bool(object)",
    "bytes(object)",
    "object.all(x, x == x)",
    "object.exists(x, x == 1 || object[x] == 1)",
    "object.exists_one(x, x)",
    "object.map(x, [x, object])",
    "object.filter(x, x in object)",
    "object.all(k, v, k == k && v == v)",
    "object.transformList(k, v, [k, v])",
    "object.transformMap(k, v, {k: v})",
    "object.transformMapEntry(k, v, {v: k})",
    "object.sortBy(x, x)",
    "object.sort()",
    "object.distinct()",
    "object.reverse()",
    "object.flatten(100)",
    "object.slice(1, 2)",
    "object.first().value() == object.last().value()",
    "object.max() == object.min()",
    "object.sum()",
    "object.isSorted()",
    "object.join('-')",
    "object.indexOf('a')",
    "object.lastIndexOf(1)",
    "sets.equivalent(object, object)",
    "sets.intersects(object, [1])",
    "object.matches(object)",
    "object.find(object)",
    "object.findAll('.', 3)",
    "object.replace(object, 'a')",
    "object.split('')",
    "object.substring(1, 2)",
    "object.charAt(0)",
    "object.lowerAscii() + object.upperAscii() + object.trim()",
    "strings.quote(object)",
    "object.contains(object) && object.startsWith(object) && object.endsWith(object)",
    "isIP(object) && ip(object) == ip(object)",
    "isCIDR(object) && cidr(object).containsCIDR(object)",
    "isURL(object) && url(object).getQuery().size() >= 0",
    "quantity(object).add(quantity(object)).isGreaterThan(quantity(object))",
    "semver(object, true).compareTo(semver(object, true))",
    "format.dns1123Label().validate(object)",
    "format.uri().validate(object)",
    "timestamp(object).getHours(object)",
    "duration(object) < duration('1h')",
    "'%s %d %.3f %x %b %e'.format([object, object, object, object, object, object])",
    "authorizer.group('').resource('pods').labelSelector(object).name(object).check(object).reason()",
    "authorizer.serviceAccount(object, object).path(object).check('get').allowed()",
];
