use std::time::{Duration, Instant};

use super::*;

fn claims(text: &str) -> Bindings {
    Bindings::claims(serde_json::from_str::<serde_json::Value>(text).unwrap().as_object().unwrap())
}

fn refused(text: &str) -> String {
    Expression::compile(text, Environment::CLAIMS, ResultType::Any).unwrap_err().to_string()
}

fn rule_error(text: &str) -> String {
    Expression::compile(text, Environment::CLAIMS, ResultType::Bool).unwrap_err().to_string()
}

#[test]
fn faults_are_shown_with_their_place() {
    assert_eq!(
        refused("claims.a ==\n  usr.name"),
        "compilation failed: ERROR: <input>:2:3: undeclared reference to 'usr' (in container '')\n |   usr.name\n | ..^"
    );
    assert_eq!(
        refused("claims + 1"),
        "compilation failed: ERROR: <input>:1:8: found no matching overload for '_+_' applied to '(map(string, any), int)'\n | claims + 1\n | .......^"
    );
    assert_eq!(rule_error("claims.foo"), "must evaluate to bool");
    let condition = Expression::compile("object.a + 'b'", Environment::ADMISSION, ResultType::Bool);
    assert_eq!(condition.unwrap_err().to_string(), "must evaluate to bool but got string");
    let field =
        Expression::compile("user.unknown == 'foo'", Environment::USER, ResultType::Bool).unwrap_err();
    assert_eq!(
        field.to_string(),
        "compilation failed: ERROR: <input>:1:5: undefined field 'unknown'\n | user.unknown == 'foo'\n | ....^"
    );
    assert_eq!(field.fix(), Some("the fields of kubernetes.UserInfo are: username, uid, groups, extra"));
}

#[test]
fn text_that_would_overflow_the_parser_is_refused_at_once() {
    let cases = [
        format!("{}1{}", "(".repeat(5_000), ")".repeat(5_000)),
        format!("{}1{}", "[".repeat(4_000), "]".repeat(4_000)),
        format!("{}1{}", "{1:".repeat(3_000), "}".repeat(3_000)),
        "(".repeat(9_000),
        format!("{}1", "true?1:".repeat(1_400)),
        format!("{}1", "true?".repeat(1_900)),
        format!("{}[1]{}", "[1].map(x,".repeat(900), ")".repeat(900)),
        vec!["1"; 4_900].join("+"),
        vec!["1"; 4_900].join("<"),
        format!("claims{}", ".a".repeat(4_900)),
        format!("claims{}", "[0]".repeat(3_200)),
        format!("claims{}", ".f()".repeat(2_400)),
        "x".repeat(200_000),
    ];
    for text in cases {
        let started = Instant::now();
        let head: String = text.chars().take(20).collect();
        assert!(Expression::compile(&text, Environment::CLAIMS, ResultType::Any).is_err(), "{head}");
        assert!(started.elapsed() < Duration::from_secs(20), "{head}");
    }
}

#[test]
fn flat_text_is_no_nesting() {
    let value = |text: &str| {
        Expression::compile(text, Environment::CLAIMS, ResultType::Any).unwrap().evaluate(&claims("{}"))
    };
    assert_eq!(value(&format!("{}true", "!".repeat(4_000))), Ok(Value::Bool(true)));
    assert_eq!(value(&vec!["true"; 800].join(" && ")), Ok(Value::Bool(true)));
    assert_eq!(value(&format!("'{}' == ''", "é(".repeat(25))), Ok(Value::Bool(false)));
}

#[test]
fn the_deepest_tree_that_compiles_evaluates_on_a_small_stack() {
    let text = (1..=200)
        .rev()
        .map(|count| vec!["1"; count].join("+"))
        .find(|text| Expression::compile(text, Environment::CLAIMS, ResultType::Any).is_ok())
        .unwrap();
    let deepest = Expression::compile(&text, Environment::CLAIMS, ResultType::Any).unwrap();
    let nested = format!("{}1{}", "[1].map(x, ".repeat(50), ")".repeat(50));
    let nested = Expression::compile(&nested, Environment::CLAIMS, ResultType::Any).unwrap();
    std::thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(move || {
            assert_eq!(deepest.evaluate(&claims("{}")), Ok(Value::Other("int".to_owned())));
            nested.evaluate(&claims("{}")).unwrap();
        })
        .unwrap()
        .join()
        .unwrap();
}

#[test]
fn evaluation_ends_soon_whatever_the_token_contains() {
    let numbers: Vec<usize> = (0..2_000).collect();
    let nested = serde_json::json!({"l": numbers, "s": "a".repeat(20_000), "p": "(a|a)*".repeat(2_000),
        "r": "(((a{1000}){1000}){1000})"});
    let token = Bindings::claims(nested.as_object().unwrap());
    let cases = [
        "dyn(claims.l).all(x, dyn(claims.l).all(y, dyn(claims.l).all(z, x + y + z >= 0.0)))",
        "dyn(claims.l).all(x, dyn(claims.l).all(y, dyn(claims.l) == dyn(claims.l)))",
        "dyn(claims.l).all(x, dyn(claims.l).all(y, size(claims.s) > 0))",
        "dyn(claims.l).map(x, claims.s.findAll('a'))",
        "dyn(claims.l).map(x, dyn(claims.l).filter(y, true))",
        "dyn(claims.l).map(x, dyn(claims.l).map(y, dyn(claims.l)))",
        "dyn(claims.l).map(x, claims.l + claims.l)",
        "dyn(claims.l).map(x, claims.s + claims.s)",
        "claims.s.replace('', claims.s).replace('', claims.s)",
        "claims.s.split('').map(x, claims.s.split(''))",
        "dyn(claims.l).map(x, claims.s).join(claims.s)",
        "lists.range(9223372036854775807)",
        "lists.range(1000000)",
        "dyn(claims.l).map(x, claims.s.matches(claims.p))",
        "dyn(claims.l).all(x, !claims.s.contains(claims.s + 'b'))",
        "dyn(claims.l).map(x, dyn(claims.l).sort())",
        "dyn(claims.l).map(x, dyn(claims.l).distinct())",
        "[dyn(claims.l)].flatten(9223372036854775807).map(x, dyn(claims.l).reverse())",
        "claims.s.matches(claims.r)",
        "dyn(claims.l).map(x, '%s'.format([dyn(claims.s)]))",
        "dyn(claims.l).map(x, '%X'.format([dyn(claims.s)]))",
        "dyn(claims.l).map(x, '%s'.format([dyn(claims.l)]))",
        "dyn(claims.l).map(x, '%s'.format([{'a': {'b': [dyn(claims.s)]}}]))",
        "dyn(claims.l).map(x, '%.65535e%.65535e'.format([1.0, dyn(x)]))",
        "dyn(claims.l).map(x, '%.300f'.format([-1.7976931348623157e308]) + claims.s)",
        "dyn(claims.l).all(x, dyn(claims.l).all(y, timestamp(1).getHours(string(dyn(claims.s).size())+':') >= 0 || true))",
    ];
    for (cel_go, text) in CelGo::ALL.into_iter().flat_map(|cel_go| cases.map(|text| (cel_go, text))) {
        let environment = Environment::CLAIMS.of(cel_go);
        let expression = Expression::compile(text, environment, ResultType::Any).unwrap();
        let started = Instant::now();
        let error = expression.evaluate(&token).unwrap_err().to_string();
        assert!(started.elapsed() < Duration::from_secs(5), "{text} took {:?}", started.elapsed());
        assert!(
            error == "operation cancelled: actual cost limit exceeded"
                || error.starts_with("error parsing regexp")
                || error.starts_with("lists.range: size 9223372036854775807 exceeds"),
            "{text}: {error}"
        );
    }
}

#[test]
fn an_empty_purse_is_not_outvoted() {
    let expression = "lists.range(1000000).size() == 1 || true";
    let expression = Expression::compile(expression, Environment::CLAIMS, ResultType::Any).unwrap();
    assert!(expression.evaluate(&claims("{}")).is_err());
}

#[test]
fn a_claim_is_used_when_it_is_selected() {
    let uses = |text: &str| {
        Expression::compile(text, Environment::CLAIMS, ResultType::Any).unwrap().uses_claim("email")
    };
    for text in [
        "claims.email",
        "claims.?email.orValue('')",
        "has(claims.email) ? 'a' : 'b'",
        "claims.email.x",
        "[1].map(x, claims.email)",
        "{'a': claims.email}",
        "'a' + claims.email",
        "claims.?sub.optMap(s, claims.email)",
    ] {
        assert!(uses(text), "{text}");
    }
    for text in
        ["claims['email']", "claims[?'email']", "claims.sub.email", "claims.email_verified", "'claims.email'"]
    {
        assert!(!uses(text), "{text}");
    }
}

fn rule(text: &str) -> Expression {
    Expression::compile(text, Environment::CLAIMS, ResultType::Bool).unwrap()
}

fn too_costly() -> Result<Value, EvalError> {
    Err(EvalError("operation cancelled: actual cost limit exceeded".to_owned()))
}

#[test]
fn elements_that_are_not_looked_at_are_no_work() {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let claims = claims(&format!(r#"{{"a":[{}0]}}"#, "0,".repeat(200_000)));
        let rule = rule("dyn(claims.a).all(x, dyn(claims.a).exists(y, true))");
        sender.send(rule.evaluate(&claims)).unwrap();
    });
    let found = receiver.recv_timeout(Duration::from_secs(30));
    assert_eq!(found, Ok(too_costly()), "within the time");
}

#[test]
fn counting_characters_is_paid_for() {
    let claims = claims(&format!(r#"{{"a":[{}0],"s":"{}"}}"#, "0,".repeat(600), "s".repeat(200_000)));
    assert_eq!(rule("size(dyn(claims.s)) == 200000").evaluate(&claims), Ok(Value::Bool(true)));
    assert_eq!(rule("dyn(claims.a).all(x, size(dyn(claims.s)) > 0)").evaluate(&claims), too_costly());
}

#[test]
fn a_release_can_be_chosen() {
    let compile = |text: &str, environment: Environment| {
        Expression::compile(text, environment, ResultType::Any).map_err(|error| error.to_string())
    };
    let (claims, object) = (Environment::CLAIMS, Environment::ADMISSION);
    for (text, environment, compiles_with_0_26, compiles_with_0_29) in [
        ("claims.`example.com/tenant`", claims, false, true),
        ("has(claims.`example.com/tenant`)", claims, false, true),
        ("claims.?`example.com/tenant`", claims, false, true),
        ("claims['example.com/tenant']", claims, true, true),
        ("[1].map(claims, .claims.sub)", claims, false, true),
        ("['a'].includes('a')", claims, false, true),
        ("duration(3)", claims, false, false),
        ("['a'].map(x, duration(x.size()))", claims, true, false),
        // A function that a release adds is not one for new objects.
        ("['a'].includes('a')", object, false, false),
        ("['a'].includes('a')", object.stored(), false, true),
    ] {
        let outcomes = [CelGo::V0_26, CelGo::V0_29].map(|cel_go| compile(text, environment.of(cel_go)));
        assert_eq!(outcomes[0].is_ok(), compiles_with_0_26, "{text}: {:?}", outcomes[0]);
        assert_eq!(outcomes[1].is_ok(), compiles_with_0_29, "{text}: {:?}", outcomes[1]);
        assert_eq!(compile(text, environment), outcomes[1], "the default");
    }
}

#[test]
fn values_are_those_of_the_chosen_release() {
    let token = claims(r#"{"sub": "s", "a/b": "c"}"#);
    let evaluate = |text: &str, cel_go: CelGo| {
        let environment = Environment::CLAIMS.of(cel_go);
        let evaluated = Expression::compile(text, environment, ResultType::Any).unwrap().evaluate(&token);
        evaluated.map_err(|error| error.to_string())
    };
    let text = |text: &str| Ok(Value::String(text.to_owned()));
    let failed = |text: &str| Err(text.to_owned());
    let truth = |value: bool| Ok(Value::Bool(value));
    assert_eq!(evaluate("claims.`a/b`", CelGo::V0_29), text("c"));
    assert_eq!(evaluate("[1].map(claims, .claims.sub)[0]", CelGo::V0_29), text("s"));
    for (expression, with_0_26, with_0_29) in [
        ("lists.range(-1) == []", truth(true), failed("lists.range: size must be non-negative, got -1")),
        ("'abc'.indexOf('', 9) == 3", truth(false), truth(true)),
        ("'abc'.indexOf('', -1) == -1", truth(true), failed("index out of range: -1")),
        ("claims.sub.orValue('x')", text("s"), failed("no such overload")),
        ("[quantity('1.5Gi')].all(q, q.add(q) == q)", truth(true), truth(false)),
    ] {
        assert_eq!(evaluate(expression, CelGo::V0_26), with_0_26, "{expression}");
        assert_eq!(evaluate(expression, CelGo::V0_29), with_0_29, "{expression}");
    }
}

mod variables {
    use crate::{
        Bindings, Environment, EvalError, Outcome, ResultType, Value, VariableOutcome, VariableValues,
        Variables,
    };

    const ENVIRONMENT: Environment = Environment::ADMISSION.composed();

    fn variables(all: &[(&str, &str)]) -> Variables {
        let mut variables = Variables::default();
        for (name, text) in all {
            variables.add(name, text, ENVIRONMENT).unwrap();
        }
        variables
    }

    fn error_of(variables: &Variables, text: &str) -> String {
        variables.compile(text, ENVIRONMENT, ResultType::Bool).unwrap_err().to_string()
    }

    /// Evaluates an expression and what it uses; returns the names in the order of their evaluation, the result and the whole cost.
    fn evaluate(variables: &Variables, text: &str) -> (Vec<String>, Outcome, u64) {
        let object = serde_json::json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 3}});
        let bindings = Bindings::default().with("object", &object).with_variables();
        let expression = variables.compile(text, ENVIRONMENT, ResultType::Any).unwrap();
        let (mut values, mut order, mut pending, mut spent) = (VariableValues::default(), vec![], vec![], 0);
        loop {
            let next: Option<&String> = pending.last();
            let outcome = match next.cloned() {
                None => {
                    let evaluated = expression.evaluate_in(&bindings, &[], &values);
                    match evaluated.outcome {
                        Outcome::Variable(name) => VariableOutcome::Variable(name),
                        outcome => return (order, outcome, spent + evaluated.cost),
                    }
                }
                Some(name) => {
                    let (outcome, cost) = variables.evaluate(&name, &bindings, &[], &mut values);
                    if matches!(outcome, VariableOutcome::Known) {
                        spent += cost;
                        order.push(name);
                    }
                    outcome
                }
            };
            match outcome {
                VariableOutcome::Known => drop(pending.pop()),
                VariableOutcome::Variable(name) => pending.push(name),
                VariableOutcome::Review(_) | VariableOutcome::Unsupported(_) => unreachable!(),
            }
        }
    }

    #[test]
    fn a_variable_is_evaluated_when_it_is_used_and_once() {
        let all = variables(&[
            ("unused", "object.missing"),
            ("replicas", "object.spec.replicas"),
            ("many", "variables.replicas > 2"),
            ("all", "[variables.many, variables.many, variables.replicas == 3]"),
        ]);
        let (order, outcome, cost) = evaluate(&all, "variables.all.all(x, x) && variables.many");
        assert_eq!(order, ["replicas", "many", "all"]);
        assert_eq!(outcome, Outcome::Value(Value::Bool(true)));
        assert!(cost > 0);
        let (order, outcome, _) = evaluate(&all, "true || variables.many");
        assert_eq!((order.len(), outcome), (0, Outcome::Value(Value::Bool(true))));
    }

    #[test]
    fn errors_name_the_variables() {
        let all = variables(&[("one", "object.missing"), ("two", "variables.one + 1")]);
        let (order, outcome, _) = evaluate(&all, "has(variables.two) || true");
        assert_eq!(order, ["one", "two"]);
        assert_eq!(outcome, Outcome::Value(Value::Bool(true)), "an error of an operand is absorbed");
        let text = "composited variable \"two\" fails to evaluate: composited variable \"one\" fails to evaluate: no \
                    such key: missing";
        assert_eq!(evaluate(&all, "variables.two").1, Outcome::Error(EvalError(text.to_owned())));
        assert_eq!(evaluate(&all, "has(variables.two)").1, Outcome::Error(EvalError(text.to_owned())));
    }

    #[test]
    fn types_are_those_of_the_expressions() {
        let all = variables(&[
            ("number", "1 + 2"),
            ("names", "['a', 'b']"),
            ("labels", "{'a': 1}"),
            ("any", "object.spec"),
            ("namespace", "namespaceObject"),
            ("quantity", "quantity('1Gi')"),
        ]);
        for (text, part) in [
            ("variables.number", "must evaluate to bool but got int"),
            (
                "variables.names.exists(x, x == 1)",
                "found no matching overload for '_==_' applied to '(string, int)'",
            ),
            ("variables.labels.a == 'b'", "applied to '(int, string)'"),
            ("variables.none", "undefined field 'none'"),
            ("variables.names.missing", "type 'list(string)' does not support field selection"),
            ("variables['number'] == 1", "found no matching overload for '_[_]'"),
        ] {
            let error = error_of(&all, text);
            assert!(error.contains(part), "{text}: {error}");
        }
        for text in [
            "variables.any.replicas == 3 && variables.any.replicas != 'x'",
            "variables.namespace.metadata.name == 1",
            "variables.quantity == 1",
        ] {
            all.compile(text, ENVIRONMENT, ResultType::Bool).unwrap();
        }
        // A macro's variable of the name hides them.
        assert_eq!(evaluate(&all, "[1].all(variables, variables == 1)").1, Outcome::Value(Value::Bool(true)));
        let error =
            Variables::default().compile("variables.a", Environment::ADMISSION, ResultType::Any).unwrap_err();
        assert!(error.to_string().contains("undeclared reference to 'variables'"), "{error}");
    }
}

/// An evaluation that is not brief has no result, whatever is in progress at its limit: neither a value nor an error.
#[test]
fn a_brief_evaluation_ends_as_the_whole_one_or_not_at_all() {
    let object = serde_json::json!({"list": (0..12).map(|number| format!("a{number}")).collect::<Vec<_>>(),
        "map": {"x": "forbidden", "y": "\u{7f}".repeat(120)}, "n": 7, "text": "a,b,c".repeat(10), "deep": {"a": {"b": [1, 2, 3]}}});
    let expressions = [
        "!('%s'.format([object.map]).contains('forbidden'))",
        "'%s %d %s'.format([object.list, object.n, object.deep]).size() > 3",
        "object.list.all(a, object.list.exists(b, a == b))",
        "object.list.map(a, a + a).filter(a, a.matches('^a.*')).size() == 12",
        "object.list.exists_one(a, a == 'a3') || object.absent",
        "object.absent || object.list.all(a, a != '')",
        "object.list.all(a, a.absent) && false",
        "(object.list.all(a, a != 'x') ? object.text.split(',') : []).size() > 1",
        "object.?absent.orValue(object.list.map(a, a)).size() == 12",
        "object.?absent.or(object.?list).value().size() == 12",
        "object.?map.optMap(m, m.size() + object.list.size()).orValue(0) > 5",
        "object.list.sortBy(a, a).size() == 12",
        "object.list.transformMap(i, a, a + string(i)).size() == 12",
        "object.text.replace('a', 'bb').contains('bb,')",
        "object.deep == object.deep && object.map.all(k, object.map[k] != '')",
        "[object.list, object.list].flatten().size() == 24",
        "sets.contains(object.list, ['a1', 'a2'])",
        "quantity('1Gi').isGreaterThan(quantity('1Mi')) && object.list[11] == 'a11'",
        "has(object.map.x) && object.list.indexOf('a5') == 5",
        "object.text.findAll('[abc]').distinct().size() == 3",
    ];
    let values = VariableValues::default();
    for text in expressions {
        let expression = Expression::compile(text, Environment::ADMISSION, ResultType::Any).unwrap();
        let bindings = Bindings::default().with("object", &object);
        let whole = expression.evaluate_in(&bindings, &[], &values);
        assert!(whole.cost < 5_000, "{text}: {whole:?}");
        let mut ended = 0;
        for most in 0..=whole.cost.saturating_mul(6) {
            match expression.evaluated(&bindings, &[], &values, evaluation::Extent::Brief(most)) {
                Ok(brief) => {
                    assert_eq!(brief, whole, "{text} with at most {most}");
                    ended += 1;
                }
                Err(cost) => assert!(cost <= whole.cost.max(most), "{text}"),
            }
        }
        assert!(ended > 0, "{text}");
    }
}

#[test]
fn a_mutation_gives_its_patch() {
    let outcome = |text: &str, result| {
        let expression = Expression::compile(text, Environment::MUTATION, result).unwrap();
        let bindings = Bindings::default().with("object", &serde_json::json!({"spec": {"replicas": 3}}));
        expression.evaluate_with(&bindings, &[]).outcome
    };
    let patch = |value| Outcome::Patch(Ok(value));
    assert_eq!(
        outcome(
            "Object{spec: Object.spec{replicas: object.spec.replicas + 1, ?paused: object.spec.?paused}}",
            ResultType::ApplyConfiguration
        ),
        patch(serde_json::json!({"spec": {"replicas": 4}}))
    );
    assert_eq!(
        outcome(
            "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'x'}]",
            ResultType::JsonPatch
        ),
        patch(serde_json::json!([{"op": "add", "path": "/metadata/labels/a~1b", "value": "x"}]))
    );
    let misfit = outcome("Object{spec: Object.status{}}", ResultType::ApplyConfiguration);
    let Outcome::Patch(Err(error)) = misfit else { panic!("{misfit:?}") };
    assert_eq!(
        error.to_string(),
        "type mismatch: unexpected type name \"Object.status\", expected \"Object.spec\", which matches field name path from root Object type"
    );
    let other = Expression::compile("Object{}", Environment::ADMISSION, ResultType::Any).unwrap_err();
    assert_eq!(
        other.to_string(),
        "compilation failed: ERROR: <input>:1:7: undeclared reference to 'Object' (in container '')\n | Object{}\n | ......^"
    );
}

/// What a client can cause must not look like an error, which a policy may ignore.
#[test]
fn what_is_beyond_a_bound_is_no_error_of_the_input() {
    let nested =
        |levels: usize| (0..levels).fold(serde_json::json!(1), |inner, _| serde_json::json!({"a": inner}));
    let object = serde_json::json!({
        "quantity": "1e1001", "long": "a".repeat(10_001), "high": "(".repeat(150) + &")".repeat(150), "zone": "Local",
        "utc": "UTC", "half": r"\x{D800}|a"
    });
    let outcome = |text: &str, result, object: &serde_json::Value| {
        let expression = Expression::compile(text, Environment::MUTATION, result).unwrap();
        expression.evaluate_with(&Bindings::default().with("object", object), &[]).outcome
    };
    for unsupported in [
        "isQuantity(object.quantity)",
        "quantity(object.quantity).isInteger()",
        "'a'.matches(object.long)",
        "'a'.find(object.high) == ''",
        "timestamp('2030-01-01T00:00:00Z').getHours(object.zone) == 1",
        "timestamp('2030-01-01T00:00:00Z').getHours('posix/' + object.utc) == 1",
        "'a'.matches(object.half)",
    ] {
        for text in [
            unsupported.to_owned(),
            format!("{unsupported} || true"),
            format!("[1].exists(x, {unsupported} || true)"),
        ] {
            let found = outcome(&text, ResultType::Bool, &object);
            assert!(matches!(found, Outcome::Unsupported(_)), "{text}: {found:?}");
        }
    }
    let is_error = |found: &Outcome| matches!(found, Outcome::Error(_));
    assert!(
        is_error(&outcome("'a'.matches(object.zone + '(')", ResultType::Bool, &object)),
        "an invalid pattern"
    );
    for (levels, is_supported) in [(249, true), (251, false), (400, false)] {
        for text in ["has(object.b)", "object == object", "true || has(object.a.a)"] {
            let found = outcome(text, ResultType::Bool, &nested(levels));
            let skips = text.starts_with("true");
            assert_eq!(
                matches!(found, Outcome::Unsupported(_)),
                !is_supported && !skips,
                "{levels} {text}: {found:?}"
            );
        }
    }
    // The value is deeper than what it is made of.
    for (text, result) in [
        ("[JSONPatch{op: 'add', path: '/a', value: {'a': {'a': object}}}]", ResultType::JsonPatch),
        ("Object{a: Object.a{b: Object.a.b{c: object}}}", ResultType::ApplyConfiguration),
    ] {
        assert!(matches!(outcome(text, result, &nested(100)), Outcome::Patch(Ok(_))), "{text}");
        let found = outcome(text, result, &nested(249));
        assert!(matches!(found, Outcome::Unsupported(_)), "{text}: {found:?}");
    }
}

#[test]
fn a_patch_is_as_deep_and_as_large_as_an_object_may_be() {
    let outcome = |text: &str, result, object: &serde_json::Value| {
        let expression = Expression::compile(text, Environment::MUTATION, result).unwrap();
        expression.evaluate_with(&Bindings::default().with("object", object), &[]).outcome
    };
    let deep = |levels: usize| {
        (1..levels).fold(serde_json::json!([1]), |inner, _| serde_json::json!({"a": [inner]}))
    };
    let value = "[JSONPatch{op: 'add', path: '/a', value: object}]";
    let merged = "Object{a: Object.a{b: [object]}}";
    for (text, result) in [(value, ResultType::JsonPatch), (merged, ResultType::ApplyConfiguration)] {
        assert!(matches!(outcome(text, result, &deep(100)), Outcome::Patch(Ok(_))), "{text}");
    }
    // What is shared is written each time, to the limit.
    let many =
        |list: &str| (0..8).fold("object".to_owned(), |inner, _| format!("[{inner}].map(x, {list})[0]"));
    let started = Instant::now();
    for list in ["[x, x, x, x, x, x, x, x, x, x]", "[x, x, x, x, x] + [x, x, x, x, x]"] {
        let many = many(list);
        for (text, result) in [
            (format!("[JSONPatch{{op: 'add', path: '/a', value: {many}}}]"), ResultType::JsonPatch),
            (format!("Object{{a: {many}}}"), ResultType::ApplyConfiguration),
            (
                format!("[JSONPatch{{op: 'add', path: '/a', value: Object{{a: {many}}}}}]"),
                ResultType::JsonPatch,
            ),
        ] {
            let found = outcome(&text, result, &serde_json::json!({"a": "b"}));
            assert!(!matches!(found, Outcome::Patch(Ok(_))), "{text}");
        }
    }
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn names_of_pods_are_strings_of_objects_without_a_type() {
    let request = serde_json::json!({"metadata": {"namespace": "a"}, "spec": {"serviceAccountName": "b"}});
    let pod = serde_json::json!({"metadata": {"labels": {"app": "web", "names": "x,y"}}});
    let bindings = Bindings::default().with("request", &request).with("pod", &pod);
    let value = |text: &str, result| {
        let compiled = Expression::compile(text, Environment::POD_CERTIFICATE, result);
        compiled.map(|compiled| compiled.evaluate(&bindings)).map_err(|error| error.to_string())
    };
    let text = |text: &str| Value::String(text.to_owned());
    let name = "'spiffe://x/ns/' + request.metadata.namespace + '/sa/' + request.spec.serviceAccountName";
    let cases = [
        (name, ResultType::DynamicString, Ok(text("spiffe://x/ns/a/sa/b"))),
        ("pod.metadata.labels.app", ResultType::DynamicString, Ok(text("web"))),
        ("[pod.metadata.labels.app]", ResultType::DynamicStrings, Ok(Value::List(vec![text("web")]))),
        ("[]", ResultType::DynamicStrings, Ok(Value::List(Vec::new()))),
        (
            "pod.metadata.labels.names.split(',')",
            ResultType::DynamicStrings,
            Ok(Value::List(vec![text("x"), text("y")])),
        ),
        ("1", ResultType::DynamicString, Err("must evaluate to string but got int")),
        ("'a'", ResultType::DynamicStrings, Err("must evaluate to list(string) but got string")),
        ("[1]", ResultType::DynamicStrings, Err("must evaluate to list(string) but got list(int)")),
        ("request.spec.podUid", ResultType::DynamicString, Err("undefined field 'podUid'")),
        ("namespace.metadata.name", ResultType::DynamicString, Err("reserved identifier: namespace")),
    ];
    for (expression, result, expected) in cases {
        match (value(expression, result), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, Ok(expected), "{expression}"),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{expression}: {error}"),
            (found, expected) => panic!("{expression}: {found:?}, not {expected:?}"),
        }
    }
}
