//! Every flag of kube-apiserver is one of the gateway, or one that the gateway knows not to have; kube-apiserver's own code
//! lists them (`tests/go/apiserverflags`).

use clap::{Arg, Args as _, Command};
use portcullis::internal::{ServeFlags, foreign_apiserver_flags};
use serde_json::{Value, json};
use testkit::go_program::GoProgram;

/// The flags of every command.
const OF_EVERY_COMMAND: [&str; 2] = ["help", "version"];

#[test]
fn every_flag_of_kube_apiserver_is_known() {
    let Some(program) = GoProgram::build("apiserverflags") else { return };
    let answers = program.ask(&[json!(null)]);
    let [Value::Array(all)] = answers.as_slice() else { panic!("no list") };
    assert!(all.len() > 150, "{}", all.len());
    let serve = ServeFlags::augment_args(Command::new("serve"));
    let needs_no_value =
        |argument: &Arg| !argument.get_action().takes_values() || argument.is_require_equals_set();
    let mut problems = Vec::new();
    for flag in all {
        let (name, is_switch) = (flag["name"].as_str().unwrap(), flag["isSwitch"].as_bool().unwrap());
        let ours =
            serve.get_arguments().find(|argument| argument.get_long() == Some(name)).map(needs_no_value);
        let foreign =
            foreign_apiserver_flags().find(|(foreign, _)| *foreign == name).map(|(_, is_switch)| is_switch);
        match ours.or(foreign) {
            None if OF_EVERY_COMMAND.contains(&name) => {}
            None => problems.push(format!("--{name} is unknown (a switch: {is_switch})")),
            Some(known) if known != is_switch => problems.push(format!("--{name} is a switch: {is_switch}")),
            Some(_) => {}
        }
    }
    assert_eq!(problems, [""; 0]);
    let is_of_kube_apiserver = |name: &str| all.iter().any(|flag| flag["name"] == name);
    let others: Vec<&str> =
        foreign_apiserver_flags().map(|(name, _)| name).filter(|name| !is_of_kube_apiserver(name)).collect();
    assert_eq!(others, ["advertise-port", "cloud-config", "cloud-provider"], "of k3s, and of older releases");
}
