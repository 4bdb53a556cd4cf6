//! Errors of expressions about an object of a declared type. The comparison with the reference is in `crates/admission/tests`.

use std::sync::Arc;

use super::*;
use crate::{Environment, ObjectFields, ResultType};

/// An object with a field of its own type.
#[derive(Debug)]
struct Sample;

impl ObjectFields for Sample {
    fn field(&self, name: &str) -> Option<Declared> {
        let strings = || Box::new(Declared::String);
        Some(match name {
            "again" => Declared::Object(Arc::new(Self)),
            "replicas" => Declared::Int,
            "namespace" | "a-b" => Declared::String,
            "names" => Declared::List(strings()),
            "labels" => Declared::Map(strings()),
            "parts" => Declared::List(Box::new(Declared::Map(Box::new(Declared::Object(Arc::new(Self)))))),
            "any" => Declared::Anything,
            "since" => Declared::Timestamp,
            _ => return None,
        })
    }

    fn names(&self) -> Vec<String> {
        ["again", "namespace", "a-b"].map(str::to_owned).to_vec()
    }
}

fn errors(text: &str) -> String {
    let expression = Expression::compile(text, Environment::ADMISSION, ResultType::Any).unwrap();
    let check = TypeCheck::new("Sample", &Declared::Object(Arc::new(Sample)));
    let heads = |error: CompileError| {
        let text = error.to_string();
        let heads: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("ERROR: <input>:")).collect();
        heads.join("; ")
    };
    check.check(&expression).map_or_else(heads, |()| String::new())
}

#[test]
fn an_expression_is_checked_by_the_type_of_the_object() {
    for (text, expected) in [
        ("object.replicas > 1 && oldObject.again.again.replicas < object.again.replicas", ""),
        ("object.replica > 1", "1:7: undefined field 'replica'"),
        (
            "has(object.replica) || oldObject.again.x",
            "1:4: undefined field 'replica'; 1:39: undefined field 'x'",
        ),
        ("object.replicas == 'a'", "1:17: found no matching overload for '_==_' applied to '(int, string)'"),
        ("object.namespace + object.__namespace__ + object.a__dash__b", ""),
        ("object.`a-b`", "1:7: undefined field 'a-b'"),
        ("object.names.all(n, n.x)", "1:22: type 'string' does not support field selection"),
        ("object.labels.a.b", "1:16: type 'string' does not support field selection"),
        (
            "object.parts[0].p + 1",
            "1:19: found no matching overload for '_+_' applied to '(Sample.parts.@idx.@elem, int)'",
        ),
        ("object.any.a.b.c > 1 && object.any == 'a'", ""),
        ("object.since > timestamp('2026-01-01T00:00:00Z')", ""),
        (
            "object.all(k, true)",
            "1:1: expression of type 'Sample' cannot be range of a comprehension (must be list, map, or dynamic)",
        ),
        ("object == null || oldObject == object", ""),
        (
            "object.?again.?replicas.orValue('a') == 1",
            "1:32: found no matching overload for 'orValue' applied to 'optional_type(int).(string)'",
        ),
        ("[object.again].exists(a, a.b == a.c)", "1:27: undefined field 'b'; 1:34: undefined field 'c'"),
    ] {
        assert_eq!(errors(text), expected, "{text}");
    }
}

#[test]
fn an_error_names_the_fields_of_the_type() {
    let expression = Expression::compile("object.x", Environment::ADMISSION, ResultType::Any).unwrap();
    let check = TypeCheck::new("Sample", &Declared::Object(Arc::new(Sample)));
    let error = check.check(&expression).unwrap_err();
    assert_eq!(error.to_string(), "ERROR: <input>:1:7: undefined field 'x'\n | object.x\n | ......^");
    assert_eq!(error.fix(), Some("the fields of Sample are: again, namespace, a__dash__b"));
}

#[test]
fn variables_have_types_but_not_fields() {
    let environment = Environment::ADMISSION.composed();
    let mut variables = Variables::default();
    for (name, text) in [
        ("count", "object.replicas"),
        ("wrong", "object.wrong"),
        ("again", "object.again"),
        ("sum", "variables.count + 1"),
    ] {
        variables.add(name, text, environment).unwrap();
    }
    let mut check = TypeCheck::new("Sample", &Declared::Object(Arc::new(Sample)));
    let found = check.declare(&variables);
    assert_eq!(found.iter().map(|found| found.index).collect::<Vec<_>>(), [1]);
    for (text, fits) in [
        ("variables.sum == 2", true),
        ("variables.count == 'a'", false),
        ("variables.wrong.x == variables.again.y", true),
    ] {
        let expression = variables.compile(text, environment, ResultType::Any).unwrap();
        assert_eq!(check.check(&expression).is_ok(), fits, "{text}");
    }
}
