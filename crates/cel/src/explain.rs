//! The values of the parts of an expression: why its result is what it is.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use super::access::{AccessDecision, AccessReview};
use super::bindings::Bindings;
use super::composition::VariableValues;
use super::eval::Evaluator;
use super::evaluation::{EvalResult, Halt, HaltKind};
use super::expression::Expression;
use super::tree::{ExprNode, FieldNode, Fold, FoldKind, NodeKind, Selection};
use super::value::{Datum, MapKey, MessageKind};

/// The most parts of one explanation.
const MAX_PARTS: usize = 40;
/// The longest text of a part or a value, in characters.
const MAX_TEXT: usize = 160;
/// The elements of a list or a map that are shown for a macro, where no single one decides.
const MAX_ELEMENTS: usize = 3;

/// A part of an expression, and what it was evaluated to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedPart {
    /// How deep it is in the expression, which has the depth 0.
    pub depth: usize,
    /// The part, as an expression.
    pub text: String,
    /// The value, or the error.
    pub value: String,
}

/// The variables of macros in scope.
type Locals<'a> = Vec<(&'a str, Datum)>;

/// Explains one evaluation.
struct Explainer<'a, F> {
    evaluator: F,
    parts: Vec<ExplainedPart>,
    locals: Locals<'a>,
}

impl Expression {
    /// The values of the expression and its parts, each before its own parts: those of constants are left out, and of a macro the
    /// part for the element that decides it. For people: long texts are cut.
    pub fn explain(
        &self,
        bindings: &Bindings,
        decisions: &[(AccessReview, AccessDecision)],
        values: &VariableValues,
    ) -> Vec<ExplainedPart> {
        let explained =
            self.look(bindings, (decisions, values), |tree, evaluator| Explainer::new(evaluator).parts(tree));
        explained.unwrap_or_default()
    }
}

impl<'a, F: Fn() -> Evaluator<'a>> Explainer<'a, F> {
    /// Explains with a new evaluator for each part.
    fn new(evaluator: F) -> Self {
        Self { evaluator, parts: Vec::new(), locals: Vec::new() }
    }

    fn parts(mut self, tree: &'a ExprNode) -> Vec<ExplainedPart> {
        self.explain(tree, 0);
        self.parts
    }

    fn eval(&self, node: &'a ExprNode) -> EvalResult {
        let mut evaluator = (self.evaluator)();
        for (name, value) in &self.locals {
            evaluator.bind(name, value.clone());
        }
        evaluator.eval(node)
    }

    fn explain(&mut self, node: &'a ExprNode, depth: usize) {
        let is_constant = !node.any(&|part| matches!(part.kind, NodeKind::Name(_)));
        // A variable of a macro stands before the body already.
        let is_local =
            matches!(&node.kind, NodeKind::Name(name) if self.locals.iter().any(|(local, _)| local == name));
        if is_constant || is_local || self.parts.len() >= MAX_PARTS {
            return;
        }
        let result = self.eval(node);
        let failed = result.is_err();
        let value = match result.map_err(Halt::kind) {
            Ok(value) => cut(value_text(&value)),
            Err(HaltKind::Error(text) | HaltKind::Unsupported(text)) => format!("error: {}", cut(text)),
            Err(HaltKind::Long | HaltKind::Review(_) | HaltKind::Variable(_)) => "not evaluated".to_owned(),
        };
        self.parts.push(ExplainedPart { depth, text: cut(text(node)), value });
        let depth = depth + 1;
        match &node.kind {
            NodeKind::Fold(fold) => {
                self.explain(&fold.range, depth);
                self.element(fold, depth);
            }
            NodeKind::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                self.explain(condition, depth);
                match self.eval(condition) {
                    Ok(Datum::Bool(true)) => self.explain(yes, depth),
                    Ok(Datum::Bool(false)) => self.explain(no, depth),
                    _ => {}
                }
            }
            NodeKind::WithOptional { target, .. } => self.explain(target, depth),
            // What a field was selected from is shown where that fails.
            NodeKind::Select { operand, .. } => {
                if failed || !is_path(operand) {
                    self.explain(operand, depth);
                }
            }
            NodeKind::Call { function, arguments, .. } if is_index(function) => {
                let path = arguments.first().filter(|operand| failed || !is_path(operand));
                path.into_iter().chain(arguments.get(1)).for_each(|part| self.explain(part, depth));
            }
            _ => node.children().into_iter().for_each(|child| self.explain(child, depth)),
        }
    }

    /// The body of a macro for the element that decides its result, or for the first ones.
    fn element(&mut self, fold: &'a Fold, depth: usize) {
        let decides: fn(&EvalResult) -> bool = match fold.kind {
            FoldKind::All => |result| !matches!(result, Ok(Datum::Bool(true))),
            FoldKind::Exists | FoldKind::ExistsOne => {
                |result| matches!(result, Err(_) | Ok(Datum::Bool(true)))
            }
            FoldKind::Map
            | FoldKind::Filter
            | FoldKind::TransformMap
            | FoldKind::TransformMapEntry
            | FoldKind::SortBy => |result| result.is_err(),
        };
        let Ok(range) = self.eval(&fold.range) else { return };
        let elements = elements(&range, fold.second.is_some());
        let outside = self.locals.len();
        let mut chosen = Vec::new();
        for element in elements {
            self.enter(fold, &element);
            let filter = fold.filter.as_ref().map(|filter| self.eval(filter));
            let is_left_out = matches!(filter, Some(Ok(Datum::Bool(false))));
            let is_deciding = !is_left_out && decides(&self.eval(&fold.body));
            self.locals.truncate(outside);
            if is_deciding {
                chosen = vec![element];
                break;
            }
            let is_boolean = matches!(fold.kind, FoldKind::Exists | FoldKind::ExistsOne);
            if is_boolean && chosen.len() < MAX_ELEMENTS {
                chosen.push(element);
            }
        }
        for element in chosen {
            self.enter(fold, &element);
            for (name, value) in self.locals.get(outside..).unwrap_or_default() {
                if self.parts.len() < MAX_PARTS {
                    let (text, value) = ((*name).to_owned(), cut(value_text(value)));
                    self.parts.push(ExplainedPart { depth, text, value });
                }
            }
            self.explain(&fold.body, depth);
            self.locals.truncate(outside);
        }
    }

    fn enter(&mut self, fold: &'a Fold, (first, second): &(Datum, Option<Datum>)) {
        self.locals.push((&fold.variable, first.clone()));
        if let (Some(name), Some(value)) = (&fold.second, second) {
            self.locals.push((name, value.clone()));
        }
    }
}

/// What the variables of a macro are bound to.
fn elements(range: &Datum, has_two: bool) -> Vec<(Datum, Option<Datum>)> {
    let index = |index: usize| Datum::Int(i64::try_from(index).unwrap_or(i64::MAX));
    match range {
        Datum::List(list) if has_two => {
            list.items.iter().enumerate().map(|(at, item)| (index(at), Some(item.clone()))).collect()
        }
        Datum::List(list) => list.items.iter().map(|item| (item.clone(), None)).collect(),
        Datum::Map(map) => {
            let entries = map.entries.iter();
            entries.map(|(key, value)| (key.datum(), has_two.then(|| value.clone()))).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether a node is a name, or a path of fields from one.
fn is_path(node: &ExprNode) -> bool {
    match &node.kind {
        NodeKind::Name(_) => true,
        NodeKind::Select { operand, .. } => is_path(operand),
        NodeKind::Call { function, arguments, .. } if is_index(function) => {
            arguments.first().is_some_and(is_path)
        }
        _ => false,
    }
}

fn is_index(function: &str) -> bool {
    matches!(function, "_[_]" | "_[?_]")
}

fn cut(text: String) -> String {
    if text.chars().count() <= MAX_TEXT {
        return text;
    }
    text.chars().take(MAX_TEXT - 1).chain(['…']).collect()
}

/// How tightly an operator binds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Conditional,
    Or,
    And,
    Relation,
    Sum,
    Product,
    Unary,
    Primary,
}

/// A node as an expression.
fn text(node: &ExprNode) -> String {
    written(node).0
}

/// The same within an operator: in parentheses if it binds less tightly.
fn within(node: &ExprNode, outer: Binding) -> String {
    let (text, binding) = written(node);
    if binding < outer { format!("({text})") } else { text }
}

fn list<'a>(nodes: impl IntoIterator<Item = &'a ExprNode>) -> String {
    nodes.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

fn written(node: &ExprNode) -> (String, Binding) {
    use Binding::{And, Conditional, Or, Primary, Relation};
    let primary = |node: &ExprNode| within(node, Primary);
    match &node.kind {
        NodeKind::Literal(value) => (value_text(value), Primary),
        NodeKind::Name(name) => (name.clone(), Primary),
        NodeKind::Select { operand, field, how, .. } => {
            let operand = primary(operand);
            let text = match how {
                Selection::Plain => format!("{operand}.{field}"),
                Selection::Optional => format!("{operand}.?{field}"),
                Selection::Test => format!("has({operand}.{field})"),
            };
            (text, Primary)
        }
        NodeKind::Call { function, target, arguments, .. } => call(function, target.as_deref(), arguments),
        NodeKind::List(elements) => {
            let elements = elements.iter().map(|(element, optional)| {
                let mark = if *optional { "?" } else { "" };
                format!("{mark}{}", text(element))
            });
            (format!("[{}]", elements.collect::<Vec<_>>().join(", ")), Primary)
        }
        NodeKind::Map(entries) => {
            let entries = entries.iter().map(|(key, value, optional)| {
                let mark = if *optional { "?" } else { "" };
                format!("{mark}{}: {}", text(key), text(value))
            });
            (format!("{{{}}}", entries.collect::<Vec<_>>().join(", ")), Primary)
        }
        NodeKind::Message(name, fields) => {
            let fields = fields.iter().map(|FieldNode { name, value, optional, .. }| {
                let mark = if *optional { "?" } else { "" };
                format!("{mark}{}: {}", field_name(name), text(value))
            });
            (format!("{name}{{{}}}", fields.collect::<Vec<_>>().join(", ")), Primary)
        }
        NodeKind::And(operands) => (junction(operands, " && ", And), And),
        NodeKind::Or(operands) => (junction(operands, " || ", Or), Or),
        NodeKind::Conditional(parts) => {
            let [condition, yes, no] = &**parts;
            (format!("{} ? {} : {}", within(condition, Or), within(yes, Or), text(no)), Conditional)
        }
        NodeKind::Member(operand, set) => {
            let set = set.iter().map(|key| value_text(&key.datum())).collect::<Vec<_>>().join(", ");
            (format!("{} in [{set}]", within(operand, Relation)), Relation)
        }
        NodeKind::Fold(fold) => {
            let variables = [Some(&fold.variable), fold.second.as_ref()].into_iter().flatten().cloned();
            let bodies = fold.filter.iter().chain([&fold.body]).map(text);
            let arguments = variables.chain(bodies).collect::<Vec<_>>().join(", ");
            (format!("{}.{}({arguments})", primary(&fold.range), macro_name(fold)), Primary)
        }
        NodeKind::WithOptional { target, variable, body, flat } => {
            let name = if *flat { "optFlatMap" } else { "optMap" };
            (format!("{}.{name}({variable}, {})", primary(target), text(body)), Primary)
        }
    }
}

fn junction(operands: &[ExprNode], operator: &str, binding: Binding) -> String {
    let operands: Vec<String> = operands.iter().map(|operand| within(operand, binding)).collect();
    operands.join(operator)
}

fn call(function: &str, target: Option<&ExprNode>, arguments: &[ExprNode]) -> (String, Binding) {
    use Binding::{Primary, Product, Relation, Sum, Unary};
    let operator = function.trim_matches('_');
    let binding = match operator {
        "==" | "!=" | "<" | "<=" | ">" | ">=" | "@in" => Some(Relation),
        "+" | "-" => Some(Sum),
        "*" | "/" | "%" => Some(Product),
        _ => None,
    };
    match (binding, target, arguments) {
        (Some(binding), None, [left, right]) => {
            // A chain of one level is read from the left.
            let right = match written(right) {
                (text, of) if of <= binding => format!("({text})"),
                (text, _) => text,
            };
            (format!("{} {} {right}", within(left, binding), operator.trim_start_matches('@')), binding)
        }
        (_, None, [operand]) if matches!(function, "!_" | "-_") => {
            (format!("{operator}{}", within(operand, Unary)), Unary)
        }
        (_, None, [operand, index]) if is_index(function) => {
            let mark = if function == "_[?_]" { "?" } else { "" };
            (format!("{}[{mark}{}]", within(operand, Primary), text(index)), Primary)
        }
        (_, Some(target), arguments) => {
            (format!("{}.{function}({})", within(target, Primary), list(arguments)), Primary)
        }
        (_, None, arguments) => (format!("{function}({})", list(arguments)), Primary),
    }
}

fn macro_name(fold: &Fold) -> &'static str {
    match fold.kind {
        FoldKind::All => "all",
        FoldKind::Exists => "exists",
        FoldKind::ExistsOne => "exists_one",
        FoldKind::Map if fold.second.is_some() => "transformList",
        FoldKind::Map => "map",
        FoldKind::Filter => "filter",
        FoldKind::TransformMap => "transformMap",
        FoldKind::TransformMapEntry => "transformMapEntry",
        FoldKind::SortBy => "sortBy",
    }
}

/// A value as a literal, as far as it has one; no more of it than is shown.
fn value_text(value: &Datum) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

fn write_value(value: &Datum, out: &mut String) {
    if out.len() > 4 * MAX_TEXT {
        return;
    }
    match value {
        Datum::Null => out.push_str("null"),
        Datum::String(text) => write_string(text, out),
        Datum::Bytes(bytes) => print(out, format_args!("bytes({})", bytes.len())),
        Datum::List(items) => {
            out.push('[');
            separated(items.items.iter(), out, write_value);
            out.push(']');
        }
        Datum::Map(map) => {
            out.push('{');
            separated(map.entries.iter(), out, write_entry);
            out.push('}');
        }
        Datum::Optional(None) => out.push_str("optional.none()"),
        Datum::Optional(Some(value)) => {
            out.push_str("optional.of(");
            write_value(value, out);
            out.push(')');
        }
        Datum::Duration(duration) => print(out, format_args!("duration({duration:?})")),
        Datum::Timestamp(timestamp) => print(out, format_args!("timestamp({timestamp:?})")),
        Datum::Type(name) => out.push_str(name),
        Datum::Native(native) => match native.shown() {
            Some(text) => print(out, format_args!("{}({text})", native.type_name())),
            None => out.push_str(native.type_name()),
        },
        Datum::Message(message) => {
            out.push_str(message.kind.name());
            out.push('{');
            // The texts of an operation are present also where they were not given.
            let is_given = |(_, value): &(&Arc<str>, &Datum)| {
                message.kind != MessageKind::JsonPatch
                    || !matches!(value, Datum::String(text) if text.is_empty())
            };
            separated(message.fields.iter().filter(is_given), out, |(name, value), out| {
                print(out, format_args!("{}: ", field_name(name)));
                write_value(value, out);
            });
            out.push('}');
        }
        Datum::Failed(text) => print(out, format_args!("error: {text}")),
        Datum::Bool(_) | Datum::Int(_) | Datum::Uint(_) | Datum::Double(_) | Datum::Root(_) => {
            out.push_str(&value.shown());
        }
    }
}

/// The name of a field of an object, in back quotes if it is none otherwise.
fn field_name(name: &str) -> String {
    let is_plain = name.bytes().all(|letter| letter == b'_' || letter.is_ascii_alphanumeric());
    if is_plain { name.to_owned() } else { format!("`{name}`") }
}

fn print(out: &mut String, what: fmt::Arguments<'_>) {
    // Writing into a text does not fail.
    out.write_fmt(what).ok();
}

fn separated<T>(items: impl Iterator<Item = T>, out: &mut String, write: impl Fn(T, &mut String)) {
    for (number, item) in items.enumerate() {
        if out.len() > 4 * MAX_TEXT {
            return;
        }
        if number > 0 {
            out.push_str(", ");
        }
        write(item, out);
    }
}

fn write_entry((key, value): (&MapKey, &Datum), out: &mut String) {
    write_value(&key.datum(), out);
    out.push_str(": ");
    write_value(value, out);
}

/// A string in single quotes, on one line, without characters that act on a terminal.
fn write_string(text: &str, out: &mut String) {
    out.push('\'');
    for character in text.chars().take(4 * MAX_TEXT) {
        match character {
            '\'' => out.push_str("\\'"),
            '\\' => out.push_str("\\\\"),
            character if character.is_control() => out.extend(character.escape_default()),
            character => out.push(character),
        }
    }
    out.push('\'');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{Environment, ResultType};

    fn explained(text: &str, object: &Value) -> Vec<String> {
        let expression = Expression::compile(text, Environment::ADMISSION, ResultType::Any).unwrap();
        let bindings = Bindings::default().with("object", object);
        let parts = expression.explain(&bindings, &[], &VariableValues::default());
        parts
            .into_iter()
            .map(|part| format!("{}{} -> {}", "  ".repeat(part.depth), part.text, part.value))
            .collect()
    }

    #[test]
    fn parts_are_shown_with_their_values() {
        let object = json!({"spec": {"replicas": 60, "containers": [
            {"image": "good/a"}, {"image": "bad/b"}, {"name": "third"}]}, "labels": {"a": "it's"}});
        let cases: &[(&str, &[&str])] = &[
            (
                "object.spec.replicas <= 50",
                &["object.spec.replicas <= 50 -> false", "  object.spec.replicas -> 60"],
            ),
            (
                "object.spec.containers.all(c, c.image.startsWith('good/'))",
                &[
                    "object.spec.containers.all(c, c.image.startsWith('good/')) -> false",
                    "  object.spec.containers -> [{'image': 'good/a'}, {'image': 'bad/b'}, {'name': 'third'}]",
                    "  c -> {'image': 'bad/b'}",
                    "  c.image.startsWith('good/') -> false",
                    "    c.image -> 'bad/b'",
                ],
            ),
            (
                "object.spec.containers.exists(c, c.?image.orValue('') == 'x')",
                &[
                    "object.spec.containers.exists(c, c.?image.orValue('') == 'x') -> false",
                    "  object.spec.containers -> [{'image': 'good/a'}, {'image': 'bad/b'}, {'name': 'third'}]",
                    "  c -> {'image': 'good/a'}",
                    "  c.?image.orValue('') == 'x' -> false",
                    "    c.?image.orValue('') -> 'good/a'",
                    "      c.?image -> optional.of('good/a')",
                    "  c -> {'image': 'bad/b'}",
                    "  c.?image.orValue('') == 'x' -> false",
                    "    c.?image.orValue('') -> 'bad/b'",
                    "      c.?image -> optional.of('bad/b')",
                    "  c -> {'name': 'third'}",
                    "  c.?image.orValue('') == 'x' -> false",
                    "    c.?image.orValue('') -> ''",
                    "      c.?image -> optional.none()",
                ],
            ),
            (
                "object.spec.containers.map(c, has(c.image), c.image.size() / (c.image.size() - 5)).size() == 2",
                &[
                    "object.spec.containers.map(c, has(c.image), c.image.size() / (c.image.size() - 5)).size() == 2 -> error: division by zero",
                    "  object.spec.containers.map(c, has(c.image), c.image.size() / (c.image.size() - 5)).size() -> error: division by zero",
                    "    object.spec.containers.map(c, has(c.image), c.image.size() / (c.image.size() - 5)) -> error: division by zero",
                    "      object.spec.containers -> [{'image': 'good/a'}, {'image': 'bad/b'}, {'name': 'third'}]",
                    "      c -> {'image': 'bad/b'}",
                    "      c.image.size() / (c.image.size() - 5) -> error: division by zero",
                    "        c.image.size() -> 5",
                    "          c.image -> 'bad/b'",
                    "        c.image.size() - 5 -> 0",
                    "          c.image.size() -> 5",
                    "            c.image -> 'bad/b'",
                ],
            ),
            (
                "object.spec.containers.map(c, has(c.image), c.image).size() == 3",
                &[
                    "object.spec.containers.map(c, has(c.image), c.image).size() == 3 -> false",
                    "  object.spec.containers.map(c, has(c.image), c.image).size() -> 2",
                    "    object.spec.containers.map(c, has(c.image), c.image) -> ['good/a', 'bad/b']",
                    "      object.spec.containers -> [{'image': 'good/a'}, {'image': 'bad/b'}, {'name': 'third'}]",
                ],
            ),
            (
                "object.spec.absent.more == 1",
                &[
                    "object.spec.absent.more == 1 -> error: no such key: absent",
                    "  object.spec.absent.more -> error: no such key: absent",
                    "    object.spec.absent -> error: no such key: absent",
                    "      object.spec -> {'containers': [{'image': 'good/a'}, {'image': 'bad/b'}, {'name': 'third'}], 'replicas': 60}",
                ],
            ),
            (
                "has(object.labels) && (object.labels['a'] in ['x', 'y'] || -object.spec.replicas * (2 + 1) > 0)",
                &[
                    "has(object.labels) && (object.labels['a'] in ['x', 'y'] || -object.spec.replicas * (2 + 1) > 0) -> false",
                    "  has(object.labels) -> true",
                    "  object.labels['a'] in ['x', 'y'] || -object.spec.replicas * (2 + 1) > 0 -> false",
                    "    object.labels['a'] in ['x', 'y'] -> false",
                    "      object.labels['a'] -> 'it\\'s'",
                    "    -object.spec.replicas * (2 + 1) > 0 -> false",
                    "      -object.spec.replicas * (2 + 1) -> -180",
                    "        -object.spec.replicas -> -60",
                    "          object.spec.replicas -> 60",
                ],
            ),
            (
                "1 - (object.spec.replicas - 2) == 0 ? 'a' : string(object.spec.replicas)",
                &[
                    "1 - (object.spec.replicas - 2) == 0 ? 'a' : string(object.spec.replicas) -> '60'",
                    "  1 - (object.spec.replicas - 2) == 0 -> false",
                    "    1 - (object.spec.replicas - 2) -> -57",
                    "      object.spec.replicas - 2 -> 58",
                    "        object.spec.replicas -> 60",
                    "  string(object.spec.replicas) -> '60'",
                    "    object.spec.replicas -> 60",
                ],
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(explained(text, &object), *expected, "{text}");
        }
    }

    #[test]
    fn texts_of_parts_are_expressions_of_the_same_value() {
        let object = json!({"a": 7, "b": [1, 2, 3], "c": {"x": "y"}, "d": true, "e": 1});
        for text in [
            "object.a - (object.a - 1) - 1 == -object.a + 7",
            "!(object.d && false) || object.a % 4 * 2 < (object.a + 1) / 3",
            "object.b.map(x, x * 2).filter(x, x > 2).size() + object.b[1]",
            "[object.a, object.e].exists_one(x, x == 7) ? object.c['x'] : object.c.x",
            "object.c.transformList(k, v, k + v)",
            "object.?z.orValue({'k': [object.a]})",
        ] {
            let expression = Expression::compile(text, Environment::ADMISSION, ResultType::Any).unwrap();
            let bindings = Bindings::default().with("object", &object);
            for part in expression.explain(&bindings, &[], &VariableValues::default()) {
                let Ok(again) = Expression::compile(&part.text, Environment::ADMISSION, ResultType::Any)
                else {
                    // A variable of a macro.
                    assert!(part.text.contains('x') || part.text.contains('k'), "{}", part.text);
                    continue;
                };
                let first = again.explain(&bindings, &[], &VariableValues::default());
                assert_eq!(first.first().map(|first| &first.value), Some(&part.value), "{}", part.text);
            }
        }
    }

    #[test]
    fn objects_of_patches_are_shown_as_they_are_written() {
        let text =
            "Object{?a: object.?b, `x-y`: Object.z{c: [object.a]}, d: JSONPatch{op: object.s}.op == 'add'}";
        let expression = Expression::compile(text, Environment::MUTATION, ResultType::Any).unwrap();
        let bindings = Bindings::default().with("object", &json!({"a": 1, "s": "add"}));
        let parts = expression.explain(&bindings, &[], &VariableValues::default());
        let parts: Vec<_> = parts.iter().map(|part| format!("{} -> {}", part.text, part.value)).collect();
        assert_eq!(
            parts,
            [
                &format!("{text} -> Object{{d: true, `x-y`: Object.z{{c: [1]}}}}"),
                "object.?b -> optional.none()",
                "Object.z{c: [object.a]} -> Object.z{c: [1]}",
                "[object.a] -> [1]",
                "object.a -> 1",
                "JSONPatch{op: object.s}.op == 'add' -> true",
                "JSONPatch{op: object.s}.op -> 'add'",
                "JSONPatch{op: object.s} -> JSONPatch{op: 'add'}",
                "object.s -> 'add'",
            ]
        );
    }

    #[test]
    fn explanations_are_bounded_and_safe_for_a_terminal() {
        let many = (0..200).map(|number| format!("object.a{number} == 'x'")).collect::<Vec<_>>().join(" && ");
        let object: Value = (0..200)
            .map(|number| (format!("a{number}"), json!("x")))
            .collect::<serde_json::Map<_, _>>()
            .into();
        assert!(explained(&many, &object).len() <= MAX_PARTS);
        let parts = explained("object.a == 'x'", &json!({"a": "\u{1b}[31m\n".repeat(10_000)}));
        assert!(parts.iter().all(|part| part.chars().count() < 2 * MAX_TEXT), "{parts:?}");
        assert!(!parts.concat().contains(['\u{1b}', '\n']));
    }
}
