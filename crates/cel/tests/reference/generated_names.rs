//! Random chains of selections from variables, and from the variables of macros that have the same names: quoted names,
//! leading dots, optionals, indexes.

use testkit::random::Rng;

use super::{Case, Purpose, conditions, expressions};

/// Where macros bind variables, the names that are bound; the fields that chains select.
struct Names {
    variables: &'static [&'static str],
    fields: &'static [&'static str],
    /// A list that is not a literal.
    list: &'static str,
}

const OF_CLAIMS: Names = Names {
    variables: &["claims", "claims", "google", "net", "int", "x", "optional", "nope"],
    fields: &[
        "sub",
        "groups",
        "nested",
        "a",
        "b",
        "email",
        "nope",
        "protobuf",
        "Timestamp",
        "IP",
        "a.b",
        "a-b",
        "x y",
        "dotted.key",
        "a__dot__b",
        "list",
        "mixed",
        "empty",
        "emptyMap",
        "requestResource",
    ],
    list: "claims.groups",
};
const OF_OBJECTS: Names = Names {
    variables: &["object", "request", "authorizer", "namespaceObject", "x", "params", "net", "oldObject"],
    fields: &[
        "metadata",
        "name",
        "labels",
        "app",
        "tier.example.com/x",
        "spec",
        "replicas",
        "template",
        "containers",
        "requestResource",
        "userInfo",
        "groups",
        "username",
        "extra",
        "nope",
        "IP",
        "a-b",
        "annotations",
    ],
    list: "object.spec.template.spec.containers",
};

pub(super) fn expressions(seed: u64, count: usize) -> Vec<Case> {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let purposes = [Purpose::ClaimMapping, Purpose::Admission, Purpose::ClaimMapping, Purpose::Policy];
    (0..count)
        .map(|at| {
            let purpose = purposes[at % purposes.len()];
            let names = if purpose == Purpose::ClaimMapping { &OF_CLAIMS } else { &OF_OBJECTS };
            let depth = rng.below(4);
            let text = Writer { rng: &mut rng, names, bound: Vec::new() }.write(depth);
            match purpose {
                Purpose::ClaimMapping => expressions::case(purpose, &text),
                _ => conditions::case(purpose, &text),
            }
        })
        .collect()
}

struct Writer<'a> {
    rng: &'a mut Rng,
    names: &'static Names,
    bound: Vec<&'static str>,
}

impl Writer<'_> {
    fn write(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self.leaf();
        }
        let less = depth - 1;
        match self.rng.below(12) {
            5 | 6 => self.fold(depth),
            7 => {
                let (first, second) = (self.write(less), self.write(less));
                let call = self.rng.pick(&[
                    "A == B",
                    "[A, dyn(B)]",
                    "A.includes(B)",
                    "[A].includes(B)",
                    "A.indexOf(B)",
                    "A in B",
                    "{'a-b': A}.`a-b`",
                    "A.orValue(B)",
                    "A.?`a-b`.orValue(B)",
                    "true ? A : B",
                    "A.startsWith(B)",
                    "A.indexOf('', B)",
                    "lists.range(A)",
                    "duration(A)",
                    "A.flatten(B)",
                    "matches(A, B)",
                ]);
                call.replace('A', &format!("({first})")).replace('B', &format!("({second})"))
            }
            8 => {
                let part = self.write(less);
                let call = self.rng.pick(&[
                    "optional.of(A)",
                    "type(A)",
                    "dyn(A)",
                    "has(A.a)",
                    "has(A.`a-b`)",
                    "string(A)",
                    "size(A)",
                    "[A][0]",
                    "A.hasValue()",
                    "A.value()",
                    "[A].map(y, y)",
                    "{'a': A}",
                    "{'a': A}.a",
                    "optional.of(A).?a",
                    "true ? optional.of(A) : optional.none()",
                    "A.or(optional.none())",
                ]);
                call.replace('A', &format!("({part})"))
            }
            _ => self.chain(depth),
        }
    }

    fn leaf(&mut self) -> String {
        match self.rng.below(6) {
            0 => (*self.rng.pick(&[
                "1",
                "'a'",
                "0",
                "-1",
                "{'a': 1, 'a-b': {'c.d': 2}}",
                "['a', 'b']",
                "int",
                "optional.of({'a': 1})",
                "optional.none()",
                "null",
                "{'protobuf': {'Timestamp': 1}}",
                "{'IP': 'x'}",
                "'sub'",
                "1000001",
                "{'requestResource': [1]}",
                "[{'a': 1}]",
                "net.IP",
                "google.protobuf.Timestamp",
                "ip('::1')",
                "''",
            ]))
            .to_owned(),
            _ => self.chain(1),
        }
    }

    /// A variable, and selections from it.
    fn chain(&mut self, depth: usize) -> String {
        let variable = match self.bound.as_slice() {
            bound @ [_, ..] if self.rng.one_in(2) => *self.rng.pick(bound),
            _ => *self.rng.pick(self.names.variables),
        };
        let mut text = if self.rng.one_in(3) { format!(".{variable}") } else { variable.to_owned() };
        for _ in 0..self.rng.below(4) {
            let field = *self.rng.pick(self.names.fields);
            let plain = field.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let name = if !plain || self.rng.one_in(4) { format!("`{field}`") } else { field.to_owned() };
            let part = match self.rng.below(8) {
                0 => format!(".?{name}"),
                1 => format!("['{field}']"),
                2 => format!("[?'{field}']"),
                3 if depth > 0 => format!("[{}]", self.write(depth - 1)),
                4 => "[0]".to_owned(),
                _ => format!(".{name}"),
            };
            text.push_str(&part);
        }
        if self.rng.one_in(12) { format!("has({text})") } else { text }
    }

    fn fold(&mut self, depth: usize) -> String {
        // Never a map, whose order is left to chance.
        let range = match self.rng.below(4) {
            0 => self.names.list.to_owned(),
            1 => format!("[dyn({}), dyn({})]", self.write(depth - 1), self.write(depth - 1)),
            _ => format!("[{}]", self.write(depth - 1)),
        };
        let variable = *self.rng.pick(self.names.variables);
        self.bound.push(variable);
        let body = self.write(depth - 1);
        self.bound.pop();
        match self.rng.below(8) {
            0 => format!("{range}.all({variable}, {body} == 1)"),
            1 => format!("{range}.filter({variable}, {body} != 'a')"),
            2 => format!("{range}.transformList(k, {variable}, {body})"),
            3 => format!("optional.of({range}).optMap({variable}, {body})"),
            4 => format!("{range}.sortBy({variable}, {body})"),
            _ => format!("{range}.map({variable}, {body})"),
        }
    }
}
