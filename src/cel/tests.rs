use super::*;

fn claims(text: &str) -> Variable {
    Variable::claims(serde_json::from_str::<serde_json::Value>(text).unwrap().as_object().unwrap())
}

#[test]
fn works() {
    let expression = Expression::compile("claims.a + 'x'", Purpose::ClaimMapping).unwrap();
    assert_eq!(expression.evaluate(&claims(r#"{"a":"b"}"#)), Ok(Value::String("bx".to_owned())));
}
