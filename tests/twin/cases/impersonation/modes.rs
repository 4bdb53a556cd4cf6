//! The modes of impersonation, right by right. The requester is another user in each case, asserted by a front proxy,
//! because the message of a refusal depends on the mode that allowed the requester's last impersonation.
// apiserver: pkg/endpoints/filters/impersonation/{impersonation_test,constrained_impersonation_test}.go

use super::{ALL, GROUP};
use crate::case::{Case, get, whoami};

const ACCOUNT: &str = "system:serviceaccount:twin:default";
const ACCOUNT_GROUPS: &[&str] = &["system:serviceaccounts", "system:serviceaccounts:twin", ALL];
/// A group that may see who one is, also of unauthenticated users.
const REVIEWERS: &str = "reviewers";
const NODE: &str = "system:node:n1";

pub(super) fn cases() -> Vec<Case> {
    [legacy(), after_legacy(), user_info(), requests(), nodes_and_accounts(), many(), headers()].concat()
}

/// A request by a new user with these rights, as `user`.
fn as_user(case: Case, user: &str, rights: &[&str]) -> Case {
    let case = case.cert("front-proxy").header("X-Remote-User", "asker-{unique}");
    let case = rights.iter().fold(case, |case, right| case.header("X-Remote-Group", &format!("may:{right}")));
    if user.is_empty() { case } else { case.header("Impersonate-User", user) }
}

fn me(name: &str, user: &str, rights: &[&str]) -> Case {
    as_user(whoami(GROUP, name), user, rights)
}

trait As {
    fn group(self, group: &str) -> Self;
    fn groups(self, groups: &[&str]) -> Self;
    fn uid(self, uid: &str) -> Self;
    fn extra(self, key: &str, value: &str) -> Self;
}

impl As for Case {
    fn group(self, group: &str) -> Self {
        self.header("Impersonate-Group", group)
    }

    fn groups(self, groups: &[&str]) -> Self {
        groups.iter().fold(self, |case, group| case.group(group))
    }

    fn uid(self, uid: &str) -> Self {
        self.header("Impersonate-Uid", uid)
    }

    fn extra(self, key: &str, value: &str) -> Self {
        self.header(&format!("Impersonate-Extra-{key}"), value)
    }
}

fn legacy() -> Vec<Case> {
    let old = |name: &str, rights: &[&str]| me(&format!("legacy {name}"), "bob", rights);
    let unauthenticated = "system:unauthenticated";
    vec![
        old("user", &["legacy-user"]).is("bob", &[ALL]),
        old("named user", &["legacy-bob"]).is("bob", &[ALL]),
        me("legacy other user", "eve", &["legacy-bob"]).answers(403),
        old("right to another resource", &["legacy-nothing-core"]).answers(403),
        old("group without right to groups", &["legacy-user"]).group("g1").answers(403),
        old("group without right to the user", &["legacy-groups"]).group("g1").answers(403),
        old("group", &["legacy-user", "legacy-groups"]).group("g9").is("bob", &["g9", ALL]),
        old("named group", &["legacy-user", "legacy-some-groups"]).group("g1").is("bob", &["g1", ALL]),
        old("other group", &["legacy-user", "legacy-some-groups"]).group("g9").answers(403),
        old("second group refused", &["legacy-user", "legacy-some-groups"])
            .groups(&["g1", "g9"])
            .answers(403),
        old("groups of a role in a namespace", &["legacy-user", "groups-here"]).group("g1").answers(403),
        old("group twice", &["legacy-user", "legacy-groups"])
            .groups(&["g1", "g1"])
            .is("bob", &["g1", "g1", ALL]),
        old("masters", &["legacy-user", "legacy-groups"])
            .group("system:masters")
            .is("bob", &["system:masters", ALL]),
        old("authenticated is not added twice", &["legacy-user", "legacy-groups"])
            .group(ALL)
            .is("bob", &[ALL]),
        old("unauthenticated prevents authenticated", &["legacy-user", "legacy-groups"])
            .groups(&[unauthenticated, REVIEWERS])
            .is("bob", &[unauthenticated, REVIEWERS]),
        old("unauthenticated alone", &["legacy-user", "legacy-groups"]).group(unauthenticated).answers(403),
        me("legacy anonymous", "system:anonymous", &["legacy-user"])
            .answers(403)
            .contains("system:anonymous"),
        me("legacy anonymous with its group", "system:anonymous", &["legacy-user", "legacy-groups"])
            .groups(&[REVIEWERS, unauthenticated])
            .is("system:anonymous", &[REVIEWERS, unauthenticated]),
        me("legacy anonymous with a group", "system:anonymous", &["legacy-user", "legacy-groups"])
            .group(REVIEWERS)
            .is("system:anonymous", &[REVIEWERS, unauthenticated]),
        me("legacy anonymous but authenticated", "system:anonymous", &["legacy-user", "legacy-groups"])
            .group(ALL)
            .is("system:anonymous", &[ALL, unauthenticated]),
        old("uid", &["legacy-user", "legacy-uids"]).uid("7").is("bob", &[ALL]).contains(r#""uid":"7""#),
        old("named uid", &["legacy-user", "legacy-uid-7"]).uid("7").is("bob", &[ALL]),
        old("other uid", &["legacy-user", "legacy-uid-7"]).uid("8").answers(403),
        old("uid without right", &["legacy-user"]).uid("7").answers(403),
        old("extra", &["legacy-user", "legacy-scopes"])
            .extra("scopes", "a")
            .is("bob", &[ALL])
            .contains("scopes"),
        old("extra with another key", &["legacy-user", "legacy-scopes"]).extra("scope", "a").answers(403),
        old("extra below a domain", &["legacy-user", "legacy-project"])
            .extra("acme.io%2fproject", "x")
            .is("bob", &[ALL])
            .contains(r#""acme.io/project":["x"]"#),
        old("extra by the resource alone", &["legacy-user", "legacy-extras"])
            .extra("scopes", "a")
            .answers(403),
        old("extra by any resource", &["legacy-user", "legacy-all-extras"]).extra("k", "a").is("bob", &[ALL]),
        old("extra with an empty value", &["legacy-user", "legacy-scopes"])
            .extra("scopes", "")
            .is("bob", &[ALL]),
        old("extra value refused", &["legacy-user", "legacy-some-scopes"]).extra("scopes", "z").answers(403),
        old("everything", &["everything"]).group("x").uid("1").extra("k", "v").is("bob", &["x", ALL]),
        me("legacy account", ACCOUNT, &["legacy-accounts"]).is(ACCOUNT, ACCOUNT_GROUPS),
        me("legacy account with groups", ACCOUNT, &["legacy-accounts", "legacy-groups"])
            .group("g")
            .is(ACCOUNT, &["g", ALL]),
        me("legacy account by the right to users", ACCOUNT, &["legacy-user"]).answers(403),
        me("legacy name that is no account", "system:serviceaccount:twin:A", &["legacy-user"])
            .is("system:serviceaccount:twin:A", &[ALL]),
        me("legacy account with three parts", "system:serviceaccount:a:b:c", &["legacy-user"])
            .is("system:serviceaccount:a:b:c", &[ALL]),
        me("legacy account without a name", "system:serviceaccount:twin:", &["legacy-accounts"]).answers(403),
        me("legacy node", NODE, &["legacy-user"]).is(NODE, &[ALL]),
        me("legacy gateway's own name", "system:portcullis", &["legacy-user"])
            .is("system:portcullis", &[ALL]),
        me("legacy quotes and angles", "b\"<o>&b", &["legacy-user"]).answers(201),
        me("legacy accents", "bjørn-ü", &["legacy-user"]).is("bjørn-ü", &[ALL]),
        me("legacy refused accents", "bjørn-<ü>", &[]).answers(403),
    ]
}

/// Refusals after one success in the mode of old, whose message is then the first.
fn after_legacy() -> Vec<Case> {
    let after = |name: &str, user: &str, rights: &[&str]| {
        let rights = [&["legacy-bob"], rights].concat();
        let first = me(&format!("after a success {name}"), "bob", &rights).is("bob", &[ALL]);
        let second = first
            .then("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews")
            .json(r#"{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1"}"#);
        as_user(second, user, &rights)
    };
    let five = ["g1", "g2", "g3", "g4", "g5"];
    vec![
        after("another user", "eve", &[]).answers(403).contains(r#"users \"eve\" is forbidden"#),
        after("a group", "bob", &[]).group("g").answers(403).contains(r#"groups \"g\" is forbidden"#),
        after("a user before a group", "eve", &[]).group("g").answers(403).contains("eve"),
        after("a uid before a group", "bob", &[]).group("g").uid("7").answers(403).contains("uids"),
        after("a group before extra", "bob", &[]).group("g").extra("k", "v").answers(403).contains("groups"),
        after("extra", "bob", &[]).extra("k", "v").answers(403).contains("userextras/k"),
        after("the empty group", "bob", &[]).group("").answers(403),
        after("the empty group with right", "bob", &["legacy-groups"])
            .group("")
            .group("g1")
            .answers(201)
            .declared_by_decision("D-empty-group", 201),
        after("an account", ACCOUNT, &[]).answers(403).contains("serviceaccounts"),
        after("a node", NODE, &[]).answers(403).contains("system:node:n1"),
        after("the second group", "bob", &["legacy-some-groups"])
            .groups(&["g1", "g9"])
            .answers(403)
            .contains("g9"),
        after("the last of many groups", "bob", &["legacy-some-groups"])
            .groups(&["g1", "g2", "g3", "g4", "g5", "g9"])
            .answers(403)
            .contains("g9"),
        after("the first of many groups that is refused", "bob", &["legacy-some-groups"])
            .groups(&["g1", "x", "g3", "y", "g5", "z"])
            .answers(403)
            .contains(r#"groups \"x\""#),
        after("an asterisk among names", "bob", &["legacy-star-group"])
            .groups(&five)
            .answers(403)
            .contains("g4"),
        after("many groups of a role in a namespace", "bob", &["groups-here"])
            .groups(&five)
            .answers(403)
            .contains("g1"),
        after("many groups with right", "bob", &["legacy-groups"]).groups(&five).answers(201),
        after("the constrained mode", "eve", &["on-user-info", "user-info"]).is("eve", &[ALL]),
    ]
}

fn user_info() -> Vec<Case> {
    let new = |name: &str, rights: &[&str]| me(&format!("user-info {name}"), "bob", rights);
    let full = &["on-user-info", "user-info"];
    vec![
        new("user", full).is("bob", &[ALL]),
        new("without right to the request", &["user-info"])
            .answers(403)
            .contains("impersonate-on:user-info:create"),
        new("without right to the user", &["on-user-info"]).answers(403).contains("impersonate:user-info"),
        new("named user", &["on-user-info", "user-info-bob"]).is("bob", &[ALL]),
        me("user-info other user", "eve", &["on-user-info", "user-info-bob"]).answers(403).contains("eve"),
        new("rights in the core group", &["on-user-info", "user-info-core"]).answers(403),
        new("group", full).group("g9").is("bob", &["g9", ALL]),
        new("group without right", &["on-user-info", "user-info-user"]).group("g1").answers(403),
        new("named group", &["on-user-info", "user-info-user", "user-info-some-groups"])
            .group("g1")
            .is("bob", &["g1", ALL]),
        new("masters", full).group("system:masters").answers(403).contains("not allowed"),
        new("masters among others", full)
            .groups(&["g1", "system:masters"])
            .answers(403)
            .contains("not allowed"),
        new("empty group", full).group("").answers(403).contains("empty string group"),
        new("masters with the old right", &["on-user-info", "user-info", "legacy-user", "legacy-groups"])
            .group("system:masters")
            .is("bob", &["system:masters", ALL]),
        new("uid", full).uid("7").is("bob", &[ALL]).contains(r#""uid":"7""#),
        new("uid without right", &["on-user-info", "user-info-user"]).uid("7").answers(403),
        new("extra", &["on-user-info", "user-info-user", "user-info-project"])
            .extra("acme.io%2Fproject", "x")
            .is("bob", &[ALL])
            .contains(r#""acme.io/project":["x"]"#),
        new("extra without right", full).extra("acme.io%2Fproject", "x").answers(403),
        new("extra without a domain", full).extra("project", "x").answers(403).contains("domain-prefixed"),
        new("extra with an upper-case key", full)
            .extra("acme.io%2F%50roject", "x")
            .answers(403)
            .contains("non-lowercase"),
        new("extra with a bad domain", full)
            .extra("acme_io%2Fproject", "x")
            .answers(403)
            .contains("RFC 1123"),
        new("extra with a bad path", full)
            .extra("acme.io%2Fpro%20ject", "x")
            .answers(403)
            .contains("Invalid path"),
        new("extra with a bad domain and path", full).extra("acme_io%2Fpro%20ject", "x").answers(403),
        new("extra without a key", full).extra("", "x").answers(403).contains("empty string key"),
        new("extra with an empty value", full)
            .extra("acme.io%2Fproject", "")
            .answers(403)
            .contains("empty string value"),
        new("extra with a slash alone", full).extra("%2F", "x").answers(403),
        me("user-info anonymous", "system:anonymous", full)
            .group(REVIEWERS)
            .is("system:anonymous", &[REVIEWERS, "system:unauthenticated"]),
        me("user-info name like a node", "system:node:N1", full).is("system:node:N1", &[ALL]),
        me("user-info node", NODE, full).answers(403),
        me("user-info account", ACCOUNT, full).answers(403),
        me("user-info node with a group", NODE, full)
            .group("g1")
            .answers(403)
            .contains("cannot impersonate resource"),
    ]
}

/// The right to the request itself.
fn requests() -> Vec<Case> {
    let to = |name: &str, target: &str, rights: &[&str]| {
        as_user(get(GROUP, &format!("request {name}"), target), "bob", rights)
    };
    let bob = &["on-user-info", "user-info-bob"];
    vec![
        to("get", "/api/v1/namespaces/twin-fixed/configmaps/alpha", bob).answers(200).contains("alpha"),
        to("list", "/api/v1/namespaces/twin-fixed/configmaps?limit=1", bob).answers(200),
        to(
            "list by label",
            "/api/v1/namespaces/twin-fixed/configmaps?labelSelector=parity%3Deven,a!%3Db",
            bob,
        )
        .answers(200),
        to(
            "list by field",
            "/api/v1/namespaces/twin-fixed/configmaps?fieldSelector=metadata.name%3Dalpha",
            bob,
        )
        .answers(200),
        to("list by a bad selector", "/api/v1/namespaces/twin-fixed/configmaps?labelSelector=%21%21", bob)
            .answers(400),
        to("what the target may not", "/api/v1/namespaces/twin-fixed/secrets/hidden", bob)
            .answers(403)
            .contains(r#"User \"bob\" cannot get"#),
        to(
            "verb without right",
            "/api/v1/namespaces/twin-fixed/configmaps/alpha",
            &["on-get-pods", "user-info-bob"],
        )
        .answers(403)
        .contains("impersonate-on:user-info:get"),
        to(
            "name with right",
            "/api/v1/namespaces/twin-fixed/configmaps/alpha",
            &["on-get-alpha", "user-info-bob"],
        )
        .answers(200),
        to(
            "name without right",
            "/api/v1/namespaces/twin-fixed/configmaps/beta",
            &["on-get-alpha", "user-info-bob"],
        )
        .answers(403)
        .contains("beta"),
        to(
            "subresource without right",
            "/api/v1/namespaces/twin-fixed/pods/idle/log",
            &["on-get-pods", "user-info-bob"],
        )
        .answers(403)
        .contains("pods/log"),
        to(
            "subresource with right",
            "/api/v1/namespaces/twin-fixed/pods/absent/log",
            &["on-logs", "user-info-bob"],
        )
        .answers(404),
        to("path", "/version", bob).answers(200),
        to("path without right", "/openapi/v2", bob).answers(403).contains("impersonate-on:user-info:get"),
        to("unknown group", "/apis/example.com/v1/things/x", bob).answers(403),
    ]
}

fn nodes_and_accounts() -> Vec<Case> {
    let arbitrary = &["on-arbitrary-node", "arbitrary-node-n1"];
    let nodes = &["system:nodes", ALL];
    let on_node = |case: Case, node: &str| {
        let case = case.header("X-Remote-Extra-authentication.kubernetes.io%2fnode-name", node);
        case.header("X-Remote-Extra-authentication.kubernetes.io%2fpod-name", "p-{unique}")
    };
    // A service account of its own: the requester of the other cases is a user.
    let agent = |name: &str, node: &str, rights: &[&str]| {
        let case = whoami(GROUP, &format!("agent {name}")).cert("front-proxy");
        let case = case.header("X-Remote-User", "system:serviceaccount:twin:agent-{unique}");
        let case =
            rights.iter().fold(case, |case, right| case.header("X-Remote-Group", &format!("may:{right}")));
        on_node(case, node).header("Impersonate-User", NODE)
    };
    let associated = &["on-associated-node", "associated-node"];
    vec![
        me("node", NODE, arbitrary).is(NODE, nodes),
        me("other node", "system:node:n2", arbitrary).answers(403).contains("n2"),
        me("node without right to the request", NODE, &["arbitrary-node-n1"])
            .answers(403)
            .contains("impersonate-on:arbitrary-node"),
        me("node without right to nodes", NODE, &["on-arbitrary-node"])
            .answers(403)
            .contains("nodes.authentication.k8s.io"),
        me("node with a uid", NODE, arbitrary).uid("7").answers(403),
        me("node with a group", NODE, arbitrary).group("g").answers(403),
        me("node with its group", NODE, arbitrary).group("system:nodes").answers(403),
        me("node of a bad name", "system:node:N1", arbitrary).answers(403),
        me("node without a name", "system:node:", arbitrary).answers(403),
        me("node by the right to associated nodes", NODE, associated).answers(403),
        agent("of its node", "n1", associated).is(NODE, nodes),
        agent("of another node", "n2", associated).answers(403).contains("arbitrary-node"),
        agent("with the name of the node", "n1", &["on-associated-node", "associated-node-n1"])
            .answers(403)
            .contains(r#"\"*\""#),
        agent("with the name of all nodes", "n1", &["on-associated-node", "associated-node-star"])
            .is(NODE, nodes),
        agent("without right to the request", "n1", &["associated-node"])
            .answers(403)
            .contains("impersonate-on:associated-node"),
        agent("without right to nodes", "n1", &["on-associated-node"]).answers(403),
        agent("by the right to any node", "n1", arbitrary).is(NODE, nodes),
        agent("of two nodes", "n1", associated)
            .header("X-Remote-Extra-authentication.kubernetes.io%2fnode-name", "n2")
            .answers(403),
        agent("with a group", "n1", associated).group("g").answers(403),
        on_node(me("user of a node is no agent", NODE, associated), "n1").answers(403),
        me("account", ACCOUNT, &["on-serviceaccount", "serviceaccount"]).is(ACCOUNT, ACCOUNT_GROUPS),
        me("account by a role in its namespace", ACCOUNT, &["on-serviceaccount", "account-here"])
            .is(ACCOUNT, ACCOUNT_GROUPS),
        me(
            "account of another namespace",
            "system:serviceaccount:default:default",
            &["on-serviceaccount", "account-here"],
        )
        .answers(403)
        .contains("in the namespace"),
        me("named account", ACCOUNT, &["on-serviceaccount", "serviceaccount-named"])
            .is(ACCOUNT, ACCOUNT_GROUPS),
        me(
            "other account",
            "system:serviceaccount:twin:other",
            &["on-serviceaccount", "serviceaccount-named"],
        )
        .answers(403),
        me("account without right to the request", ACCOUNT, &["serviceaccount"])
            .answers(403)
            .contains("impersonate-on:serviceaccount"),
        me("account with a group", ACCOUNT, &["on-serviceaccount", "serviceaccount"]).group("g").answers(403),
        me("account with a uid", ACCOUNT, &["on-serviceaccount", "serviceaccount"]).uid("7").answers(403),
    ]
}

/// Many groups and extra values, for which kube-apiserver first asks for all at once.
fn many() -> Vec<Case> {
    let many: Vec<String> = (0..200).map(|number| format!("team-{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let with_all: Vec<&str> = many.iter().copied().chain([ALL]).collect();
    let five = ["g1", "g2", "g3", "g4", "g5"];
    let five_and_all = ["g1", "g2", "g3", "g4", "g5", ALL];
    let six = ["g1", "g2", "g3", "g4", "g5", "g9"];
    let info = |rights: &[&'static str]| [&["on-user-info", "user-info-user"], rights].concat();
    vec![
        me("many groups legacy", "bob", &["legacy-user", "legacy-groups"]).groups(&many).is("bob", &with_all),
        me("many groups legacy refused", "bob", &["legacy-user"]).groups(&many).answers(403),
        me("five named groups legacy", "bob", &["legacy-user", "legacy-some-groups"])
            .groups(&five)
            .is("bob", &five_and_all),
        me("the last of many groups legacy", "bob", &["legacy-user", "legacy-some-groups"])
            .groups(&six)
            .answers(403),
        me("an asterisk is a name legacy", "bob", &["legacy-user", "legacy-star-group"])
            .groups(&five)
            .answers(403),
        me("many groups of a role in a namespace", "bob", &["legacy-user", "groups-here"])
            .groups(&five)
            .answers(403),
        me("many groups by everything", "bob", &["everything"]).groups(&five).is("bob", &five_and_all),
        me("many groups", "bob", &["on-user-info", "user-info"]).groups(&many).is("bob", &with_all),
        me("many groups by an asterisk", "bob", &info(&["user-info-star-group"]))
            .groups(&many)
            .is("bob", &with_all),
        me("three groups by an asterisk", "bob", &info(&["user-info-star-group"]))
            .groups(&["g1", "g2", "g3"])
            .answers(403),
        me("five named groups", "bob", &info(&["user-info-some-groups"]))
            .groups(&five)
            .is("bob", &five_and_all),
        me("the last of many groups", "bob", &info(&["user-info-some-groups"]))
            .groups(&six)
            .answers(403)
            .contains("g9"),
        me("masters among many", "bob", &info(&["user-info-star-group"]))
            .groups(&["g1", "g2", "g3", "g4", "system:masters"])
            .answers(403)
            .contains("not allowed"),
        ["a", "b", "c", "d"]
            .iter()
            .fold(
                me("many extra values legacy", "bob", &["legacy-user", "legacy-some-scopes"]),
                |case, value| case.extra("scopes", value),
            )
            .is("bob", &[ALL]),
        ["a", "b", "c", "d", "e"]
            .iter()
            .fold(
                me("one of many extra values legacy", "bob", &["legacy-user", "legacy-some-scopes"]),
                |case, value| case.extra("scopes", value),
            )
            .answers(403),
        ["a", "b", "c", "d"]
            .iter()
            .fold(me("many extra values", "bob", &info(&["user-info-project"])), |case, value| {
                case.extra("acme.io%2Fproject", value)
            })
            .is("bob", &[ALL]),
        ["a", "b", "c", "d"]
            .iter()
            .fold(
                me("many extra keys by an asterisk", "bob", &info(&["user-info-star-extras"])),
                |case, key| case.extra(&format!("acme.io%2F{key}"), "v"),
            )
            .is("bob", &[ALL]),
        me("few extra values by an asterisk", "bob", &info(&["user-info-star-extras"]))
            .extra("acme.io%2Fa", "v")
            .extra("acme.io%2Fa", "w")
            .answers(403),
    ]
}

/// How headers are read.
fn headers() -> Vec<Case> {
    let all = &["everything"];
    let old = |name: &str| {
        me(
            &format!("header {name}"),
            "bob",
            &["legacy-user", "legacy-groups", "legacy-uids", "legacy-all-extras"],
        )
    };
    let without = |name: &str| me(&format!("header {name}"), "", all);
    vec![
        old("second user").header("Impersonate-User", "eve").is("bob", &[ALL]),
        old("second uid").uid("7").uid("8").is("bob", &[ALL]).contains(r#""uid":"7""#),
        old("extra twice").extra("k", "a").extra("k", "b").is("bob", &[ALL]).contains(r#""k":["a","b"]"#),
        old("extra in two spellings").extra("K", "a").extra("k", "b").is("bob", &[ALL]),
        old("escaped extra").extra("a%20b", "v").is("bob", &[ALL]).contains(r#""a b":["v"]"#),
        old("extra with a broken escape").extra("a%zzb", "v").is("bob", &[ALL]).contains(r#""a%zzb":["v"]"#),
        old("doubly escaped extra").extra("a%2520b", "v").is("bob", &[ALL]).contains(r#""a%20b":["v"]"#),
        old("escaped capital").extra("%4Bey", "v").is("bob", &[ALL]).contains(r#""Key":["v"]"#),
        old("plus").extra("a+b", "v").is("bob", &[ALL]).contains(r#""a+b":["v"]"#),
        without("groups without user")
            .groups(&["a", "b\"c"])
            .answers(400)
            .contains(r#"Groups:[]string{\"a\", \"b\\\"c\"}"#),
        without("uid without user").uid("u").answers(400).contains(r#"UID:\"u\""#),
        without("extra without user")
            .extra("k%2f", "v")
            .answers(400)
            .contains(r#"map[string][]string{\"k/\":[]string{\"v\"}}"#),
        without("extras without user").extra("k", "v").extra("a", "w").extra("a", "").answers(400),
        without("empty user with a group").header("Impersonate-User", "").group("g").answers(400),
        without("empty user").header("Impersonate-User", "").answers(201),
        without("empty user before another")
            .header("Impersonate-User", "")
            .header("Impersonate-User", "bob")
            .answers(201),
        without("empty uid").uid("").answers(201),
        without("empty uid before another").uid("").uid("u").answers(201),
        old("user that ends with a space over http2")
            .header("Impersonate-Group", "g1 ")
            .only(crate::case::H2)
            .is("bob", &["g1 ", ALL])
            .declared("D-impersonated-bytes", 400),
        old("bytes that are no text")
            .header_bytes("Impersonate-Group", b"g\xff")
            .answers(201)
            .declared("D-impersonated-bytes", 400),
        me("header blank user on http1", " ", all).only(crate::case::H1).answers(201),
        old("user in the other namespace").header("X-Remote-Group", "may:nothing").is("bob", &[ALL]),
    ]
}
