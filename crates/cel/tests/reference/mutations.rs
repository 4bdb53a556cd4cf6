//! Mutations of policies: the objects and operations that their expressions make, and the patches that these give.

use portcullis_cel::conformance::MISFIT;
use serde_json::{Number, Value, json};
use testkit::random::Rng;

use super::{Case, Purpose};

/// The variables of all cases.
fn variables() -> Value {
    json!({
        "object": {
            "l": [1, {"a": [null]}],
            "m": {"x": 1, "n": null, "d": {"y": [1.5]}},
            "n": null,
            "s": "t",
            "metadata": {"labels": {"a": "b", "c.d/e": "f~g"}},
            "spec": {"replicas": 3, "big": 9_007_199_254_740_993_i64, "share": 0.5, "containers": [
                {"name": "a", "image": "x", "args": ["-v", "2"]}, {"name": "b", "image": "y"}]},
        },
        "oldObject": null,
        "namespaceObject": null,
        "params": {"p": 1, "limits": {"cpu": "1"}, "names": ["a", "b"]},
        "request": {"operation": "CREATE", "userInfo": {"username": "u"}},
    })
}

fn case(purpose: Purpose, text: &str) -> Case {
    let (claims, user) = (json!({}), json!({}));
    Case { purpose, text: text.to_owned(), claims, user, variables: variables() }
}

pub(super) fn all() -> impl Iterator<Item = Case> {
    let of = |purpose, texts: &'static [&'static str]| texts.iter().map(move |text| case(purpose, text));
    of(Purpose::Mutation, VALUES)
        .chain(of(Purpose::ApplyConfiguration, MERGED))
        .chain(of(Purpose::JsonPatch, OPERATIONS))
}

/// Comparisons of objects that are refused.
pub(super) fn incomparable() -> impl Iterator<Item = Case> {
    INCOMPARABLE.iter().map(|text| case(Purpose::Mutation, text))
}

/// The object that is merged, as kube-apiserver completes it.
pub(super) fn merged(purpose: Purpose, value: Value) -> Value {
    let mut value = value;
    if let (Purpose::ApplyConfiguration, Some(fields)) = (purpose, value.as_object_mut()) {
        fields.insert("apiVersion".to_owned(), json!("group/v1"));
        fields.insert("kind".to_owned(), json!("Kind"));
    }
    numbers(value)
}

/// A value whose whole numbers have no fraction, as Go writes them.
pub(super) fn numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
            Some(double) => {
                let text = format!("{double:.0}");
                let whole =
                    text.parse::<i64>().map(Number::from).or_else(|_| text.parse::<u64>().map(Number::from));
                let whole = whole.ok().filter(|whole| whole.as_f64() == Some(double));
                Value::Number(whole.unwrap_or(number))
            }
            None => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(numbers).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, numbers(value))).collect(),
        other => other,
    }
}

/// Whether both implementations have no patch for the same reason, as far as it is known: the reference takes the first of several
/// that it meets, in no order. What it merges or applies although no schema and no JSON accepts it has an error of ours.
pub(super) fn are_misfits(ours: &str, theirs: &str) -> bool {
    let (Some(ours), Some(theirs)) = (ours.strip_prefix(MISFIT), theirs.strip_prefix(MISFIT)) else {
        return false;
    };
    if theirs.starts_with("foreign: ") {
        return ours.starts_with("error applying patch: ") || ours.starts_with("JSON Patch: ");
    }
    let sorted = |text: &str| {
        let plain = text.replace('\u{a0}', " ").replace("type mismatch: ", "");
        let mut lines: Vec<String> = plain.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    if sorted(ours) == sorted(theirs) {
        return true;
    }
    let head = "JSONPath valueExpression evaluated to a type that could not marshal to JSON: ";
    ours.starts_with(head) && theirs.starts_with(head)
}

/// Random mutations. A quarter of them are objects in places of other types.
pub(super) fn random(seed: u64, count: usize) -> impl Iterator<Item = Case> {
    let mut rng = Rng(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1);
    (0..count).map(move |number| {
        let spoilt = number % 4 == 3;
        let mut writer = Writer { rng: &mut rng, spoilt };
        match number % 5 {
            0 | 1 => case(Purpose::ApplyConfiguration, &writer.object("Object", 3)),
            2 | 3 => {
                let operations = writer.operations();
                case(Purpose::JsonPatch, &operations)
            }
            _ => {
                let text = writer.seen();
                case(Purpose::Mutation, &text)
            }
        }
    })
}

struct Writer<'a> {
    rng: &'a mut Rng,
    spoilt: bool,
}

const FIELDS: [&str; 8] = ["spec", "metadata", "a", "b", "labels", "containers", "`x-y`", "namespace"];

impl Writer<'_> {
    /// An object of this type; now and then of another, or one that a condition or a macro makes.
    fn object(&mut self, path: &str, depth: usize) -> String {
        let path = if self.spoilt && self.rng.one_in(5) { format!("{path}.other") } else { path.to_owned() };
        let fields: Vec<String> = (0..self.rng.below(4))
            .map(|_| {
                let field = *self.rng.pick(&FIELDS);
                let path = format!("{path}.{}", field.trim_matches('`'));
                if self.rng.one_in(8) {
                    let value = self.optional(&path, depth);
                    return format!("?{field}: {value}");
                }
                format!("{field}: {}", self.value(&path, depth.saturating_sub(1)))
            })
            .collect();
        let path = path.replace("x-y", "a");
        let object = format!("{path}{{{}}}", fields.join(", "));
        match self.rng.below(12) {
            0 => format!("(has(object.s) ? {object} : {path}{{}})"),
            1 => format!("[{object}][0]"),
            2 => format!("optional.of({object}).orValue({path}{{}})"),
            3 => format!("object.l.map(x, {object})[0]"),
            _ => object,
        }
    }

    fn optional(&mut self, path: &str, depth: usize) -> String {
        match self.rng.below(5) {
            0 => "object.?s".to_owned(),
            1 => "object.?nope".to_owned(),
            2 => "object.metadata.?labels.?a".to_owned(),
            3 => "optional.none()".to_owned(),
            _ => format!("optional.of({})", self.value(path, depth.saturating_sub(1))),
        }
    }

    fn value(&mut self, path: &str, depth: usize) -> String {
        if depth == 0 || self.rng.one_in(3) {
            return (*self.rng.pick(SCALARS)).to_owned();
        }
        let depth = depth - 1;
        match self.rng.below(14) {
            0..=4 => self.object(path, depth),
            5 => format!("[{}]", self.object(path, depth)),
            6 => format!("[{0}, {0}]", self.object(path, depth)),
            7 => format!("[{}] + [{}]", self.object(path, depth), self.object(path, depth)),
            8 => format!("{{'k': {}}}", self.value(path, depth)),
            9 => format!("{{'k': {}, 'l': dyn({})}}", self.value(path, depth), self.value(path, depth)),
            10 => format!("[{}]", self.value(path, depth)),
            11 => format!("dyn({})", self.value(path, depth)),
            12 => format!("object.l.map(x, {})", self.value(path, depth)),
            _ => format!("(object.s == 't' ? dyn({}) : dyn(1))", self.value(path, depth)),
        }
    }

    fn operation(&mut self) -> String {
        let mut parts = vec![format!(
            "op: {}",
            self.rng.pick(&["'add'", "'remove'", "'test'", "object.s", "dyn('copy')", "'a' + 'b'"])
        )];
        parts.push(format!("path: {}", self.rng.pick(PATHS)));
        if self.rng.one_in(4) {
            parts.push(format!("from: {}", self.rng.pick(PATHS)));
        }
        if !self.rng.one_in(5) {
            let path = if self.rng.one_in(2) { "Object" } else { "Object.spec" };
            let value = self.value(path, 3);
            parts.push(format!("value: {value}"));
        }
        if self.spoilt && self.rng.one_in(6) {
            parts.push(
                (*self.rng.pick(&[
                    "other: 1",
                    "op: 1",
                    "path: dyn(1)",
                    "from: null",
                    "?op: optional.of('x')",
                    "value: null",
                ]))
                .to_owned(),
            );
        }
        format!("JSONPatch{{{}}}", parts.join(", "))
    }

    fn operations(&mut self) -> String {
        let operation = self.operation();
        match self.rng.below(8) {
            0 => format!("[{operation}, {}]", self.operation()),
            1 => format!("[{operation}] + [{}]", self.operation()),
            2 => format!("object.spec.containers.map(c, c.name != 'z', {operation})"),
            3 => format!("has(object.nope) ? [] : [{operation}]"),
            4 => format!("[?(has(object.s) ? optional.of({operation}) : optional.none())]"),
            5 => format!("object.metadata.labels.transformList(k, v, {operation})"),
            _ => format!("[{operation}]"),
        }
    }

    /// What an expression sees of objects and operations.
    fn seen(&mut self) -> String {
        let object = self.object("Object", 2);
        let field = *self.rng.pick(&FIELDS);
        match self.rng.below(16) {
            0 => format!("({object}).{field}"),
            1 => format!("has(({object}).{field})"),
            2 => format!("({object}).?{field}"),
            3 => format!("dyn({object}).{field}"),
            4 => format!("({object}).{field}.{}", self.rng.pick(&FIELDS)),
            5 => format!("({object}) == ({object})"),
            6 => format!("({object}) == ({})", self.object("Object", 2)),
            7 => format!("({object}) != dyn({})", self.value("Object", 2)),
            8 => format!("[{object}].map(x, x.{field})"),
            9 => format!("[{object}, {object}].distinct().size()"),
            10 => format!("type({object}) == type({object})"),
            11 => format!("({}).{}", self.operation(), self.rng.pick(&["op", "path", "from", "value"])),
            12 => format!(
                "has(({}).{})",
                self.operation(),
                self.rng.pick(&["op", "path", "from", "value", "other"])
            ),
            13 => format!("({0}) == ({0})", self.operation()),
            14 => format!("({}).?{}", self.operation(), self.rng.pick(&["op", "path", "from", "value"])),
            _ => format!("({object}) in [{object}]"),
        }
    }
}

const PATHS: &[&str] = &[
    "'/spec/replicas'",
    "'/metadata/labels/' + jsonpatch.escapeKey('c.d/e~f')",
    "''",
    "'/spec/containers/-'",
    "'/a\"b\\\\\\u00e9'",
    "object.s",
    "'/\\u0007'",
];

const SCALARS: &[&str] = &[
    "1",
    "-7",
    "2.0",
    "1.5",
    "9007199254740993",
    "'x'",
    "true",
    "5u",
    "null",
    "b'x'",
    "duration('90s')",
    "timestamp('2020-01-01T00:00:00Z')",
    "quantity('1')",
    "type(1)",
    "optional.of(1)",
    "optional.none()",
    "object.spec.replicas",
    "object.spec.big",
    "object.spec.share",
    "object.metadata",
    "object.spec.containers",
    "object.l",
    "object.m",
    "object.n",
    "object.metadata.labels",
    "params.limits",
    "params.names",
    "'a,b'.split(',')",
    "{}",
    "[]",
    "[1]",
    "['a', 'b']",
    "{'a': 'b'}",
    "{1: 2}",
    "[[1]]",
    "[{'a': 1}]",
    "{'a': [1]}",
    "request.operation",
    "object.spec.containers.map(c, c.name)",
    "object.spec.containers.filter(c, has(c.args))",
    "object.metadata.labels.transformMap(k, v, v + k)",
    "[1] + [2]",
    "[[1]] + [[2]]",
    "lists.range(2)",
    "object.nope",
    "1/0",
    "JSONPatch{op: 'x'}",
    "ip('1.2.3.4')",
    "[null]",
    "[object.m]",
    "{'a': object.m}",
];

const INCOMPARABLE: &[&str] = &[
    "Object{a: quantity('1')} == Object{a: quantity('1000m')}",
    "[object.l].map(x, Object{a: x} == Object{a: x})",
    "Object{a: object.l} == Object{a: object.l}",
    "[Object{a: object.l}] == [Object{a: object.l}]",
    "Object{a: authorizer} == Object{a: authorizer}",
    "Object{a: ip('1.2.3.4')} == Object{a: ip('1.2.3.4')}",
    "Object{a: url('http://a')} != Object{a: url('http://a')}",
    "Object{a: semver('1.2.3')} in [Object{a: semver('1.2.3')}]",
];

/// What expressions see of objects and operations.
const VALUES: &[&str] = &[
    "Object{}",
    "Object{a: 1}.a",
    "Object{a: 1}.b",
    "has(Object{a: 1}.b)",
    "has(Object{a: 1}.a)",
    "Object{a: 1}.?b",
    "Object{a: 1}.?a",
    "Object{a: null}.a",
    "Object{a: [1,[2]]}.a",
    "Object{a: [1,[2]]}.a[1]",
    "Object{a: {'x': {'y': 1}}}.a",
    "Object{a: {'x': {'y': 1}}}.a.x.y",
    "Object{a: {1: 2}}.a",
    "has(Object{a: {1: 2}}.a)",
    "Object{a: Object.a{b: 2}}.a",
    "Object{a: Object.a{b: 2}}.a.b",
    "Object{a: Object.a{b: 2}}.a == Object.a{b: 2}",
    "Object{a: type(1)}.a",
    "Object{a: b'x'}.a",
    "Object{a: 5u}.a",
    "Object{a: duration('1s')}.a",
    "Object{a: timestamp('2020-01-01T00:00:00+01:00')}.a",
    "Object{a: quantity('1')}.a",
    "Object{a: optional.of(1)}.a",
    "Object{a: optional.none()}.a",
    "Object{a: optional.of([1])}.a",
    "Object{a: object}.a",
    "Object{a: object.m}.a.n",
    "Object{a: [object.m]}.a",
    "Object{a: JSONPatch{op: 'x'}}.a",
    "dyn(Object{a: 1}).a",
    "dyn(Object{a: 1}).?a",
    "has(dyn(Object{a: 1}).a)",
    "Object{a: 1}['a']",
    "dyn(Object{a: 1})['a']",
    "[Object{a: 1}][0].a",
    "[Object{a: 1}].map(x, x.a)",
    "Object{a: 1} == Object{a: 1}",
    "Object{a: 1} == Object{a: 1.0}",
    "Object{a: 1} == Object{a: 2}",
    "Object{a: 1} == Object{b: 1}",
    "Object{a: [1]} == Object{a: [1]}",
    "[1,2].map(x, Object{a: [1]})[0] == [1,2].map(x, Object{a: [1]})[1]",
    "[1,2].map(x, Object{a: [1]}).distinct().size()",
    "Object{a: {'x':1}} == Object{a: {'x':1}}",
    "Object{a: object.m} == Object{a: object.m}",
    "Object{a: {'x':1}} == Object{a: params}",
    "Object.a{} == Object.b{}",
    "dyn(Object.a{}) == Object{}",
    "dyn(Object{}) == 1",
    "1 == dyn(Object{})",
    "dyn(Object{}) == null",
    "null == dyn(Object{})",
    "Object{} == null",
    "Object{} != null",
    "optional.of(Object{}) == optional.of(Object{})",
    "type(Object{})",
    "type(Object.a{})",
    "type(Object{}) == Object",
    "Object",
    "Object.spec",
    "type(JSONPatch{}) == JSONPatch",
    "type(JSONPatch{})",
    "type(Object{}) == type(Object{})",
    "type(Object{}) == type(Object.x{})",
    "JSONPatch{op: 1}",
    "JSONPatch{op: dyn(1)}",
    "JSONPatch{op: 'a', foo: 1}",
    "JSONPatch{op: 'a', foo: 'b'}",
    "JSONPatch{op: null}",
    "JSONPatch{op: dyn(null)}",
    "JSONPatch{op: type(1)}",
    "JSONPatch{op: optional.of('x')}",
    "JSONPatch{op: dyn(optional.of('x'))}.op",
    "JSONPatch{op: 'x', value: 1}.value",
    "JSONPatch{op: 'x'}.value",
    "JSONPatch{op: 'x'}.path",
    "JSONPatch{op: 'x'}.foo",
    "dyn(JSONPatch{op: 'x'}).foo",
    "dyn(JSONPatch{op: 'x'}).op",
    "has(dyn(JSONPatch{op: 'x'}).foo)",
    "has(JSONPatch{op: 'x'}.foo)",
    "has(JSONPatch{op: 'x'}.value)",
    "has(JSONPatch{op: 'x'}.op)",
    "has(JSONPatch{op: 'x'}.path)",
    "JSONPatch{op: 'x'}.?path",
    "JSONPatch{op: 'x'}.?value",
    "JSONPatch{op: 'x'}.?op",
    "JSONPatch{op: 'x', value: null}.?value",
    "dyn(JSONPatch{op: 'x'})['op']",
    "JSONPatch{op: 'x'}['op']",
    "dyn(JSONPatch{op: 'x'})[1]",
    "JSONPatch{op: 'x'} == JSONPatch{op: 'x'}",
    "JSONPatch{op: 'x', value: 1} == JSONPatch{op: 'x', value: 1.0}",
    "JSONPatch{op: 'x', value: [1]} == JSONPatch{op: 'x', value: [1]}",
    "JSONPatch{op: 'x', value: 1} == JSONPatch{op: 'x'}",
    "JSONPatch{value: quantity('1')} == JSONPatch{value: 1}",
    "JSONPatch{value: optional.none()} == JSONPatch{value: 1}",
    "dyn(JSONPatch{}) == null",
    "dyn(JSONPatch{}) == 1",
    "Object{?a: optional.of(1)}.a",
    "Object{?a: optional.none()}.a",
    "Object{?a: 1}",
    "Object{?a: dyn(1)}",
    "Object{a: 1, ?a: optional.none()}.a",
    "Object{a: 1, a: 2}.a",
    "JSONPatch{?op: optional.of('a')}.op",
    "JSONPatch{?op: optional.of(1)}.op",
    "Foo{}",
    "Object.{}",
    ".Object{a: 1}.a",
    ".Object.spec{a: 1}",
    "Object.spec.containers{a: 1}",
    "int{}",
    "string{a: 1}",
    "object{a: 1}",
    "[1].map(Object, Object{a: 1})",
    "[1].map(Object, Object)",
    "[{'a':1}].map(Object, Object.a)",
    "Object{`a-b`: 1}",
    "Object{a: 1/0}",
    "Object{a: true ? 1 : 2}",
    "true ? Object{} : Object.b{}",
    "true ? Object{} : null",
    "[Object{}, Object.b{}]",
    "[Object{}, null]",
    "[JSONPatch{}] + [JSONPatch{}]",
    "string(Object{})",
    "size(Object{})",
    "Object{} + Object{}",
    "Object{} in [Object{}]",
    "optional.ofNonZeroValue(Object{})",
    "optional.ofNonZeroValue(Object{a:1}).hasValue()",
    "optional.ofNonZeroValue(JSONPatch{}).hasValue()",
    "{Object{}: 1}",
    "{dyn(Object{}): 1}",
    "{dyn(JSONPatch{}): 1}",
    "dyn(Object{}).map(x, x)",
    "Object{}.map(x, x)",
    "dyn(JSONPatch{}).map(x, x)",
    "Object{a: optional.none()}.?a",
    "'a %s'.format([Object{}])",
    "'a %s'.format([JSONPatch{}])",
    "[Object{}].sort()",
    "dyn([Object{}]).sort()",
    "dyn(Object{}) < 1",
    "jsonpatch.escapeKey('a~/b')",
    "Object{a: variables.x}",
    "google.protobuf.Int64Value{value: 1}",
    "google.protobuf.Struct{}",
    "google.protobuf.Timestamp{}",
    "Object{}.a.b",
    "has(Object{}.a.b)",
    "Object{}.?a.b",
    "Object{a: 1}.a.b",
    "Object{b: Object.x{}}.b",
    "JSONPatch{foo: dyn(1)}",
    "JSONPatch{}.?foo",
    "JSONPatch{}.?foo.hasValue()",
    "[JSONPatch{}.foo].size()",
    "has(JSONPatch{}.foo) || true",
    "[JSONPatch{}].all(x, has(x.foo))",
    "(true ? null : Object{}).a",
    "(true ? dyn(1) : Object{}).a",
    "(true ? dyn(object) : Object{}).s",
    "has((true ? null : Object{}).a)",
    "optional.of(Object{a: 1}).a",
    "has(optional.of(Object{a: 1}).a)",
    "[Object{a: [Object.a{b: {1:2}}]}][0].a[0]",
    "[Object{a: [Object.a{b: {1:2}}]}][0].a.size()",
    "Object{a: {'x':{1:2}}}.a",
    "Object{a: {'x':type(1)}}.a",
    "Object{a: [[type(1)]]}.a",
    "Object{a: [type(1)]}.a",
    "Object{a: [dyn(optional.of(1)), dyn(optional.none())]}.a",
    "Object{a: [quantity('1')]}.a.size()",
    "Object{a: [quantity('1')]}.a",
    "Object{a: [object.m]+[object.m]}.a",
    "Object{a: {'b': JSONPatch{op:'x'}}}.a.b.op",
    "Object{a: Object.b{c: {1:1}}}.a",
    "Object{a: Object.b{c: {1:1}}, d: 1}.d",
    "[1.0/0.0].map(x, Object{a: x}).distinct().size()",
    "[0.0/0.0].map(x, Object{a: x} == Object{a: x})",
    "Object{a: 1u} == Object{a: 1}",
    "Object{a: 'x'} == Object{a: 'x'}",
    "Object{a: b'x'} == Object{a: b'x'}",
    "Object{a: null} == Object{a: null}",
    "Object{a: duration('60s')} == Object{a: duration('1m')}",
    "Object{a: timestamp('2020-01-01T00:00:00Z')} == Object{a: timestamp('2020-01-01T00:00:00Z')}",
    "Object{a: timestamp('2020-01-01T00:00:00Z')} == Object{a: timestamp('2020-01-01T01:00:00+01:00')}",
    "Object{a: optional.of(1)} == Object{a: optional.of(1)}",
    "Object{a: optional.of([1])} == Object{a: optional.of([1])}",
    "Object{a: type(1)} == Object{a: type(1)}",
    "Object{a: type(1)} == Object{a: type('')}",
    "Object{a: Object.b{c: 1}} == Object{a: Object.b{c: 1}}",
    "Object{a: JSONPatch{op:'x'}} == Object{a: JSONPatch{op:'x'}}",
    "Object{a: {'x':[1]}} == Object{a: {'x':[1]}}",
    "Object{a: {'x':1.0}} == Object{a: {'x':1}}",
    "Object{a: {'x':[]}} == Object{a: {'x':[]}}",
    "ip('1.2.3.4') == ip('1.2.3.4')",
    "[Object{a: [1]}] == [Object{a: [1]}]",
    "[Object{a: [1]}].includes(Object{a: [1]})",
    "{'a': Object{a: [1]}} == {'a': Object{a: [1]}}",
    "[Object{}].indexOf(Object{})",
    "dyn(Object{}).indexOf(Object{})",
    "[Object{a:1}, Object{a:1}].distinct().size()",
    "[[Object{a:1}]].flatten().size()",
    "dyn(Object{}).size()",
    "dyn(Object{}) + 1",
    "-dyn(Object{})",
    "!dyn(Object{})",
    "dyn(Object{}) && true",
    "int(dyn(Object{}))",
    "string(dyn(Object{}))",
    "string(dyn(JSONPatch{}))",
    "bool(dyn(Object{}))",
    "dyn(Object{})[1]",
    "dyn(Object{})[null]",
    "object.m[dyn(Object{})]",
    "object.l[dyn(Object{})]",
    "dyn('a') in dyn(Object{})",
    "'%s'.format([dyn(Object{})])",
    "'%d'.format([dyn(Object{})])",
    "'%s'.format([dyn(JSONPatch{})])",
    "dyn(Object{}).matches('a')",
    "dyn(Object{a:1}).exists(x, x == 1)",
    "dyn([Object{}]).min()",
    "dyn([Object{}]).sum()",
    "[dyn(Object{}), dyn(1)].sum()",
    "dyn([Object{}]).isSorted()",
    "optional.ofNonZeroValue(Object{a: 1})",
    "optional.of(Object{a: 1}).orValue(Object{})",
    "optional.of(Object{a: 1}).or(optional.of(Object{})).value().a",
    "[1].transformMap(k, v, Object{a: v})",
    "[Object{a: 2}, Object{a: 1}].sortBy(x, dyn(x.a))",
    "{'a': 1}.transformMapEntry(k, v, {k: Object{a: v}})",
    "Object{a: 1}.a == 1 ? Object{b: 1}.b : 3",
    "Object{a: object.nope}",
    "Object{a: 1/0}.a",
    "Object{a: 1/0, b: object.nope}",
    "Object{b: object.nope, a: 1/0}",
    "Object{a: Object.a{b: Object.a.b{c: 1}}}.a.b.c",
    "[Object{a: 1}].exists(o, o.a == 1)",
    "cel.bind(x, Object{a: 1}, x.a)",
    "type(dyn(Object{}))",
    "type(type(Object{}))",
    "[type(Object{})]",
    "string(type(Object{}))",
    "{'a': Object{}}.?a",
    "optional.of(Object{a: 1}).optMap(x, x.a)",
    "optional.of(Object{a: 1}).?a",
    "[Object{a: 1}][?0].?a",
    "{'x': Object{a: 1}}.x.a",
    "{'x': Object{a: 1}}.?x.a",
    "has({'x': Object{a: 1}}.x.a)",
    "[JSONPatch{op: 'a'}][0].op",
    "[JSONPatch{op: 'a'}].map(x, x.op)",
    "[JSONPatch{op: 'a'}].?op",
    "Object{true: 1}",
    "Object{in: 1}",
    "Object{namespace: 1}",
    "Object{if: 1}",
    "Object{__if__: 1}.__if__",
    "Object.spec.template.metadata.labels{a: 1}",
    "Object{a: Object.b.c.d.e.f.g{}}.a",
    r#"Object{"a": 1}"#,
    "{a: 1}",
    "Object{a: 1,}",
    "Object{,}",
    "Object {a: 1}",
    "Object . spec {a: 1}",
];

/// Apply configurations.
const MERGED: &[&str] = &[
    "Object{}",
    "Object.a{}",
    "1",
    "dyn(Object{})",
    "[Object{}]",
    "true ? Object{} : null",
    "true ? null : Object{}",
    "{'a': 1}",
    "Object{a: 9007199254740993}",
    "Object{a: 5u}",
    "Object{a: null}",
    "Object{a: []}",
    "Object{a: {}}",
    "Object{a: [1,2], kind: 'x', b: object.l, c: [object.l], d: {'x': object.m}}",
    "Object{a: object}",
    "Object{a: object.n}",
    "Object{a: object.m}",
    "Object{a: object.l}",
    "Object{a: [object.m]}",
    "Object{a: [object.n]}",
    "Object{a: [[1]]}",
    "Object{a: [[1]] + []}",
    "Object{a: [[1]] + [[2]]}",
    "Object{a: [] + [[2]]}",
    "Object{a: [[1]+[2]]}",
    "Object{a: [[[1]]+[[2]]]}",
    "Object{a: [{'a': 1}]}",
    "Object{a: [{'a': 1}].filter(x, true)}",
    "Object{a: object.l.filter(x, true)}",
    "Object{a: object.l.map(x, {'y': x})}",
    "Object{a: object.l.map(x, x)}",
    "Object{a: {'a': {'a': 1}}}",
    "Object{a: {'a': object.m}}",
    "Object{a: object.m.transformMap(k, v, v)}",
    "Object{a: object.m.transformMap(k, v, {'x': v})}",
    "Object{a: object.m.transformMapEntry(k, v, {k: v})}",
    "Object{a: object.l.slice(0, 1)}",
    "Object{a: object.l.reverse()}",
    "Object{a: [object.l].flatten()}",
    "Object{a: object.l.distinct()}",
    "Object{a: [object.l, [[1]]].flatten()}",
    "Object{a: dyn(object.l).slice(1,2)}",
    "Object{a: [[1]].slice(0,1)}",
    "Object{a: [[1]].reverse()}",
    "Object{a: [[[1]]].flatten()}",
    "Object{a: [[1]].distinct()}",
    "Object{a: [[2],[1]].sortBy(x, x[0])}",
    "Object{a: [optional.of([1])].unwrapOpt()}",
    "Object{a: lists.range(2)}",
    "Object{a: 'a,b'.split(',')}",
    "Object{a: ['a,b'.split(',')]}",
    "Object{a: optional.of({'a':1})}",
    "Object{a: optional.of([1])}",
    "Object{a: [optional.of(1)]}",
    "Object{a: optional.none()}",
    "Object{a: type(1)}",
    "Object{a: [type(1)]}",
    "Object{a: b'x'}",
    "Object{a: {1: 2}}",
    "Object{a: {'b': {1: 2}}}",
    "Object{a: {true: 2}}",
    "Object{a: {1.5: 2}}",
    "Object{a: {null: 2}}",
    "Object{a: Object.a{b: {1u: 2}}}",
    "Object{a: [Object.a{b: {1u: 2}}]}",
    "Object{a: Object.b{}}",
    "Object{a: [Object.b{}]}",
    "Object{a: {'x': Object.a{}}}",
    "Object{a: {'x': Object.a.x{}}}",
    "Object{a: {'x': [Object.b{}]}}",
    "Object{a: [[Object.b{}]]}",
    "Object{a: [[Object.a{}]]}",
    "Object{a: [Object.a{}] + [Object.b{}]}",
    "Object{a: [Object.b{}] + [Object.b{}]}",
    "Object{a: optional.of(Object.b{})}",
    "Object{a: Object.b{c: Object.d{}}}",
    "Object{a: Object.b{c: Object.a.c{}}}",
    "Object{a: Object.a{c: Object.a.c{d: [Object.a.c.d{e: 1}]}}}",
    "Object{a: JSONPatch{op: 'x'}}",
    "Object{a: [Object.a{b: 1}] + [Object.a{c: [1]}]}",
    "Object{a: 1.0/0.0}",
    "Object{a: request, b: request.operation}",
    "Object{?a: optional.of(1), ?b: optional.none()}",
    "Object{?a: object.?m.?x, ?b: object.?nope}",
    "Object{a: params.p, apiVersion: 1, metadata: Object.metadata{labels: {'a': 'b'}}}",
];

/// JSON patches.
const OPERATIONS: &[&str] = &[
    "1",
    "JSONPatch{}",
    "[1]",
    "[]",
    "dyn([])",
    "[dyn(1)]",
    "true ? [] : [JSONPatch{}]",
    "[JSONPatch{}]",
    "[JSONPatch{op: 'add', path: '/a', value: 1}]",
    r#"[JSONPatch{op: 'add', path: '/a"\\\n\x01é\U0001F600\u007f', value: 1}]"#,
    "[JSONPatch{op: 'add', path: '/a', from: 'x', value: null}]",
    "[JSONPatch{op: 'add', path: '/a', value: 9007199254740991}]",
    "[JSONPatch{op: 'add', path: '/a', value: 9007199254740992}]",
    "[JSONPatch{op: 'add', path: '/a', value: -9007199254740992}]",
    "[JSONPatch{op: 'add', path: '/a', value: 9007199254740993u}]",
    "[JSONPatch{op: 'add', path: '/a', value: 5u}]",
    "[JSONPatch{op: 'add', path: '/a', value: 1.5}]",
    "[JSONPatch{op: 'add', path: '/a', value: 1e300}]",
    "[JSONPatch{op: 'add', path: '/a', value: -0.0}]",
    "[JSONPatch{op: 'add', path: '/a', value: 0.0/0.0}]",
    "[JSONPatch{op: 'add', path: '/a', value: 1.0/0.0}]",
    "[JSONPatch{op: 'add', path: '/a', value: [1.0/0.0]}]",
    r"[JSONPatch{op: 'add', path: '/a', value: b'\xff\x00abc'}]",
    "[JSONPatch{op: 'add', path: '/a', value: timestamp('2020-01-01T00:00:00.123456789+01:00')}]",
    "[JSONPatch{op: 'add', path: '/a', value: timestamp('2020-01-01T00:00:00.5Z')}]",
    "[JSONPatch{op: 'add', path: '/a', value: timestamp('0001-01-01T00:00:00Z')}]",
    "[JSONPatch{op: 'add', path: '/a', value: duration('1h30m')}]",
    "[JSONPatch{op: 'add', path: '/a', value: duration('-1.5s')}]",
    "[JSONPatch{op: 'add', path: '/a', value: duration('1ns')}]",
    "[JSONPatch{op: 'add', path: '/a', value: type(1)}]",
    "[JSONPatch{op: 'add', path: '/a', value: optional.of(1)}]",
    "[JSONPatch{op: 'add', path: '/a', value: optional.none()}]",
    "[JSONPatch{op: 'add', path: '/a', value: [optional.none()]}]",
    "[JSONPatch{op: 'add', path: '/a', value: quantity('1')}]",
    "[JSONPatch{op: 'add', path: '/a', value: ip('1.2.3.4')}]",
    "[JSONPatch{op: 'add', path: '/a', value: cidr('1.2.3.4/8')}]",
    "[JSONPatch{op: 'add', path: '/a', value: url('http://a')}]",
    "[JSONPatch{op: 'add', path: '/a', value: semver('1.2.3')}]",
    "[JSONPatch{op: 'add', path: '/a', value: format.dns1123Label()}]",
    "[JSONPatch{op: 'add', path: '/a', value: authorizer}]",
    "[JSONPatch{op: 'add', path: '/a', value: authorizer.group('').resource('pods')}]",
    "[JSONPatch{op: 'add', path: '/a', value: authorizer.path('/a')}]",
    "[JSONPatch{op: 'add', path: '/a', value: authorizer.group('')}]",
    "[JSONPatch{op: 'add', path: '/a', value: authorizer.group('').resource('pods').check('get')}]",
    "[JSONPatch{op: 'add', path: '/a', value: JSONPatch{}}]",
    "[JSONPatch{op: 'add', path: '/a', value: [JSONPatch{}]}]",
    "[JSONPatch{op: 'add', path: '/a', value: [1, 2]}]",
    "[JSONPatch{op: 'add', path: '/a', value: {'a': {'b': [null]}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: {1: 2}}]",
    "[JSONPatch{op: 'add', path: '/a', value: {true: 2}}]",
    "[JSONPatch{op: 'add', path: '/a', value: {1u: 2}}]",
    "[JSONPatch{op: 'add', path: '/a', value: {1.5: 2}}]",
    "[JSONPatch{op: 'add', path: '/a', value: {null: 2}}]",
    "[JSONPatch{op: 'add', path: '/a', value: {dyn(1): 2, dyn('1'): 3}}]",
    "[JSONPatch{op: 'add', path: '/a', value: {'a': {1: 2}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: object}]",
    "[JSONPatch{op: 'add', path: '/a', value: request}]",
    "[JSONPatch{op: 'add', path: '/a', value: 'a,b'.split(',')}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object.spec{}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object.spec{a: Object.spec.a{b: 1}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object.spec{a: Object.spec.b{b: 1}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: [Object.spec{a: Object.spec.b{b: 1}}]}]",
    "[JSONPatch{op: 'add', path: '/a', value: {'a': Object.spec{a: Object.spec.b{b: 1}}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: 9007199254740993}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: 5u}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: null}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: b'x'}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: duration('1s')}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: timestamp('2020-01-01T00:00:00Z')}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: type(1)}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: optional.none()}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: optional.of(1)}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: quantity('1')}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: url('http://a')}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: ip('1.1.1.1')}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: semver('1.1.1')}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: authorizer}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [1]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [[1]]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [{'a': 1}]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: {'a': {'a': 1}}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: {'a': [1]}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: {1: 1}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: {1.5: 1}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: Object.a{b: {true: 1}}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [Object.a{b: {true: 1}}]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: object}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: object.n}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: object.m}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [object.m]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: 'a,b'.split(',')}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: ['a,b'.split(',')]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [1] + [2]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [[1] + [2]]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: [[1]] + [[2]]}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: 1.0/0.0}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: JSONPatch{op: 'x'}}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: []}}]",
    "[JSONPatch{op: 'add', path: '/a', value: Object{a: {}}}]",
    "object.l.map(x, JSONPatch{op: 'add', path: '/a', value: x})",
    "'a' == 'a' ? [JSONPatch{op: 'x'}] : []",
    "[JSONPatch{op: 'a'}] + [JSONPatch{op: 'b'}]",
    "[?optional.of(JSONPatch{op: 'b'})]",
    "true ? [null, JSONPatch{}] : [JSONPatch{}]",
    "[true ? null : JSONPatch{op: 'x'}]",
];
