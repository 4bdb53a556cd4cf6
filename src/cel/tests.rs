use super::*;

fn claims(text: &str) -> Variable {
    Variable::claims(serde_json::from_str::<serde_json::Value>(text).unwrap().as_object().unwrap())
}

#[test]
fn works() {
    let expression = Expression::compile("claims.a + 'x'", Purpose::ClaimMapping).unwrap();
    assert_eq!(expression.evaluate(&claims(r#"{"a":"b"}"#)), Ok(Value::String("bx".to_owned())));
}

fn rule(text: &str) -> Expression {
    Expression::compile(text, Purpose::ClaimRule).unwrap()
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
    let found = receiver.recv_timeout(std::time::Duration::from_secs(30));
    assert_eq!(found, Ok(too_costly()), "within the time");
}

#[test]
fn counting_characters_is_paid_for() {
    let claims = claims(&format!(r#"{{"a":[{}0],"s":"{}"}}"#, "0,".repeat(100), "s".repeat(200_000)));
    assert_eq!(rule("size(dyn(claims.s)) == 200000").evaluate(&claims), Ok(Value::Bool(true)));
    assert_eq!(rule("dyn(claims.a).all(x, size(dyn(claims.s)) > 0)").evaluate(&claims), too_costly());
}
